"""What llm-compressor writes, read by halfbyte; the small files also by transformers, to compare both readers.

The full checkpoints are made once, in build/interop, by ../shared/data/checkpoints/make_checkpoints.py, the rotated ones by
make_checkpoint.py; HALFBYTE_LLMC_CHECKPOINTS may name a folder that holds them ready made. Without either their tests skip.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from common import REPOSITORY, SHARED, Case, record, stored
from export_test import ExportCase
from safetensors.torch import load_file
from support import DATA, DEMO_MODEL


class SmallFiles(ExportCase):
    def test_both_read_them_alike(self):
        for name in ["llmc-nvfp4-2layer", "llmc-nvfp4-lmhead-2layer", "llmc-nvfp4a16-2layer", "llmc-nvfp4-gptq-2layer"]:
            found = [path for path in [DATA / name, SHARED / "checkpoints" / name] if path.exists()]
            if not found:
                continue
            with self.subTest(name):
                ids = load_file(found[0] / "reference_logits.safetensors")["input_ids"].tolist()
                self.check_loads(found[0])
                count, different = self.check_weights(found[0])
                self.assertEqual(different, 0)  # global scales of 8 bits leave no ties
                worst, allowed = self.check_logits(found[0], ids)
                record(name, f"{count} weights equal; W4A16 logits within {worst:.1e}, allowed {allowed:.1e}")

    def test_w4a4_in_fp32(self):
        folder = DATA / "llmc-nvfp4-2layer"
        ids = load_file(folder / "reference_logits.safetensors")["input_ids"].tolist()
        record("llmc-nvfp4-2layer: W4A4 logits, transformers in FP32", self.w4a4_in_fp32(folder, ids))


ROTATED = ["llmc-quip-v16", "llmc-spinquant"]  # what make_checkpoint.py makes


class FullCheckpoints(Case):
    # Perplexity on WikiText-2, 20 windows of 512: W4A16 and W4A4.
    FIGURES = {"llmc-nvfp4": (34.4028, 40.9602), "llmc-nvfp4-gptq": (32.9133, 38.2240), "llmc-quip-v16": (40.7292, 55.6911),
               "llmc-spinquant": (52.0940, 75.8702)}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = SHARED / "wikitext-2/test.txt"
        cls.folder = Path(os.environ.get("HALFBYTE_LLMC_CHECKPOINTS") or REPOSITORY / "build/interop")
        if not cls.text.exists():
            raise unittest.SkipTest(f"{cls.text} is not there")

    def checkpoint(self, name):
        out = self.folder / name
        if out.exists():
            return out
        rotated = name in ROTATED
        script = Path(__file__).with_name("make_checkpoint.py") if rotated else SHARED / "checkpoints/make_checkpoints.py"
        if not script.exists():
            self.skipTest(f"neither {out} nor {script} is there")
        self.folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        self.addCleanup(shutil.rmtree, work, ignore_errors=True)
        made = subprocess.run([sys.executable, "-B", script, name, self.dequantized(DEMO_MODEL, "bf16"),
                               SHARED / "wikitext-2/valid.txt", work / name], env={**os.environ, "OMP_NUM_THREADS": "1"},
                              capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr[-4000:])
        (work / name).rename(out)
        return out

    def is_the_file_of_the_figures(self, name, out):
        # By the two layers that are kept of it. GPTQ solves equations in floating point, so that its codes depend on the
        # processor; rounding to nearest does not.
        tensors = stored(out)
        kept = SHARED / "checkpoints" / f"{name}-2layer"
        return kept.exists() and all(torch.equal(tensors[key][:len(value)].view(torch.uint8), value.view(torch.uint8))
                                     for key, value in stored(kept).items())

    def reference(self, out, mode):
        script = SHARED / "perplexity_reference.py"
        done = subprocess.run([sys.executable, "-B", script, out, self.text, "--mode", mode], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)["perplexity"]

    def check_perplexity(self, name, out):
        rows = self.json("perplexity", "-m", out, "-f", self.text, "--windows", "20", "--window-size", "512",
                         "--arithmetic", "kernel,w4a16")["results"]
        w4a4, w4a16 = (row["perplexity"] for row in rows)
        expected, expected_w4a4 = self.FIGURES[name]
        source, source_w4a4 = f"the figure {expected}", f"the figure {expected_w4a4}"
        if not self.is_the_file_of_the_figures(name, out):
            expected = self.reference(out, "w4a16")
            source = f"transformers on this file {expected:.4f} (its codes are not those of {source})"
        if abs(w4a4 / expected_w4a4 - 1) >= 0.03:
            # The input scales of later layers are those of a calibration in BF16, which depends on the processor too.
            expected_w4a4 = self.reference(out, "w4a4")
            source_w4a4 = f"transformers on this file {expected_w4a4:.4f} ({source_w4a4} is of another machine's)"
        record(f"{name}: W4A16 perplexity", f"{w4a16:.4f}, {source}")
        record(f"{name}: W4A4 perplexity", f"{w4a4:.4f}, {source_w4a4}, {100 * (w4a4 / expected_w4a4 - 1):+.2f} %")
        self.assertLess(abs(w4a16 - expected), 1e-3)
        self.assertLess(abs(w4a4 / expected_w4a4 - 1), 0.03)

    def check(self, name):
        out = self.checkpoint(name)
        self.check_loads(out)
        count, different = self.check_weights(out)
        self.assertEqual(different, 0)
        record(f"{name}: {count} weights in BF16", "equal byte for byte")
        self.check_perplexity(name, out)

    def test_rounded_to_nearest(self):
        self.check("llmc-nvfp4")

    def test_gptq(self):
        self.check("llmc-nvfp4-gptq")

    def test_rotated(self):
        # transformers does not know transforms of run time: it loads a QuIP file and computes something else.
        for name in ROTATED:
            with self.subTest(name):
                self.check_perplexity(name, self.checkpoint(name))


if __name__ == "__main__":
    unittest.main()
