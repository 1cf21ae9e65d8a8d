"""Runs that are stopped, disks that are full, files that vanish: a clear error, and nothing half."""

import collections
import errno
import json
import math
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import unittest
from pathlib import Path

import support
from support import FAILURE, INTERRUPTED, OK, PROGRAM, USAGE, TestCase, TinyModel, halfbyte, write_text
from traced import Traced, works


ROOT = os.geteuid() == 0
FEWER = 3 if support.SANITIZE else 1  # moments: each takes some tenths of a second there


def spread(count, moments):
    """About `count` of them, the first and the last among them."""
    count = max(2, count // FEWER)
    return sorted({moments[i * (len(moments) - 1) // (count - 1)] for i in range(count)})


class Writers:
    """quantize and logits, and what they write when nothing happens."""

    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where fsync takes no time

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.work.chmod(0o755)
        cls.model = TinyModel().write(cls.work / "model")
        cls.reference, cls.place = {}, cls.work / "place"
        for writer in ["quantize", "logits"]:
            cls.place.mkdir()
            made = halfbyte(*cls.command(writer))
            assert made.code == OK, made
            cls.reference[writer] = cls.content()
            shutil.rmtree(cls.place)

    def setUp(self):
        self.fresh_place()

    def fresh_place(self):
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()

    @classmethod
    def command(cls, writer, *options):
        if writer == "quantize":
            return ["quantize", "-m", cls.model, "-o", cls.place / "out", "--scheme", "NVFP4A16", *options]
        return ["logits", "-m", cls.model, "--tokens", ",".join(["7"] * 200), "-o", cls.place / "out", *options]

    @classmethod
    def content(cls):
        """Every byte below the place."""
        return {str(path.relative_to(cls.place)): path.read_bytes() for path in cls.place.rglob("*") if path.is_file()}

    def names(self):
        return sorted(path.name for path in self.place.iterdir())

    def assert_whole(self, writer):
        self.assertEqual(self.content(), self.reference[writer])


@unittest.skipUnless(works(), "ptrace is not allowed here")
class Moments(Writers, TestCase):
    """A signal at chosen moments, before and after system calls: from the first trace of a writer on disk to its end."""

    def held_at_first_trace(self, writer, *options):
        before = self.names()
        run = Traced(*self.command(writer, *(options if "--threads" in options else ["--threads", "1", *options])))
        while run.step() and self.names() == before:
            pass
        return run

    def held_at(self, moment, writer, *options):
        run = self.held_at_first_trace(writer, *options)
        for _ in range(moment):
            run.ended or run.step()
        return run

    def held_when(self, reached, writer):
        """As soon as a condition on the names in the place holds."""
        run = self.held_at_first_trace(writer)
        while not reached(self.names()):
            self.assertTrue(run.step())
        return run

    def survey(self, writer):
        """The moments as numbers of steps from the first trace, and those among them at calls that are rare; self.calls."""
        self.fresh_place()
        calls = []
        with self.held_at_first_trace(writer) as run:
            while run.step():
                calls.append(run.call())
            self.assertEqual(run.go_on()[0], OK)
        self.assert_whole(writer)
        self.fresh_place()
        self.calls = calls
        seen = collections.Counter(calls)
        moments = list(range(len(calls) - 8))  # the last ones, after all work, differ from run to run
        rare = [moment for moment in moments[1:] if seen[calls[moment - 1]] <= 2]
        return moments, spread(len(rare), rare)

    def stopped_at(self, moment, writer, number, *options):
        """(exit code, stdout, stderr) of a writer that got the signal at a moment: a number of steps, or a condition on the
        names in the place."""
        held = self.held_when if callable(moment) else self.held_at
        with held(moment, writer, *options) as run:
            return run.go_on(number)

    def test_sigkill_leaves_what_the_next_run_removes(self):
        for writer, count in [("quantize", 30), ("logits", 16)]:
            moments, rare = self.survey(writer)
            counts = collections.Counter()
            locked, renamed = (lambda names: len(names) == 1), (lambda names: "out" in names and len(names) == 2)
            for moment in [locked, renamed, *sorted({*spread(count, moments), *rare})]:
                with self.subTest(writer=writer, moment=moment):
                    self.fresh_place()
                    code, _, _ = self.stopped_at(moment, writer, signal.SIGKILL)
                    if code == OK:  # this run took fewer steps than the one that was surveyed
                        counts["ended"] += 1
                        self.assert_whole(writer)
                        continue
                    self.assertEqual(code, -signal.SIGKILL)
                    left = self.names()
                    kinds = [re.sub(r"out\.partial-\w{6}", "folder", name) for name in left]
                    self.assertIn(kinds, [["folder", "folder.lock"], ["folder.lock"], ["out", "folder.lock"], ["out"],
                                          ["out", "folder", "folder.lock"]])  # a file that was moved out of the folder
                    counts["out" in left, len(left)] += 1
                    if "out" in left:  # put in place already
                        self.assertEqual({name: raw for name, raw in self.content().items() if ".lock" not in name},
                                         self.reference[writer])
                    else:
                        told = halfbyte(*self.command(writer))
                        self.assertEqual(told.code, OK, told)
                        # A lock without its text yet is nothing to tell of.
                        if len(left) == 2:
                            self.assertRegex(told.err, rf"^halfbyte: warning: {self.place}/out\.partial-\w{{6}}: left by a "
                                                       r"run that was stopped; remove it, or let --force do so\n$")
                        self.assertEqual(self.names(), ["out", *left])
                    self.assertEqual(self.ok(*self.command(writer, "--force")).err, "")
                    self.assert_whole(writer)
            self.assertLess(counts["ended"], 4)
            self.assertGreaterEqual(counts[False, 2], 10 // FEWER)  # in the middle of the write
            self.assertGreater(counts[False, 1], 0)  # between the lock and its folder
            self.assertGreater(counts[True, 2], 0)   # between the renaming and the end

    def test_sigkill_while_an_old_output_is_replaced(self):
        moments, rare = self.survey("quantize")
        self.ok(*self.command("quantize"))
        (self.place / "out/README.md").write_text("old")
        old = self.content()
        for moment in [*rare, *spread(10, moments)]:
            with self.subTest(moment=moment):
                self.stopped_at(moment, "quantize", signal.SIGKILL, "--force")
                out = {name: raw for name, raw in self.content().items() if name.startswith("out/")}
                self.assertIn(out, [old, self.reference["quantize"]])
                self.ok(*self.command("quantize", "--force"))
                self.assert_whole("quantize")
                (self.place / "out/README.md").write_text("old")

    def test_other_signals_leave_nothing(self):
        for number, writer, count in [(signal.SIGINT, "quantize", 20), (signal.SIGINT, "logits", 12),
                                      (signal.SIGTERM, "quantize", 5), (signal.SIGHUP, "logits", 5)]:
            moments, rare = self.survey(writer)
            counts = collections.Counter()
            for moment in sorted({*spread(count, moments), *rare}):
                with self.subTest(signal=number, writer=writer, moment=moment):
                    self.fresh_place()
                    code, out, err = self.stopped_at(moment, writer, number)
                    counts[code] += 1
                    if code == OK:  # in its last steps, when OUT was being put in place
                        self.assert_whole(writer)
                    else:
                        self.assertEqual((code, out, err), (128 + number, "", "halfbyte: error: interrupted\n"))
                        self.assertEqual(self.names(), [])
            self.assertGreaterEqual(counts[128 + number], count * 2 // 3 // FEWER)
        self.assertEqual(128 + signal.SIGINT, INTERRUPTED)

    def test_a_second_interrupt_ends_the_program_at_once_and_leaves_nothing(self):
        moments, _ = self.survey("quantize")
        with self.held_at(moments[len(moments) // 2], "quantize") as run:
            os.kill(run.pid, signal.SIGINT)
            os.kill(run.pid, signal.SIGTERM)
            code, _, err = run.go_on()
        self.assertIn(code, [128 + signal.SIGINT, 128 + signal.SIGTERM])
        self.assertEqual((err, self.names()), ("", []))

    def test_a_run_that_goes_on_is_left_alone(self):
        for writer in ["quantize", "logits"]:
            moments, _ = self.survey(writer)
            with self.held_at(moments[len(moments) // 2], writer) as run:
                before = self.content()
                self.assertEqual(len(self.names()), 2)
                for options in [[], ["--force"]]:
                    self.refused(USAGE, [f"{self.place}/out", "another run is writing it now"], *self.command(writer, *options))
                self.assertEqual(self.content(), before)
                code, _, err = run.go_on()
            self.assertEqual((code, err), (OK, ""))
            self.assert_whole(writer)
            self.fresh_place()

    def test_without_locks_nothing_is_taken_for_left_over(self):
        """Some file systems have no flock: then a run that goes on cannot be told from one that was killed."""
        without_flock = self.failing({"x86_64": 73, "aarch64": 32}, errno.ENOTSUP)
        moments, _ = self.survey("quantize")
        self.stopped_at(moments[len(moments) // 2], "quantize", signal.SIGKILL)
        before = self.content()
        for options in [[], ["--force"]]:
            self.assertEqual(self.ok(*self.command("quantize", *options), preexec_fn=without_flock).err, "")
            after = self.content()
            self.assertEqual({name: after.pop(name) for name in before}, before)
            self.assertEqual(after, self.reference["quantize"])

    def test_an_output_that_appears_meanwhile_stays(self):
        for writer in ["quantize", "logits"]:
            moments, _ = self.survey(writer)
            for moment in spread(4, moments[:len(moments) // 2]):
                with self.held_at(moment, writer) as run:
                    (self.place / "out").mkdir()
                    (self.place / "out/thesis").write_text("years of work")
                    code, _, err = run.go_on()
                self.assertEqual(code, USAGE)
                self.assertIn(f"{self.place}/out: appeared meanwhile", err)
                self.assertEqual(self.content(), {"out/thesis": b"years of work"})
                shutil.rmtree(self.place / "out")

    def test_a_parent_that_is_removed_meanwhile(self):
        for writer in ["quantize", "logits"]:
            moments, rare = self.survey(writer)
            codes = collections.Counter()
            for moment in sorted({*spread(10, moments), *rare}):
                with self.subTest(writer=writer, moment=moment):
                    self.fresh_place()
                    with self.held_at(moment, writer) as run:
                        shutil.rmtree(self.place)
                        code, _, err = run.go_on()
                    codes[code] += 1
                    if code != OK:
                        self.assertEqual(code, FAILURE)
                        self.assertRegex(err, rf"^halfbyte: error: {self.place}\S*: [^\n]*No such file or directory\n$")
                    self.assertFalse(self.place.exists())
            self.assertGreater(codes[FAILURE], 8 // FEWER)

    def test_a_source_that_is_cut_meanwhile(self):
        weights = self.model / "model.safetensors"
        whole = weights.read_bytes()
        self.addCleanup(weights.write_bytes, whole)
        for writer in ["quantize", "logits"]:
            moments, _ = self.survey(writer)
            moments = moments[1:len(moments) // 3]  # while the source is read
            number = {"x86_64": 1, "aarch64": 64}.get(os.uname().machine)  # of write, whose data may be in the mapped file
            writes = [moment for moment in moments if self.calls[moment - 1] == number]
            for size in [0, 5000, len(whole) - 1]:
                for moment in sorted({*spread(8, moments), *writes[:6 // FEWER]}):
                    with self.subTest(writer=writer, size=size, moment=moment):
                        self.fresh_place()
                        with self.held_at(moment, writer, "--threads", "2" if moment % 2 else "1") as run:
                            os.truncate(weights, size)
                            code, out, err = run.go_on()
                        weights.write_bytes(whole)
                        self.assertEqual((code, out), (FAILURE, ""))
                        self.assertRegex(err, rf"^halfbyte: error: {weights}: became shorter while it was read[:;][^\n]*run again "
                                              r"when the file is whole\n$")
                        self.assertEqual(self.names(), [])

    def test_every_command_notices(self):
        """One byte less is in the last page, which reads as zeros then and raises no signal."""
        text, made = write_text(self.work / "text.txt", 300), self.work / "made"
        self.ok("quantize", "-m", self.model, "-o", made, "--scheme", "NVFP4A16")
        gguf = TinyModel("F16").write_gguf(self.work / "tiny.gguf")
        windows = ["-f", text, "--windows", "1", "--window-size", "8"]
        for command, weights in [(["inspect", made], made), (["inspect", gguf], gguf), (["generate", "-m", made, "-p", "x"], made),
                                 (["perplexity", "-m", made, *windows], made),
                                 (["perplexity", "-m", made, "--source", gguf, *windows], gguf),
                                 (["logits", "-m", gguf, "--tokens", "1", "-o", self.place / "out"], gguf),
                                 (["quantize", "-m", gguf, "-o", self.place / "out", "--scheme", "NVFP4A16"], gguf)]:
            file = weights if weights == gguf else weights / "model.safetensors"
            whole = file.read_bytes()
            for size, form in [(len(whole) - 1, r": \d+ bytes of \d+ are left"), (0, "")]:
                with self.subTest(command=command[0], size=size), Traced(*command, "--threads", "1") as run:
                    maps = Path(f"/proc/{run.pid}/maps")
                    while str(file) not in maps.read_text():
                        self.assertTrue(run.step())
                    os.truncate(file, size)
                    code, out, err = run.go_on()
                    file.write_bytes(whole)
                    self.assertEqual((code, "" if command[0] == "generate" else out), (FAILURE, ""))  # that one streams
                    self.assertRegex(err, f"^halfbyte: error: {file}: became shorter while it was read{form}; run again when the "
                                          r"file is whole\n$")
                    self.assertEqual(self.names(), [])

    def test_a_source_that_is_written_to_meanwhile(self):
        weights = self.model / "model.safetensors"
        moments, _ = self.survey("quantize")
        with self.held_at(moments[len(moments) // 3], "quantize") as run:
            with open(weights, "r+b") as file:
                file.write(weights.read_bytes()[:8])
            code, _, err = run.go_on()
        self.assertEqual((code, err), (FAILURE, f"halfbyte: error: {weights}: was written to while it was read; run again when "
                                                "nothing changes the file any more\n"))
        self.assertEqual(self.names(), [])

    def test_a_source_that_is_removed_or_replaced_meanwhile_is_read_to_its_end(self):
        aside = self.work / "aside"
        for writer in ["quantize", "logits"]:
            moments, _ = self.survey(writer)
            for moment in spread(5, moments):
                for replaced in [False, True]:
                    with self.held_at(moment, writer) as run:
                        self.model.rename(aside)
                        if replaced:
                            TinyModel(seed=2).write(self.model)
                        code, _, err = run.go_on()
                    shutil.rmtree(self.model, ignore_errors=True)
                    aside.rename(self.model)
                    self.assertEqual((code, err), (OK, ""))
                    self.assert_whole(writer)
                    self.fresh_place()


class Space(Writers, TestCase):
    def in_namespace(self, script, writer, *options):
        """Runs a writer in mounts of its own that a shell script makes ($0 is the place): (result, names in the place)."""
        listing = self.work / "listing"
        unshare = ["unshare", "-m"] if ROOT else ["unshare", "-rm"]
        whole = f'place=$0 listing=$1; shift; {script} || exit 99; "$@"; code=$?; ls -A "$place" > "$listing"; exit $code'
        try:
            done = subprocess.run([*unshare, "sh", "-c", whole, self.place, listing, PROGRAM,
                                   *self.command(writer, *options)], capture_output=True, text=True, timeout=300)
        except FileNotFoundError:
            self.skipTest("unshare is not installed")
        if done.returncode == 99 or "unshare failed" in done.stderr:
            self.skipTest(f"no mounts here: {done.stderr}")
        self.assertTrue(done.stderr == "" or done.stderr.startswith("halfbyte: error: "), done)
        return done, listing.read_text().split()

    def on_tmpfs(self, size, writer, *options):
        return self.in_namespace(f'mount -t tmpfs -o size={size} tmpfs "$place"', writer, *options)

    def test_space_is_checked_before_anything_is_written(self):
        for writer in ["quantize", "logits"]:
            done, names = self.on_tmpfs(65536, writer)
            self.assertEqual((done.returncode, done.stdout, names), (FAILURE, "", []))
            told = re.match(rf"halfbyte: error: {self.place}/out: needs at least (\d+) bytes, but the file system {self.place} has "
                            r"(\d+) bytes free; make room there or write to another place\n$", done.stderr)
            self.assertTrue(told, done)
            size = sum(map(len, self.reference[writer].values()))
            self.assertTrue(0.9 * size < int(told[1]) < size + 4096, (told[1], size))
            self.assertEqual(int(told[2]), 65536)
            done, _ = self.on_tmpfs(size + 65536, writer)
            self.assertEqual(done.returncode, OK, done)

    def test_a_disk_that_gets_full_all_the_same(self):
        needed = int(re.search(r"at least (\d+) bytes", self.on_tmpfs(65536, "quantize")[0].stderr)[1])
        for more in [4096, 12288]:
            done, names = self.on_tmpfs(needed + more, "quantize")
            self.assertEqual((done.returncode, done.stdout, names), (FAILURE, "", []))
            self.assertRegex(done.stderr, rf"^halfbyte: error: {self.place}/out\S+: cannot be written: No space left on device\n$")

    def test_a_disk_without_any_space(self):
        fill = 'mount -t tmpfs -o size=4096 tmpfs "$place" && head -c 4096 /dev/zero > "$place/full"'
        for writer in ["quantize", "logits"]:
            done, names = self.in_namespace(fill, writer)
            self.assertEqual((done.returncode, names), (FAILURE, ["full"]))
            self.assertIn("has 0 bytes free", done.stderr)

    def test_a_read_only_file_system(self):
        for writer in ["quantize", "logits"]:
            done, names = self.in_namespace('mount --bind "$place" "$place" && mount -o remount,bind,ro "$place"', writer)
            self.assertEqual((done.returncode, done.stdout, names), (FAILURE, "", []))
            self.assertEqual(done.stderr, f"halfbyte: error: {self.place}/out: nothing can be made in {self.place}: Read-only "
                                          "file system\n")

    def test_more_than_any_disk_has(self):
        model = TinyModel()
        hidden, vocabulary = 1 << 18, 1 << 24
        model.config.update(hidden_size=hidden, vocab_size=vocabulary, head_dim=16)
        shapes = {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden]}
        for name, (_, shape, _) in model.tensors.items():
            shapes.setdefault(name, [hidden if size == support.HIDDEN and "q_proj" not in name else size for size in shape])
            if name.endswith("q_proj.weight"):
                shapes[name] = [shape[0], hidden]
            if name.endswith("o_proj.weight"):
                shapes[name] = [hidden, shape[1]]
        header, end = {}, 0
        for name, shape in shapes.items():
            begin, end = end, end + 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        model.tensors = {}
        folder = model.write(self.work / "huge")
        with open(folder / "model.safetensors", "wb") as file:  # 8 TiB of nothing
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
        self.addCleanup(shutil.rmtree, folder)
        text = write_text(self.work / "text.txt", 1000)
        for options in [["NVFP4A16"], ["NVFP4", "--calibrate", text, "--calibrate-tokens", "100"]]:
            result = self.refused(FAILURE, [f"{self.place}/out: needs at least 83", " MiB, but the file system /", " free; make room"],
                                  "quantize", "-m", folder, "-o", self.place / "out", "--scheme", *options)
            self.assertEqual(result.err.count("\n"), 1)  # no word of a calibration that has begun
            self.assertEqual(self.names(), [])
        (self.place / "out").mkdir()
        self.refused(FAILURE, "What is replaced stays until the new one is whole", "quantize", "-m", folder, "-o",
                     self.place / "out", "--scheme", "NVFP4A16", "--force")

    def test_a_file_that_may_not_grow(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        for writer in ["quantize", "logits"]:
            self.refused(FAILURE, [f"{self.place}/out", "cannot be written: File too large"], *self.command(writer), preexec_fn=limit)
            self.assertEqual(self.names(), [])

    def test_a_working_folder_that_is_gone(self):
        def gone():
            os.chdir(self.place)
            os.rmdir(self.place)
        result = self.refused(FAILURE, "No such file or directory", "quantize", "-m", self.model, "-o", "out", "--scheme", "NVFP4A16",
                              preexec_fn=gone)
        self.assertNotIn("filesystem error", result.err)

    def test_memory_that_may_not_be_had(self):
        if support.SANITIZE:
            self.skipTest("sanitizers reserve more than any limit")
        model = TinyModel()
        model.config["max_position_embeddings"] = 1 << 30
        folder = model.write(self.work / "long")
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        result = self.refused(FAILURE, ["not enough memory", "context"], "generate", "-m", folder, "-p", "x", "-n", str(1 << 29),
                              preexec_fn=limit)
        self.assertEqual(result.err.count("\n"), 1)

    def test_a_model_that_may_not_be_read(self):
        folder = TinyModel().write(self.work / "private")
        for path, mode in [(folder / "model.safetensors", 0o000), (folder / "config.json", 0o000), (folder, 0o700 if ROOT else 0o000)]:
            before = path.stat().st_mode
            path.chmod(mode)
            try:
                self.refused(FAILURE, [f"{path}: cannot be opened: Permission denied"], "inspect", folder, preexec_fn=self.somebody)
            except PermissionError:
                self.skipTest("another user may not run the program")
            finally:
                path.chmod(before)

    @staticmethod
    def somebody():
        if ROOT:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

    def test_a_place_that_may_not_be_written(self):
        self.place.chmod(0o555)
        for writer in ["quantize", "logits"]:
            try:
                self.refused(FAILURE, [f"{self.place}/out: nothing can be made in {self.place}: Permission denied"],
                             *self.command(writer), preexec_fn=self.somebody)
            except PermissionError:
                self.skipTest("another user may not run the program")
            self.assertEqual(self.names(), [])


if __name__ == "__main__":
    support.main()
