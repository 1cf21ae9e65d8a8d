"""halfbyte bench: what its rows say, in every form. Times themselves are not tested."""

import csv
import io
import re
import signal
import subprocess
import time
import unittest

import support
from support import INTERRUPTED, LLMC, PROGRAM, UNSUPPORTED, USAGE, TestCase, TinyModel

QUICK = ["--min-time", "0"]
FILTER = "^(quantize_bf16|matmul_w4a4) (16x4096|M=1 .*) L2$"
LIMITS = ["memory_read", "memory_copy", "l2_read", "l2_copy", "int8", "fp32"]


class Kernels(TestCase):
    def test_json(self):
        value = self.json("bench", "kernels", "--filter", FILTER, "--threads", "1,2", *QUICK)
        for key in ["version", "date", "processor", "cpu_level", "l2_bytes", "largest_cache_bytes"]:
            self.assertTrue(value[key], key)
        self.assertEqual([limits["threads"] for limits in value["limits"]], [1, 2])
        vectors = value["cpu_level"] != "scalar"
        for limits in value["limits"]:
            for name in LIMITS[:6 if vectors else 4]:
                self.assertGreater(limits[name]["value"], 0)
                self.assertEqual(limits[name]["unit"], "GMAC/s" if name in LIMITS[4:] else "GB/s")
        self.assertEqual([(row["kernel"], row["shape"], row["from"], row["threads"]) for row in value["rows"]],
                         [("quantize_bf16", "16x4096", "L2", 1), ("quantize_bf16", "16x4096", "L2", 2),
                          ("matmul_w4a4", "M=1 N=256 K=2048", "L2", 1), ("matmul_w4a4", "M=1 N=256 K=2048", "L2", 2)])
        for row in value["rows"]:
            self.assertEqual(row["cpu_level"], value["cpu_level"])
            self.assertGreater(row["value"], 0)
            self.assertEqual(row["calls"], 5)  # one that is compared, one to warm up, three that are timed
            self.assertNotIn("difference", row)
            if vectors or row["kernel"] == "quantize_bf16":
                self.assertAlmostEqual(row["share"], row["value"] / row["limit"])
        quantize = value["rows"][0]
        self.assertEqual(quantize["unit"], "Gvalue/s")
        self.assertIn(quantize["bound"], ("L2 copy", "L2 read"))
        self.assertGreater(quantize["limit"], 0)

    def test_scalar_has_no_peak_of_its_own(self):
        value = self.json("bench", "kernels", "--filter", FILTER, "--threads", "1", "--cpu-level", "scalar", *QUICK)
        self.assertIsNone(value["limits"][0]["int8"])
        self.assertEqual([row["limit"] is None for row in value["rows"]], [False, True])

    def test_tables(self):
        arguments = ["bench", "kernels", "--filter", FILTER, "--threads", "1", *QUICK]
        rows = list(csv.reader(io.StringIO(self.ok(*arguments, "--format", "csv").out)))
        self.assertEqual(rows[0], ["kernel", "shape", "from", "threads", "value", "unit", "limit", "bound", "share", "spread",
                                   "note", "version", "date", "processor", "cpu_level"])
        self.assertEqual({len(row) for row in rows}, {15})
        names = [row[0] for row in rows[1:]]
        self.assertEqual(names[-2:], ["quantize_bf16", "matmul_w4a4"])
        self.assertEqual(set(names[:-2]), {"machine"})
        self.assertGreater(float(rows[-1][4]), 0)

        lines = self.ok(*arguments, "--format", "md").out.splitlines()
        table = [line for line in lines if line.startswith("|")]
        self.assertEqual({line.count("|") for line in table}, {11})
        self.assertRegex(table[1], r"^(\| ---:? )+\|$")
        self.assertEqual(len(table), 2 + len(rows) - 1)

        text = self.ok(*arguments).out
        self.assertRegex(text, r"(?m)^matmul_w4a4 +M=1 N=256 K=2048 +L2 +1 +[\d.]+  GMAC/s")
        self.assertRegex(text, r"^halfbyte [\d.]+, 20\S+Z, .*CPU level \w+")

    def test_every_form_says_what_scales_and_chains_leave_of_the_int8_peak(self):
        arguments = ["bench", "kernels", "--filter", "^matmul_w4a4 M=(1|8|16) .* L2$", "--threads", "1", *QUICK]
        note = "block scales and chains leave 57 to 67 % of the int8 peak"
        value = self.json(*arguments)
        if value["cpu_level"] == "scalar":
            self.skipTest("the scalar level has no int8 peak")
        self.assertEqual([row.get("note") for row in value["rows"]], [None, note, note])
        rows = list(csv.reader(io.StringIO(self.ok(*arguments, "--format", "csv").out)))
        self.assertEqual([row[rows[0].index("note")] for row in rows[-3:]], ["", note, note])
        self.assertEqual({row[rows[0].index("bound")] for row in rows[-2:]}, {"int8"})
        for form, pattern in [("text", r"(?m)^matmul_w4a4 +M=(\d+) .*GMAC/s +[\d.]+  (.*?)  +[\d.]+ %"),
                              ("md", r"(?m)^\| matmul_w4a4 \| M=(\d+) .*\| GMAC/s \| [\d.]+ \| ([^|]*) \|")]:
            out = self.ok(*arguments, "--format", form).out
            bounds = dict(re.findall(pattern, out))
            self.assertEqual((bounds["8"], bounds["16"]), ("int8 [1]", "int8 [1]"))
            self.assertNotIn("[", bounds["1"])
            self.assertTrue(out.endswith(f"\n\n[1] {note}\n"), out)
            self.assertEqual(out.count(note), 1)
            plain = self.ok("bench", "kernels", "--filter", "^quantize_bf16 1x1536 L2$", "--threads", "1", *QUICK, "--format", form).out
            self.assertNotIn("[1]", plain)

    def test_a_filter_without_rows(self):
        self.refused(USAGE, ["--filter nothing: matches no row", "matmul_w4a4", "'quantize_bf16 1x1536 L2'"], "bench", "kernels",
                     "--filter", "nothing")
        self.refused(USAGE, ["--filter (: is not a regular expression"], "bench", "kernels", "--filter", "(")

    def test_options_of_the_other_subject(self):
        for option in [["-m", "x"], ["-p", "1"], ["-n", "1"], ["--repeats", "1"], ["--arithmetic", "w4a16"]]:
            self.refused(USAGE, ["is of 'halfbyte bench model'", "leave it out"], "bench", "kernels", *option)
        self.refused(USAGE, "--filter is of 'halfbyte bench kernels'", "bench", "-m", LLMC, "--filter", "x")

    def test_values_out_of_range(self):
        for option, value in [("--threads", "0"), ("--threads", "1,0"), ("--threads", "1,two"), ("--min-time", "-1"), ("--min-time", "soon"),
                              ("--format", "xml"), ("--repeats", "0"), ("-p", "-1")]:
            self.refused(USAGE, [option.strip("-") if option != "-p" else "prompt-tokens"], "bench", "-m", LLMC, f"{option}={value}"
                         if option != "-p" else f"-p{value}")
        self.refused(USAGE, "subject", "bench", "everything")
        for value in ["nan", "inf", "3601", "-1", "soon", "1s", ""]:
            self.refused(USAGE, [f"--min-time: {value}: a number of seconds, 0 to 3600, is needed"] if value else "--min-time",
                         "bench", "kernels", f"--min-time={value}")

    def test_threads_are_numbers_with_commas_between_them(self):
        for value, problem in [("1,", "nothing stands where"), (",1", "nothing stands where"), ("1,,2", "nothing stands where"),
                               ("1,0", "'0' stands where"), ("1,4097", "'4097' stands where"), ("1, 2", "' 2' stands where"),
                               ("0x1", "'0x1' stands where"), ("99999999999", "'99999999999' stands where")]:
            self.refused(USAGE, [f"--threads {value}: {problem} a whole number, 1 to 4096, is needed"], "bench", "kernels",
                         f"--threads={value}")
        for value in ["", ","]:
            self.refused(USAGE, "--threads", "bench", "kernels", f"--threads={value}")
        self.refused(USAGE, "--threads 2,1,2: 2 is given twice; give each number once", "bench", "kernels", "--threads", "2,1,2")
        self.refused(USAGE, "--threads is given more than once", "bench", "kernels", "--threads", "1", "--threads", "2")
        # A subject behind it is not taken for a number.
        value = self.json("bench", "--threads", "2,01", "kernels", "--filter", FILTER, *QUICK)
        self.assertEqual([limits["threads"] for limits in value["limits"]], [2, 1])

    def test_a_level_that_the_machine_lacks(self):
        lacking = [level for level in self.json("env")["cpu_levels"] if level["unsupported_reason"]]
        if not lacking:
            self.skipTest("this machine has every CPU level")
        self.refused(UNSUPPORTED, lacking[0]["unsupported_reason"], "bench", "kernels", "--cpu-level", lacking[0]["level"])

    def test_an_interrupt_ends_it(self):
        process = subprocess.Popen([PROGRAM, "bench", "kernels", "--threads", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
        process.stderr.close()
        self.assertEqual((process.wait(timeout=120), error.splitlines()[-1]), (INTERRUPTED, b"halfbyte: error: interrupted"))


class Model(TestCase):
    def bench(self, model, *options):
        return self.json("bench", "-m", model, "-p", "20", "-n", "4", "--repeats", "3", *QUICK, *options)

    def test_json(self):
        value = self.bench(LLMC, "--threads", "1,2")
        self.assertEqual((value["model"], value["description"], value["arithmetic"]),
                         (str(LLMC), "compressed-tensors NVFP4 (W4A4)", "kernel"))
        self.assertEqual([load["threads"] for load in value["loads"]], [1, 2])
        for load in value["loads"]:
            self.assertGreater(load["first_token_seconds"], load["load_seconds"])
            self.assertGreater(load["load_seconds"], 0)
            if load["peak_memory_bytes"] is not None:
                self.assertGreaterEqual(load["peak_memory_bytes"], load["first_token_peak_memory_bytes"])
                self.assertLess(load["peak_memory_bytes"], 200 << 20)  # that of the model, not of measuring the machine
        self.assertEqual([(row["test"], row["threads"]) for row in value["rows"]], [("pp20", 1), ("tg4", 1), ("pp20", 2), ("tg4", 2)])
        for row in value["rows"]:
            self.assertEqual(len(row["samples"]), 3)
            self.assertAlmostEqual(row["value"], sum(row["samples"]) / 3)
            self.assertEqual(row["unit"], "tokens/s")
            if row["limit"]:
                self.assertAlmostEqual(row["share"], row["value"] / row["limit"])

    def test_kinds_of_models(self):
        tiny = TinyModel().write(self.work / "tiny")
        self.assertEqual([row["test"] for row in self.bench(tiny, "--threads", "1")["rows"]], ["pp20", "tg4"])
        self.assertEqual(self.bench(LLMC, "--threads", "1", "--arithmetic", "w4a16")["arithmetic"], "w4a16")
        self.refused(USAGE, ["--arithmetic w4a16", "is not quantised"], "bench", "-m", tiny, "--arithmetic", "w4a16")

    def test_tests_that_are_left_out(self):
        only = lambda *options: [row["test"] for row in self.json("bench", "-m", LLMC, "--repeats", "1", "--threads", "1", *QUICK, *options)["rows"]]
        self.assertEqual(only("-p", "0", "-n", "3"), ["tg3"])
        self.assertEqual(only("-p", "3", "-n", "0"), ["pp3"])
        self.refused(USAGE, "leave nothing to measure", "bench", "-m", LLMC, "-p", "0", "-n", "0")

    def test_a_context_too_short(self):
        tiny = TinyModel().write(self.work / "short")
        # Long enough for the test to run out of time if the machine were measured first.
        command = ["bench", "-m", tiny, "--min-time", "300"]
        self.refused(USAGE, ["512 positions are needed, the model's context has 256; give -p 256 or less"], *command)
        self.refused(USAGE, ["300 positions are needed, the model's context has 256; give -n 256 or less"], *command, "-p", "0", "-n", "300")
        model = TinyModel()
        model.config["max_position_embeddings"] = 8  # of these the prompt of the first token needs 16
        self.refused(USAGE, ["the first token: 16 positions are needed, the model's context has 8"], "bench", "-m",
                     model.write(self.work / "shorter"), "-p", "4", "-n", "4", "--min-time", "300")

    def test_an_architecture_that_cannot_be_run_is_refused_before_the_machine_is_measured(self):
        model = TinyModel()
        model.config["architectures"] = ["MambaForCausalLM"]
        mamba = model.write(self.work / "mamba")
        for form in ["text", "md", "csv", "json"]:
            self.refused(UNSUPPORTED, [mamba, "MambaForCausalLM", "LlamaForCausalLM"], "bench", "-m", mamba, "--min-time", "300",
                         "--format", form)

    def test_a_model_is_needed(self):
        self.refused(USAGE, ["--model is required", "halfbyte bench --help"], "bench")
        self.refused(support.FAILURE, "/nowhere: no such file", "bench", "-m", "/nowhere", "--min-time", "300")
        lacking = TinyModel()
        del lacking.tensors["model.norm.weight"]
        self.refused(support.MALFORMED, "tensor model.norm.weight is missing", "bench", "-m", lacking.write(self.work / "lacking"),
                     "--min-time", "300")

    def test_tables(self):
        model = self.work / 'a "model", of two layers'
        model.symlink_to(LLMC)
        arguments = ["bench", "-m", model, "-p", "20", "-n", "4", "--repeats", "1", "--threads", "1", *QUICK]
        rows = list(csv.reader(io.StringIO(self.ok(*arguments, "--format", "csv").out)))
        self.assertEqual(rows[0], ["test", "threads", "value", "deviation", "unit", "limit", "bound", "share",
                                   "model", "description", "arithmetic", "version", "date", "processor", "cpu_level"])
        self.assertEqual({len(row) for row in rows}, {15})
        self.assertEqual([row[0] for row in rows[-2:]], ["pp20", "tg4"])
        self.assertTrue({"load", "first token"} <= {row[0] for row in rows})
        lines = self.ok(*arguments, "--format", "md").out
        self.assertRegex(lines, r"(?m)^\| tg4 \| 1 \| [\d.]+ \|")
        text = self.ok(*arguments, "--arithmetic", "w4a16").out
        self.assertTrue(re.search(r"(?m)^tg4 +1 +[\d.]+", text))

        # What was measured: the same in every row of csv, and in lines above the other tables.
        machine = self.json("env")
        processor, level = rows[-1][-2:]
        self.assertEqual(level, machine["cpu_level"])
        self.assertEqual({tuple(row[8:11]) for row in rows[1:]}, {(str(model), "compressed-tensors NVFP4 (W4A4)", "kernel")})
        self.assertEqual({tuple(row[-2:]) for row in rows[1:]}, {(processor, level)})
        for row in rows[1:]:
            self.assertRegex(row[12], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertRegex(lines, rf"\Ahalfbyte [\d.]+, 20\S+Z, {re.escape(processor)}, CPU level {level}, [^\n]+\.\n\n"
                                rf"`{re.escape(str(model))}`: compressed-tensors NVFP4 \(W4A4\), arithmetic kernel\.\n\n\| test \|")
        self.assertRegex(text, rf"\Ahalfbyte [\d.]+, 20\S+Z, {re.escape(processor)}, CPU level {level}, [^\n]+\n"
                               rf"{re.escape(str(model))}: compressed-tensors NVFP4 \(W4A4\), arithmetic w4a16\n\ntest ")


if __name__ == "__main__":
    support.main()
