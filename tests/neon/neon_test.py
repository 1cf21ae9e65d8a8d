"""neon_test.py HASHES QEMU HASHES_AARCH64: the AArch64 levels, run by qemu, give the hashes of the host."""
import subprocess
import sys
import unittest

host, qemu, program = sys.argv[1:4]


def output_of(*command):
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if run.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {run.returncode}:\n{run.stderr}")
    return run.stdout.splitlines()


class Neon(unittest.TestCase):
    def test_every_hash_is_the_hosts(self):
        expected, actual = output_of(host), output_of(qemu, "-cpu", "max", program)
        self.assertGreater(len(expected), 200)
        differing = [f"{a} on AArch64, here {e}" for a, e in zip(actual, expected) if a != e]
        self.assertEqual(differing, [], f"{len(differing)} of {len(expected)} cases differ")
        self.assertEqual(len(actual), len(expected))

    def test_a_processor_with_dot_products_runs_every_level(self):
        self.assertEqual(output_of(qemu, "-cpu", "max", program, "--levels"),
                         ["scalar: yes", "neon: yes", "neon_dotprod: yes", "chosen: neon_dotprod"])

    def test_a_processor_without_them_runs_neon(self):
        self.assertEqual(output_of(qemu, "-cpu", "cortex-a57", program, "--levels"),
                         ["scalar: yes", "neon: yes",
                          "neon_dotprod: the processor or the operating system has no dot products (ASIMDDP)",
                          "chosen: neon"])


unittest.main(argv=sys.argv[:1], verbosity=2)
