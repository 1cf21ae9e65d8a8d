"""Peak memory: quantize's does not grow with the model (a 2 GB source); running a model needs what it is repacked to."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support
from support import BUILD, OK, PROGRAM, SANITIZE, TestCase

HIDDEN, WIDE, VOCAB, LAYERS = 2048, 8192, 49152, 15
LARGEST = VOCAB * HIDDEN  # the embedding
LIMIT = 3 * 4 * LARGEST + 200_000_000
PATTERN = 1 << 20


def write_source(folder):
    """About 2 GB in BF16: one random MiB, repeated."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN,
              "intermediate_size": WIDE, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": LAYERS,
              "vocab_size": VOCAB, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
              "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}
    shapes = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + "input_layernorm.weight": [HIDDEN], prefix + "post_attention_layernorm.weight": [HIDDEN],
                   prefix + "self_attn.q_proj.weight": [HIDDEN, HIDDEN], prefix + "self_attn.k_proj.weight": [512, HIDDEN],
                   prefix + "self_attn.v_proj.weight": [512, HIDDEN], prefix + "self_attn.o_proj.weight": [HIDDEN, HIDDEN],
                   prefix + "mlp.gate_proj.weight": [WIDE, HIDDEN], prefix + "mlp.up_proj.weight": [WIDE, HIDDEN],
                   prefix + "mlp.down_proj.weight": [HIDDEN, WIDE]}
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    source = random.Random(1)
    # Finite: any mantissa, exponents from 2^-7 to 1.
    pattern = bytearray(source.randbytes(PATTERN))
    pattern[1::2] = bytes(0x3C + (byte & 3) | (byte & 0x80) for byte in pattern[1::2])
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(end // PATTERN):
            file.write(pattern)
        file.write(pattern[:end % PATTERN])
    return end


class Memory(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if SANITIZE:
            raise unittest.SkipTest("a sanitizer's shadow memory is not the program's")
        free = shutil.disk_usage(BUILD).free
        if free < 4 << 30:
            raise unittest.SkipTest(f"{free >> 20} MiB of disk are free in {BUILD}, 4096 are needed")
        cls.place = Path(tempfile.mkdtemp(prefix="memory-test-", dir=BUILD))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        (cls.place / "model").mkdir()
        cls.bytes = write_source(cls.place / "model")

    def watched(self, *arguments):
        """(stdout, the largest resident size of any child of a fresh Python, which had this one alone)"""
        watch = ("import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; "
                 "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, file=sys.stderr); sys.exit(code)")
        done = subprocess.run([sys.executable, "-S", "-c", watch, PROGRAM, *arguments], capture_output=True, text=True,
                              timeout=600)
        self.assertEqual(done.returncode, OK, done.stderr)
        return done.stdout, int(done.stderr)

    def quantize(self, *options):
        report, seen = self.watched("quantize", "-m", self.place / "model", "-o", self.place / "out", "--scheme", "NVFP4A16",
                                    "--format", "json", "--quiet", *options)
        return json.loads(report), seen

    def test_quantize_stays_below_three_times_the_largest_tensor(self):
        self.assertGreater(self.bytes, 2_000_000_000)
        for options in [["--dry-run"], []]:
            report, seen = self.quantize(*options)
            peak = report["peak_memory_bytes"]
            print(f"\n{self.bytes / 1e9:.2f} GB source, {report['seconds']:.1f} s{' (dry run)' if options else ''}: peak "
                  f"{peak / 1e6:.0f} MB, allowed {LIMIT / 1e6:.0f} MB", end=" ")
            self.assertEqual(report["source_bytes"], self.bytes)
            self.assertLess(peak, LIMIT)
            # The kernel's two counters of the same thing; the report is printed just before the end, and the kernel may
            # lag by some pages for each thread.
            self.assertAlmostEqual(seen, peak, delta=16 << 20)
            # Much stricter, and what is meant: the size of the model does not matter.
            self.assertLess(peak, 200_000_000)
        self.assert_nothing_new(self.place, ["model", "out"])
        for head in ["fp8", "nvfp4"]:  # reads the embedding, the largest tensor, a second time
            self.assertLess(self.quantize("--head", head, "--dry-run")[1], 200_000_000)
        self.run_stays_near_what_the_model_is_repacked_to()

    def run_stays_near_what_the_model_is_repacked_to(self):
        """Packed weights have the size that they have in the file, and the rest is used where it is mapped: were the mapped
        pages of what has been packed not given back while loading goes on, twice the packed size would be there."""
        size = (self.place / "out/model.safetensors").stat().st_size
        packed = size - 2 * LARGEST  # but for the norms
        limit = 1.15 * size + 100e6
        self.assertGreater(packed, 400e6)
        self.assertGreater(size + 0.9 * packed, limit)
        _, seen = self.watched("logits", "-m", self.place / "out", "--tokens", "1,2,3", "-o", self.place / "logits.safetensors",
                               "--quiet")
        print(f"\n{size / 1e6:.0f} MB model run: peak {seen / 1e6:.0f} MB, allowed {limit / 1e6:.0f} MB", end=" ")
        self.assertLess(seen, limit)


if __name__ == "__main__":
    support.main()
