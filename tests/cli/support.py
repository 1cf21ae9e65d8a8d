"""What the tests of the command line share: running the program, and tiny models made by the standard library alone.

The environment says where things are. CMakeLists.txt sets HALFBYTE_PROGRAM, HALFBYTE_BUILD_DIR and HALFBYTE_SANITIZE;
HALFBYTE_DEMO_MODEL and HALFBYTE_DEMO_TEXT may name the demo's model and texts where they are not in build/.
"""

import ctypes
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from array import array
from pathlib import Path

signal.signal(signal.SIGINT, signal.default_int_handler)  # also when started in the background, where it is ignored

BUILD = Path(os.environ.get("HALFBYTE_BUILD_DIR", "build/release"))
SANITIZE = os.environ.get("HALFBYTE_SANITIZE", "")
DATA = Path(__file__).resolve().parent.parent / "data"
REPOSITORY = DATA.parent.parent
PROGRAM = os.environ.get("HALFBYTE_PROGRAM") or str(REPOSITORY / "build/release/halfbyte")
DEMO_MODEL = Path(os.environ.get("HALFBYTE_DEMO_MODEL") or
                  REPOSITORY / "build/model/SmolLM2-135M-Instruct.Q4_1.gguf")
DEMO_TEXT = Path(os.environ.get("HALFBYTE_DEMO_TEXT") or REPOSITORY / "build/text")
LLMC = DATA / "llmc-nvfp4-2layer"

OK, FAILURE, USAGE, DIFFERENCE, MALFORMED, UNSUPPORTED, INTERRUPTED, READER_GONE = 0, 1, 2, 3, 4, 5, 130, 141


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit code {self.code}\nstdout: {self.out[-2000:]}\nstderr: {self.err[-2000:]}"

    def json(self):
        return json.loads(self.out)


def halfbyte(*arguments, **options):
    """Runs the program; texts are bytes where an argument is bytes."""
    done = subprocess.run([PROGRAM, *map(os.fsencode, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=600, **options)
    result = Result(done.returncode, done.stdout.decode("utf-8", "surrogateescape"),
                    done.stderr.decode("utf-8", "surrogateescape"))
    assert "Sanitizer" not in result.err and "runtime error:" not in result.err, result  # its exit code may be ours
    return result


class TestCase(unittest.TestCase):
    """A folder of its own for each class (cls.work), and checks of what the program said."""

    folder = None  # where cls.work lies

    @classmethod
    def setUpClass(cls):
        cls.work = Path(tempfile.mkdtemp(prefix="halfbyte-cli-", dir=cls.folder))
        cls.addClassCleanup(shutil.rmtree, cls.work, ignore_errors=True)

    def ok(self, *arguments, **options):
        result = halfbyte(*arguments, **options)
        self.assertEqual(result.code, OK, result)
        return result

    def json(self, *arguments, **options):
        value = self.ok(*arguments, "--format", "json", **options).json()
        self.assertEqual(value["schema"], 1)
        return value

    def refused(self, code, parts, *arguments, **options):
        """The exit code, nothing on stdout, and an error on stderr that holds each of the parts."""
        result = halfbyte(*arguments, **options)
        self.assertEqual(result.code, code, result)
        self.assertEqual(result.out, "", result)
        self.assertTrue(result.err.startswith("halfbyte: error: "), result)
        for part in parts if isinstance(parts, list) else [parts]:
            self.assertIn(str(part), result.err)
        return result

    def failing(self, numbers, error):
        """A preexec_fn that makes a system call fail, by its numbers for the machines (a seccomp filter)."""
        if os.uname().machine not in numbers:
            self.skipTest(f"the number of the system call is not known for {os.uname().machine}")
        def prepare():
            statement = lambda code, jt, jf, k: struct.pack("<HBBI", code, jt, jf, k)
            code = (statement(0x20, 0, 0, 0) +                                # load the number of the system call
                    statement(0x15, 0, 1, numbers[os.uname().machine]) +      # this one?
                    statement(0x06, 0, 0, 0x00050000 | error) +
                    statement(0x06, 0, 0, 0x7FFF0000))                        # allowed
            memory = ctypes.create_string_buffer(code)
            program = ctypes.create_string_buffer(struct.pack("<H6xQ", len(code) // 8, ctypes.addressof(memory)))
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.prctl(38, 1, 0, 0, 0) == 0              # PR_SET_NO_NEW_PRIVS
            assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        return prepare

    def assert_nothing_new(self, folder, names):
        """Neither OUT nor a temporary folder."""
        self.assertEqual(sorted(path.name for path in Path(folder).iterdir()), sorted(names))


# ---- numbers and files

SIZES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "F8_E4M3": 1}


def to_bytes(values, dtype):
    """BF16 by truncation: what is wanted is values of the type, not the nearest ones."""
    if dtype == "F32":
        return array("f", values).tobytes()
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    raw, out = array("f", values).tobytes(), bytearray(2 * len(values))
    out[0::2], out[1::2] = raw[2::4], raw[3::4]
    return bytes(out)


def to_floats(raw, dtype):
    if dtype == "F16":
        return list(struct.unpack(f"<{len(raw) // 2}e", raw))
    if dtype == "BF16":
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        raw = bytes(wide)
    return list(array("f", raw))


def write_safetensors(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)"""
    header, end = ({"__metadata__": metadata} if metadata else {}), 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(raw)]}
        end += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in tensors.values():
            file.write(raw)


def read_safetensors(path):
    """(tensors as write_safetensors takes them, metadata)"""
    raw = Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], raw[8 + size + begin:8 + size + end])
    return tensors, metadata


# ---- a tiny Llama of two layers with a tokenizer of the 256 bytes

def byte_letters():
    """GPT-2's letters for the 256 bytes: printable bytes stand for themselves, the others for U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"]  # ids 256 to 259
END_OF_TEXT, IM_START, IM_END, BOS = range(256, 260)
LLAMA3_SPECIAL = ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>"]  # BOS stays the last
HEADER = "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>'"
ASKS = "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
LLAMA3_TEMPLATES = {
    "dated": "{{ bos_token }}{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}"
             "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] | trim %}"
             "{% set messages = messages[1:] %}{% else %}{% set system_message = '' %}{% endif %}"
             "{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{{ 'Cutting Knowledge Date: December 2023\\n' }}"
             "{{ 'Today Date: ' + date_string + '\\n\\n' }}{{ system_message }}{{ '<|eot_id|>' }}"
             "{% for message in messages %}{{ " + HEADER + " }}{% endfor %}" + ASKS,
    "plain": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = " + HEADER + " %}"
             "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}" + ASKS}
VOCAB = 272  # more than the tokenizer has, as in many models


def tiny_tokenizer(adds_bos=False, special=SPECIAL):
    bos = special[3]
    tokens = {letter: byte for byte, letter in enumerate(byte_letters())}
    template = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {bos: {"id": bos, "ids": [BOS], "tokens": [bos]}}}
    return {"version": "1.0",
            "added_tokens": [{"id": 256 + i, "content": content, "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": False, "special": True}
                             for i, content in enumerate(special)],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                              "use_regex": True},
            "post_processor": template if adds_bos else None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "unk_token": None, "vocab": tokens, "merges": []}}


HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM, LAYERS, CONTEXT = 64, 96, 4, 2, 16, 2, 256

LINEARS = {"self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
           "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
           "mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE)}
MODULES = [f"model.layers.{layer}.{name}" for layer in range(LAYERS) for name in LINEARS]


class TinyModel:
    """Change it, then write it."""

    def __init__(self, dtype="BF16", tied=True, seed=1):
        self.dtype, self.tied = dtype, tied
        self.random = random.Random(seed)
        self.config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": BOS,
                       "eos_token_id": END_OF_TEXT, "hidden_act": "silu", "hidden_size": HIDDEN,
                       "intermediate_size": WIDE, "max_position_embeddings": CONTEXT, "num_attention_heads": HEADS,
                       "num_hidden_layers": LAYERS, "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5,
                       "rope_theta": 10000.0, "tie_word_embeddings": tied, "vocab_size": VOCAB}
        self.generation = {"bos_token_id": BOS, "eos_token_id": [END_OF_TEXT]}
        self.special, self.pre = SPECIAL, "gpt-2"
        self.tokenizer = tiny_tokenizer()
        self.chat_template = (DATA / "tokenizer/chat_template.jinja").read_text()
        self.tensors = {}
        self.matrix("model.embed_tokens.weight", VOCAB, HIDDEN, 1.0)
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}."
            self.vector(prefix + "input_layernorm.weight")
            self.vector(prefix + "post_attention_layernorm.weight")
            for i, (name, (n, k)) in enumerate(LINEARS.items()):
                self.matrix(f"{prefix}{name}.weight", n, k, 0.1 * (1 + i))  # so that amax differs between q, k and v
        self.vector("model.norm.weight")
        if not tied:
            self.matrix("lm_head.weight", VOCAB, HIDDEN, 0.2)

    def matrix(self, name, n, k, deviation):
        values = [self.random.gauss(0, deviation) for _ in range(n * k)]
        self.tensors[name] = (self.dtype, [n, k], to_bytes(values, self.dtype))

    def vector(self, name):
        values = [self.random.uniform(0.5, 1.5) for _ in range(HIDDEN)]
        self.tensors[name] = (self.dtype, [HIDDEN], to_bytes(values, self.dtype))

    def set_value(self, name, index, value):
        dtype, shape, raw = self.tensors[name]
        size = SIZES[dtype]
        raw = raw[:index * size] + to_bytes([value], dtype) + raw[(index + 1) * size:]
        self.tensors[name] = (dtype, shape, raw)

    def write(self, folder):
        folder = Path(folder)
        folder.mkdir(parents=True)
        texts = {"config.json": json.dumps(self.config), "generation_config.json": json.dumps(self.generation),
                 "tokenizer.json": json.dumps(self.tokenizer) if self.tokenizer else "",
                 "tokenizer_config.json": json.dumps({"bos_token": self.special[3], "eos_token": self.special[0]}),
                 "chat_template.jinja": self.chat_template}
        for name, text in texts.items():
            if text:
                (folder / name).write_text(text)
        write_safetensors(folder / "model.safetensors", self.tensors, {"format": "pt"})
        return folder

    def write_gguf(self, path, rope_divisors=(), extra=()):
        """The same model as a GGUF: F16 as F16, norms as F32, rows of q and k in the order of llama.cpp; extra: more metadata, as
        bytes."""
        def text(value):
            raw = value.encode()
            return struct.pack("<Q", len(raw)) + raw

        values = list(extra)
        def value(key, kind, raw):
            values.append(text(key) + struct.pack("<I", kind) + raw)
        def u32(key, number):
            value(key, 4, struct.pack("<I", number))
        def array_of(key, kind, items):
            value(key, 9, struct.pack("<IQ", kind, len(items)) + b"".join(items))

        value("general.architecture", 8, text("llama"))
        value("general.name", 8, text("Tiny"))
        for key, number in {"block_count": LAYERS, "context_length": self.config["max_position_embeddings"], "embedding_length": HIDDEN,
                            "feed_forward_length": WIDE, "attention.head_count": HEADS,
                            "attention.head_count_kv": KV_HEADS, "rope.dimension_count": HEAD_DIM}.items():
            u32("llama." + key, number)
        value("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5))
        value("llama.rope.freq_base", 6, struct.pack("<f", 10000.0))
        tokens = byte_letters() + self.special + [f"<unused{i}>" for i in range(VOCAB - 260)]
        value("tokenizer.ggml.model", 8, text("gpt2"))
        value("tokenizer.ggml.pre", 8, text(self.pre))
        array_of("tokenizer.ggml.tokens", 8, [text(token) for token in tokens])
        array_of("tokenizer.ggml.merges", 8, [])
        array_of("tokenizer.ggml.token_type", 5, [struct.pack("<i", 1 if i < 256 else 3) for i in range(VOCAB)])
        u32("tokenizer.ggml.bos_token_id", BOS)
        u32("tokenizer.ggml.eos_token_id", END_OF_TEXT)
        value("tokenizer.chat_template", 8, text(self.chat_template))

        names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
                 "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
                 "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
        infos, data = [], bytearray()
        tensors = dict(self.tensors)
        if rope_divisors:
            tensors["rope_freqs"] = ("F32", [len(rope_divisors)], to_bytes(rope_divisors, "F32"))
        for name, (dtype, shape, raw) in tensors.items():
            name = name.removesuffix(".weight")
            if name.startswith("model.layers."):
                layer, module = name.removeprefix("model.layers.").split(".", 1)
                name = f"blk.{layer}.{names[module]}"
                if module in ("self_attn.q_proj", "self_attn.k_proj"):  # halves of a head become neighbours
                    row, half = len(raw) // shape[0], HEAD_DIM // 2
                    order = [head * HEAD_DIM + p * half + i for head in range(shape[0] // HEAD_DIM)
                             for i in range(half) for p in range(2)]
                    raw = b"".join(raw[r * row:(r + 1) * row] for r in order)
            else:
                name = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}.get(name, name)
            kind = {"F32": 0, "F16": 1, "BF16": 30}[dtype]
            if len(shape) == 1:
                kind, raw = 0, to_bytes(to_floats(raw, dtype), "F32")
            data += b"\0" * (-len(data) % 32)
            infos.append(text(name + ".weight") + struct.pack("<I", len(shape)) +
                         b"".join(struct.pack("<Q", size) for size in reversed(shape)) +
                         struct.pack("<IQ", kind, len(data)))
            data += raw
        head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(values)) + b"".join(values) + b"".join(infos)
        Path(path).write_bytes(head + b"\0" * (-len(head) % 32) + bytes(data))
        return Path(path)


def write_text(path, length=4000, seed=7):
    """Words of ASCII letters: as many tokens as bytes."""
    source = random.Random(seed)
    words = ["".join(source.choice("etaoinshrdlu") for _ in range(source.randint(2, 9))) for _ in range(length)]
    Path(path).write_text(" ".join(words)[:length])
    return Path(path)


def main():
    """Runs the tests of the calling file; the exit code is 77 ("skipped" to ctest) if every one was skipped."""
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    if not result.wasSuccessful() or result.testsRun + len(result.skipped) == 0:
        sys.exit(1)
    sys.exit(77 if result.testsRun <= len(result.skipped) else 0)  # a class that is skipped whole runs no test
