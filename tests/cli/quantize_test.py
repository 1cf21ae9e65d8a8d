"""quantize: what it writes, what it refuses, and that it leaves nothing half done."""

import errno
import json
import math
import os
import re
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import time
import unittest
from pathlib import Path

import support
from support import (BOS, DATA, FAILURE, HIDDEN, INTERRUPTED, LLMC, MALFORMED, MODULES, OK, PROGRAM, UNSUPPORTED, USAGE,
                     TestCase, TinyModel, halfbyte, read_safetensors, to_bytes, to_floats, write_text)

E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6]


def decoded(tensors, module):
    """The weights of a quantised module, by the definition of the format."""
    _, (n, half), codes = tensors[module + ".weight_packed"]
    scales = tensors[module + ".weight_scale"][2]
    word = struct.unpack("<f", tensors[module + ".weight_global_scale"][2])[0]
    def e4m3(byte):
        exponent, mantissa = byte >> 3, byte & 7
        return math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)
    values = []
    for i in range(n * half * 2):
        code = codes[i // 2] >> (4 * (i % 2)) & 15
        values.append((-1) ** (code >> 3) * E2M1[code & 7] * e4m3(scales[i // 16]) / word)
    return values


class QuantizeCase(TestCase):
    def quantize(self, model, out, *options, scheme="NVFP4A16"):
        return ["quantize", "-m", model, "-o", out, "--scheme", scheme, *options]


class Export(QuantizeCase):
    """A folder made from a Hugging Face folder, W4A4 and W4A16."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source = TinyModel()
        cls.model = cls.source.write(cls.work / "model")
        cls.text = write_text(cls.work / "text.txt")
        cls.a4, cls.a16 = cls.work / "a4", cls.work / "a16"
        cls.report4 = halfbyte("quantize", "-m", cls.model, "-o", cls.a4, "--scheme", "NVFP4", "--calibrate", cls.text,
                               "--calibrate-tokens", "600", "--format", "json")
        cls.report16 = halfbyte("quantize", "-m", cls.model, "-o", cls.a16, "--scheme", "NVFP4A16", "--format", "json")
        assert cls.report4.code == 0 and cls.report16.code == 0, (cls.report4, cls.report16)

    def test_the_folder_is_complete(self):
        for out in [self.a4, self.a16]:
            self.assert_nothing_new(out, ["README.md", "chat_template.jinja", "config.json", "generation_config.json",
                                          "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
            for name in ["generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]:
                self.assertEqual((out / name).read_bytes(), (self.model / name).read_bytes())
            self.assertEqual((out / "config.json").stat().st_mode & 0o777, 0o644)
            self.assertEqual(out.stat().st_mode & 0o777, 0o755)
        self.assert_nothing_new(self.work, ["model", "text.txt", "a4", "a16"])

    def test_config_says_what_compressed_tensors_reads(self):
        for out, activations in [(self.a4, True), (self.a16, False)]:
            config = json.loads((out / "config.json").read_text())
            quantization = config.pop("quantization_config")
            self.assertEqual(config, self.source.config | {"dtype": "bfloat16", "torch_dtype": "bfloat16"})
            self.assertEqual(quantization["quant_method"], "compressed-tensors")
            self.assertEqual(quantization["format"], "nvfp4-pack-quantized")
            self.assertEqual(quantization["ignore"], ["lm_head"])
            group, = quantization["config_groups"].values()
            self.assertEqual(group["targets"], ["Linear"])
            for key in ["weights", "input_activations"] if activations else ["weights"]:
                self.assertEqual([group[key][name] for name in ["num_bits", "type", "group_size", "strategy"]],
                                 [4, "float", 16, "tensor_group"])
            self.assertEqual(group["input_activations"] is not None, activations)

    def test_tensors(self):
        for out, activations in [(self.a4, True), (self.a16, False)]:
            tensors, metadata = read_safetensors(out / "model.safetensors")
            self.assertEqual(metadata["format"], "pt")
            self.assertEqual(metadata["tool"], self.ok("--version").out.strip())
            for name, tensor in self.source.tensors.items():
                module = name.removesuffix(".weight")
                if module not in MODULES:
                    self.assertEqual(tensors.pop(name), tensor)  # what is not quantised keeps its bytes
                    continue
                n, k = tensor[1]
                parts = {"weight_packed": ("U8", [n, k // 2]), "weight_scale": ("F8_E4M3", [n, k // 16]),
                         "weight_global_scale": ("F32", [1])}
                if activations:
                    parts["input_global_scale"] = ("F32", [1])
                for part, expected in parts.items():
                    dtype, shape, raw = tensors.pop(f"{module}.{part}")
                    self.assertEqual((dtype, shape), expected)
                    if part == "weight_scale":
                        self.assertLess(max(raw), 0x7F)
                    if dtype == "F32":
                        self.assertTrue(0 < to_floats(raw, dtype)[0] < math.inf)
            self.assertEqual(tensors, {})

    def test_the_weights_are_close_and_the_reported_noise_is_theirs(self):
        tensors, _ = read_safetensors(self.a16 / "model.safetensors")
        snr = {}
        for module in MODULES:
            weights = to_floats(self.source.tensors[module + ".weight"][2], "BF16")
            noise = sum((a - b) ** 2 for a, b in zip(weights, decoded(tensors, module)))
            snr[module + ".weight"] = 10 * math.log10(sum(a * a for a in weights) / noise)
        worst = self.report16.json()["worst"]
        self.assertEqual([row["tensor"] for row in worst], sorted(snr, key=snr.get)[:5])
        for row in worst:
            self.assertAlmostEqual(row["snr_db"], snr[row["tensor"]], delta=1e-3)  # decoding rounds to FP32

    def test_inspect_agrees_with_the_report(self):
        for out, report, scheme in [(self.a4, self.report4.json(), "NVFP4"), (self.a16, self.report16.json(), "NVFP4A16")]:
            seen = self.json("inspect", out, "--tensors")
            weights = {name: math.prod(shape) for name, (_, shape, _) in self.source.tensors.items()}
            quantised = sum(count for name, count in weights.items() if name.removesuffix(".weight") in MODULES)
            words = 2 if scheme == "NVFP4" else 1
            written = 2 * (sum(weights.values()) - quantised) + quantised * 9 // 16 + 4 * words * len(MODULES)
            self.assertEqual(seen["scheme"], scheme)
            self.assertEqual(report["scheme"], scheme)
            self.assertEqual(report["output"], str(out))
            self.assertEqual(report["source_bytes"], 2 * sum(weights.values()))
            self.assertEqual(report["output_bytes"], written)
            self.assertEqual(seen["file_bytes"], (out / "model.safetensors").stat().st_size)
            self.assertAlmostEqual(report["bits_per_weight"], 8 * written / sum(weights.values()))
            self.assertAlmostEqual(seen["bits_per_weight"], report["bits_per_weight"])
            self.assertAlmostEqual(report["quantized_bits_per_weight"], 4.5 + 32 * words * len(MODULES) / quantised)
            self.assertEqual(report["quantized_layers"], len(MODULES))
            self.assertEqual(seen["formats"], {"NVFP4": len(MODULES), "BF16": report["dense_tensors"]})
            self.assertEqual(seen["parameters"], sum(weights.values()))
            self.assertEqual(seen["scales"]["blocks"], quantised // 16)
            self.assertEqual({row["name"] for row in seen["tensors"]}, set(weights))
            self.assertEqual(report["warnings"], [])

    def test_text_report(self):
        result = self.ok(*self.quantize(self.model, self.work / "never", "--dry-run"))
        self.assertRegex(result.out, r"^\d+ MiB BF16 -> \d+ MiB NVFP4A16 \(W4A16\), \d+\.\d s, peak memory \d+ MiB\n"
                         r"14 linear layers with 4\.5\d bits per weight, 6 other tensors; \d+\.\d\d bits per weight in all\n"
                         r"clipped \d+ of \d+ values, flushed \d+ of \d+ blocks to zero\n"
                         r"worst layers by signal to noise:\n( +\d+\.\d\d dB  model\.layers\.\d\.\S+\n){5}"
                         r"dry run: nothing was written\n$")

    def test_dry_run_reports_the_same_and_writes_nothing(self):
        report = self.json(*self.quantize(self.model, self.work / "never", "--dry-run"))
        written = self.report16.json()
        self.assertIsNone(report.pop("output"))
        for key in written.keys() - {"output", "seconds", "peak_memory_bytes"}:
            self.assertEqual(report[key], written[key], key)
        self.assertFalse((self.work / "never").exists())

    def test_dry_run_does_not_mind_an_existing_folder(self):
        before = (self.a16 / "model.safetensors").stat()
        self.ok(*self.quantize(self.model, self.a16, "--dry-run"))
        self.assertEqual((self.a16 / "model.safetensors").stat(), before)

    def test_input_scales_come_from_the_text(self):
        tensors, _ = read_safetensors(self.a4 / "model.safetensors")
        for layer in range(support.LAYERS):
            words = [tensors[f"model.layers.{layer}.self_attn.{name}_proj.input_global_scale"][2] for name in "qkv"]
            self.assertEqual(len(set(words)), 1)  # they see the same activations
        report = self.json(*self.quantize(self.model, self.work / "fewer", "--calibrate", self.text,
                                          "--calibrate-tokens", "3", scheme="NVFP4"))
        self.addCleanup(shutil.rmtree, self.work / "fewer")
        fewer, _ = read_safetensors(self.work / "fewer/model.safetensors")
        scales = [(to_floats(tensors[name][2], "F32")[0], to_floats(fewer[name][2], "F32")[0])
                  for name in tensors if name.endswith("input_global_scale")]
        self.assertTrue(all(few >= many for many, few in scales))  # a part of the text has no larger amax
        self.assertTrue(any(few > many for many, few in scales))

    def test_the_need_of_calibration_is_told_before_the_work(self):
        self.assertRegex(self.report4.err, r"^halfbyte: calibration runs the source model and needs about \d+ MiB of memory\n$")

    def test_fused_layers_share_a_scale_unless_told_otherwise(self):
        separate = self.work / "separate"
        self.addCleanup(shutil.rmtree, separate)
        self.ok(*self.quantize(self.model, separate, "--separate-scales"))
        def words(folder, modules):
            tensors, _ = read_safetensors(folder / "model.safetensors")
            return {tensors[f"model.layers.1.{module}_proj.weight_global_scale"][2] for module in modules}
        for group in [["self_attn.q", "self_attn.k", "self_attn.v"], ["mlp.gate", "mlp.up"]]:
            self.assertEqual(len(words(self.a16, group)), 1)
            self.assertEqual(len(words(separate, group)), len(group))
        self.assertEqual(words(self.a16, ["mlp.down"]), words(separate, ["mlp.down"]))

    def test_readme_tells_source_tool_command_scheme_and_calibration(self):
        text = (self.a4 / "README.md").read_text()
        command = shlex.join(["halfbyte", *map(str, self.quantize(self.model, self.a4, "--calibrate", self.text,
                                                                 "--calibrate-tokens", "600", scheme="NVFP4"))])
        for part in ["# model in NVFP4", self.ok("--version").out.strip(), "Hugging Face folder", "NVFP4 (W4A4)",
                     "600 tokens of text.txt", "`lm_head`", f"    {command}\n"]:
            self.assertIn(part, text)
        self.assertIn("NVFP4A16 (W4A16)", (self.a16 / "README.md").read_text())

    def test_a_slash_at_the_end_of_the_source_changes_nothing(self):
        out = self.work / "slash"
        self.addCleanup(shutil.rmtree, out)
        self.ok(*self.quantize(f"{self.model}/", f"{out}/"))
        self.assertIn("# model in NVFP4", (out / "README.md").read_text())
        self.assertEqual((out / "model.safetensors").read_bytes(), (self.a16 / "model.safetensors").read_bytes())

    def test_a_relative_out(self):
        self.addCleanup(shutil.rmtree, self.work / "relative")
        self.ok(*self.quantize("model", "relative"), cwd=self.work)
        self.assertTrue((self.work / "relative/config.json").exists())


class Shards(QuantizeCase):
    """A folder of several weight files: --max-shard-size."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel().write(cls.work / "model")
        cls.text = write_text(cls.work / "text.txt")
        cls.options = ["--calibrate", cls.text, "--calibrate-tokens", "64"]
        cls.one, cls.many = cls.work / "one", cls.work / "many"
        for out, more in [(cls.one, []), (cls.many, ["--max-shard-size", "16KiB"])]:
            made = halfbyte("quantize", "-m", cls.model, "-o", out, "--scheme", "NVFP4", *cls.options, *more,
                            "--format", "json")
            assert made.code == 0, made
        cls.report = made.json()
        cls.names = sorted(path.name for path in cls.many.glob("model-*.safetensors"))

    def test_names_sizes_and_index(self):
        count = len(self.names)
        self.assertGreater(count, 3)
        self.assertEqual(self.names, [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)])
        self.assertEqual(self.report["weight_files"], self.names)
        self.assert_nothing_new(self.many, ["README.md", "chat_template.jinja", "config.json", "generation_config.json",
                                            "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
                                            *self.names])
        index = json.loads((self.many / "model.safetensors.index.json").read_text())
        held = {name: read_safetensors(self.many / name)[0] for name in self.names}
        self.assertEqual(index["weight_map"], {tensor: name for name, tensors in held.items() for tensor in tensors})
        self.assertEqual(index["metadata"], {"total_size": self.report["output_bytes"]})
        for name, tensors in held.items():
            self.assertTrue((self.many / name).stat().st_size <= 16384 or len(tensors) == 1, name)
        for module in MODULES:
            self.assertEqual(len({index["weight_map"][f"{module}.{part}"] for part in [
                "weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"]}), 1, module)
        self.assertIn(f"{count} files", (self.many / "README.md").read_text())
        self.assertIn("--max-shard-size 16KiB", (self.many / "README.md").read_text())

    def test_every_byte_is_that_of_the_single_file(self):
        tensors = {}
        for name in self.names:
            shard, metadata = read_safetensors(self.many / name)
            self.assertEqual(metadata, read_safetensors(self.one / "model.safetensors")[1])
            tensors.update(shard)
        self.assertEqual(tensors, read_safetensors(self.one / "model.safetensors")[0])
        for name in ["config.json", "tokenizer.json"]:
            self.assertEqual((self.one / name).read_bytes(), (self.many / name).read_bytes())

    def test_it_is_read_as_the_single_file_is(self):
        seen, single = self.json("inspect", self.many, "--tensors"), self.json("inspect", self.one, "--tensors")
        self.assertEqual(seen.pop("weight_files"), self.names)
        self.assertEqual(single.pop("weight_files"), ["model.safetensors"])
        self.assertEqual(seen.pop("file_bytes"), sum((self.many / name).stat().st_size for name in self.names))
        single.pop("file_bytes")
        self.assertEqual(seen, single)
        self.assertIn(f"in {len(self.names)} files", self.ok("inspect", self.many).out)
        hashes = {self.json("logits", "-m", out, "--tokens", "1,2,3", "--force", "-o", self.work / "logits")["logits_hash"]
                  for out in [self.one, self.many]}
        self.assertEqual(len(hashes), 1)

    def test_force_replaces_a_sharded_folder(self):
        out = self.work / "again"
        shutil.copytree(self.many, out)
        self.refused(USAGE, [out, "--force"], *self.quantize(self.model, out))
        self.ok(*self.quantize(self.model, out, "--force"))
        self.assertEqual(list(out.glob("model-*")), [])
        self.assertFalse((out / "model.safetensors.index.json").exists())
        self.ok(*self.quantize(self.model, out, "--force", "--max-shard-size", "20K"))
        self.assertFalse((out / "model.safetensors").exists())
        self.json("inspect", out)

    def test_index_and_shards_that_differ(self):
        copy = self.work / "copy"
        shutil.copytree(self.many, copy)
        path = copy / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        def with_index(**changes):
            path.write_text(json.dumps({**index, **changes}))
        with_index(metadata={"total_size": 7})
        result = self.ok("inspect", copy, "--format", "json")
        warning, = result.json()["warnings"]
        self.assertIn("total_size", warning)
        self.assertIn(warning, result.err)
        first, last = self.names[0], self.names[-1]
        name = next(tensor for tensor, file in index["weight_map"].items() if file == last)
        for changes, part in [({name: first}, f'"{name}" is listed in "{first}"'),
                              ({"more": last}, f'listed in "{last}", which lacks it')]:
            with_index(weight_map={**index["weight_map"], **changes})
            self.refused(MALFORMED, [path, part], "inspect", copy)
        with_index()
        (copy / last).rename(copy / "moved")
        self.refused(MALFORMED, [path, last, "is the download complete?"], "inspect", copy)

    def test_a_dry_run_counts_the_files(self):
        report = self.json(*self.quantize(self.model, self.work / "never", "--dry-run", "--max-shard-size", "16KiB",
                                          *self.options, scheme="NVFP4"))
        self.assertEqual(report["weight_files"], self.names)

    def test_sizes(self):
        def files(size):
            return len(self.json(*self.quantize(self.model, self.work / "never", "--dry-run", "--max-shard-size", size))
                       ["weight_files"])
        self.assertEqual(files("1B"), 6 + 3 * len(MODULES))  # every tensor alone
        self.assertEqual(files("1TiB"), 1)
        self.ok(*self.quantize(self.model, self.work / "whole"))
        size = (self.work / "whole/model.safetensors").stat().st_size  # in 1000s, so that the forms can be compared
        self.assertEqual((files(str(size)), files(str(size - 1))), (1, 2))
        for thousands, binary in [("24KB", "24000"), ("24k", "24000B"), ("0.024M", "24000"), ("0.000024GB", "24000"),
                                  ("24KiB", "24576"), ("24Ki", "24576"), ("0.0234375MiB", "24576")]:
            self.assertEqual(files(thousands), files(binary), thousands)
        self.assertNotEqual(files(f"{size / 1000}KB"), files(f"{size / 1000 - 0.001}KB"))
        self.assertEqual(files(f"{size / 1000}KiB"), 1)
        for wrong in ["0", "-1", "GB", "5X", "5iB", "5GBB", "5 GB", "1e9", "nan", "inf", "0.1", "5GiBs", "99999999TB", "0x10"]:
            self.refused(USAGE, ["--max-shard-size", f"'{wrong}'", "5GB"], *self.quantize(
                self.model, self.work / "never", f"--max-shard-size={wrong}"))


class Sources(QuantizeCase):
    """Hugging Face folders of every type, and GGUF."""

    def test_f16_and_f32_keep_their_types_and_values(self):
        for dtype in ["F16", "F32"]:
            source = TinyModel(dtype, tied=False)
            source.config["dtype"] = source.config["torch_dtype"] = {"F16": "float16", "F32": "float32"}[dtype]
            out = self.work / ("out" + dtype)
            self.ok(*self.quantize(source.write(self.work / dtype), out))
            config = json.loads((out / "config.json").read_text())
            self.assertEqual([config["dtype"], config["torch_dtype"]], ["bfloat16"] * 2)  # what transformers can run
            tensors, _ = read_safetensors(out / "model.safetensors")
            for name in ["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"]:
                self.assertEqual(tensors[name], source.tensors[name])
            self.assertIn("model.layers.0.mlp.up_proj.weight_packed", tensors)

    def test_equal_values_in_different_types_give_equal_codes(self):
        source = TinyModel("F16")
        source.write(self.work / "half")
        for name, (dtype, shape, raw) in source.tensors.items():
            source.tensors[name] = ("F32", shape, to_bytes(to_floats(raw, "F16"), "F32"))
        source.write(self.work / "single")
        files = []
        for name in ["half", "single"]:
            self.ok(*self.quantize(self.work / name, self.work / (name + "-out")))
            files.append(read_safetensors(self.work / (name + "-out") / "model.safetensors")[0])
        for module in MODULES:
            for part in ["weight_packed", "weight_scale", "weight_global_scale"]:
                self.assertEqual(files[0][f"{module}.{part}"], files[1][f"{module}.{part}"])

    def test_every_type_and_a_mixture_run_with_the_same_bits(self):
        source, text = TinyModel("F32", tied=False), write_text(self.work / "calibrate.txt")
        for name, (_, shape, raw) in source.tensors.items():  # 8 bits: exact in every type
            values = [max(-127, min(127, round(value * 64))) / 64 for value in to_floats(raw, "F32")]
            source.tensors[name] = ("F32", shape, to_bytes(values, "F32"))
        single = source.tensors
        def as_types(*types):
            source.tensors = {name: (types[i % len(types)], shape, to_bytes(to_floats(raw, "F32"), types[i % len(types)]))
                              for i, (name, (_, shape, raw)) in enumerate(single.items())}
        def logits_hash(model):
            return self.json("logits", "-m", model, "--tokens", "1,2,3,250", "-o", self.work / "l", "--force")["logits_hash"]
        run, exported = set(), set()
        for types in [["BF16"], ["F16"], ["F32"], ["F16", "F32", "BF16"]]:
            as_types(*types)
            kind = "".join(types)
            models = [source.write(self.work / f"same-{kind}"), source.write_gguf(self.work / f"same-{kind}.gguf")]
            for model in models:
                run.add(logits_hash(model))
                out = self.work / f"{model.name}-out"
                self.ok(*self.quantize(model, out, "--calibrate", text, "--calibrate-tokens", "64", scheme="NVFP4"))
                exported.add(logits_hash(out))
                tensors, _ = read_safetensors(out / "model.safetensors")
                for name in ["lm_head.weight", "model.embed_tokens.weight"]:
                    self.assertEqual(tensors[name], source.tensors[name])
                if len(types) == 1:  # norms, which a GGUF keeps as F32, too
                    kept = {dtype for name, (dtype, _, _) in tensors.items() if name.endswith("norm.weight")}
                    self.assertEqual(kept, set(types))
                self.assertEqual(json.loads((out / "config.json").read_text())["dtype"], "bfloat16")
        self.assertEqual((len(run), len(exported)), (1, 1))

    def test_values_that_f16_cannot_hold_stay(self):
        source = TinyModel("F32", tied=False)
        for name, value in [("model.norm.weight", 1e5), ("model.embed_tokens.weight", -7e4), ("lm_head.weight", 1e-9),
                            ("model.layers.0.input_layernorm.weight", 3e-8), ("model.layers.1.mlp.up_proj.weight", 66000.0)]:
            source.set_value(name, 0, value)
        text = write_text(self.work / "large.txt")
        for model in [source.write(self.work / "large"), source.write_gguf(self.work / "large.gguf")]:
            out = self.work / f"{model.name}-out"
            self.ok(*self.quantize(model, out, "--calibrate", text, "--calibrate-tokens", "64", scheme="NVFP4"))
            tensors, _ = read_safetensors(out / "model.safetensors")
            for name, tensor in tensors.items():
                if name in source.tensors:
                    self.assertEqual(tensor, source.tensors[name], name)
            for checked in [model, out]:
                self.ok("logits", "-m", checked, "--tokens", "0,0,1", "-o", self.work / "l", "--force")
                _, _, raw = read_safetensors(self.work / "l")[0]["logits"]
                self.assertTrue(all(map(math.isfinite, to_floats(raw, "F32"))))

    def test_rope_scaling_of_a_folder_and_of_a_gguf_is_the_same(self):
        scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192}
        divisors = []
        for i in range(support.HEAD_DIM // 2):
            turns = 8192 * 10000 ** (-2 * i / support.HEAD_DIM) / (2 * math.pi)
            kept = min(max((turns - 1) / 3, 0), 1)
            divisors.append(1 / ((1 - kept) / 8 + kept))
        self.assertTrue(any(1 < divisor < 8 for divisor in divisors))
        tokens = ",".join(map(str, range(40)))
        def logits_hash(model):
            return self.json("logits", "-m", model, "--tokens", tokens, "-o", self.work / "l", "--force")["logits_hash"]
        source = TinyModel("F16")
        plain = logits_hash(source.write(self.work / "rope-plain"))
        models = [source.write_gguf(self.work / "rope.gguf", divisors)]
        for key, value in [("rope_scaling", scaling), ("rope_parameters", {**scaling, "rope_theta": 10000.0})]:
            source = TinyModel("F16")
            source.config[key] = value
            models.append(source.write(self.work / key))
        self.assertEqual(len({logits_hash(model) for model in models} - {plain}), 1)
        outs = []
        for model in models:
            outs.append(self.work / f"{model.name}-out")
            self.ok(*self.quantize(model, outs[-1]))
        self.assertEqual(len({logits_hash(out) for out in outs}), 1)
        config = json.loads((outs[0] / "config.json").read_text())
        self.assertEqual(config["rope_scaling"], scaling)
        self.assertEqual(config["rope_parameters"], {**scaling, "rope_theta": 10000.0})
        # What config.json cannot say runs, and is not exported.
        other = TinyModel("F16").write_gguf(self.work / "other.gguf", [*divisors[:-1], 9.0])
        self.assertNotIn(logits_hash(other), [plain, logits_hash(models[0])])
        self.refused(UNSUPPORTED, [other, "rope_freqs.weight", "Hugging Face folder"],
                     *self.quantize(other, self.work / "other-out"))
        self.assertFalse((self.work / "other-out").exists())

    def test_a_gguf_gives_what_its_hugging_face_form_gives(self):
        source = TinyModel("F16")
        folder, gguf = source.write(self.work / "form"), source.write_gguf(self.work / "form.gguf")
        text = write_text(self.work / "text.txt")
        files = []
        for model, out in [(folder, "of-folder"), (gguf, "of-gguf")]:
            self.ok(*self.quantize(model, self.work / out, "--calibrate", text, "--calibrate-tokens", "100",
                                   scheme="NVFP4"))
            files.append(read_safetensors(self.work / out / "model.safetensors")[0])
        self.assertEqual(files[0].keys(), files[1].keys())
        self.assertEqual(files[0], files[1])
        out = self.work / "of-gguf"
        self.assert_nothing_new(out, ["README.md", "chat_template.jinja", "config.json", "generation_config.json",
                                      "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
        self.assertIn("from form.gguf (GGUF).", (out / "README.md").read_text())  # F16 is kept, not dequantised
        config = json.loads((out / "config.json").read_text())
        for key in ["architectures", "hidden_size", "num_key_value_heads", "vocab_size", "tie_word_embeddings"]:
            self.assertEqual(config[key], source.config[key])
        for model in [folder, gguf, out]:
            self.assertEqual(self.json("tokenize", "-m", model, "-p", "Hi<|im_end|>")["tokens"],
                             [*b"Hi", support.IM_END])

    def test_an_untied_lm_head_is_quantised_when_no_pattern_names_it(self):
        source = TinyModel(tied=False)
        model, text = source.write(self.work / "untied"), write_text(self.work / "calibration.txt")
        kept, done = self.work / "kept", self.work / "done"
        self.ok(*self.quantize(model, kept))
        self.assertIn("lm_head.weight", read_safetensors(kept / "model.safetensors")[0])
        self.ok(*self.quantize(model, done, "--calibrate", text, "--calibrate-tokens", "50", "--ignore",
                               "re:.*layers.1.*", scheme="NVFP4"))
        tensors, _ = read_safetensors(done / "model.safetensors")
        self.assertIn("lm_head.weight_packed", tensors)
        self.assertIn("lm_head.input_global_scale", tensors)
        self.assertEqual(self.json("inspect", done)["formats"]["NVFP4"], len(MODULES) // 2 + 1)
        self.json("logits", "-m", done, "--tokens", "1,2", "-o", self.work / "logits.safetensors")

    def test_a_tied_lm_head_stays_with_a_warning(self):
        model = TinyModel().write(self.work / "tied")
        result = self.ok(*self.quantize(model, self.work / "tied-out", "--ignore", "re:.*down_proj"))
        self.assertIn("warning: lm_head shares the embedding's weights", result.err)
        config = json.loads((self.work / "tied-out/config.json").read_text())
        self.assertIn("lm_head", config["quantization_config"]["ignore"])

    def test_absent_companion_files_are_told(self):
        source = TinyModel()
        source.tokenizer = source.chat_template = None
        report = self.json(*self.quantize(source.write(self.work / "bare"), self.work / "bare-out"))
        self.assertEqual(len(report["warnings"]), 2)
        for name, warning in zip(["tokenizer.json", "chat_template.jinja"], report["warnings"]):
            self.assertIn(name, warning)

    def test_zero_weights(self):
        source = TinyModel()
        name = "model.layers.0.mlp.down_proj.weight"
        source.tensors[name] = ("BF16", source.tensors[name][1], bytes(len(source.tensors[name][2])))
        report = self.json(*self.quantize(source.write(self.work / "zero"), self.work / "zero-out"))
        tensors, _ = read_safetensors(self.work / "zero-out/model.safetensors")
        self.assertEqual(tensors["model.layers.0.mlp.down_proj.weight_global_scale"][2], struct.pack("<f", 1))
        self.assertEqual(set(tensors["model.layers.0.mlp.down_proj.weight_packed"][2]), {0})
        self.assertEqual(report["flushed_blocks"], 0)


def fp8(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)
    return -value if byte & 0x80 else value


class Head(QuantizeCase):
    """--head: lm_head by itself, in a group of its own."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = write_text(cls.work / "text.txt")
        cls.sources = {tied: TinyModel(tied=tied) for tied in [True, False]}
        cls.models = {tied: source.write(cls.work / f"tied-{tied}") for tied, source in cls.sources.items()}

    def make(self, head, tied=True, scheme="NVFP4A16", options=(), model=None):
        out = self.work / f"out-{self.id()}-{len(list(self.work.iterdir()))}"
        calibration = ["--calibrate", self.text, "--calibrate-tokens", "64"] if scheme == "NVFP4" else []
        arguments = self.quantize(model or self.models[tied], out, "--head", head, *calibration, *options, scheme=scheme)
        return out, self.json(*arguments)

    def test_the_head_has_its_own_tensors_and_group(self):
        for tied, source in self.sources.items():
            weights = source.tensors["model.embed_tokens.weight" if tied else "lm_head.weight"]
            for head in ["nvfp4", "fp8"]:
                for scheme in ["NVFP4", "NVFP4A16"]:
                    with self.subTest(tied=tied, head=head, scheme=scheme):
                        out, report = self.make(head, tied, scheme)
                        plain = self.work / f"plain-{tied}-{scheme}"
                        if not plain.exists():
                            calibration = ["--calibrate", self.text, "--calibrate-tokens", "64"] if scheme == "NVFP4" else []
                            self.ok(*self.quantize(self.models[tied], plain, *calibration, scheme=scheme))
                        tensors, expected = (read_safetensors(path / "model.safetensors")[0] for path in [out, plain])
                        own = {name: tensors.pop(name) for name in list(tensors) if name.startswith("lm_head.")}
                        expected.pop("lm_head.weight", None)
                        self.assertEqual(tensors, expected)  # everything else as without the option
                        names = {"weight", "weight_scale"} if head == "fp8" else {"weight_packed", "weight_scale", "weight_global_scale"}
                        self.assertEqual(own.keys(), {f"lm_head.{name}" for name in names})

                        config = json.loads((out / "config.json").read_text())
                        self.assertIs(config["tie_word_embeddings"], False)
                        quantization = config["quantization_config"]
                        self.assertEqual(quantization["format"], "mixed-precision" if head == "fp8" else "nvfp4-pack-quantized")
                        self.assertEqual(quantization["ignore"], [])
                        group = quantization["config_groups"]["group_0"]
                        self.assertEqual(group["targets"], ["lm_head"])
                        self.assertIsNone(group["input_activations"])
                        self.assertEqual(group["format"], "float-quantized" if head == "fp8" else "nvfp4-pack-quantized")
                        self.assertEqual(group["weights"]["strategy"], "channel" if head == "fp8" else "tensor_group")

                        values = to_floats(weights[2], "BF16")
                        if head == "fp8":
                            self.assertEqual(own["lm_head.weight"][:2], ("F8_E4M3", weights[1]))
                            self.assertEqual(own["lm_head.weight_scale"][:2], ("BF16", [weights[1][0], 1]))
                            scales = to_floats(own["lm_head.weight_scale"][2], "BF16")
                            given = [fp8(byte) * scales[i // HIDDEN] for i, byte in enumerate(own["lm_head.weight"][2])]
                            for i, (value, back) in enumerate(zip(values, given)):  # half a step of 2^-3, or of 2^-9
                                self.assertLessEqual(abs(value - back), max(abs(value) / 16, scales[i // HIDDEN] / 1024) * 1.0001)
                        else:
                            given = decoded(own, "lm_head")
                        noise = sum((a - b) ** 2 for a, b in zip(values, given)) / sum(a * a for a in values)
                        self.assertLess(noise, 0.002 if head == "fp8" else 0.02)

                        self.assertEqual(report["head"], head)
                        self.assertEqual(report["quantized_layers"], len(MODULES) + 1)
                        seen = self.json("inspect", out, "--tensors")
                        self.assertEqual(seen["scheme"], scheme)
                        schemes = ["NVFP4 (W4A4)" if scheme == "NVFP4" else "NVFP4A16 (W4A16)"]
                        if head == "fp8" or scheme == "NVFP4":
                            schemes.append("FP8A16 (W8A16)" if head == "fp8" else "NVFP4A16 (W4A16)")
                        self.assertEqual(seen["dialect"], "compressed-tensors " + " and ".join(schemes))
                        self.assertIn(seen["dialect"], self.ok("inspect", out).out)
                        count = {"NVFP4": len(MODULES), "FP8": 1} if head == "fp8" else {"NVFP4": len(MODULES) + 1}
                        self.assertEqual(seen["formats"], {**count, "BF16": report["dense_tensors"]})
                        self.assertEqual(seen["bits_per_weight"], report["bits_per_weight"])
                        self.assertEqual([row["format"] for row in seen["tensors"] if row["name"] == "lm_head.weight"],
                                         ["FP8" if head == "fp8" else "NVFP4"])
                        self.assertEqual(seen["fp8_scale_range"], [min(scales), max(scales)] if head == "fp8" else None)

    def test_simulation_and_kernels_agree_and_the_quality_is_near_the_dense_head(self):
        nll = {}
        plain = self.work / "dense-head"
        self.ok(*self.quantize(self.models[True], plain))
        for name, out in [("bf16", plain)] + [(head, self.make(head)[0]) for head in ["fp8", "nvfp4"]]:
            results = self.json("perplexity", "-m", out, "-f", self.text, "--windows", "2", "--window-size", "32",
                                "--arithmetic", "simulated,kernel")["results"]
            self.assertEqual(len({row["logits_hash"] for row in results}), 1)
            nll[name] = results[0]["nll"]
        # A relative error e of the logits' weights moves logits of a size S by about e S; S is below 30 here, and FP8's
        # error is at most 2^-4 of each term, NVFP4's noise 0.1 of the whole.
        self.assertNotEqual(nll["fp8"], nll["bf16"])
        self.assertLess(abs(nll["fp8"] - nll["bf16"]), 1)
        self.assertLess(abs(nll["nvfp4"] - nll["bf16"]), 3)

    def test_a_gguf_gives_what_its_folder_gives(self):
        source = TinyModel("F16")
        folder, file = source.write(self.work / "of-gguf"), source.write_gguf(self.work / "tiny.gguf")
        for head in ["fp8", "nvfp4"]:
            of_folder, of_file = (read_safetensors(self.make(head, model=model)[0] / "model.safetensors")[0]
                                  for model in [folder, file])
            for name in of_folder:
                if name.startswith("lm_head."):
                    self.assertEqual(of_file[name], of_folder[name])

    def test_a_rotated_head_is_the_turned_one_and_nothing_is_left_to_run_time(self):
        for tied in [True, False]:
            for head, name in [("fp8", "weight"), ("nvfp4", "weight_packed")]:
                turned = ["--transform", "spinquant", "--rotations", "R1", "--transform-block", "16"]
                out, _ = self.make(head, tied, options=turned)
                plain, _ = self.make(head, tied)
                rotated, straight = (read_safetensors(path / "model.safetensors")[0][f"lm_head.{name}"] for path in [out, plain])
                self.assertNotEqual(rotated, straight)
                for rows in [out, plain]:
                    self.json("logits", "-m", rows, "--tokens", "1,2,3", "-o", rows / "logits.safetensors")
                quip, _ = self.make(head, tied, options=["--transform", "quip"])
                self.assertEqual(read_safetensors(quip / "model.safetensors")[0][f"lm_head.{name}"], straight)
                layers = self.json("inspect", quip)["transforms"]["layers"]
                self.assertEqual({layer["module"] for layer in layers}, set(MODULES))
                self.json("logits", "-m", quip, "--tokens", "1,2,3", "-o", quip / "logits.safetensors")

    def test_a_head_alone_is_no_file_of_the_scheme(self):
        ignored = ["--ignore", "re:.*proj"]
        out = self.work / "alone"
        for head in ["fp8", "nvfp4"]:
            self.refused(USAGE, [self.models[True], "leave no layer but lm_head to quantise; --scheme NVFP4A16 needs one, ignore fewer"],
                         *self.quantize(self.models[True], out, "--head", head, *ignored))
        self.refused(USAGE, "leave no layer to quantise; --scheme NVFP4A16 needs one, ignore fewer",
                     *self.quantize(self.models[True], out, *ignored, "--ignore", "lm_head"))
        self.assertFalse(out.exists())

    def test_dry_run_shards_and_text(self):
        for head, line in [("fp8", "lm_head: FP8 weights of its own, in the source it shares the embedding's"),
                           ("nvfp4", "lm_head: NVFP4 weights of its own, in the source it shares the embedding's")]:
            never = self.work / f"never-{head}"
            result = self.ok(*self.quantize(self.models[True], never, "--head", head, "--dry-run"))
            self.assertIn(line + "\n", result.out)
            self.assertFalse(never.exists())
            out, report = self.make(head)
            again = self.json(*self.quantize(self.models[True], never, "--head", head, "--dry-run"))
            for key in report.keys() - {"output", "seconds", "peak_memory_bytes"}:
                self.assertEqual(again[key], report[key], key)
            sharded, _ = self.make(head, options=["--max-shard-size", "30KB"])
            parts = {}
            for path in sorted(sharded.glob("*.safetensors")):
                parts |= read_safetensors(path)[0]
            self.assertEqual(parts, read_safetensors(out / "model.safetensors")[0])
            readme = (out / "README.md").read_text()
            self.assertIn("* lm_head: " + ("FP8 (E4M3)" if head == "fp8" else "NVFP4 weights"), readme)
            self.assertIn("--scheme NVFP4A16 --head " + head, readme)

    def test_what_does_not_go_together(self):
        model, out = self.models[True], self.work / "never"
        for pattern in ["lm_head", "re:lm", "Linear"]:
            self.refused(USAGE, ["--head", "--ignore", "lm_head", "leave one of the two out"],
                         *self.quantize(model, out, "--head", "fp8", "--ignore", pattern))
        self.ok(*self.quantize(model, self.work / "others", "--head", "fp8", "--ignore", "re:.*down_proj"))
        config = json.loads((self.work / "others/config.json").read_text())["quantization_config"]
        self.assertEqual(config["ignore"], [f"model.layers.{i}.mlp.down_proj" for i in range(support.LAYERS)])
        self.refused(USAGE, ["is quantised already"], *self.quantize(self.work / "others", out, "--head", "nvfp4"))
        infinite = TinyModel()
        infinite.set_value("model.embed_tokens.weight", 3 * HIDDEN + 5, math.inf)
        self.refused(FAILURE, ["model.embed_tokens.weight", "[3, 5]"],
                     *self.quantize(infinite.write(self.work / "infinite"), out, "--head", "fp8"))
        self.assertFalse(out.exists())


class Rotated(QuantizeCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel()
        cls.model = cls.tiny.write(cls.work / "model")
        cls.text = write_text(cls.work / "text.txt", 300)
        values = [(3 if i % 17 == 0 else 0) + (i * 7 % 11 - 5) / 20 for i in range(256)]
        cls.matrix = cls.work / "T.safetensors"
        support.write_safetensors(cls.matrix, {"T": ("F32", [16, 16], to_bytes(values, "F32"))}, {})

    def make(self, name, *options, scheme="NVFP4A16"):
        out = self.work / name
        calibration = ["--calibrate", self.text, "--calibrate-tokens", "64"] if scheme == "NVFP4" else []
        self.ok(*self.quantize(self.model, out, "--ignore", "lm_head", *calibration, *options, scheme=scheme))
        config = json.loads((out / "config.json").read_text())
        groups = config["quantization_config"]["transform_config"]["config_groups"]
        tensors, _ = read_safetensors(out / "model.safetensors")
        return out, config, groups, {name: entry for name, entry in tensors.items() if entry[0] == "F64"}

    def test_quip_is_random_signs_by_seed_stored_once(self):
        q_proj = "model.layers.0.self_attn.q_proj.v_input.weight"
        made = [self.make(f"quip{i}", "--transform", "quip", *seed) for i, seed in enumerate([[], ["--seed", "0"], ["--seed", "1"]])]
        for _, _, groups, matrices in made:
            self.assertEqual(set(groups), {"v"})
            scheme = groups["v"]
            self.assertEqual((scheme["type"], scheme["head_dim"], scheme["precision"]), ("random-hadamard", 16, "torch.float64"))
            self.assertEqual([(args["location"], args["inverse"], args["targets"], args["ignore"]) for args in scheme["apply"]],
                             [("input", False, ["Linear"], ["lm_head"]), ("weight_input", True, ["Linear"], ["lm_head"])])
            self.assertEqual(set(matrices), {q_proj})
            self.assertEqual(matrices[q_proj][1], [16, 16])
            self.assertEqual(set(struct.unpack("<256d", matrices[q_proj][2])), {1.0, -1.0})
        files = [(out / "model.safetensors").read_bytes() for out, *_ in made]
        self.assertEqual(files[0], files[1])
        self.assertNotEqual(files[0], files[2])

    def test_hadamard_of_the_full_width_has_a_matrix_for_each_width(self):
        _, _, groups, matrices = self.make("full", "--transform", "hadamard", "--transform-block", "full")
        self.assertEqual((groups["v"]["type"], groups["v"]["head_dim"]), ("random-hadamard", None))  # 96 is no power of two
        self.assertEqual({name: entry[1] for name, entry in matrices.items()},
                         {"model.layers.0.self_attn.q_proj.v_input.weight": [64, 64],
                          "model.layers.0.mlp.down_proj.v_input.weight": [96, 96]})

    def test_spinquant_unties_and_leaves_no_tensor(self):
        out, config, groups, matrices = self.make("spin", "--transform", "spinquant")
        self.assertEqual((set(groups), matrices, config["tie_word_embeddings"]), ({"R1", "R2"}, {}, False))
        self.assertEqual(groups["R2"]["head_dim"], 16)
        tensors, _ = read_safetensors(out / "model.safetensors")
        self.assertEqual(tensors["lm_head.weight"][0], "BF16")
        for name in [name for name in tensors if name.endswith("norm.weight")]:
            self.assertEqual(set(to_floats(tensors[name][2], "BF16")), {1.0})

    def test_r3_and_r4_stand_where_compressed_tensors_has_them(self):
        _, _, groups, matrices = self.make("r34", "--transform", "spinquant", "--rotations", "R3,R4", "--transform-block", "32")
        self.assertEqual(set(matrices), {"model.layers.0.self_attn.R3_q_attn.weight", "model.layers.0.mlp.down_proj.R4_input.weight"})
        self.assertEqual([(args["location"], args["targets"]) for args in groups["R3"]["apply"]],
                         [("q_attn", ["re:.*self_attn$"]), ("k_cache", ["re:.*self_attn$"])])
        self.assertEqual(groups["R4"]["apply"][0]["targets"], ["re:.*down_proj$"])

    def test_a_file_gives_its_matrix(self):
        _, _, groups, matrices = self.make("file", "--transform", self.matrix)
        self.assertEqual((groups["v"]["type"], groups["v"]["head_dim"]), ("random-matrix", 16))
        source, _ = read_safetensors(self.matrix)
        self.assertEqual(list(struct.unpack("<256d", next(iter(matrices.values()))[2])), list(struct.unpack("<256f", source["T"][2])))

    def test_the_name_of_a_file_may_be_in_capitals(self):
        capitals = self.work / "MATRIX.SAFETENSORS"
        capitals.write_bytes(Path(self.matrix).read_bytes())
        _, _, groups, _ = self.make("capitals", "--transform", capitals)
        self.assertEqual(groups["v"]["type"], "random-matrix")

    def test_a_seed_is_decimal(self):
        files = [(self.make(f"seed{seed}", "--transform", "quip", "--seed", seed)[0] / "model.safetensors").read_bytes()
                 for seed in ["10", "010", "8", "18446744073709551615"]]
        self.assertEqual(files[0], files[1])
        self.assertEqual(len(set(files)), 3)

    def test_ignored_layers_are_not_turned(self):
        _, _, groups, matrices = self.make("ignore", "--transform", "quip", "--ignore", "re:.*q_proj$")
        ignored = ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "lm_head"]
        self.assertEqual(groups["v"]["apply"][0]["ignore"], ignored)
        self.assertEqual(set(matrices), {"model.layers.0.self_attn.k_proj.v_input.weight"})

    def test_any_number_of_threads_gives_the_same_file(self):
        for kind in [["quip"], ["spinquant", "--rotations", "R1,R2,R3,R4", "--transform-block", "32"]]:
            files = []
            for threads in ["1", "3"]:
                out, *_ = self.make(f"{kind[0]}-{threads}", "--transform", *kind, "--threads", threads, scheme="NVFP4")
                files.append((out / "model.safetensors").read_bytes())
            self.assertEqual(files[0], files[1])

    def test_every_kind_runs_and_inspect_and_readme_say_what_was_done(self):
        for i, options in enumerate([["--transform", "quip", "--transform-block", "32", "--seed", "7"],
                                     ["--transform", "hadamard"], ["--transform", self.matrix],
                                     ["--transform", "spinquant", "--rotations", "R1,R2,R3,R4", "--transform-block", "16"]]):
            out, _, _, _ = self.make(f"kind{i}", *options, scheme="NVFP4")
            readme = (out / "README.md").read_text()
            self.assertIn(shlex.join(["--transform", *map(str, options[1:])]) if i != 3 else
                          "--transform spinquant --transform-block 16 --rotations R1,R2,R3,R4", readme)
            self.assertIn("at run time", readme)
            self.assertIn("a Hadamard matrix with random signs (seed 7) in blocks of 32" if i == 0 else "* Transforms:", readme)
            logits = [self.work / f"kind{i}-{arithmetic}.safetensors" for arithmetic in ["kernel", "simulated"]]
            for path, arithmetic in zip(logits, ["kernel", "simulated"]):
                self.ok("logits", "-m", out, "--tokens", "1,2,3,4", "--arithmetic", arithmetic, "-o", path)
            kernel, simulated = (read_safetensors(path)[0]["logits"] for path in logits)
            self.assertEqual(kernel, simulated)

    def test_the_report_tells_the_transforms_and_a_dry_run_the_same(self):
        options = ["--ignore", "lm_head", "--transform", "spinquant"]
        report = self.json(*self.quantize(self.model, self.work / "told", *options))
        self.assertEqual([line[:2] for line in report["transforms"]], ["R1", "R2"])
        dry = self.json(*self.quantize(self.model, self.work / "never", "--dry-run", *options))
        self.assertEqual({key: dry[key] for key in ["transforms", "worst", "output_bytes", "bits_per_weight"]},
                         {key: report[key] for key in ["transforms", "worst", "output_bytes", "bits_per_weight"]})
        self.assertFalse((self.work / "never").exists())

    def test_what_the_source_says_was_folded_is_left_out_aloud(self):
        source = self.work / "folded"
        shutil.copytree(self.model, source)
        config = json.loads((source / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R2": {
            "type": "hadamard", "head_dim": 16, "apply": [
                {"targets": ["re:.*v_proj$"], "location": "weight_output"},
                {"targets": ["re:.*o_proj$"], "location": "weight_input", "inverse": True}]}}}}
        (source / "config.json").write_text(json.dumps(config))
        for i, options in enumerate([[], ["--transform", "quip"]]):
            out = self.work / f"left-out{i}"
            result = self.ok(*self.quantize(source, out, "--ignore", "lm_head", *options))
            self.assertIn(f"warning: {source}: what its transform_config says was folded into the weights (R2 weight_output "
                          "(hadamard 16): 2 modules; R2 weight_input^-1 (hadamard 16): 2 modules) is left out", result.err)
            written = json.loads((out / "config.json").read_text())["quantization_config"]["transform_config"]
            self.assertEqual(set(written.get("config_groups", {})), {"v"} if options else set())

    def test_what_does_not_go_together(self):
        for parts, options in [
                (["--transform-block 16", "give one"], ["--transform-block", "16"]),
                (["--seed 1", "give one"], ["--seed", "1"]),
                (["--rotations R1", "give one"], ["--rotations", "R1"]),
                (["--seed 1", "--transform hadamard"], ["--transform", "hadamard", "--seed", "1"]),
                (["--rotations R1,R4", "--transform quip"], ["--transform", "quip", "--rotations", "R1,R4"]),
                (["--transform turn", "quip, spinquant, hadamard"], ["--transform", "turn"]),
                (["--transform ''", "quip, spinquant, hadamard"], ["--transform", ""]),
                (["--transform-block", "24", "16"], ["--transform", "quip", "--transform-block", "24"]),
                (["R5"], ["--transform", "spinquant", "--rotations", "R5"]),
                (["--transform-block 128", "64 wide", "16, 32, full"], ["--transform", "quip", "--transform-block", "128"]),
                (["--transform-block 64", "down_proj", "96 wide", "16, 32, full"], ["--transform", "hadamard", "--transform-block", "64"]),
                (["--transform-block 64", "R1 and R4", "--rotations R2,R3"],
                 ["--transform", "spinquant", "--rotations", "R2,R3", "--transform-block", "64"]),
                (["--transform-block 32", "[16, 16]"], ["--transform", self.matrix, "--transform-block", "32"])]:
            with self.subTest(options=options):
                self.refused(USAGE, parts, *self.quantize(self.model, self.work / "refused", *options))
        self.refused(FAILURE, "absent.safetensors", *self.quantize(self.model, self.work / "refused", "--transform",
                                                                   self.work / "absent.safetensors"))
        self.assertFalse((self.work / "refused").exists())


class Refusals(QuantizeCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source = TinyModel()
        cls.model = cls.source.write(cls.work / "model")
        cls.text = write_text(cls.work / "text.txt", 100)

    def setUp(self):
        self.place = self.work / self._testMethodName
        self.place.mkdir()

    def test_nvfp4_without_calibration_prints_both_ways_out(self):
        out = self.place / "it's out"
        result = self.refused(USAGE, "static input scales", *self.quantize(
            self.model, out, "--ignore", "re:.*[qk]_proj", "--ignore", "lm_head", "--separate-scales", "--force",
            "--threads", "2", "--cpu-level", "scalar", "--calibrate-tokens", "64", "--quiet", scheme="NVFP4"))
        w4a4, w4a16 = [shlex.split(line) for line in result.err.splitlines() if line.startswith("  halfbyte quantize")]
        rest = ["--ignore", "re:.*[qk]_proj", "--ignore", "lm_head", "--separate-scales", "--force", "--threads", "2",
                "--cpu-level", "scalar", "--quiet"]
        start = ["halfbyte", "quantize", "-m", str(self.model), "-o", str(out), "--scheme"]
        self.assertEqual(w4a4, [*start, "NVFP4", "--calibrate", "TEXT", "--calibrate-tokens", "64", *rest])
        self.assertEqual(w4a16, [*start, "NVFP4A16", *rest])
        # Both run as printed.
        w4a4[w4a4.index("TEXT")] = str(self.text)
        self.ok(*w4a4[1:])
        self.ok(*w4a16[1:])
        self.assert_nothing_new(self.place, ["it's out"])

    def test_calibration_for_weights_only(self):
        self.refused(USAGE, ["--calibrate", "NVFP4A16"], *self.quantize(self.model, self.place / "out", "--calibrate",
                                                                       self.text))

    def test_a_text_too_short_names_both_numbers(self):
        result = self.refused(USAGE, [self.text, "has 100 tokens", "asks for 2048"],
                              *self.quantize(self.model, self.place / "out", "--calibrate", self.text, scheme="NVFP4"))
        self.assertNotIn("memory", result.err)
        self.assert_nothing_new(self.place, [])

    def test_a_text_that_is_not_there_or_not_utf8(self):
        (self.place / "latin").write_bytes(b"caf\xe9")
        for name, part in [("absent", "No such file"), ("latin", "UTF-8 at byte offset 3")]:
            self.refused(FAILURE, [self.place / name, part], *self.quantize(
                self.model, self.place / "out", "--calibrate", self.place / name, scheme="NVFP4"))
        self.assert_nothing_new(self.place, ["latin"])

    def test_a_source_that_is_quantised(self):
        self.refused(USAGE, [LLMC, "quantised already", "W4A4"], *self.quantize(LLMC, self.place / "out"))

    def test_a_source_that_is_not_there(self):
        self.refused(FAILURE, [self.place / "absent", "no such file"],
                     *self.quantize(self.place / "absent", self.place / "out"))

    def test_existing_out(self):
        (self.place / "folder").mkdir()
        (self.place / "file").write_text("kept")
        (self.place / "link").symlink_to(self.place / "folder")
        (self.place / "dangling").symlink_to(self.place / "nowhere")
        names = ["folder", "file", "link", "dangling"]
        for name in [*names, "folder/", "link/"]:
            self.refused(USAGE, [self.place / name.strip("/"), "exists already; --force replaces it"],
                         *self.quantize(self.model, f"{self.place}/{name}"))
        for name in ["file", "dangling"]:
            self.refused(USAGE, [self.place / name, "not a folder"], *self.quantize(self.model, self.place / name, "--force"))
        self.assertEqual((self.place / "file").read_text(), "kept")
        self.assert_nothing_new(self.place, names)

    def test_existing_out_is_refused_before_the_calibration(self):
        (self.place / "out").mkdir()
        result = self.refused(USAGE, "exists already", *self.quantize(
            self.model, self.place / "out", "--calibrate", self.text, "--calibrate-tokens", "50", scheme="NVFP4"))
        self.assertNotIn("calibration runs", result.err)

    def test_force_replaces_a_folder_whole(self):
        out = self.place / "out"
        out.mkdir()
        self.ok(*self.quantize(self.model, out, "--force"))  # an empty folder
        (out / "model-00001-of-00002.safetensors").write_text("old")
        (out / "README.md").write_text("old")
        self.ok(*self.quantize(self.model, out, "--force"))
        self.assertFalse((out / "model-00001-of-00002.safetensors").exists())
        self.assert_nothing_new(self.place, ["out"])
        self.json("inspect", out)

    def test_force_replaces_no_link(self):
        target, link = self.place / "target", self.place / "link"
        self.ok(*self.quantize(self.model, target))
        link.symlink_to(target)
        for name in [link, f"{link}/"]:
            self.refused(USAGE, [link, "is a link", target], *self.quantize(self.model, name, "--force"))
        self.assertTrue(link.is_symlink())
        self.assert_nothing_new(self.place, ["target", "link"])

    def test_force_keeps_what_is_no_model(self):
        out = self.place / "home"
        out.mkdir()
        (out / "thesis.tex").write_text("years of work")
        self.refused(USAGE, [out, "not replaced", "config.json"], *self.quantize(self.model, out, "--force"))
        (out / "config.json").write_text('{"name": "my-app"}')
        self.refused(USAGE, [out, "not replaced", "model.safetensors"], *self.quantize(self.model, out, "--force"))
        self.assertEqual((out / "thesis.tex").read_text(), "years of work")
        self.assert_nothing_new(self.place, ["home"])

    def test_force_keeps_an_earlier_result_in_which_something_else_lies(self):
        out = self.place / "out"
        self.ok(*self.quantize(self.model, out))
        text = out / "calibrate.txt"
        text.write_bytes(Path(self.text).read_bytes())
        self.refused(USAGE, [out, "not replaced", '"calibrate.txt"'], *self.quantize(
            self.model, out, "--force", "--calibrate", text, "--calibrate-tokens", "50", scheme="NVFP4"))
        text.unlink()
        (out / "src").mkdir()
        self.refused(USAGE, [out, "not replaced", '"src"'], *self.quantize(self.model, out, "--force"))
        (out / "src").rmdir()
        self.ok(*self.quantize(self.model, out, "--force"))

    def test_the_source_is_never_replaced(self):
        model = self.source.write(self.place / "holder/model")
        (self.place / "holder/config.json").write_text("{}")
        gguf = TinyModel("F16").write_gguf(self.place / "holder/tiny.gguf")
        (self.place / "alias").symlink_to(model)
        before = {path: path.read_bytes() for path in self.place.rglob("*") if path.is_file()}
        self.refused(USAGE, [self.place / "alias", "is a link"], *self.quantize(model, self.place / "alias", "--force"))
        for out in [model, f"{model}/", f"{model}/../model", model / "inside", self.place / "holder"]:
            self.refused(USAGE, [out, "is the source", "holds it or lies in it"], *self.quantize(model, out, "--force"))
        self.refused(USAGE, "is the source", *self.quantize(gguf, self.place / "holder", "--force"))
        self.refused(USAGE, "is the source", *self.quantize(".", "../model", "--force"), cwd=model)
        self.assertEqual({path: path.read_bytes() for path in self.place.rglob("*") if path.is_file()}, before)
        self.ok(*self.quantize(gguf, self.place / "holder/beside"))  # beside the file is where people want it

    def test_names_of_out_that_cannot_be(self):
        for name in ["", "/", ".", "..", f"{self.place}/."]:
            self.refused(USAGE, ["output folder", "name of a folder to create"], *self.quantize(self.model, name),
                         cwd=self.place)
        self.refused(FAILURE, [self.place / "no", "does not exist"], *self.quantize(self.model, self.place / "no/out"))
        self.refused(FAILURE, "File name too long", *self.quantize(self.model, self.place / ("n" * 300)))

    def test_non_finite_weights_name_tensor_and_place(self):
        for number, (name, index, value, place) in enumerate([
                ("model.layers.1.mlp.up_proj.weight", 5 * HIDDEN + 3, math.nan, "[5, 3]"),
                ("model.layers.0.self_attn.k_proj.weight", 31 * HIDDEN + 63, -math.inf, "[31, 63]"),
                ("model.embed_tokens.weight", 2 * HIDDEN, math.inf, "[2, 0]"),  # not quantised, looked at all the same
                ("model.layers.1.input_layernorm.weight", 7, math.nan, "[7]")]):
            source = TinyModel()
            source.set_value(name, index, value)
            folder = source.write(self.work / f"broken{number}")
            for options in [[], ["--dry-run"], ["--threads", "1"]]:
                self.refused(FAILURE, [folder, name, place, "nan" if math.isnan(value) else "inf"],
                             *self.quantize(folder, self.place / "out", *options))
        self.assert_nothing_new(self.place, [])

    def test_weights_too_small_for_a_scale(self):
        source = TinyModel("F32")
        name = "model.layers.0.mlp.down_proj.weight"
        n, k = source.tensors[name][1]
        source.tensors[name] = ("F32", [n, k], to_bytes([1e-40] * (n * k), "F32"))
        self.refused(FAILURE, [name, "9.99995e-41", "too small"], *self.quantize(source.write(self.work / "small"), self.place / "out"))
        self.assert_nothing_new(self.place, [])

    def test_broken_activations_stop_the_calibration(self):
        source = TinyModel("F32")
        for name in ["model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"]:
            source.set_value(name, 0, 3e38)
        result = halfbyte(*self.quantize(source.write(self.work / "huge"), self.place / "out", "--calibrate", self.text,
                                         "--calibrate-tokens", "50", scheme="NVFP4"))
        self.assertEqual(result.code, FAILURE, result)
        self.assertRegex(result.err, r"the input of model\.layers\.\d\.\S+ is not finite at token \d+")
        self.assert_nothing_new(self.place, [])

    def test_k_that_is_no_multiple_of_16(self):
        source = TinyModel()
        source.config["intermediate_size"] = 72
        for layer in range(support.LAYERS):
            for name, shape in [("gate", [72, HIDDEN]), ("up", [72, HIDDEN]), ("down", [HIDDEN, 72])]:
                source.matrix(f"model.layers.{layer}.mlp.{name}_proj.weight", *shape, 0.1)
        model = source.write(self.work / "odd")
        self.refused(UNSUPPORTED, ["model.layers.0.mlp.down_proj.weight", "K = 72", "multiple of 16", "--ignore"],
                     *self.quantize(model, self.place / "out"))
        self.assert_nothing_new(self.place, [])
        self.ok(*self.quantize(model, self.place / "out", "--ignore", "lm_head", "--ignore", "re:.*down_proj"))

    def test_an_architecture_that_is_not_built_in(self):
        source = TinyModel()
        source.config["architectures"] = ["MambaForCausalLM"]
        model = source.write(self.work / "mamba")
        for command in [self.quantize(model, self.place / "out"), ["generate", "-m", model, "-p", "x"]]:
            self.refused(UNSUPPORTED, [model, "MambaForCausalLM", "LlamaForCausalLM"], *command)

    def test_a_model_without_tokenizer_can_be_quantised_without_calibration_only(self):
        source = TinyModel()
        source.tokenizer = None
        model = source.write(self.work / "mute")
        self.refused(UNSUPPORTED, [model, "no tokenizer"], *self.quantize(
            model, self.place / "out", "--calibrate", self.text, "--calibrate-tokens", "50", scheme="NVFP4"))
        self.ok(*self.quantize(model, self.place / "out"))


class Ignore(QuantizeCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source = TinyModel(tied=False)
        cls.model = cls.source.write(cls.work / "model")

    def ignored(self, *patterns):
        """(the modules left dense, the result)"""
        out = self.work / "out"
        options = [word for pattern in patterns for word in ["--ignore", pattern]]
        result = self.ok(*self.quantize(self.model, out, "--force", *options))
        tensors, _ = read_safetensors(out / "model.safetensors")
        dense = {module for module in [*MODULES, "lm_head"] if module + ".weight" in tensors}
        for module in dense:
            self.assertEqual(tensors[module + ".weight"], self.source.tensors[module + ".weight"])
            self.assertNotIn(module + ".weight_packed", tensors)
        listed = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
        self.assertEqual(sorted(listed), sorted(dense))
        self.assertEqual(self.json("inspect", out)["formats"]["NVFP4"], len(MODULES) + 1 - len(dense))
        return dense, result

    def test_the_default_is_lm_head(self):
        self.assertEqual(self.ignored()[0], {"lm_head"})

    def test_patterns(self):
        up = {"model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"}
        # patterns, the modules left dense, groups (q/k/v, gate/up) left dense in part
        for patterns, expected, split in [
                (["model.layers.0.mlp.up_proj"], {"model.layers.0.mlp.up_proj"}, 1), (["re:.*up_proj$"], up, 2),
                (["re:.*up_proj$", "lm_head"], up | {"lm_head"}, 2),
                (["re:model.layers.1"], {m for m in MODULES if "layers.1" in m}, 0),
                (["re:.*self_attn", "re:.*mlp.(gate|up)"], {m for m in MODULES if "down" not in m}, 0)]:
            with self.subTest(patterns=patterns):
                dense, result = self.ignored(*patterns)
                self.assertEqual(dense, expected)
                if split:
                    self.assertIn(f"warning: --ignore splits {split} groups", result.err)
                else:
                    self.assertEqual(result.err, "")

    def test_a_pattern_that_matches_nothing_is_told(self):
        for pattern in ["up_proj", "re:up_proj", "model.layers.7.mlp.up_proj", "LM_HEAD", ""]:
            dense, result = self.ignored("re:.*down_proj", pattern)
            self.assertEqual(dense, {m for m in MODULES if "down" in m})
            self.assertIn(f"warning: --ignore '{pattern}' matches no linear layer", result.err)

    def test_everything_ignored_is_an_error(self):
        for patterns in [["Linear"], ["re:.*"], ["re:model", "lm_head"]]:
            options = [word for pattern in patterns for word in ["--ignore", pattern]]
            self.refused(USAGE, [self.model, "--ignore", "no layer to quantise"],
                         *self.quantize(self.model, self.work / "nothing", *options))
        self.assertFalse((self.work / "nothing").exists())

    def test_a_pattern_that_does_not_compile(self):
        self.refused(USAGE, ["--ignore", "re:(", "no regular expression"], *self.quantize(self.model, self.work / "nothing", "--ignore", "re:("))

    def test_the_shared_scale_is_that_of_the_layers_that_are_left(self):
        out = self.work / "shared"
        self.ok(*self.quantize(self.model, out, "--ignore", "re:.*v_proj"))
        tensors, _ = read_safetensors(out / "model.safetensors")
        amax = max(abs(value) for name in "qk"
                   for value in to_floats(self.source.tensors[f"model.layers.0.self_attn.{name}_proj.weight"][2], "BF16"))
        for name in "qk":
            word = tensors[f"model.layers.0.self_attn.{name}_proj.weight_global_scale"][2]
            self.assertEqual(word, struct.pack("<f", 2688 / amax))


class Interrupts(QuantizeCase):
    """Stopped in the middle of the work, which is known by the temporary folder."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        source = TinyModel()
        # Large enough to be met in the middle: 64 MiB of embedding, which is copied after the first layers.
        source.config["vocab_size"] = 512 * 1024
        source.tensors["model.embed_tokens.weight"] = ("BF16", [512 * 1024, HIDDEN], to_bytes([0.5] * HIDDEN, "BF16") * (512 * 1024))
        cls.model = source.write(cls.work / "model")

    def interrupted(self, signals, ignored=None):
        out = self.work / "out"
        prepare = (lambda: signal.signal(ignored, signal.SIG_IGN)) if ignored else None
        process = subprocess.Popen([PROGRAM, *self.quantize(self.model, out, "--threads", "1")], preexec_fn=prepare,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        while not any(".partial-" in name for name in os.listdir(self.work)):
            self.assertIsNone(process.poll(), "the program ended before its temporary folder was seen")
            self.assertLess(time.monotonic(), deadline)
        for number in signals:
            process.send_signal(number)
        printed, errors = process.communicate(timeout=300)
        return process.returncode, printed, errors

    def test_a_signal_stops_the_work_and_leaves_nothing(self):
        for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
            code, printed, errors = self.interrupted([number])
            self.assertEqual((code, printed, errors), (128 + number, b"", b"halfbyte: error: interrupted\n"))
            self.assert_nothing_new(self.work, ["model"])
        self.assertEqual(128 + signal.SIGINT, INTERRUPTED)

    def test_the_calibration_is_stopped_too(self):
        text = write_text(self.work / "text.txt", 60000)
        process = subprocess.Popen([PROGRAM, *self.quantize(self.model, self.work / "out", "--calibrate", text,
                                                            "--calibrate-tokens", "60000", scheme="NVFP4")],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertIn(b"calibration runs the source model", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=300)
        self.assertEqual((process.returncode, printed, errors), (INTERRUPTED, b"", b"halfbyte: error: interrupted\n"))
        text.unlink()
        self.assert_nothing_new(self.work, ["model"])

    def test_an_ignored_signal_stays_ignored(self):
        code, _, errors = self.interrupted([signal.SIGHUP], ignored=signal.SIGHUP)
        self.assertEqual((code, errors), (OK, b""))
        self.assert_nothing_new(self.work, ["model", "out"])
        shutil.rmtree(self.work / "out")


class Disk(QuantizeCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel().write(cls.work / "model")

    def setUp(self):
        self.place = self.work / self._testMethodName
        self.place.mkdir()

    def test_the_old_folder_stays_when_the_new_one_fails(self):
        out = self.place / "out"
        self.ok(*self.quantize(self.model, out))
        before = (out / "model.safetensors").read_bytes()
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        self.refused(FAILURE, "cannot be written", *self.quantize(self.model, out, "--force"), preexec_fn=limit)
        self.assertEqual((out / "model.safetensors").read_bytes(), before)
        self.assert_nothing_new(self.place, ["out"])

    def test_a_file_system_that_cannot_swap(self):
        """renameat2 with flags fails on some network file systems; here a seccomp filter makes it."""
        without_renameat2 = self.failing({"x86_64": 316, "aarch64": 276}, errno.EINVAL)
        out = self.place / "out"
        self.ok(*self.quantize(self.model, out), preexec_fn=without_renameat2)
        (out / "model-old.safetensors").write_text("old")
        self.ok(*self.quantize(self.model, out, "--force"), preexec_fn=without_renameat2)
        self.assertFalse((out / "model-old.safetensors").exists())
        self.json("inspect", out)
        self.assert_nothing_new(self.place, ["out"])


class Determinism(QuantizeCase):
    def test_threads_and_cpu_level_change_no_byte(self):
        model, text = TinyModel(tied=False).write(self.work / "model"), write_text(self.work / "text.txt")
        levels = [level["level"] for level in self.json("env")["cpu_levels"] if not level["unsupported_reason"]]
        first = None
        for level in levels:
            for threads in ["1", "2"]:
                out = self.work / f"{level}-{threads}"
                report = self.json(*self.quantize(model, out, "--calibrate", text, "--calibrate-tokens", "300", "--cpu-level",
                                                  level, "--threads", threads, scheme="NVFP4"))
                made = {path.name: path.read_bytes() for path in out.iterdir() if path.name != "README.md"}
                made["report"] = {key: value for key, value in report.items()
                                  if key not in ("output", "seconds", "peak_memory_bytes")}
                first = first or made
                self.assertEqual(made.keys(), first.keys())
                for name in made:
                    self.assertTrue(made[name] == first[name], f"{name} differs with --cpu-level {level} --threads {threads}")

    def test_twice_the_same(self):
        model = TinyModel("F16").write_gguf(self.work / "tiny.gguf")
        for out in ["one", "two"]:
            self.ok(*self.quantize(model, self.work / out))
        for path in (self.work / "one").iterdir():
            text = path.read_bytes()
            if path.name == "README.md":
                text = text.replace(b"/one", b"/two")
            self.assertTrue(text == (self.work / "two" / path.name).read_bytes(), path.name)


if __name__ == "__main__":
    support.main()
