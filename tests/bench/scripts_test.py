"""bench/loaded.sh and bench/cpu_run.sh with a program that pretends: what fails is told from what is slow."""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
PROCESSORS = len(os.sched_getaffinity(0))

# Prints the next of the rates in the file `rates` beside it; without one, ends with 9.
PROGRAM = """#!/bin/sh
case $1 in env) echo '  "cpu_level": "avx2",'; exit ;; esac
case $* in *--format\\ csv*) ;; *) echo {}; exit ;; esac
rates=$(dirname "$0")/rates
rate=$(head -n 1 "$rates")
sed -i 1d "$rates"
[ -n "$rate" ] || exit 9
echo test,threads,tokens_per_second,more
echo "tg128,1,$rate,0"
"""


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="halfbyte-bench-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.program = self.write("build/release/halfbyte", PROGRAM)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def rates(self, *rates):
        self.write("build/release/rates", "".join(f"{rate}\n" for rate in rates))

    def run_it(self, *command):
        return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)


class Loaded(Folder):
    def loaded(self, *arguments):
        return self.run_it(SOURCE / "bench/loaded.sh", *arguments)

    def measured(self, *rates):
        if PROCESSORS < 2:
            self.skipTest("two processors are needed")
        self.rates(*rates)
        return self.loaded("model", self.program)

    def test_wrong_arguments_are_answered_with_the_usage(self):
        for arguments in [], ["a", "b", "c"]:
            run = self.loaded(*arguments)
            self.assertEqual((run.returncode, run.stdout), (2, ""))
            self.assertEqual(run.stderr, "usage: bench/loaded.sh MODEL [PROGRAM]; "
                             f"{len(arguments)} arguments given, PROGRAM is build/release/halfbyte by default\n")

    def test_a_fair_share_is_0_and_less_is_3(self):
        for busy2, code in [(100, 0), (60, 3)]:
            run = self.measured(100, 200, 66.7, busy2)
            self.assertEqual((run.returncode, run.stderr), (code, ""))
            self.assertEqual(len(run.stdout.splitlines()), 4, run.stdout)
            self.assertIn(f"| 2 | 200.0 | {busy2}.0 | 100.0 | {100 / busy2:.2f} x |", run.stdout)

    def test_a_program_that_fails_at_any_moment_is_1_without_a_table(self):
        for rates in [], [100], [100, 200], [100, 200, 70]:
            run = self.measured(*rates)
            self.assertEqual((run.returncode, run.stdout), (1, ""), rates)
            self.assertEqual(run.stderr, f"loaded.sh: {self.program} bench -m model --threads {1 + len(rates) % 2} "
                             "ended with exit code 9; it must run to be measured\n")

    def test_a_program_that_prints_no_rate_is_1(self):
        for rate in ["x", "0.00"]:
            run = self.measured(rate)
            self.assertEqual((run.returncode, run.stdout), (1, ""))
            self.assertIn("is needed", run.stderr)
            self.assertNotIn("Traceback", run.stderr)

    def test_a_program_that_is_not_there_is_1(self):
        if PROCESSORS < 2:
            self.skipTest("two processors are needed")
        run = self.loaded("model", "/nonexistent")
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertIn("/nonexistent bench -m model --threads 1 ended with", run.stderr)

    def test_one_processor_is_77(self):
        one = min(os.sched_getaffinity(0))
        run = self.run_it("taskset", "-c", one, SOURCE / "bench/loaded.sh", "model", self.program)
        self.assertEqual((run.returncode, run.stdout), (77, ""))


class CpuRun(Folder):
    def setUp(self):
        super().setUp()
        for name in "cpu_run.sh", "loaded.sh":
            self.write(f"bench/{name}", (SOURCE / "bench" / name).read_text())
        for name in "scripts/get_model.sh", "scripts/get_text.sh", "bench/instructions.sh", "bench/performance_tables.py":
            self.write(name, f"#!/bin/sh\necho {name}\n")
        self.results = self.folder / "results"
        self.write("results/commit", "")  # no repository here

    def cpu_run(self):
        if PROCESSORS < 2:
            self.skipTest("two processors are needed")
        return self.run_it(self.folder / "bench/cpu_run.sh", self.results)

    def test_a_failure_ends_it_and_leaves_no_result(self):
        self.rates(100)
        run = self.cpu_run()
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("ended with exit code 9", run.stderr)
        self.assertFalse((self.results / "loaded.md").exists())
        self.assertFalse((self.results / "instructions.md").exists())
        self.assertNotIn("performance_tables", run.stdout)

    def test_slowness_is_a_result(self):
        self.rates(100, 200, 10, 10)
        run = self.cpu_run()
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("10.00 x", (self.results / "loaded.md").read_text())
        self.assertIn("performance_tables", run.stdout)

    def test_a_program_that_does_not_know_its_level_ends_it(self):
        self.program.write_text(PROGRAM.replace("echo '  \"cpu_level\": \"avx2\",'; exit", "exit 5"))
        run = self.cpu_run()
        self.assertEqual(run.returncode, 5, run.stderr)

    def test_wrong_arguments_are_answered_with_the_usage(self):
        run = self.run_it(self.folder / "bench/cpu_run.sh")
        self.assertEqual((run.returncode, run.stderr), (2, "usage: bench/cpu_run.sh RESULTS [PEER]; 0 arguments given\n"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
