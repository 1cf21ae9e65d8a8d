"""What halfbyte writes, read by transformers and compressed-tensors."""

import json
import math
import shutil
import unittest
from pathlib import Path

import torch
from common import (SHARED, AutoModelForCausalLM, Case, halfbyte_logits, leave_activations, load, load_decompressed,
                    logits, record, stored, support)
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.transform import TransformConfig, TransformLocation, apply_transform_config
from safetensors.torch import save_file
from support import DATA, DEMO_MODEL, DEMO_TEXT, VOCAB, TinyModel, write_text
from tolerance import tolerance
from transformers import AutoTokenizer


class ExportCase(Case):
    def export(self, source, name, scheme, *options, text=None):
        out = self.work / f"{name}-{scheme}"
        calibration = ["--calibrate", text, "--calibrate-tokens", "256"] if scheme == "NVFP4" else []
        self.ok("quantize", "-m", source, "-o", out, "--scheme", scheme, *calibration, *options)
        return out

    def check_logits(self, folder, ids):
        """halfbyte's W4A16 logits against those of transformers with the same weights, FP32 as halfbyte's library makes
        them. Returns (largest difference, tolerance)."""
        model = AutoModelForCausalLM.from_pretrained(self.dequantized(folder, "f32"), dtype=torch.float64,
                                                     attn_implementation="eager")
        theirs, allowed = logits(model, ids), tolerance(model, ids)
        w4a4 = self.json("inspect", folder)["scheme"] == "NVFP4"
        worst = max((halfbyte_logits(folder, ids, arithmetic) - theirs).abs().max().item()
                    for arithmetic in (["w4a16"] if w4a4 else ["w4a16", "kernel", "simulated"]))
        self.assertLess(worst, allowed)
        return worst, allowed

    def check_logits_of_bf16(self, folder, ids):
        """The same with the weights that compressed-tensors makes, which are BF16: halfbyte runs them as a dense model."""
        model = load_decompressed(folder)
        weights = {name: tensor for name, tensor in model.state_dict().items() if name.endswith((".weight", ".bias"))}
        if model.config.tie_word_embeddings:
            del weights["lm_head.weight"]
        dense = self.dequantized(folder, "bf16")
        save_file(weights, dense / "model.safetensors", {"format": "pt"})
        model = leave_activations(torch.nn.Module.to(model, torch.float64))
        theirs, allowed = logits(model, ids), tolerance(model, ids)
        worst = (halfbyte_logits(dense, ids, "kernel") - theirs).abs().max().item()
        self.assertLess(worst, allowed)
        return worst, allowed

    def w4a4_in_fp32(self, folder, ids):
        """compressed-tensors' own quantisation of activations, in FP32 with halfbyte's FP32 weights. Only told: one code that
        falls on the other side of an edge changes its row and those after it as much as not quantising at all."""
        model = load_decompressed(folder, torch.float32)
        model.load_state_dict(stored(self.dequantized(folder, "f32")), strict=False)
        rms = (halfbyte_logits(folder, ids, "kernel") - logits(model, ids)).square().mean(-1).sqrt()
        return f"rms difference {rms.median():.1e} in the median row, {rms.max():.1e} in the worst"


class Variants(ExportCase):
    """Tiny models of every kind that `quantize` makes."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = write_text(cls.work / "text.txt")
        cls.ids = [(7 * i * i + 37 * i + 11) % VOCAB for i in range(32)]
        cls.worst, cls.count = (0.0, 1.0), 0

    @classmethod
    def tearDownClass(cls):
        record(f"{cls.count} exports of tiny models", "load; weights; W4A16 logits within {:.1e}, allowed {:.1e}".format(*cls.worst))

    def check(self, source, name, *options):
        for scheme in ["NVFP4", "NVFP4A16"]:
            with self.subTest(source=name, scheme=scheme, options=options):
                out = self.export(source, name, scheme, *options, text=self.text)
                model = self.check_loads(out)
                self.check_weights(out)
                worst = self.check_logits(out, self.ids)
                type(self).worst = max(self.worst, worst, key=lambda pair: pair[0] / pair[1])
                type(self).count += 1
        return model

    def test_types_and_tied_embeddings(self):
        for dtype in ["BF16", "F16", "F32"]:
            for tied in [True, False]:
                name = f"{dtype}-{'tied' if tied else 'untied'}"
                self.check(TinyModel(dtype, tied).write(self.work / name), name)

    def test_a_config_that_names_another_type(self):
        for dtype, name in [("F16", "float16"), ("F32", "float32")]:
            source = TinyModel(dtype)
            source.config["torch_dtype"] = name
            self.check(source.write(self.work / name), name)

    def test_a_gguf(self):
        self.check(TinyModel("F16").write_gguf(self.work / "tiny.gguf"), "gguf")

    def test_ignored_layers_stay_plain(self):
        source = TinyModel(tied=False).write(self.work / "ignore")
        model = self.check(source, "down", "--ignore", "re:.*down_proj$", "--ignore", "model.layers.1.self_attn.o_proj")
        for layer in model.model.layers:
            self.assertFalse(hasattr(layer.mlp.down_proj, "quantization_scheme"))
        self.assertTrue(hasattr(model.lm_head, "quantization_scheme"))  # not ignored, and not tied
        self.check(source, "split", "--ignore", "re:.*v_proj", "--ignore", "lm_head")

    def test_shards(self):
        source = TinyModel(tied=False).write(self.work / "shards")
        self.check(source, "sharded", "--max-shard-size", "40KB")
        self.assertGreater(len(list((self.work / "sharded-NVFP4").glob("*.safetensors"))), 2)

    def test_rope_scaling(self):
        llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 64}
        for key, scaling in [("rope_scaling", llama3), ("rope_parameters", {**llama3, "rope_theta": 10000.0}),
                             ("rope_scaling", {"rope_type": "linear", "factor": 4.0})]:
            source = TinyModel()
            source.config[key] = scaling
            name = f"{key}-{scaling['rope_type']}"
            self.check(source.write(self.work / name), name)

    def test_heads(self):
        for tied in [True, False]:
            source = TinyModel(tied=tied).write(self.work / f"head-{tied}")
            for head in ["nvfp4", "fp8"]:
                model = self.check(source, f"head-{head}-{tied}", "--head", head)
                scheme = model.lm_head.quantization_scheme
                self.assertEqual((scheme.weights.num_bits, scheme.input_activations), (4 if head == "nvfp4" else 8, None))
                self.check(source, f"head-{head}-{tied}-r1", "--head", head, "--transform", "spinquant", "--rotations", "R1",
                           "--transform-block", "16")

    def test_separate_scales(self):
        self.check(TinyModel().write(self.work / "separate"), "separate-scales", "--separate-scales")


def transforms_of(folder):
    """The transform_config of a folder as compressed-tensors reads it, and the tensors of its matrices."""
    config = json.loads((Path(folder) / "config.json").read_text())["quantization_config"]["transform_config"]
    groups = config["config_groups"]
    tensors = {name: tensor for name, tensor in stored(folder).items()
               if any(name.endswith(f".{scheme}_{location.value}.weight") for scheme in groups for location in TransformLocation)}
    return TransformConfig.model_validate(config), tensors


def run_online(model, folder, attention=True):
    """compressed-tensors does at run time what the file leaves to it, with the matrices of the file, or what is left to
    linear layers alone. The rest is in the weights already."""
    config, tensors = transforms_of(folder)
    here = [TransformLocation.INPUT] + attention * [TransformLocation.Q_ATTN, TransformLocation.K_CACHE]
    for scheme in config.config_groups.values():
        scheme.apply = [args for args in scheme.apply if args.location in here]
    apply_transform_config(model, config)
    names = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in tensors.items():
        if name in names:
            names[name].copy_(tensor)  # shared by all modules
    assert attention <= all(name in names for name in tensors), tensors.keys()
    return model


class Transforms(ExportCase):
    """Rotated models of every kind: the weights, and the logits with compressed-tensors' own transforms."""

    KINDS = {"quip": ["--transform", "quip", "--seed", "3"],
             "quip-full": ["--transform", "quip", "--transform-block", "full"],
             "hadamard": ["--transform", "hadamard", "--transform-block", "32"],
             "hadamard-full": ["--transform", "hadamard", "--transform-block", "full"],
             "spinquant": ["--transform", "spinquant", "--seed", "5"],
             "r124": ["--transform", "spinquant", "--rotations", "R1,R2,R4", "--transform-block", "32"],
             "r3": ["--transform", "spinquant", "--rotations", "R3"],
             "r1234": ["--transform", "spinquant", "--rotations", "R1,R2,R3,R4", "--transform-block", "16"]}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = write_text(cls.work / "text.txt")
        cls.ids = [(7 * i * i + 37 * i + 11) % VOCAB for i in range(32)]
        torch.manual_seed(1)
        matrix = torch.randn(16, 16, dtype=torch.float64) / 4 + 2 * torch.eye(16, dtype=torch.float64)
        save_file({"T": matrix}, cls.work / "T.safetensors")
        cls.kinds = cls.KINDS | {"file": ["--transform", cls.work / "T.safetensors"]}

    def check_rotated(self, folder, ids):
        """Weights byte for byte; logits of transformers with FP64 matrices, online transforms by compressed-tensors."""
        _, tensors = transforms_of(folder)
        model, said = load(folder)
        self.assertEqual(set(said["unexpected_keys"]), set(tensors))  # transformers knows nothing of transforms
        self.assertEqual([value for key, value in said.items() if value and key != "unexpected_keys"], [])
        counts = self.check_weights(folder)
        dense = self.dequantized(folder, "f32")

        def make(attention):
            return AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float64, attn_implementation=attention)
        # compressed-tensors can put nothing before transformers' eager attention.
        theirs = logits(run_online(make("sdpa"), folder), ids)
        # halfbyte rounds a turned input to FP32, once and once for each of a block's n terms, which add less than the
        # tolerance of products of K >= n terms: twice it holds both. Turning q and k leaves q k^T what it is, so that the
        # model without R3 has the same tolerance.
        allowed = 2 * tolerance(run_online(make("eager"), folder, attention=False), ids)
        worst = (halfbyte_logits(folder, ids, "w4a16") - theirs).abs().max().item()
        self.assertLess(worst, allowed)
        if any(name.endswith("_input.weight") for name in tensors):  # without it the result is another one altogether
            self.assertGreater((logits(make("eager"), ids) - theirs).abs().max().item(), 100 * allowed)
        return worst, allowed, counts

    def test_tiny_models(self):
        seen, count = (0.0, 1.0), 0
        for tied in [True, False]:
            source = TinyModel(tied=tied).write(self.work / f"tied-{tied}")
            for name, options in self.kinds.items():
                for scheme in ["NVFP4", "NVFP4A16"]:
                    with self.subTest(kind=name, tied=tied, scheme=scheme):
                        out = self.export(source, f"{name}-{tied}", scheme, "--ignore", "lm_head", *options, text=self.text)
                        worst, allowed, _ = self.check_rotated(out, self.ids)
                        seen, count = max(seen, (worst, allowed), key=lambda pair: pair[0] / pair[1]), count + 1
        record(f"{count} rotated tiny models", "weights; W4A16 logits within {:.1e}, allowed {:.1e}".format(*seen))

    def test_compressed_tensors_gives_the_config_back(self):
        source = TinyModel(tied=False).write(self.work / "config")
        for name, options in self.kinds.items():
            out = self.export(source, f"config-{name}", "NVFP4A16", *options)
            theirs = transforms_of(out)[0].model_dump(mode="json")
            ours = json.loads((out / "config.json").read_text())["quantization_config"]["transform_config"]
            self.assertEqual(theirs, ours)

    def test_it_is_the_config_that_llm_compressor_writes(self):
        source = TinyModel().write(self.work / "same")
        for name, options in [("llmc-quip-v16", ["--transform", "hadamard"]),
                              ("llmc-spinquant-r124", ["--transform", "spinquant", "--rotations", "R1,R2,R4"])]:
            folder = SHARED / f"checkpoints/{name}-2layer"
            if not folder.exists():
                continue
            out = self.export(source, f"same-{name}", "NVFP4A16", *options, "--transform-block", "16")
            theirs, ours = (json.loads((path / "config.json").read_text())["quantization_config"]["transform_config"]
                            for path in [folder, out])
            for scheme in theirs["config_groups"]:
                of_them, of_us = theirs["config_groups"][scheme], ours["config_groups"][scheme]
                if scheme != "v":  # signs, the size of this model's head, and an order of targets that means nothing
                    of_us |= {"type": "hadamard", "head_dim": of_them["head_dim"]}
                for args in of_them["apply"] + of_us["apply"]:
                    args["targets"].sort()
                self.assertEqual(of_us, of_them)

    def test_demo_model(self):
        for name, options in [("quip", ["--transform", "quip"]),
                              ("spinquant-r124", ["--transform", "spinquant", "--rotations", "R1,R2,R4", "--transform-block", "64"])]:
            out = self.export(DEMO_MODEL, f"demo-{name}", "NVFP4A16", *options)
            tokenizer = AutoTokenizer.from_pretrained(out)
            ids = tokenizer((DEMO_TEXT / "evaluate.txt").read_text(), add_special_tokens=False)["input_ids"][:64]
            worst, allowed, (count, different) = self.check_rotated(out, ids)
            record(f"demo model, {name}: {count} weights in BF16", f"equal but {different}, each of them at a tie")
            record(f"demo model, {name}: W4A16 logits of 64 positions", f"within {worst:.1e}, allowed {allowed:.1e}")


class DemoModel(ExportCase):
    """SmolLM2-135M-Instruct out of its GGUF."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.exports = {}
        for scheme in ["NVFP4", "NVFP4A16"]:
            cls.exports[scheme] = cls().export(DEMO_MODEL, "demo", scheme, text=DEMO_TEXT / "calibrate.txt")
        tokenizer = AutoTokenizer.from_pretrained(cls.exports["NVFP4"])
        cls.ids = tokenizer((DEMO_TEXT / "evaluate.txt").read_text(), add_special_tokens=False)["input_ids"]

    def test_loads(self):
        for scheme, out in self.exports.items():
            self.check_loads(out)
            record(f"demo model, {scheme}: from_pretrained", "nothing missing, unexpected or mismatched; tied")

    def test_weights(self):
        count, different = self.check_weights(self.exports["NVFP4A16"])
        record(f"demo model: {count} weights in BF16", f"equal but {different}, each of them at a tie")
        w4a4, w4a16 = (stored(out) for out in self.exports.values())
        self.assertEqual(w4a16.keys(), {name for name in w4a4 if not name.endswith("input_global_scale")})
        for name, tensor in w4a16.items():
            self.assertTrue(torch.equal(w4a4[name].view(torch.uint8), tensor.view(torch.uint8)), name)

    def test_logits(self):
        for check, what in [(self.check_logits, "FP32 weights"), (self.check_logits_of_bf16, "its own BF16 weights")]:
            record(f"demo model: W4A16 logits of 64 positions, {what}",
                   "within {:.1e}, allowed {:.1e}".format(*check(self.exports["NVFP4A16"], self.ids[:64])))

    def test_heads(self):
        for head in ["nvfp4", "fp8"]:
            out = self.export(DEMO_MODEL, f"demo-{head}", "NVFP4A16", "--head", head)
            self.check_loads(out)
            count, different = self.check_weights(out)
            record(f"demo model, --head {head}: {count} NVFP4 weights in BF16", f"equal but {different}, each of them at a tie"
                   + ("; FP8 weights equal" if head == "fp8" else ""))
            record(f"demo model, --head {head}: W4A16 logits of 64 positions",
                   "within {:.1e}, allowed {:.1e}".format(*self.check_logits(out, self.ids[:64])))

    def test_w4a4_in_fp32(self):
        record("demo model, NVFP4: W4A4 logits of 64 positions, transformers in FP32",
               self.w4a4_in_fp32(self.exports["NVFP4"], self.ids[:64]))

    def test_w4a4_perplexity(self):
        # Nothing but a band: BF16 activations move codes over their edges, and each layer amplifies that. Right W4A4 runs
        # of 10,220 tokens differ by 1 %, so a fifth of the tokens by some 2 %.
        windows, size, loss = 4, 512, 0.0
        model, _ = load(self.exports["NVFP4"])
        for i in range(windows):
            ids = self.ids[i * size:(i + 1) * size]
            loss += torch.nn.functional.cross_entropy(logits(model, ids)[:-1].double(), torch.tensor(ids[1:])).item() / windows
        ours, = self.json("perplexity", "-m", self.exports["NVFP4"], "-f", DEMO_TEXT / "evaluate.txt", "--windows",
                          str(windows), "--window-size", str(size), "--arithmetic", "kernel")["results"]
        record(f"demo model, NVFP4: W4A4 perplexity, {windows} windows of {size}",
               f"transformers in BF16 {math.exp(loss):.4f}, halfbyte {ours['perplexity']:.4f}, "
               f"{100 * (ours['perplexity'] / math.exp(loss) - 1):+.2f} %")
        self.assertLess(abs(math.log(ours["perplexity"]) - loss), 0.05)

    def test_generation(self):
        # Each token that halfbyte chooses is the best one of transformers, or as good within the tolerance.
        out = self.exports["NVFP4A16"]
        value = self.json("generate", "-m", out, "--chat", "-p", "What is the capital of France?", "-n", "24", "--ignore-eos")
        prompt, tokens = value["prompt_tokens"], value["tokens"]
        model = AutoModelForCausalLM.from_pretrained(self.dequantized(out, "f32"), dtype=torch.float64, attn_implementation="eager")
        rows = logits(model, prompt + tokens)[len(prompt) - 1:-1]
        short = rows.amax(-1) - rows[torch.arange(len(tokens)), torch.tensor(tokens)]
        self.assertLess(short.max().item(), 2 * tolerance(model, prompt + tokens))
        same = (rows.argmax(-1) == torch.tensor(tokens)).sum().item()
        record("demo model, NVFP4A16: greedy tokens", f"{same} of {len(tokens)} the same: {value['text']!r}")

    def test_transformers_saves_what_it_loaded(self):
        out, again = self.exports["NVFP4"], self.work / "saved-again"
        load(out)[0].save_pretrained(again)
        ours, theirs = stored(out), stored(again)
        self.assertEqual(ours.keys(), theirs.keys())
        for name, tensor in ours.items():
            self.assertEqual(theirs[name].dtype, tensor.dtype)
            self.assertTrue(torch.equal(theirs[name].view(torch.uint8), tensor.view(torch.uint8)), name)
        self.assertTrue(torch.equal(halfbyte_logits(again, [1, 2, 3], "kernel"), halfbyte_logits(out, [1, 2, 3], "kernel")))
        record("demo model, NVFP4: saved again by transformers", "the same tensors; halfbyte gives the same logits")


class Tokenizer(ExportCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.of_gguf = cls().export(DEMO_MODEL, "demo", "NVFP4A16")
        # A Hugging Face folder of the same weights with the tokenizer that the golden ids are of.
        source = cls().dequantized(DEMO_MODEL, "bf16")
        for path in (DATA / "tokenizer").iterdir():
            shutil.copy(path, source)
        cls.of_folder = cls().export(source, "folder", "NVFP4A16")
        cls.golden = json.loads((DATA / "tokenizer_golden.json").read_text())["cases"]
        cls.chats = json.loads((DATA / "generation_golden.json").read_text())["chat"]

    def test_the_weights_are_those_of_the_gguf(self):
        self.assertEqual((self.of_folder / "model.safetensors").read_bytes(), (self.of_gguf / "model.safetensors").read_bytes())

    def test_golden_ids(self):
        tokenizer = AutoTokenizer.from_pretrained(self.of_folder)
        for case in self.golden:
            self.assertEqual(tokenizer(case["text"], add_special_tokens=False)["input_ids"], case["ids"])
            self.assertEqual(tokenizer(case["text"])["input_ids"], case["ids_with_special"])
            self.assertEqual(tokenizer.decode(case["ids"], clean_up_tokenization_spaces=False), case["decoded"])
        record("AutoTokenizer, export of a folder", f"the golden ids of all {len(self.golden)} texts")

    def test_the_tokenizer_made_from_a_gguf(self):
        tokenizer, count = AutoTokenizer.from_pretrained(self.of_gguf), 0
        for case in self.golden:
            if "\0" in case["text"]:
                continue  # cannot be an argument
            ours = self.json("tokenize", "-m", self.of_gguf, "-p", case["text"])["tokens"]
            self.assertEqual(tokenizer(case["text"])["input_ids"], ours)
            self.assertEqual(tokenizer.decode(ours, clean_up_tokenization_spaces=False), case["decoded"])
            count += 1
        record("AutoTokenizer, export of a GGUF", f"the ids of halfbyte tokenize for {count} texts")

    def test_chat(self):
        for folder in [self.of_gguf, self.of_folder]:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            for chat in self.chats:
                self.assertEqual(tokenizer.apply_chat_template(chat["messages"], tokenize=False, add_generation_prompt=True), chat["text"])
                self.assertEqual(tokenizer.apply_chat_template(chat["messages"], add_generation_prompt=True)["input_ids"], chat["ids"])
            system, user = self.chats[1]["messages"]
            value = self.json("generate", "-m", folder, "--chat", "--system", system["content"], "-p", user["content"], "-n", "1")
            self.assertEqual(value["prompt_tokens"], self.chats[1]["ids"])
        record("apply_chat_template", "the golden texts and ids of 2 conversations; those of halfbyte generate --chat")


def without_nothing(json):
    """What is null or empty left out."""
    if not isinstance(json, dict):
        return json
    return {key: without_nothing(value) for key, value in json.items() if value is not None and value != {}}


class Llama3Chat(ExportCase):
    def test_chat(self):
        source = TinyModel()
        source.special, source.pre = support.LLAMA3_SPECIAL, "llama-bpe"
        source.tokenizer = support.tiny_tokenizer(adds_bos=True, special=source.special)
        for name, source.chat_template in support.LLAMA3_TEMPLATES.items():
            for model in [source.write(self.work / name), source.write_gguf(self.work / f"{name}.gguf")]:
                out = self.export(model, model.name, "NVFP4A16")
                tokenizer = AutoTokenizer.from_pretrained(out)
                self.assertEqual(tokenizer("Hi é")["input_ids"], self.json("tokenize", "-m", out, "-p", "Hi é")["tokens"])
                for system in [[], ["Be terse."]]:
                    messages = [{"role": "system", "content": text} for text in system] + [{"role": "user", "content": " Hi\n"}]
                    options = [word for text in system for word in ["--system", text]]
                    value = self.json("generate", "-m", out, "--chat", "-p", " Hi\n", "-n", "1", *options)
                    self.assertEqual(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"],
                                     value["prompt_tokens"])


class Config(ExportCase):
    def test_compressed_tensors_accepts_it_and_gives_it_back(self):
        text, source = write_text(self.work / "text.txt"), TinyModel(tied=False).write(self.work / "source")
        for scheme in ["NVFP4", "NVFP4A16"]:
            for number, options in enumerate([[], ["--ignore", "re:.*down_proj$"], ["--head", "fp8"], ["--head", "nvfp4"]]):
                out = self.export(source, f"config{number}", scheme, *options, text=text)
                config = json.loads((out / "config.json").read_text())["quantization_config"]
                back = QuantizationConfig.model_validate(config).model_dump(mode="json")
                self.assertEqual(without_nothing(back), without_nothing(config | {"version": None}))

    def test_it_is_the_config_that_llm_compressor_writes(self):
        text, source = write_text(self.work / "calibration.txt"), TinyModel().write(self.work / "tied")
        folders = {"NVFP4": DATA / "llmc-nvfp4-2layer", "NVFP4A16": SHARED / "checkpoints/llmc-nvfp4a16-2layer"}
        for scheme, folder in folders.items():
            if not folder.exists():
                continue
            theirs, ours = (json.loads((path / "config.json").read_text())["quantization_config"]
                            for path in [folder, self.export(source, "same", scheme, text=text)])
            self.assertEqual(ours, theirs)


if __name__ == "__main__":
    unittest.main()
