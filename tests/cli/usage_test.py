"""The command line as scripts rely on it: usage errors, help, what goes to which stream."""

import json
import os
import pty
import re
import signal
import subprocess
import unittest

import support
from support import FAILURE, LLMC, OK, PROGRAM, READER_GONE, UNSUPPORTED, USAGE, TestCase, TinyModel, halfbyte

COMMANDS = {"quantize": ["-m", "--scheme", "--calibrate", "--calibrate-tokens", "--ignore", "--separate-scales",
                         "--dry-run", "--force"],
            "inspect": ["--tensors"],
            "perplexity": ["--source", "-f", "--windows", "--window-size", "--scoring", "--chunk", "--arithmetic", "--bos"],
            "generate": ["-p", "-n", "--chat", "--raw", "--system", "--temp", "--top-k", "--top-p", "--seed",
                         "--ignore-eos"],
            "tokenize": ["-m", "-p"],
            "logits": ["--tokens", "--arithmetic", "-o", "--force"],
            "explain": ["--rows", "--k", "--n", "--quantize", "--type", "--layout", "--padded-rows", "--padded-k", "--transform", "--transform-n",
                        "--arithmetic", "--dynamic", "--scale-per-row", "--unaligned", "--device"],
            "bench": ["-m", "-p", "-n", "--repeats", "--arithmetic", "--filter", "--min-time"],
            "env": [],
            "completion": ["bash", "zsh", "fish"]}
COMMON = ["--threads", "--cpu-level", "--format", "--quiet", "-v", "--help"]


class Help(TestCase):
    def test_the_program_lists_commands_and_exit_codes(self):
        result = self.ok("--help")
        for part in [*COMMANDS, "130 interrupted", "141 nobody reads", "--version"]:
            self.assertIn(part, result.out)
        self.assertEqual(result.err, "")

    def test_each_command_shows_its_options_and_examples(self):
        for command, options in COMMANDS.items():
            result = self.ok(command, "--help")
            self.assertEqual(result.err, "")
            for part in [*options, *([] if command == "completion" else COMMON)]:
                self.assertRegex(result.out, rf"(^|[ ,]){re.escape(part)}\b", command)
            self.assertRegex(result.out, rf"Examples:\n  .*halfbyte {command}\b")

    def test_version(self):
        self.assertRegex(self.ok("--version").out, r"^halfbyte \d+\.\d+\.\d+\n$")

    def test_env_says_what_was_chosen_and_why(self):
        value = self.json("env", "--threads", "2", "--cpu-level", "scalar")
        self.assertEqual((value["threads"], value["threads_reason"]), (2, "asked for with --threads"))
        self.assertEqual((value["cpu_level"], value["cpu_level_reason"]), ("scalar", "asked for with --cpu-level"))
        self.assertEqual([level["level"] for level in value["cpu_levels"]], ["scalar", "avx2", "avx512"])
        value = self.json("env")
        allowed = len(os.sched_getaffinity(0))
        self.assertEqual((value["processors_allowed"], value["threads"]),
                         (allowed, min(allowed, value["cgroup_processors"] or allowed)))
        self.assertIn("highest", value["cpu_level_reason"])
        text = self.ok("env").out
        for part in ["yes, chosen", value["compiler"], value["build_type"], "backends: cpu", "PCRE2 10.", "Unicode",
                     f"{value['memory_bytes'] / 2**30:.1f} GiB in all"]:
            self.assertIn(part, text)

    def test_env_sees_the_affinity(self):
        one = min(os.sched_getaffinity(0))
        value = self.json("env", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
        self.assertEqual((value["threads"], value["processors_allowed"]), (1, 1))


class Usage(TestCase):
    """Exit code 2 with a message that names the option, what was given and what is needed."""

    def test_no_or_unknown_commands(self):
        self.refused(USAGE, ["no command", "quantize, inspect"])
        self.refused(USAGE, ["'frobnicate' is not a command", "perplexity"], "frobnicate")
        self.refused(USAGE, ["--nonsense"], "--nonsense")

    def test_unknown_options_and_words(self):
        self.refused(USAGE, "--nonsense", "env", "--nonsense")
        self.refused(USAGE, "'--nonsense' is not an option of halfbyte quantize", "quantize", "--nonsense")
        self.refused(USAGE, "'--max-shard' is not an option of halfbyte quantize", "quantize", "-m", "x", "-o", "y", "--scheme",
                     "NVFP4A16", "--max-shard", "5GB")
        self.refused(USAGE, "'--nonsense' is not an option of halfbyte\n", "--nonsense")
        self.refused(USAGE, "--compare takes two values or more", "perplexity", "--compare", "x", "-f", "y")
        self.refused(USAGE, ["--calibrate-tokens 5", "NVFP4A16"], "quantize", "-m", "x", "-o", "y", "--scheme", "NVFP4A16",
                     "--calibrate-tokens", "5")
        self.refused(USAGE, "name of the model is empty", "inspect", "")
        self.refused(USAGE, "extra", "env", "extra")
        self.refused(USAGE, "again", "inspect", LLMC, "again")

    def test_missing_options(self):
        for command in set(COMMANDS) - {"env"}:
            self.refused(USAGE, ["is required", f"halfbyte {command} --help"], command)

    def test_values_out_of_range(self):
        text = ["-m", "x", "-p", "y"]
        for option, value, command in [("--threads", "0", ["env"]), ("--threads", "-1", ["env"]),
                                       ("--threads", "two", ["env"]), ("--threads", "1.5", ["env"]),
                                       ("--cpu-level", "nonsense", ["env"]), ("--format", "xml", ["env"]),
                                       ("--scheme", "INT4", ["quantize", "-m", "x", "-o", "y"]),
                                       ("--calibrate-tokens", "0", ["quantize", "-m", "x", "-o", "y"]),
                                       ("--windows", "0", ["perplexity", "-m", "x", "-f", "y"]),
                                       ("--window-size", "1", ["perplexity", "-m", "x", "-f", "y"]),
                                       ("--chunk", "0", ["perplexity", "-m", "x", "-f", "y"]),
                                       ("--scoring", "none", ["perplexity", "-m", "x", "-f", "y"]),
                                       ("--arithmetic", "exact", ["perplexity", "-m", "x", "-f", "y"]),
                                       ("--arithmetic", "exact", ["logits", "-m", "x", "--tokens", "1", "-o", "y"]),
                                       ("--max-tokens", "0", ["generate", *text]),
                                       ("--max-tokens", "many", ["generate", *text]),
                                       ("--seed", "-1", ["generate", *text]),
                                       ("--top-k", "one", ["generate", *text])]:
            with self.subTest(option=option, value=value):
                self.refused(USAGE, [option, value], *command, f"{option}={value}")

    def test_options_that_exclude_each_other(self):
        self.refused(USAGE, ["--quiet", "--verbose"], "env", "--quiet", "-v")
        self.refused(USAGE, ["--raw", "--chat"], "generate", "-m", "x", "-p", "y", "--raw", "--chat")
        self.refused(USAGE, ["--system", "--chat"], "generate", "-m", "x", "-p", "y", "--system", "z")

    def test_a_level_that_the_machine_lacks_is_refused(self):
        lacking = [level for level in self.json("env")["cpu_levels"] if level["unsupported_reason"]]
        if not lacking:
            self.skipTest("this machine has every CPU level")
        for level in lacking:
            self.refused(UNSUPPORTED, [level["level"], level["unsupported_reason"]], "env", "--cpu-level",
                         level["level"])

    def test_texts_that_are_not_utf8(self):
        model = TinyModel().write(self.work / "model")
        for command in ["tokenize", "generate"]:
            self.refused(USAGE, ["--prompt", "UTF-8 at byte offset 3"], command, "-m", model, "-p", b"abc\xff")
        self.refused(USAGE, ["--system", "UTF-8 at byte offset 0"], "generate", "-m", model, "-p", "x", "--chat",
                     "--system", b"\xc3")

    def test_file_names_may_be_any_bytes(self):
        folder = os.fsencode(self.work) + b"/caf\xe9"
        TinyModel().write(os.fsdecode(folder))
        self.assertEqual(self.json("inspect", folder)["formats"], {"BF16": 20})
        self.assertIn("caf\udce9", self.ok("inspect", folder).out)


class Streams(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel().write(cls.work / "model")
        cls.inspect = ["inspect", str(cls.model), "--tensors"]

    def run_with(self, arguments, **options):
        return subprocess.run([PROGRAM, *arguments], stdin=subprocess.DEVNULL, timeout=300, **options)

    def on_terminal(self, *arguments):
        """(exit code, stdout, what a terminal on stderr saw)"""
        try:
            ours, theirs = pty.openpty()
        except OSError as error:  # a chroot without devpts
            self.skipTest(f"no pseudo-terminal here: {error}")
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=theirs)
        os.close(theirs)
        seen = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # EIO: the other end is closed
                break
            if not piece:
                break
            seen += piece
        os.close(ours)
        out = process.stdout.read()
        process.stdout.close()
        return process.wait(), out, seen.decode()

    def quantize(self, name, *options):
        return ["quantize", "-m", self.model, "-o", self.work / name, "--scheme", "NVFP4A16", *options]

    def test_nothing_but_the_result_is_printed(self):
        for arguments in [self.quantize("plain"), self.inspect]:
            result = self.ok(*arguments)
            self.assertEqual(result.err, "")
            self.assertNotEqual(result.out, "")

    def test_progress_appears_on_a_terminal_only(self):
        code, out, seen = self.on_terminal(*self.quantize("terminal"))
        self.assertEqual(code, OK)
        self.assertRegex(seen, r"\r\x1b\[Kmeasure \d+ %")
        self.assertRegex(seen, r"quantize \d+ %(, \d+ s left)?")
        self.assertTrue(seen.endswith("\r\x1b[K"), seen)  # the line is cleared
        self.assertNotIn(b"%", out)
        self.assertNotIn("%", self.ok(*self.quantize("pipe")).err)

    def test_quiet_silences_progress_and_warnings(self):
        code, _, seen = self.on_terminal(*self.quantize("quiet", "--quiet", "--ignore", "nothing_of_that_name"))
        self.assertEqual((code, seen), (OK, ""))
        _, _, seen = self.on_terminal(*self.quantize("loud", "--ignore", "nothing_of_that_name"))
        self.assertIn("warning: --ignore 'nothing_of_that_name' matches no linear layer", seen)

    def test_errors_are_printed_also_when_quiet(self):
        self.refused(FAILURE, "/nowhere: no such file", "inspect", "/nowhere", "--quiet")

    def test_verbose_says_what_was_chosen(self):
        result = self.ok("env", "-v", "--threads", "1", "--cpu-level", "scalar")
        self.assertEqual(result.err, "halfbyte: CPU level scalar, 1 thread\n")

    def test_json_is_one_document(self):
        for arguments in [["env"], ["explain", "quantize"], self.inspect, ["tokenize", "-m", self.model, "-p", "hi"]]:
            json.loads(self.ok(*arguments, "--format", "json").out)

    def test_a_full_disk_behind_stdout_is_an_error(self):
        for arguments in [["--help"], ["--version"], ["env"], self.inspect, [*self.inspect, "--format", "json"],
                          ["tokenize", "-m", self.model, "-p", "hi"],
                          ["generate", "-m", self.model, "-p", "hi", "-n", "2"]]:
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                done = self.run_with(arguments, stdout=full, stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, FAILURE, done)
                self.assertRegex(done.stderr, b"^halfbyte: error: (standard output cannot be written|cannot write to file)")

    def test_a_closed_stdout_is_an_error_and_no_file_takes_its_place(self):
        out = self.work / "closed.safetensors"
        done = self.run_with(["logits", "-m", self.model, "--tokens", "1,2", "-o", out], stderr=subprocess.PIPE,
                             preexec_fn=lambda: os.close(1))
        self.assertEqual(done.returncode, FAILURE, done)
        self.assertIn(b"standard output cannot be written", done.stderr)
        self.assertEqual(support.read_safetensors(out)[0]["logits"][1], [2, support.VOCAB])

    def test_a_stderr_that_cannot_be_written_changes_no_exit_code(self):
        with open("/dev/full", "wb") as full:
            self.assertEqual(self.run_with(["inspect", "/nowhere"], stderr=full).returncode, FAILURE)
            self.assertEqual(self.run_with(["frobnicate"], stderr=full).returncode, USAGE)
            self.assertEqual(self.run_with(["env", "-v"], stderr=full, stdout=subprocess.DEVNULL).returncode, OK)
        self.assertEqual(self.run_with(["frobnicate"], preexec_fn=lambda: os.close(2)).returncode, USAGE)

    def test_a_reader_that_goes_away_ends_the_program_quietly(self):
        reader, writer = os.pipe()
        os.close(reader)
        text = support.write_text(self.work / "text.txt", 300)
        for arguments in [["--help"], ["--version"], ["env"], ["inspect", "--help"], self.inspect, [*self.inspect, "--format", "json"],
                          ["tokenize", "-m", self.model, "-p", "hi"], ["generate", "-m", self.model, "-p", "hi", "-n", "2"],
                          ["logits", "-m", self.model, "--tokens", "1", "-o", self.work / "quiet.safetensors"],
                          ["perplexity", "-m", self.model, "-f", text, "--windows", "1", "--window-size", "8"], self.quantize("unread")]:
            for restore_signals in [True, False]:  # Python ignores SIGPIPE, and the program may inherit that
                with self.subTest(arguments=arguments, restore_signals=restore_signals):
                    force = ["--force"] if arguments[0] in ["quantize", "logits"] else []
                    done = self.run_with([*arguments, *force], stdout=writer, stderr=subprocess.PIPE, restore_signals=restore_signals)
                    self.assertEqual((done.returncode, done.stderr), (READER_GONE, b""))
        os.close(writer)
        self.json("inspect", self.work / "unread")  # the work was done
        self.assertEqual(READER_GONE, 128 + signal.SIGPIPE)

    def test_a_reader_of_a_part(self):
        many = TinyModel()
        many.tensors.update({f"model.layers.0.{'n' * 100}{i}.rotary_emb.inv_freq": ("F32", [1], bytes(4)) for i in range(2000)})
        many.config["architectures"] = ["Unknown"]  # may have any tensor
        for arguments in [["inspect", many.write(self.work / "many"), "--tensors"],
                          ["generate", "-m", self.model, "-p", "hi", "-n", "200", "--ignore-eos"]]:
            process = subprocess.Popen([PROGRAM, *map(os.fsencode, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertNotEqual(process.stdout.read(1), b"")
            process.stdout.close()
            self.assertEqual((process.stderr.read(), process.wait(timeout=300)), (b"", READER_GONE))
            process.stderr.close()

    def test_an_error_is_told_also_when_nobody_reads_the_results(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = self.run_with(["inspect", "/nowhere"], stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (FAILURE, b"halfbyte: error: /nowhere: no such file or folder\n"))

    def test_the_work_goes_on_when_nobody_reads_stderr(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = self.run_with(self.quantize("deaf", "--ignore", "nothing_of_that_name"), stdout=subprocess.PIPE, stderr=writer)
        os.close(writer)
        self.assertEqual(done.returncode, OK)
        self.json("inspect", self.work / "deaf")


if __name__ == "__main__":
    support.main()
