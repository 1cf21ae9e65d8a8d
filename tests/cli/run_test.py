"""inspect, tokenize, logits, generate and perplexity on tiny models, and files that are wrong."""

import json
import math
import shutil
import unittest

import support
from support import (BOS, CONTEXT, DATA, END_OF_TEXT, FAILURE, IM_END, IM_START, LLMC, MALFORMED, MODULES, UNSUPPORTED,
                     USAGE, VOCAB, TestCase, TinyModel, halfbyte, read_safetensors, tiny_tokenizer, to_bytes, to_floats,
                     write_safetensors, write_text)


class Models(TestCase):
    """A source, and its W4A4 and W4A16 exports."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source = TinyModel().write(cls.work / "source")
        cls.text = write_text(cls.work / "text.txt")
        cls.a4, cls.a16 = cls.work / "a4", cls.work / "a16"
        for out, options in [(cls.a4, ["NVFP4", "--calibrate", cls.text, "--calibrate-tokens", "256"]),
                             (cls.a16, ["NVFP4A16"])]:
            made = halfbyte("quantize", "-m", cls.source, "-o", out, "--quiet", "--scheme", *options)
            assert made.code == 0, made


class Inspect(Models):
    def test_dialects(self):
        gguf = TinyModel("F16").write_gguf(self.work / "tiny.gguf")
        for path, dialect, scheme, formats in [
                (self.source, "Hugging Face folder", None, {"BF16": 20}),
                (gguf, "GGUF", None, {"F16": 15, "F32": 5}),
                (self.a4, "compressed-tensors NVFP4 (W4A4)", "NVFP4", {"BF16": 6, "NVFP4": 14}),
                (self.a16, "compressed-tensors NVFP4A16 (W4A16)", "NVFP4A16", {"BF16": 6, "NVFP4": 14}),
                (LLMC, "compressed-tensors NVFP4 (W4A4)", "NVFP4", {"BF16": 6, "NVFP4": 14})]:
            value = self.json("inspect", path)
            self.assertEqual((value["dialect"], value["scheme"], value["formats"]), (dialect, scheme, formats))
            self.assertEqual(value["architecture"], "LlamaForCausalLM")
            self.assertEqual(value["scales"] is None, scheme is None)
            self.assertNotIn("tensors", value)
            self.assertIn(dialect, self.ok("inspect", path).out)

    def test_scale_statistics_are_those_of_the_file(self):
        tensors, _ = read_safetensors(self.a4 / "model.safetensors")
        scales = b"".join(raw for name, (_, _, raw) in tensors.items() if name.endswith("weight_scale"))
        def decode(byte):
            return math.ldexp(8 + (byte & 7), (byte >> 3) - 10) if byte >> 3 else math.ldexp(byte & 7, -9)
        nonzero = [decode(byte) for byte in set(scales) - {0}]
        def words(suffix):
            found = [to_floats(raw, "F32")[0] for name, (_, _, raw) in tensors.items() if name.endswith(suffix)]
            return [min(found), max(found)]
        self.assertEqual(self.json("inspect", self.a4)["scales"],
                         {"blocks": len(scales), "block_scale_range": [min(nonzero), max(nonzero)],
                          "block_scale_zero": scales.count(0), "block_scale_subnormal": sum(1 <= b < 8 for b in scales),
                          "block_scale_448": scales.count(0x7E),
                          "weight_global_scale_range": words("weight_global_scale"),
                          "input_global_scale_range": words("input_global_scale")})
        self.assertIsNone(self.json("inspect", self.a16)["scales"]["input_global_scale_range"])
        self.assertIn("input global scales", self.ok("inspect", self.a4).out)
        self.assertNotIn("input global scales", self.ok("inspect", self.a16).out)

    def test_tensors(self):
        rows = self.json("inspect", self.a4, "--tensors")["tensors"]
        self.assertEqual([row["name"] for row in rows], sorted(TinyModel().tensors))
        by_name = {row["name"]: row for row in rows}
        self.assertEqual(by_name["model.layers.1.mlp.down_proj.weight"],
                         {"name": "model.layers.1.mlp.down_proj.weight", "format": "NVFP4", "shape": [64, 96]})
        self.assertRegex(self.ok("inspect", self.a4, "--tensors").out, r"\n  BF16   \[64\] +model\.norm\.weight\n")

    def test_transforms(self):
        # A hadamard of a power of two needs no tensor.
        scheme = lambda n, *places: {"type": "hadamard", "head_dim": n, "apply": [
            {"targets": targets, "location": location, "inverse": inverse, "ignore": ["lm_head"]}
            for location, inverse, targets in places]}
        folder = self.work / "rotated"
        shutil.copytree(self.a4, folder)
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"]["transform_config"] = {"config_groups": {
            "v": scheme(16, ("input", False, ["Linear"]), ("weight_input", True, ["Linear"])),
            "u": scheme(32, ("output", True, ["re:.*q_proj$"])),
            "R3": scheme(8, ("q_attn", False, ["re:.*self_attn$"]), ("k_cache", False, ["re:.*self_attn$"]), ("weight_output", False, ["re:no"]))}}
        (folder / "config.json").write_text(json.dumps(config))
        linear, q = "input v (hadamard 16)", "input v (hadamard 16); output u^-1 (hadamard 32)"
        result = self.ok("inspect", folder)
        self.assertIn(f"\n{q}: model.layers.*.self_attn.q_proj (2)\n", result.out)
        self.assertIn("\nq R3 (hadamard 8); k R3 (hadamard 8): model.layers.*.self_attn (2)\n", result.out)
        self.assertEqual(result.out.count(linear + ": "), 1)
        self.assertIn("\ntransform matrices: 3, largest |c^2 M M^T - 1| ", result.out)
        self.assertIn("\nfolded into the weights: v weight_input^-1 (hadamard 16): 14 modules\n", result.out)
        self.assertIn('warning: ' + str(folder), result.err)
        self.assertIn('of weight_output, targets match no module: "re:no"', result.err)
        self.assertIn(f"\nmodel.layers.1.self_attn.q_proj: {q}\n", self.ok("inspect", folder, "--tensors").out)
        value = self.json("inspect", folder)["transforms"]
        self.assertEqual({layer["module"]: layer["transforms"] for layer in value["layers"]}["model.layers.0.mlp.up_proj"], linear)
        self.assertEqual(len(value["layers"]), 16)
        self.assertEqual(value["folded"], ["v weight_input^-1 (hadamard 16): 14 modules"])
        self.assertEqual(value["matrices"][0], {"scheme": "v", "type": "hadamard", "inverse": False, "n": 16, "form": "butterfly",
                                                "scale": 0.25, "orthogonality_error": 0})
        self.assertIsNone(self.json("inspect", self.a4)["transforms"])
        # They are run: other logits, by kernels and simulation alike.
        hashes = [self.json("logits", "-m", model, "--tokens", "1,2,3", "-o", self.work / "l", "--force", "--arithmetic", arithmetic)
                  ["logits_hash"] for model, arithmetic in [(folder, "kernel"), (folder, "simulated"), (self.a4, "kernel")]]
        self.assertEqual(hashes[0], hashes[1])
        self.assertNotEqual(hashes[0], hashes[2])
        self.refused(USAGE, [folder, "quantised already"], "quantize", "-m", folder, "-o", self.work / "never", "--scheme", "NVFP4A16", "--quiet")


class Warnings(Models):
    """What is wrong in the files of a model that is run is told by every command that runs it."""

    def test_of_fp_quant(self):
        # A file by the description in docs/formats.md: the tensors of an export under FP-Quant's names, with the matrix 1.
        folder = self.work / "quest"
        shutil.copytree(self.a4, folder)
        tensors, metadata = read_safetensors(folder / "model.safetensors")
        names = {".weight_packed": ".qweight", ".weight_scale": ".scales", ".input_global_scale": ".act_global_scale"}
        stored = {}
        for name, (dtype, shape, raw) in tensors.items():
            module, leaf = name.rsplit(".", 1)
            new = module + names.get("." + leaf, "." + leaf)
            stored[new] = ("U8" if new.endswith(".scales") else dtype, shape, raw)
            if leaf == "weight_packed":
                identity = [float(i == j) for i in range(16) for j in range(16)]
                stored[module + ".forward_hadamard_matrix"] = ("BF16", [16, 16], to_bytes(identity, "BF16"))
        write_safetensors(folder / "model.safetensors", stored, metadata)
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "fp_quant", "forward_dtype": "nvfp4", "forward_method": "quest",
                                         "hadamard_group_size": 16}
        (folder / "config.json").write_text(json.dumps(config))
        evaluation = ["-f", self.text, "--windows", "1", "--window-size", "8"]
        for command in [["inspect", folder], ["logits", "-m", folder, "--tokens", "1,2", "-o", self.work / "quest.safetensors", "--force"],
                        ["generate", "-m", folder, "-p", "a", "-n", "2"], ["perplexity", "-m", folder, *evaluation],
                        ["perplexity", "--compare", self.a4, folder, *evaluation]]:
            with self.subTest(command=command):
                told = self.ok(*command)
                self.assertEqual(told.err.count(f"halfbyte: warning: {folder}/config.json: forward_method is quest"), 1, told)
                self.assertNotIn("warning", self.ok(*command, "--quiet").err)

    def test_of_a_source(self):
        folder = self.work / "wrong_size"
        shutil.copytree(self.source, folder)
        tensors, _ = read_safetensors(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(
            {"metadata": {"total_size": 7}, "weight_map": {name: "model-00001-of-00001.safetensors" for name in tensors}}))
        command = ["quantize", "-m", folder, "-o", self.work / "of_wrong_size", "--scheme", "NVFP4A16", "--force"]
        told = self.ok(*command)
        self.assertEqual(told.err.count("total_size"), 1, told)
        self.assertNotIn("total_size", self.ok(*command, "--quiet").err)


class Tokenize(TestCase):
    def test_ids(self):
        model = TinyModel().write(self.work / "model")
        self.assertEqual(self.json("tokenize", "-m", model, "-p", "Hi é")["tokens"], list("Hi é".encode()))
        self.assertEqual(self.ok("tokenize", "-m", model, "-p", "Hi").out, "72 105\n")
        self.assertEqual(self.ok("tokenize", "-m", model, "-p", "").out, "\n")
        self.assertEqual(self.json("tokenize", "-m", model, "-p", "")["tokens"], [])
        self.assertEqual(self.json("tokenize", "-m", model, "-p", "a<|im_end|>b")["tokens"], [97, IM_END, 98])

    def test_a_bos_that_the_tokenizer_adds(self):
        model = TinyModel()
        model.tokenizer = tiny_tokenizer(adds_bos=True)
        self.assertEqual(self.json("tokenize", "-m", model.write(self.work / "bos"), "-p", "a")["tokens"], [BOS, 97])

    def test_without_tokenizer(self):
        model = TinyModel()
        model.tokenizer = None
        folder = model.write(self.work / "mute")
        self.refused(UNSUPPORTED, [folder, "tokenizer.json"], "tokenize", "-m", folder, "-p", "a")
        (folder / "tokenizer.model").write_text("")
        self.refused(UNSUPPORTED, [folder, "SentencePiece"], "tokenize", "-m", folder, "-p", "a")
        self.ok("logits", "-m", folder, "--tokens", "1,2,3", "-o", self.work / "logits.safetensors")


class Logits(Models):
    def logits(self, model, *options, tokens="1,2,3"):
        out = self.work / "logits.safetensors"
        report = self.json("logits", "-m", model, "--tokens", tokens, "-o", out, "--force", *options)
        tensors, metadata = read_safetensors(out)
        (name, (dtype, shape, raw)), = tensors.items()
        self.assertEqual((name, dtype, shape), ("logits", "F32", report["shape"]))
        self.assertTrue(all(map(math.isfinite, to_floats(raw, dtype))))
        self.assertTrue(metadata["tool"].startswith("halfbyte "))
        self.assertRegex(report["logits_hash"], r"^[0-9a-f]{16}$")
        return report["logits_hash"], shape, raw

    def test_the_file(self):
        for model, vocab in [(self.source, VOCAB), (self.a4, VOCAB), (LLMC, 1024)]:
            self.assertEqual(self.logits(model)[1], [3, vocab])
        self.assertEqual(self.logits(self.a4, tokens="7")[1], [1, VOCAB])

    def test_a_start_of_the_tokens_has_the_start_of_the_logits(self):
        for model in [self.source, self.a4, self.a16]:
            self.assertTrue(self.logits(model, tokens="5,6,7,8,9")[2].startswith(self.logits(model, tokens="5,6")[2]))

    def test_arithmetics(self):
        kernel = {model: self.logits(model) for model in [self.a4, self.a16, LLMC]}
        for model in kernel:
            self.assertEqual(self.logits(model, "--arithmetic", "kernel"), kernel[model])
            self.assertEqual(self.logits(model, "--arithmetic", "simulated"), kernel[model])
        self.assertEqual(self.logits(self.a16, "--arithmetic", "w4a16"), kernel[self.a16])
        for model in [self.a4, LLMC]:
            self.assertNotEqual(self.logits(model, "--arithmetic", "w4a16")[0], kernel[model][0])
        # A W4A4 file differs from the W4A16 file of the same weights by its input scales alone.
        self.assertEqual(self.logits(self.a4, "--arithmetic", "w4a16")[2], kernel[self.a16][2])

    def test_levels_and_threads_change_no_bit(self):
        levels = [level["level"] for level in self.json("env")["cpu_levels"] if not level["unsupported_reason"]]
        for arithmetic in ["kernel", "simulated", "w4a16"]:
            self.assertEqual(len({self.logits(self.a4, "--arithmetic", arithmetic, "--cpu-level", level, "--threads", threads)[0]
                                  for level in levels for threads in "12"}), 1)

    def test_an_unquantised_model_has_one_arithmetic(self):
        for arithmetic in ["simulated", "w4a16"]:
            self.refused(USAGE, [self.source, "not quantised", arithmetic], "logits", "-m", self.source, "--tokens", "1",
                         "-o", self.work / "never", "--arithmetic", arithmetic)

    def test_tokens_that_are_none(self):
        for tokens in ["", ",", "1,", "1,,2", "1,x", "-1", "[1,2]", "1.5", "1 2", "99999999999"]:
            self.refused(USAGE, ["--tokens", "separated by commas"], "logits", "-m", self.a4, "-o", self.work / "never",
                         "--tokens", tokens)
        self.refused(USAGE, [f"--tokens: {VOCAB} is given", f"0 to {VOCAB - 1}"], "logits", "-m", self.a4, "--tokens", f"1,{VOCAB}", "-o",
                     self.work / "never")
        many = ",".join(["1"] * (CONTEXT + 1))
        self.refused(USAGE, [str(CONTEXT + 1), f"context has {CONTEXT}"], "logits", "-m", self.a4, "--tokens", many, "-o",
                     self.work / "never")
        self.assertFalse((self.work / "never").exists())

    def test_existing_files_stay(self):
        place = self.work / "places"
        (place / "folder").mkdir(parents=True)
        (place / "file").write_text("kept")
        (place / "link").symlink_to(place / "nowhere")
        command = ["logits", "-m", self.a4, "--tokens", "1", "-o"]
        for name in ["file", "link"]:
            self.refused(USAGE, [place / name, "--force"], *command, place / name)
        self.assertEqual((place / "file").read_text(), "kept")
        for name in ["folder", "folder/"]:
            self.refused(USAGE, "is a folder", *command, f"{place}/{name}", "--force")
        self.refused(FAILURE, "does not exist", *command, place / "no/file")
        self.refused(USAGE, [place / "link", "is a link"], *command, place / "link", "--force")
        self.refused(USAGE, ["/dev/null", "device"], *command, "/dev/null", "--force")
        self.ok(*command, place / "file", "--force")
        self.assertEqual(read_safetensors(place / "file")[0]["logits"][1], [1, VOCAB])
        self.assert_nothing_new(place, ["folder", "file", "link"])


class Generate(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel()
        cls.model = cls.tiny.write(cls.work / "model")
        bos = TinyModel()
        bos.tokenizer = tiny_tokenizer(adds_bos=True)
        cls.bos = bos.write(cls.work / "bos")

    def generate(self, *options, model=None, prompt="Once"):
        value = self.json("generate", "-m", model or self.model, "-p", prompt, *options)
        self.assertGreaterEqual(value["seconds"], 0)
        return value

    def test_json_and_text_say_the_same(self):
        value = self.generate("--temp", "0", "-n", "8", "--ignore-eos")
        self.assertEqual(value["prompt_tokens"], list(b"Once"))
        self.assertEqual(len(value["tokens"]), 8)
        self.assertEqual(self.ok("generate", "-m", self.model, "-p", "Once", "--temp", "0", "-n", "8", "--ignore-eos").out,
                         value["text"] + "\n")

    def test_greedy_is_the_default(self):
        self.assertEqual(self.generate("-n", "6")["tokens"], self.generate("-n", "6", "--temp", "0")["tokens"])

    def test_sampling_repeats_with_its_seed(self):
        def sampled(*options):
            return self.generate("-n", "12", "--ignore-eos", *options)["tokens"]
        first = sampled("--temp", "1.5", "--seed", "5")
        self.assertEqual(sampled("--temp", "1.5", "--seed", "5"), first)
        self.assertEqual(sampled("--temp", "1.5", "--seed", "5", "--threads", "1", "--cpu-level", "scalar"), first)
        self.assertNotEqual(sampled("--temp", "1.5", "--seed", "6"), first)
        greedy = sampled("--temp", "0")
        self.assertEqual(sampled("--temp", "1.5", "--seed", "5", "--top-k", "1"), greedy)
        self.assertEqual(sampled("--temp", "1.5", "--seed", "5", "--top-p", "1e-9"), greedy)
        for option, value, part in [("--temp", "-1", "a number >= 0"), ("--temp", "nan", "a number >= 0"),
                                    ("--top-k", "-1", "a whole number >= 0"), ("--top-p", "0", "(0, 1]"), ("--top-p", "1.5", "(0, 1]")]:
            self.refused(USAGE, [part, value.split(".")[0]], "generate", "-m", self.model, "-p", "x", f"{option}={value}")

    def test_it_stops_before_every_eos_of_generation_config(self):
        free = self.generate("-n", "20", "--ignore-eos")["tokens"]
        for stops in [[free[4]], [END_OF_TEXT, free[7]], free[3]]:
            changed = TinyModel()
            changed.generation["eos_token_id"] = stops
            model = changed.write(self.work / f"stops-{stops}")
            where = next(i for i, token in enumerate(free) if token in (stops if isinstance(stops, list) else [stops]))
            self.assertEqual(self.generate("-n", "20", model=model)["tokens"], free[:where])
            self.assertEqual(self.generate("-n", "20", "--ignore-eos", model=model)["tokens"], free)

    def test_bos_comes_from_the_tokenizer_alone(self):
        self.assertEqual(self.generate("-n", "1")["prompt_tokens"], list(b"Once"))
        self.assertEqual(self.generate("-n", "1", model=self.bos)["prompt_tokens"], [BOS, *b"Once"])
        self.assertEqual(self.generate("-n", "1", "--raw", model=self.bos)["prompt_tokens"], list(b"Once"))

    def test_chat(self):
        ids = self.generate("-n", "1", "--chat", "--system", "Be brief.", prompt="Hi")["prompt_tokens"]
        text = b"".join(bytes([token]) if token < 256 else support.SPECIAL[token - 256].encode() for token in ids)
        self.assertEqual(text, b"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                               b"<|im_start|>assistant\n")
        self.assertEqual(ids[0], IM_START)
        # The template adds its own system message when none is given.
        without = self.generate("-n", "1", "--chat", prompt="Hi")["prompt_tokens"]
        self.assertIn("You are a helpful AI assistant".encode(), bytes(token for token in without if token < 256))

    def test_chat_of_llama_3_begins_with_one_bos_and_names_the_day_of_its_template(self):
        tiny = TinyModel()
        tiny.special, tiny.pre = support.LLAMA3_SPECIAL, "llama-bpe"
        tiny.tokenizer = tiny_tokenizer(adds_bos=True, special=tiny.special)
        tiny.generation["eos_token_id"] = [support.VOCAB - 1, support.VOCAB - 2, END_OF_TEXT]
        def text(ids):
            return b"".join(bytes([i]) if i < 256 else tiny.special[i - 256].encode() for i in ids).decode()
        def turn(role, content):
            return f"<|start_header_id|>{role}<|end_header_id|>\n\n{content}"
        user = turn("user", "Hi") + "<|eot_id|>" + turn("assistant", "")
        knows = "Cutting Knowledge Date: December 2023\nToday Date: "
        for name, start in [("dated", turn("system", knows + "26 Jul 2024\n\n<|eot_id|>")), ("plain", "")]:
            tiny.chat_template = support.LLAMA3_TEMPLATES[name]
            for model in [tiny.write(self.work / name), tiny.write_gguf(self.work / f"{name}.gguf")]:
                ids = self.generate("-n", "1", "--chat", prompt=" Hi\n", model=model)["prompt_tokens"]
                self.assertEqual(text(ids), "<|begin_of_text|>" + start + user)
                self.assertEqual(ids.count(BOS), 1)
                self.assertEqual(self.generate("-n", "1", prompt="Hi", model=model)["prompt_tokens"], [BOS, *b"Hi"])
        ids = self.generate("-n", "1", "--chat", "--date", "1 May 2030", "--system", "S", prompt="Hi", model=self.work / "dated")
        self.assertEqual(text(ids["prompt_tokens"]),
                         "<|begin_of_text|>" + turn("system", knows + "1 May 2030\n\nS<|eot_id|>") + user)
        for model in [self.work / "plain", self.model]:
            self.refused(USAGE, ["--date 1 May 2030", model, "no date"], "generate", "-m", model, "-p", "x", "--chat", "--date",
                         "1 May 2030")
        self.refused(USAGE, "--date", "generate", "-m", self.model, "-p", "x", "--date", "1 May 2030")

    def test_chat_stops_at_the_end_of_the_turn(self):
        for sign in [1, -1]:  # all logits are 0 but that of <|im_end|>, so one sign or the other makes it the largest
            ending = TinyModel(tied=False)
            rows = [0.0] * (VOCAB * support.HIDDEN)
            rows[IM_END * support.HIDDEN] = float(sign)
            ending.tensors["lm_head.weight"] = ("BF16", [VOCAB, support.HIDDEN], to_bytes(rows, "BF16"))
            model = ending.write(self.work / f"ending{sign}")
            if self.generate("-n", "1", "--chat", "--ignore-eos", model=model)["tokens"] == [IM_END]:
                break
        else:
            self.fail("neither sign gives the end token")
        value = self.generate("-n", "5", "--chat", model=model)
        self.assertEqual((value["tokens"], value["text"]), ([], ""))
        self.assertEqual(self.ok("generate", "-m", model, "-p", "Once", "--chat").out, "\n")

    def test_a_chat_template_that_is_not_known(self):
        other = TinyModel()
        other.chat_template = "{% for message in messages %}[INST] {{ message.content }} [/INST]{% endfor %}"
        self.refused(UNSUPPORTED, ["other", "--raw", "ChatML"], "generate", "-m", other.write(self.work / "other"), "-p", "x", "--chat")
        other.chat_template = None
        self.refused(UNSUPPORTED, ["no chat template", "--raw"], "generate", "-m", other.write(self.work / "none"), "-p", "x", "--chat")

    def test_the_context(self):
        command = ["generate", "-m", self.model, "-p"]
        self.refused(USAGE, ["4 prompt tokens", "300 new ones", f"context of {CONTEXT}"], *command, "Once", "-n", "300")
        self.refused(USAGE, [f"{CONTEXT} prompt tokens", f"context of {CONTEXT}"], *command, "x" * CONTEXT)
        # Without -n it fills what is left.
        value = self.generate("--ignore-eos", prompt="x" * (CONTEXT - 3))
        self.assertEqual(len(value["tokens"]), 3)

    def test_an_empty_prompt(self):
        self.refused(USAGE, "the prompt has no tokens", "generate", "-m", self.model, "-p", "")
        self.assertEqual(self.generate("-n", "1", model=self.bos, prompt="")["prompt_tokens"], [BOS])

    def test_a_broken_model(self):
        broken = TinyModel("F32")
        broken.set_value("model.norm.weight", 0, math.nan)
        self.refused(FAILURE, ["logit of token 0 is nan", "broken"], "generate", "-m", broken.write(self.work / "broken"), "-p", "x")

    def test_verbose_tells_the_speed(self):
        result = self.ok("generate", "-m", self.model, "-p", "Once", "-n", "3", "--ignore-eos", "-v", "--threads", "1")
        self.assertRegex(result.err, r"^halfbyte: CPU level \w+, 1 thread\nhalfbyte: prompt 4 tokens, \d+\.\d tokens/s; "
                                     r"generated 3 tokens, \d+\.\d tokens/s\n$")

    def test_gguf(self):
        tiny = TinyModel("F16")
        folder, gguf = tiny.write(self.work / "half"), tiny.write_gguf(self.work / "half.gguf")
        self.assertEqual(self.generate("-n", "10", model=gguf)["tokens"], self.generate("-n", "10", model=folder)["tokens"])


class Perplexity(Models):
    def perplexity(self, *options, model=None, windows=3, size=64):
        value = self.json("perplexity", "-m", model or self.a4, "-f", self.text, "--windows", str(windows), "--window-size",
                          str(size), *options)
        self.assertEqual(set(value), {"schema", "tokens", "text_tokens", "results"})
        return value

    def test_three_arithmetics_side_by_side(self):
        for model, scheme in [(self.a4, "NVFP4"), (self.a16, "NVFP4A16")]:
            value = self.perplexity("--source", self.source, model=model)
            self.assertEqual((value["tokens"], value["text_tokens"]), (3 * 63, 4000))
            rows = value["results"]
            self.assertEqual([(row["arithmetic"], row["scheme"]) for row in rows],
                             [("source-bf16", None), ("simulated", scheme), ("kernel", scheme)])
            for row in rows:
                self.assertLessEqual({"arithmetic", "scheme", "perplexity", "nll", "standard_error", "kl_to_source", "seconds",
                                      "logits_hash"}, set(row))
                self.assertAlmostEqual(row["perplexity"], math.exp(row["nll"]))
                self.assertGreater(row["standard_error"], 0)
                self.assertGreater(row["seconds"], 0)
                self.assertRegex(row["logits_hash"], r"^[0-9a-f]{16}$")
            source, simulated, kernel = rows
            self.assertIsNone(source["kl_to_source"])
            self.assertEqual(simulated["logits_hash"], kernel["logits_hash"])
            for key in ["perplexity", "nll", "standard_error", "kl_to_source", "ratio_to_source"]:
                self.assertEqual(simulated[key], kernel[key])
            self.assertGreater(kernel["kl_to_source"], 0)
            self.assertGreater(kernel["kl_to_source_standard_error"], 0)
            self.assertAlmostEqual(kernel["ratio_to_source"], kernel["perplexity"] / source["perplexity"])

    def test_text_output(self):
        out = self.ok("perplexity", "-m", self.a4, "--source", self.source, "-f", self.text, "--windows", "2",
                      "--window-size", "32").out
        number = r" +\d+\.\d+ \+- \d+\.\d+ +"
        self.assertRegex(out, "^text.txt, 2 windows x 32, 62 tokens scored, lower is better\n"
                              rf"  source, BF16 weights {number}\d+\.\d tokens/s\n"
                              rf"  exported file, simulated{number}KL \d\.\d{{4}} \+- \S+ +ratio \d\.\d{{4}} \+- \S+ +\S+ tokens/s\n"
                              rf"  exported file, kernels {number}KL .* tokens/s  \(same bits\)\n$")

    def test_the_source_is_named_by_its_type(self):
        half = TinyModel("F16").write(self.work / "half")
        self.assertIn("  source, F16 weights ", self.ok("perplexity", "-m", half, "-f", self.text, "--windows", "1",
                                                       "--window-size", "8").out)

    def test_which_rows(self):
        def rows(*options, **arguments):
            return [row["arithmetic"] for row in self.perplexity(*options, **arguments)["results"]]
        source = ["--source", self.source]
        self.assertEqual(rows(), ["simulated", "kernel"])
        self.assertEqual(rows(model=self.source), ["source-bf16"])
        self.assertEqual(rows("--arithmetic", "kernel"), ["kernel"])
        self.assertEqual(rows("--arithmetic", "kernel,source", *source), ["source-bf16", "kernel"])
        self.assertEqual(rows("--arithmetic", "source", *source), ["source-bf16"])
        self.assertEqual(rows("--arithmetic", "w4a16,kernel"), ["kernel", "w4a16"])
        command = ["perplexity", "-f", self.text, "-m"]
        self.refused(USAGE, ["--arithmetic source", "--source"], *command, self.a4, "--arithmetic", "source")
        for arithmetic in ["kernel", "simulated", "w4a16"]:
            self.refused(USAGE, [f"--arithmetic {arithmetic}", "not quantised"], *command, self.source, "--arithmetic", arithmetic)
        self.refused(USAGE, [self.source, "not quantised", "--source"], *command, self.source, *source)
        self.refused(USAGE, ["--source", self.a16, "is quantised"], *command, self.a4, "--source", self.a16)
        self.assertEqual(rows("--arithmetic", "w4a16,kernel"), ["kernel", "w4a16"])
        unused = self.ok(*command, self.a4, "--arithmetic", "kernel", *source, "--windows", "1", "--window-size", "8")
        self.assertIn(f"warning: --source {self.source} is not run", unused.err)

    def test_w4a16_leaves_the_activations_alone(self):
        a4, a16 = [self.perplexity("--arithmetic", "w4a16", model=model)["results"][0] for model in [self.a4, self.a16]]
        self.assertEqual(a4["logits_hash"], a16["logits_hash"])  # the same weights
        self.assertEqual(self.perplexity("--arithmetic", "kernel", model=self.a16)["results"][0]["logits_hash"], a16["logits_hash"])
        self.assertNotEqual(self.perplexity("--arithmetic", "kernel")["results"][0]["logits_hash"], a4["logits_hash"])

    def test_w4a16_leaves_the_activations_unquantised(self):
        kernel, w4a16 = self.perplexity("--arithmetic", "kernel,w4a16")["results"]
        weights_only, again = self.perplexity("--arithmetic", "kernel,w4a16", model=self.a16)["results"]
        self.assertNotEqual(w4a16["logits_hash"], kernel["logits_hash"])
        self.assertEqual(w4a16["logits_hash"], weights_only["logits_hash"])  # both files hold the same weights
        self.assertEqual(w4a16["logits_hash"], again["logits_hash"])
        self.assertRegex(self.ok("perplexity", "-m", self.a4, "-f", self.text, "--windows", "1", "--window-size", "32",
                                 "--arithmetic", "w4a16").out, r"\n  exported file, as W4A16 +\d")

    def test_a_row_does_not_depend_on_the_others(self):
        alone = self.perplexity("--arithmetic", "kernel")["results"][0]
        beside = self.perplexity("--source", self.source)["results"][2]
        self.assertEqual([alone[key] for key in ["perplexity", "standard_error", "logits_hash"]],
                         [beside[key] for key in ["perplexity", "standard_error", "logits_hash"]])
        self.assertEqual(self.perplexity(model=self.source)["results"][0]["logits_hash"],
                         self.perplexity("--source", self.source)["results"][0]["logits_hash"])

    def test_chunk_threads_and_level_change_no_bit(self):
        levels = [level["level"] for level in self.json("env")["cpu_levels"] if not level["unsupported_reason"]]
        variants = [["--chunk", chunk] for chunk in ["1", "7", "63", "512"]]
        variants += [["--threads", threads, "--cpu-level", level] for threads in "12" for level in levels]
        results = set()
        for variant in variants:
            rows = self.perplexity("--source", self.source, *variant)["results"]
            results.add(tuple((row["nll"], row["kl_to_source"], row["logits_hash"]) for row in rows))
        self.assertEqual(len(results), 1)

    def test_scoring(self):
        everything, half = self.perplexity(), self.perplexity("--scoring", "second-half")
        self.assertEqual((everything["tokens"], half["tokens"]), (3 * 63, 3 * 31))
        self.assertEqual(everything["results"][0]["logits_hash"], half["results"][0]["logits_hash"])
        self.assertNotEqual(everything["results"][0]["nll"], half["results"][0]["nll"])
        odd = self.perplexity("--scoring", "second-half", size=65)
        self.assertEqual(odd["tokens"], 3 * 32)

    def test_bos_takes_the_first_place_of_each_window(self):
        plain, bos = self.perplexity(), self.perplexity("--bos")
        self.assertEqual(plain["tokens"], bos["tokens"])
        self.assertNotEqual(plain["results"][0]["logits_hash"], bos["results"][0]["logits_hash"])
        nameless = TinyModel()
        del nameless.config["bos_token_id"], nameless.generation["bos_token_id"]
        model = nameless.write(self.work / "nameless")
        self.refused(USAGE, ["--bos", model], "perplexity", "-m", model, "-f", self.text, "--bos")

    def test_fewer_windows_than_asked(self):
        self.refused(USAGE, ["4000 tokens", "15 windows of 256", "--windows 15"],
                     "perplexity", "-m", self.a4, "-f", self.text, "--window-size", "256")
        self.assertEqual(self.perplexity(windows=62)["tokens"], 62 * 63)  # exactly as many as there are

    def test_a_window_beyond_the_context(self):
        self.refused(USAGE, [self.a4, "512 positions", f"context has {CONTEXT}"], "perplexity", "-m", self.a4, "-f", self.text,
                     "--windows", "1")

    def test_what_a_request_lacks_is_found_before_loading(self):
        model = TinyModel()
        model.config["architectures"] = ["OtherForCausalLM"]  # cannot be loaded
        other = model.write(self.work / "other")
        command = ["perplexity", "-m", other, "-f", self.text]
        self.refused(USAGE, "--windows is 20", *command)
        self.refused(USAGE, "predicts no token", *command, "--window-size", "2", "--scoring", "second-half")
        self.refused(UNSUPPORTED, "OtherForCausalLM", *command, "--windows", "1", "--window-size", "8")

    def test_a_source_of_another_tokenizer(self):
        other = TinyModel()
        vocabulary = other.tokenizer["model"]["vocab"]
        vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
        self.refused(USAGE, ["--source", "different tokenizers", self.a4], "perplexity", "-m", self.a4, "--source",
                     other.write(self.work / "swapped"), "-f", self.text, "--windows", "1", "--window-size", "32")

    def compare(self, *models, options=()):
        value = self.json("perplexity", "--compare", *models, "-f", self.text, "--windows", "3", "--window-size", "64", *options)
        self.assertEqual(set(value), {"schema", "tokens", "text_tokens", "base", "results"})
        return value

    def test_compare_runs_models_side_by_side(self):
        value = self.compare(self.source, self.a4, self.a16)
        self.assertEqual(value["base"], {"model": str(self.source), "arithmetic": "source-bf16"})
        rows = value["results"]
        self.assertEqual([(row["model"], row["arithmetic"], row["scheme"]) for row in rows],
                         [(str(self.source), "source-bf16", None), (str(self.a4), "simulated", "NVFP4"),
                          (str(self.a4), "kernel", "NVFP4"), (str(self.a16), "simulated", "NVFP4A16"),
                          (str(self.a16), "kernel", "NVFP4A16")])
        # Each row is what the model gives alone, with the source of the other way to compare.
        for model, part in [(self.a4, rows[1:3]), (self.a16, rows[3:])]:
            for row, alone in zip(part, self.perplexity("--source", self.source, model=model)["results"][1:], strict=True):
                for key in ["perplexity", "nll", "standard_error", "logits_hash"]:
                    self.assertEqual(row[key], alone[key])
                for key in ["kl", "ratio", "difference"]:
                    for suffix in ["", "_standard_error"]:
                        self.assertEqual(row[f"{key}_to_base{suffix}"], alone[f"{key}_to_source{suffix}"])
        for row in rows[1:]:
            self.assertGreater(row["kl_to_base"], 0)
            self.assertAlmostEqual(row["difference_to_base"], row["perplexity"] - rows[0]["perplexity"])
            self.assertGreater(row["difference_to_base_standard_error"], 0)
        self.assertIsNone(rows[0]["kl_to_base"])

    def test_compare_with_a_quantised_base_and_chosen_arithmetics(self):
        def rows(*models, options=()):
            value = self.compare(*models, options=options)
            return [(row["model"], row["arithmetic"]) for row in value["results"]], value["base"]["arithmetic"], value
        a4, a16, source = map(str, [self.a4, self.a16, self.source])
        self.assertEqual(rows(a16, a4, options=["--arithmetic", "kernel"])[:2], ([(a16, "kernel"), (a4, "kernel")], "kernel"))
        order, base, value = rows(a4, a4, source, options=["--arithmetic", "w4a16,source"])
        self.assertEqual((order, base), ([(a4, "w4a16"), (a4, "w4a16"), (source, "source-bf16")], "w4a16"))
        self.assertEqual([value["results"][1][key] for key in ["kl_to_base", "ratio_to_base", "difference_to_base"]], [0, 1, 0])
        order, base, value = rows(a4, source)
        self.assertEqual((order, base), ([(a4, "simulated"), (a4, "kernel"), (source, "source-bf16")], "simulated"))
        command = ["perplexity", "-f", self.text, "--compare"]
        self.refused(USAGE, ["--arithmetic kernel", source, "not quantised", "add source"], *command, a4, source, "--arithmetic", "kernel")
        self.refused(USAGE, ["--arithmetic source", a4, "is quantised", "add simulated"], *command, source, a4, "--arithmetic", "source")
        self.refused(USAGE, ["--arithmetic kernel", "none of the compared models is quantised"], *command, source, source,
                     "--arithmetic", "source,kernel")
        self.refused(USAGE, ["--arithmetic source", "each of the compared models is quantised"], *command, a4, a16,
                     "--arithmetic", "source,kernel")

    def test_compare_as_text(self):
        out = self.ok("perplexity", "--compare", self.source, self.a4, "-f", self.text, "--windows", "2", "--window-size", "32").out
        number, path = r" +\d+\.\d+ \+- \d+\.\d+ +", str(self.work)
        compared = r"KL \d\.\d{4} \+- \S+ +ratio \d\.\d{4} \+- \S+ +delta [+-]\d+\.\d{4} \+- \S+ +\d+\.\d tokens/s"
        self.assertRegex(out, "^text.txt, 2 windows x 32, 62 tokens scored, lower is better\n"
                              rf"  {path}/source, BF16 weights{number}\d+\.\d tokens/s\n"
                              rf"  {path}/a4, simulated {number}{compared}\n"
                              rf"  {path}/a4, kernels {number}{compared}  \(same bits\)\n$")

    def test_compare_refuses_what_cannot_be_compared(self):
        command = ["perplexity", "-f", self.text, "--windows", "1", "--window-size", "8"]
        other = TinyModel()
        other.tokenizer["model"]["vocab"]["ab"], other.tokenizer["model"]["merges"] = 263, ["a b"]
        (self.work / "ab.txt").write_text("xxab" * 100)
        merging = other.write(self.work / "merging")
        self.refused(USAGE, ["--compare", self.a4, merging, "400 and 300 tokens", "number 2 on"], "perplexity", "-f",
                     self.work / "ab.txt", "--compare", self.a4, merging)
        self.ok(*command, "--compare", self.a4, merging)  # another tokenizer, and the same ids of this text
        wide = TinyModel()
        wide.config["vocab_size"] = VOCAB + 8
        dtype, (rows, columns), raw = wide.tensors["model.embed_tokens.weight"]
        wide.tensors["model.embed_tokens.weight"] = (dtype, [rows + 8, columns], raw + raw[:16 * columns])
        self.refused(USAGE, [VOCAB, VOCAB + 8, self.a4, "wide", "cannot be compared"], *command, "--compare", self.a4,
                     wide.write(self.work / "wide"))
        nameless = TinyModel()
        nameless.config["bos_token_id"] = nameless.generation["bos_token_id"] = END_OF_TEXT
        self.refused(USAGE, ["--bos", BOS, END_OF_TEXT, "cannot be compared"], *command, "--bos", "--compare", self.a4,
                     nameless.write(self.work / "other-bos"))
        short = TinyModel()
        short.config["max_position_embeddings"] = 7
        self.refused(USAGE, ["short", "8 positions", "context has 7"], *command, "--compare", self.a4, short.write(self.work / "short"))
        self.refused(USAGE, ["-m", "--compare"], *command)
        self.refused(USAGE, "--compare", *command, "--compare", self.a4)
        self.refused(USAGE, ["--compare", "--model"], *command, "--compare", self.a4, self.a16, "-m", self.a4)
        self.refused(USAGE, ["--compare", "--source"], *command, "--compare", self.a4, self.a16, "--source", self.source)

    def test_texts(self):
        (self.work / "latin.txt").write_bytes(b"x" * 1000 + b"\xe9" + b"x" * 1000)
        self.refused(FAILURE, ["latin.txt", "UTF-8 at byte offset 1000"], "perplexity", "-m", self.a4, "-f", self.work / "latin.txt")
        self.refused(FAILURE, ["absent.txt", "No such file"], "perplexity", "-m", self.a4, "-f", self.work / "absent.txt")
        self.refused(FAILURE, "is a folder; a file is needed", "perplexity", "-m", self.a4, "-f", self.work)
        (self.work / "empty.txt").write_text("")
        self.refused(USAGE, ["0 tokens", "--windows is 20"], "perplexity", "-m", self.a4, "-f", self.work / "empty.txt")

    def test_a_broken_model_is_an_error_and_not_a_number(self):
        broken = TinyModel("F32")
        broken.set_value("model.norm.weight", 0, math.nan)
        self.refused(FAILURE, ["NaN or infinite logits in window 0 at position 0"], "perplexity", "-m",
                     broken.write(self.work / "broken"), "-f", self.text, "--windows", "1", "--window-size", "8")

    def test_vocabularies_that_differ(self):
        other = TinyModel()
        other.config["vocab_size"] = VOCAB - 8
        dtype, (rows, columns), raw = other.tensors["model.embed_tokens.weight"]
        other.tensors["model.embed_tokens.weight"] = (dtype, [rows - 8, columns], raw[:2 * (rows - 8) * columns])
        self.refused(USAGE, [str(VOCAB), str(VOCAB - 8), "cannot be compared"], "perplexity", "-m", self.a4, "--source",
                     other.write(self.work / "narrow"), "-f", self.text, "--windows", "1", "--window-size", "8")


class Malformed(TestCase):
    """Exit code 4 for a file that breaks the rules, 5 for one that is valid and not supported."""

    def copy(self, name):
        folder = self.work / name
        shutil.copytree(LLMC, folder)
        return folder

    def refused_everywhere(self, code, parts, model):
        for command in [["inspect", model], ["logits", "-m", model, "--tokens", "1", "-o", self.work / "never"],
                        ["quantize", "-m", model, "-o", self.work / "never", "--scheme", "NVFP4A16"]]:
            self.refused(code, parts, *command)
        self.assertFalse((self.work / "never").exists())

    def test_transforms_that_are_not_known(self):
        folder = self.copy("transform")
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"]["transform_config"] = {
            "config_groups": {"u": {"type": "fourier", "apply": [{"location": "weight_input", "targets": ["Linear"]}]}}}
        (folder / "config.json").write_text(json.dumps(config))
        self.refused_everywhere(UNSUPPORTED, [folder / "config.json", "transform_config", "fourier"], folder)

    def test_safetensors(self):
        for name, change, part in [("short", lambda raw: raw[:-1], "model.safetensors"),
                                   ("empty", lambda raw: b"", "model.safetensors"),
                                   ("header", lambda raw: b"\xff" * 8 + raw[8:], "header"),
                                   ("json", lambda raw: raw[:9] + b"x" + raw[10:], "JSON")]:
            folder = self.copy(name)
            raw = (folder / "model.safetensors").read_bytes()
            (folder / "model.safetensors").write_bytes(change(raw))
            self.refused_everywhere(MALFORMED, [folder / "model.safetensors", part], folder)

    def test_scales(self):
        tensors, metadata = read_safetensors(LLMC / "model.safetensors")
        module = "model.layers.0.mlp.up_proj"
        def with_bytes(name, raw):
            return {**tensors, name: (*tensors[name][:2], raw)}
        scales = tensors[module + ".weight_scale"][2]
        for name, changed, part in [
                ("nan-byte", with_bytes(module + ".weight_scale", b"\x7f" + scales[1:]), "weight_scale"),
                ("zero", with_bytes(module + ".weight_global_scale", bytes(4)), "weight_global_scale"),
                ("infinite", with_bytes(module + ".input_global_scale", to_bytes([math.inf], "F32")), "input_global_scale"),
                ("missing", {name: tensor for name, tensor in tensors.items() if name != module + ".weight_scale"}, "weight_scale")]:
            folder = self.copy(name)
            support.write_safetensors(folder / "model.safetensors", changed, metadata)
            self.refused_everywhere(MALFORMED, ["model.safetensors", module, part], folder)

    def test_config(self):
        folder = self.copy("config")
        (folder / "config.json").write_text("{")
        self.refused_everywhere(MALFORMED, folder / "config.json", folder)
        (folder / "config.json").unlink()
        self.refused(FAILURE, [folder, "no config.json"], "inspect", folder)

    def test_gguf(self):
        good = TinyModel("F16").write_gguf(self.work / "good.gguf").read_bytes()
        for name, raw in [("magic", b"GGML" + good[4:]), ("short", good[:-100]), ("empty", b""), ("head", good[:20])]:
            path = self.work / (name + ".gguf")
            path.write_bytes(raw)
            self.refused_everywhere(MALFORMED, path, path)
        path = self.work / "architecture.gguf"
        path.write_bytes(good.replace(b"llama", b"mamba"))
        self.refused_everywhere(UNSUPPORTED, [path, "mamba"], path)

    def test_what_is_no_model(self):
        (self.work / "model.bin").write_text("")
        for path, part in [(self.work / "model.bin", "neither a folder nor a GGUF"), (self.work / "absent.gguf", "no such file"),
                           (self.work, "no config.json")]:
            self.refused(FAILURE, [path, part], "inspect", path)

    def test_a_tokenizer_that_is_malformed(self):
        tiny = TinyModel()
        tiny.tokenizer = {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}
        folder = tiny.write(self.work / "tokenizer")
        self.refused(MALFORMED, folder / "tokenizer.json", "tokenize", "-m", folder, "-p", "a")


if __name__ == "__main__":
    support.main()
