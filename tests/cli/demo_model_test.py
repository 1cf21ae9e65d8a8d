"""The demo's model, SmolLM2-135M-Instruct (weights dequantised from a 4-bit GGUF), from its GGUF to generated text."""

import re
import unittest

import support
from support import DEMO_MODEL, DEMO_TEXT, SANITIZE, TestCase


class DemoModel(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for path, script in [(DEMO_MODEL, "get_model.sh"), (DEMO_TEXT / "evaluate.txt", "get_text.sh")]:
            if not path.exists():
                raise unittest.SkipTest(f"{path} is not there; scripts/{script} gets it")
        cls.out = cls.work / "out"
        cls.quantized = support.halfbyte("quantize", "-m", DEMO_MODEL, "-o", cls.out, "--scheme", "NVFP4", "--calibrate",
                                         DEMO_TEXT / "calibrate.txt", "--calibrate-tokens", "16" if SANITIZE else "256",
                                         "--format", "json")

    def test_quantize_and_inspect(self):
        self.assertEqual(self.quantized.code, 0, self.quantized)
        self.assertIn("weights dequantised from Q4_1 and Q8_0", (self.out / "README.md").read_text())
        report, seen = self.quantized.json(), self.json("inspect", self.out)
        self.assertEqual(report["source_bytes"], 2 * 134515008)  # counted as BF16
        self.assertEqual(report["quantized_layers"], 210)
        self.assertEqual(seen["formats"], {"BF16": 62, "NVFP4": 210})
        self.assertEqual(seen["parameters"], 134515008)
        self.assertAlmostEqual(seen["bits_per_weight"], report["bits_per_weight"])
        self.assertTrue(20 < report["worst"][0]["snr_db"] < 22, report["worst"])
        self.assertEqual(self.json("inspect", DEMO_MODEL)["formats"], {"F32": 61, "Q4_1": 210, "Q8_0": 1})

    def test_the_need_of_calibration_is_told_well(self):
        if SANITIZE:
            self.skipTest("a sanitizer's shadow memory is not the program's")
        told = int(re.search(r"needs about (\d+) MiB", self.quantized.err).group(1)) << 20
        peak = self.quantized.json()["peak_memory_bytes"]
        self.assertTrue(0.7 * told < peak < told, f"{told} told, {peak} used")

    def test_the_export_and_the_gguf_have_one_tokenizer(self):
        text = "It's 2026: naïve café, a  1   22 🎉\n<|im_end|>"
        ids = [self.json("tokenize", "-m", model, "-p", text)["tokens"] for model in [DEMO_MODEL, self.out]]
        self.assertEqual(ids[0], ids[1])
        self.assertEqual(ids[0][-1], 2)

    def test_it_answers(self):
        value = self.json("generate", "-m", self.out, "--chat", "-p", "What is the capital of France?", "-n", "8")
        self.assertIn("Paris", value["text"])
        self.assertEqual(value["prompt_tokens"][:3], [1, 9690, 198])  # <|im_start|>system\n

    def test_kernels_and_simulation_have_one_hash(self):
        size = "16" if SANITIZE else "128"
        text = ["-f", DEMO_TEXT / "evaluate.txt", "--windows", "1", "--window-size", size]
        simulated, = self.json("perplexity", "-m", self.out, *text, "--arithmetic", "simulated")["results"]
        levels = [level["level"] for level in self.json("env")["cpu_levels"] if not level["unsupported_reason"]]
        variants = [["--chunk", "1"], ["--chunk", "7", "--threads", "1"], ["--chunk", "64", "--threads", "2"], ["--chunk", "512"]]
        variants += [["--cpu-level", level] for level in levels]
        for variant in variants:
            row, = self.json("perplexity", "-m", self.out, *text, "--arithmetic", "kernel", *variant)["results"]
            with self.subTest(variant=variant):
                self.assertEqual((row["logits_hash"], row["nll"]), (simulated["logits_hash"], simulated["nll"]))


if __name__ == "__main__":
    support.main()
