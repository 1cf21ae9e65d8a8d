"""A table of wrong inputs: for each the exit code, and that the message names where (the file, tensor or option), what was
given and what is needed. Every message is also looked at for what no user should see."""

import collections
import copy
import json
import math
import re
import shlex
import struct

import support
from support import (FAILURE, LLMC, MALFORMED, UNSUPPORTED, USAGE, VOCAB, TestCase, TinyModel, halfbyte, read_safetensors,
                     to_bytes, write_safetensors, write_text)

# {model}, {out}, {text} and {work} are filled in, in the command and in the parts of the message.
Row = collections.namedtuple("Row", "name code command where given needed model files")
ROWS = []


def row(name, code, command, where, given, needed, model=None, files=None):
    """model: changes a TinyModel before it is written; files: a function of its folder, afterwards."""
    as_list = lambda parts: parts if isinstance(parts, list) else [parts]
    ROWS.append(Row(name, code, command, as_list(where), as_list(given), as_list(needed), model, files))


QUANTIZE = "quantize -m {model} -o {out} --scheme NVFP4A16"
INSPECT = "inspect {model}"
GENERATE = "generate -m {model} -p x"
LOGITS = "logits -m {model} --tokens 1,2 -o {out}"
PERPLEXITY = "perplexity -m {model} -f {text} --windows 1 --window-size 8"
TOKENIZE = "tokenize -m {model} -p x"


# ---- options

row("no command", USAGE, "", "command", "no command is given", "quantize, inspect")
row("an unknown command", USAGE, "frobnicate", "'frobnicate'", "is not a command", "quantize, inspect")
row("an unknown option", USAGE, "env --nonsense", "--nonsense", "--nonsense", "halfbyte env --help")
row("a word too many", USAGE, INSPECT + " again", "again", "again", "halfbyte inspect --help")
for command, option in [("quantize", "--model"), ("inspect", "path"), ("perplexity", "--file"), ("generate", "--model"),
                        ("tokenize", "--model"), ("logits", "--model")]:
    row(f"{command} without arguments", USAGE, command, option, "is required", f"halfbyte {command} --help")
row("perplexity of no model", USAGE, "perplexity -f {text}", "-m", "give the model with -m", "two or more with --compare")
row("quantize without an output", USAGE, "quantize -m {model} --scheme NVFP4A16", "--output", "is required", "--help")
row("quantize without a scheme", USAGE, "quantize -m {model} -o {out}", "--scheme", "is required", "--help")
row("logits without tokens", USAGE, "logits -m {model} -o {out}", "--tokens", "is required", "--help")
row("an option without its value", USAGE, "inspect {model} --format", "--format", "without its value", "--help")
row("an option twice", USAGE, TOKENIZE + " -p y", "--prompt", "given more than once", "one value")
for name, command, option, value, needed in [
        ("threads of zero", "env", "--threads", "0", ["1", "4096"]),
        ("threads as a word", "env", "--threads", "two", ["1", "4096"]),
        ("an unknown level", "env", "--cpu-level", "neon", ["scalar", "avx2", "avx512", "best"]),
        ("an unknown form", INSPECT, "--format", "xml", ["text", "json"]),
        ("an unknown scheme", "quantize -m {model} -o {out}", "--scheme", "INT4", ["NVFP4", "NVFP4A16"]),
        ("an unknown head", QUANTIZE, "--head", "int8", ["nvfp4", "fp8"]),
        ("a size of no known unit", QUANTIZE, "--max-shard-size", "5X", ["500MB", "5GiB"]),
        ("no calibration tokens", QUANTIZE, "--calibrate-tokens", "0", "1"),
        ("no windows", PERPLEXITY.replace("--windows 1", ""), "--windows", "0", "1"),
        ("a window of one", PERPLEXITY.replace("--window-size 8", ""), "--window-size", "1", "2"),
        ("a chunk of none", PERPLEXITY, "--chunk", "-1", "1"),
        ("an unknown scoring", PERPLEXITY, "--scoring", "most", ["all", "second-half"]),
        ("an unknown arithmetic", PERPLEXITY, "--arithmetic", "exact", ["source", "simulated", "kernel"]),
        ("an unknown arithmetic of logits", LOGITS, "--arithmetic", "exact", ["kernel", "simulated", "w4a16"]),
        ("no tokens to make", GENERATE, "--max-tokens", "0", "1"),
        ("a negative seed", GENERATE, "--seed", "-1", "0 to 18446744073709551615"),
        ("a seed too large", GENERATE, "--seed", "18446744073709551616", "0 to 18446744073709551615"),
        ("a negative temperature", GENERATE, "--temp", "-1", ">= 0"),
        ("a temperature that is no number", GENERATE, "--temp", "nan", ">= 0"),
        ("a temperature as a word", GENERATE, "--temp", "hot", "a number >= 0"),
        ("a negative top-k", GENERATE, "--top-k", "-1", ">= 0"),
        ("a top-p of zero", GENERATE, "--top-p", "0", "(0, 1]"),
        ("a top-p above one", GENERATE, "--top-p", "1.5", "(0, 1]")]:
    row(name, USAGE, f"{command} {option}={value}", option, value, needed)
for command in [GENERATE, QUANTIZE + " --transform quip"]:
    for seed in ["-1", "18446744073709551616", "99999999999999999999999", "0x10", "3.5", "+7", "1e3", "one"]:
        row(f"{command.split()[0]} with the seed {seed}", USAGE, f"{command} --seed={seed}", f"--seed {seed}:",
            "a whole number from 0 to 18446744073709551615 is needed", "--help")
for command, option, value, needed in [("env", "--threads", "0x2", "1 to 4096"), (GENERATE, "--top-k", "0x2", "a whole number"),
                                       (PERPLEXITY, "--chunk", "1.5", "at least 1"),
                                       (GENERATE, "--max-tokens", "99999999999999999999", "at least 1")]:
    row(f"{option} of {value}", USAGE, f"{command} {option}={value}", f"{option} {value}:", needed, "is needed")
row("quiet and verbose", USAGE, "env --quiet --verbose", "--verbose", "--quiet", "excludes")
row("raw and chat", USAGE, GENERATE + " --raw --chat", "--raw", "--chat", "excludes")
row("a system message without chat", USAGE, GENERATE + " --system y", "--system", "requires", "--chat")
row("W4A4 without calibration", USAGE, "quantize -m {model} -o {out} --scheme NVFP4", "--scheme NVFP4", "static input scales",
    ["--calibrate TEXT", "--scheme NVFP4A16"])
row("W4A16 with calibration", USAGE, QUANTIZE + " --calibrate {text}", "--calibrate {text}", "NVFP4A16 has no input scales",
    "leave it out")
row("a pattern that does not compile", USAGE, QUANTIZE + " --ignore 're:('", "--ignore", "re:(", "regular expression")
row("all layers ignored", USAGE, QUANTIZE + " --ignore Linear", "--ignore", "{model}", "no layer to quantise")
for tokens, given in [("''", "'' at character 1"), ("1,,2", "'' at character 3"), ("1,x,2", "'x' at character 3"), ("1.5", "'1.5'"),
                      ("99999999999", "'99999999999'")]:
    row(f"tokens {tokens}", USAGE, f"logits -m {{model}} -o {{out}} --tokens {tokens}", "--tokens", given,
        "whole numbers separated by commas")
row("a token that the model lacks", USAGE, f"logits -m {{model}} -o {{out}} --tokens 1,{VOCAB}", "--tokens", str(VOCAB),
    f"0 to {VOCAB - 1}")
row("more tokens than the context", USAGE, f"logits -m {{model}} -o {{out}} --tokens {','.join('1' * 257)}", "--tokens", "257", "256")
row("an arithmetic for quantised models", USAGE, LOGITS + " --arithmetic simulated", ["--arithmetic simulated", "{model}"],
    "is not quantised", "needs an NVFP4 model")
row("the kernels of a dense model", USAGE, PERPLEXITY + " --arithmetic kernel", "--arithmetic kernel", "{model}", "is not quantised")
row("the unit scale without transforms", USAGE, "perplexity -m {llmc} -f {text} --arithmetic unit-scale", "--arithmetic unit-scale",
    "{llmc}", "a transform of 16, 32, 64 or 128")
row("the unit scale of logits without transforms", USAGE, "logits -m {llmc} --tokens 1 -o {out} --arithmetic unit-scale",
    "--arithmetic unit-scale", "{llmc}", "a transform of 16, 32, 64 or 128")
row("a source of a dense model", USAGE, PERPLEXITY + " --source {model}", ["{model}", "--source"], "is not quantised", "leave")
row("no model to evaluate", USAGE, "perplexity -f {text}", "perplexity", "give the model", ["-m", "--compare"])
row("a source that is quantised", USAGE, "perplexity -m {llmc} --source {llmc} -f {text}", "--source {llmc}", "is quantised",
    "unquantised model is needed")
row("the source's arithmetic without a source", USAGE, "perplexity -m {llmc} -f {text} --arithmetic source", "--arithmetic source",
    "--arithmetic source", "needs --source with the unquantised model")
row("more windows than the text has", USAGE, "perplexity -m {model} -f {text} --window-size 256", "{text}", "4000 tokens",
    "--windows is 20")
row("a window beyond the context", USAGE, "perplexity -m {model} -f {text} --windows 1 --window-size 512", "context", "512", "256")


def no_bos(model):
    del model.config["bos_token_id"], model.generation["bos_token_id"]


row("BOS of a model without it", USAGE, PERPLEXITY + " --bos", ["--bos", "{model}"], "names no", "BOS token", no_bos)
row("more than the context", USAGE, GENERATE + " -n 300", ["{model}", "-n"], ["1 prompt", "300"], "context of 256")
row("a prompt beyond the context", USAGE, "generate -m {model} -p " + "x" * 256, "{model}", "256 prompt tokens", "context of 256")
row("a prompt without tokens", USAGE, "generate -m {model} -p ''", "prompt", "no tokens", "give some text")

# ---- texts


def text_file(name, content):
    return lambda folder: (folder.parent / name).write_bytes(content)


row("a prompt that is not UTF-8", USAGE, [*shlex.split("tokenize -m {model} -p"), b"abc\xff"], "--prompt", "byte offset 3", "UTF-8")
row("a system message that is not UTF-8", USAGE, [*shlex.split(GENERATE + " --chat --system"), b"\xc3"], "--system", "byte offset 0",
    "UTF-8")
row("a text that is not UTF-8", FAILURE, "perplexity -m {model} -f {work}/latin.txt", "{work}/latin.txt", "byte offset 3",
    "convert the text to UTF-8", files=text_file("latin.txt", b"caf\xe9"))
row("a text that is not there", FAILURE, "perplexity -m {model} -f {work}/none.txt", "{work}/none.txt", "cannot be opened", "No such file")
row("a text that is a folder", FAILURE, "perplexity -m {model} -f {work}", "{work}", "is a folder", "a file is needed")
row("a text without tokens", USAGE, "perplexity -m {model} -f {work}/empty.txt", "{work}/empty.txt", "0 tokens", "--windows is 20",
    files=text_file("empty.txt", b""))
CALIBRATE = "quantize -m {model} -o {out} --scheme NVFP4 --calibrate "
row("a calibration text too short", USAGE, CALIBRATE + "{work}/short.txt", ["--calibrate", "{work}/short.txt"], "5 tokens",
    ["--calibrate-tokens", "2048"], files=text_file("short.txt", b"hello"))
row("a calibration text that is not there", FAILURE, CALIBRATE + "{work}/none.txt", "{work}/none.txt", "cannot be opened", "No such file")
row("a calibration text that is not UTF-8", FAILURE, CALIBRATE + "{work}/latin.txt", "{work}/latin.txt", "byte offset 3", "UTF-8",
    files=text_file("latin.txt", b"caf\xe9"))

# ---- outputs


def make_out(kind):
    def make(folder):
        out = folder.parent / "out"
        if kind == "file":
            out.write_text("kept")
        else:
            out.mkdir()
            if kind == "thesis":
                (out / "thesis.tex").write_text("years of work")
    return make


row("an output that exists", USAGE, QUANTIZE, "{out}", "exists already", "--force", files=make_out("folder"))
row("an output that is a file", USAGE, QUANTIZE + " --force", "{out}", "is not a folder", "name of a folder", files=make_out("file"))
row("an output that is no model", USAGE, QUANTIZE + " --force", "{out}", "holds no config.json", "no model", files=make_out("thesis"))
row("the source as output", USAGE, "quantize -m {model} -o {model} --scheme NVFP4A16 --force", "{model}", "is the source", "beside it")
row("an output in the source", USAGE, "quantize -m {model} -o {model}/out --scheme NVFP4A16", "{model}/out", "lies in it", "beside it")
row("an output that holds the source", USAGE, "quantize -m {model} -o {work} --scheme NVFP4A16 --force", "{work}", "holds it",
    "beside it")
row("an output without a name", USAGE, "quantize -m {model} -o '' --scheme NVFP4A16", "output folder ''", "''", "name of a folder")
row("an output without a parent", FAILURE, "quantize -m {model} -o {work}/no/out --scheme NVFP4A16", "{work}/no/out",
    "{work}/no does not exist", "make it")
row("an output below a file", FAILURE, "quantize -m {model} -o {model}/config.json/out --scheme NVFP4A16",
    "{model}/config.json/out", "{model}/config.json is not", "a folder")
row("an output with a long name", FAILURE, "quantize -m {model} -o {work}/" + "n" * 250 + " --scheme NVFP4A16", "{work}/nnn",
    "File name too long", "name")
row("a file that exists", USAGE, LOGITS, "{out}", "exists already", "--force", files=make_out("file"))
row("a file that is a folder", USAGE, LOGITS + " --force", "{out}", "is a folder", "name of a file", files=make_out("folder"))
for name in ["config.json", "model.safetensors"]:
    row(f"the model's {name} as output", USAGE, f"logits -m {{model}} --tokens 1 -o {{model}}/{name} --force",
        f"--output {{model}}/{name}", "is a file of the model {model}", "another name")
row("a file without a parent", FAILURE, "logits -m {model} --tokens 1 -o {work}/no/out", "{work}/no/out", "{work}/no does not exist",
    "make it")

# ---- what is given as a model

row("a model that is not there", FAILURE, "inspect {work}/none", "{work}/none", "no such file or folder", "no such file or folder")
row("a text as a model", FAILURE, "inspect {text}", "{text}", "neither a folder nor a GGUF file", "give the folder")
row("a safetensors file as a model", FAILURE, "inspect {model}/model.safetensors", "{model}/model.safetensors", "neither a folder",
    "give the folder")
row("an empty folder", FAILURE, "inspect {work}", "{work}", "has no config.json", "Hugging Face model folder")


def without(name):
    return lambda folder: (folder / name).unlink()


def instead(name, other, content=b""):
    def change(folder):
        (folder / name).unlink()
        (folder / other).write_bytes(content)
    return change


row("a folder with a GGUF", FAILURE, INSPECT, "{model}", "has no config.json", "{model}/tiny.gguf", files=instead("config.json", "tiny.gguf"))
row("a folder without weights", FAILURE, INSPECT, "{model}", "has neither model.safetensors", "model.safetensors.index.json",
    files=without("model.safetensors"))
row("a folder with weights of PyTorch", FAILURE, INSPECT, "{model}", "pytorch_model.bin", "safetensors",
    files=instead("model.safetensors", "pytorch_model.bin"))
row("a source that is quantised already", USAGE, "quantize -m {llmc} -o {out} --scheme NVFP4A16", "{llmc}", "is quantised already",
    "a dense source is needed")

# ---- safetensors


def change_file(name, change):
    def apply(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))
    return apply


def split_file(raw):
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def joined_file(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def header_change(change):
    def apply(raw):
        header, data = split_file(raw)
        change(header)
        return joined_file(header, data)
    return change_file("model.safetensors", apply)


def entry(key, value):
    def change(header):
        header["model.norm.weight"][key] = value
    return header_change(change)


def move_range(low, high):
    def change(header):
        begin, end = header["model.norm.weight"]["data_offsets"]
        header["model.norm.weight"]["data_offsets"] = [begin + low, end + high]
    return header_change(change)


WEIGHTS, NORM = "{model}/model.safetensors", '"model.norm.weight"'
for name, change, given, needed in [
        ("empty", lambda raw: b"", "0 bytes", "8-byte header length"),
        ("seven bytes", lambda raw: raw[:7], "7 bytes", "8-byte header length"),
        ("a header of 10^18 bytes", lambda raw: struct.pack("<Q", 10**18) + raw[8:], "1000000000000000000", "at most 100000000"),
        ("a header beyond the end", lambda raw: raw[:100], "but only 92 bytes follow", "cut off"),
        ("a header that is a list", lambda raw: joined_file(b"[]", b""), "does not start with '{{'", "safetensors file"),
        ("a header that is no JSON", lambda raw: joined_file(b'{"a": }', b""), "not valid JSON", "line 1"),
        ("a name twice", lambda raw: joined_file(b'{"a": 1, "a": 2}', b""), '"a" twice', "JSON object"),
        ("a deep header", lambda raw: joined_file(b'{"a": ' + b"[" * 200, b""), "deeper than", "128"),
        ("a tail cut off", lambda raw: raw[:-1], "leave the", "cut off"),
        ("bytes behind the end", lambda raw: raw + b"x", "1 bytes after the last tensor", "belong to none"),
        ("metadata as a list", lambda raw: joined_file(b'{"__metadata__": []}', b""), "__metadata__ is []", "an object is needed"),
        ("metadata of numbers", lambda raw: joined_file(b'{"__metadata__": {"a": 1}}', b""), '__metadata__ "a" is 1', "a text is needed")]:
    row(f"safetensors: {name}", MALFORMED, INSPECT, WEIGHTS, given, needed, files=change_file("model.safetensors", change))
for name, code, change, given, needed in [
        ("no dtype", MALFORMED, header_change(lambda header: header["model.norm.weight"].pop("dtype")), "needs", '"dtype"'),
        ("an unknown dtype", MALFORMED, entry("dtype", "F12"), '"F12"', "known are F64"),
        ("a dtype of packed fours", UNSUPPORTED, entry("dtype", "F4"), "F4", "not read by this version"),
        ("a negative size", MALFORMED, entry("shape", [-64]), "holds -64", "whole numbers of at least 0"),
        ("a shape as a text", MALFORMED, entry("shape", "64"), "needs a list", '"shape"'),
        ("10^18 elements", MALFORMED, entry("shape", [10**9, 10**9]), "[1000000000, 1000000000]", ["2000000000000000000", "128"]),
        ("more than 2^63 bytes", MALFORMED, entry("shape", [2**40, 2**40]), "[1099511627776, 1099511627776]", "overflows"),
        ("one offset", MALFORMED, entry("data_offsets", [0]), "1 numbers", "begin and end"),
        ("offsets beyond the file", MALFORMED, entry("data_offsets", [0, 10**15]), "[0, 1000000000000000]", "bytes after the header"),
        ("offsets for another size", MALFORMED, move_range(2, 0), "span 126", "needs 128 bytes"),
        ("overlapping tensors", MALFORMED, move_range(-2, -2), "overlap", "tensors")]:
    row(f"safetensors: {name}", code, INSPECT, [WEIGHTS, NORM], given, needed, files=change)

# ---- the index of shards


def sharded(change):
    """Two shards, and an index that is changed."""
    def apply(folder):
        tensors, _ = read_safetensors(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names = sorted(tensors)
        parts = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
        for shard, members in parts.items():
            write_safetensors(folder / shard, {name: tensors[name] for name in members})
        index = {"metadata": {}, "weight_map": {name: shard for shard, members in parts.items() for name in members}}
        index = change(folder, index) or index
        (folder / "model.safetensors.index.json").write_text(index if isinstance(index, str) else json.dumps(index))
    return apply


def mapped(tensor, shard):
    def change(folder, index):
        index["weight_map"][tensor] = shard
    return sharded(change)


INDEX, FIRST = "{model}/model.safetensors.index.json", "model-00001-of-00002.safetensors"
for name, change, where, given, needed in [
        ("no JSON", sharded(lambda folder, index: "{"), INDEX, "not valid JSON", "line 1"),
        ("no map", sharded(lambda folder, index: {"metadata": {}}), INDEX, "needs an object", '"weight_map"'),
        ("a shard by number", mapped("model.norm.weight", 2), [INDEX, NORM], "is 2", "a file's name is needed"),
        ("a shard elsewhere", mapped("model.norm.weight", "../x.safetensors"), INDEX, '"../x.safetensors"', "in this folder"),
        ("a shard that is missing", sharded(lambda folder, index: (folder / FIRST).unlink()), INDEX, FIRST, "is the download complete"),
        ("a tensor that is not there", mapped("model.more.weight", FIRST), [INDEX, '"model.more.weight"'], FIRST, "lacks it"),
        ("a tensor in another shard", mapped("model.norm.weight", FIRST), [INDEX, NORM], FIRST, "model-00002-of-00002"),
        ("a tensor that is not listed", sharded(lambda folder, index: index["weight_map"].pop("model.norm.weight") and None),
         [INDEX, NORM], "model-00002-of-00002", "not listed"),
        ("a file left over", sharded(lambda folder, index: (folder / "model.safetensors").write_text("x") and None), INDEX,
         "model.safetensors is in the folder too", "remove the one that is left over")]:
    row(f"index: {name}", MALFORMED, INSPECT, where, given, needed, files=change)

# ---- config.json and its companions


def config(**values):
    def change(model):
        for key, value in values.items():
            if value is None:
                model.config.pop(key, None)
            else:
                model.config[key] = value
    return change


CONFIG = "{model}/config.json"
row("config: no JSON", MALFORMED, INSPECT, CONFIG, "not valid JSON", "line 1", files=change_file("config.json", lambda raw: b"{"))
row("config: not UTF-8", MALFORMED, INSPECT, CONFIG, "not valid JSON", "UTF-8", files=change_file("config.json", lambda raw: b'{"a": "\xff"}'))
row("config: a list", MALFORMED, INSPECT, CONFIG, "is []", "a JSON object is needed", files=change_file("config.json", lambda raw: b"[]"))
row("config: empty", MALFORMED, INSPECT, CONFIG, "not valid JSON", "end of input", files=change_file("config.json", lambda raw: b""))
row("config: no architecture", MALFORMED, INSPECT, CONFIG, "needs a list", '"architectures"', config(architectures=None))
row("config: another architecture", UNSUPPORTED, GENERATE, "{model}", '"MambaForCausalLM"', "LlamaForCausalLM",
    config(architectures=["MambaForCausalLM"]))
for key, value, shown, needed in [
        ("hidden_size", None, "is missing", "hidden_size"), ("hidden_size", "64", '"64"', "a whole number from 1"),
        ("num_hidden_layers", -1, "is -1", "a whole number from 1"), ("vocab_size", 2.5, "is 2.5", "a whole number from 1"),
        ("rms_norm_eps", "small", 'is "small"', "a number from 0 to 1"), ("rope_theta", 0, "is 0", "a number from 1"),
        ("num_attention_heads", 5, "hidden_size 64", "multiple of num_attention_heads 5"),
        ("num_key_value_heads", 3, "num_attention_heads 4", "multiple of num_key_value_heads 3"),
        ("head_dim", 15, "15", "RoPE needs pairs"), ("tie_word_embeddings", "yes", '"yes"', "true or false"),
        ("hidden_act", 7, "is 7", "a text is needed"), ("eos_token_id", "end", 'is "end"', "a whole number from 0"),
        ("max_position_embeddings", 0, "is 0", "a whole number from 1")]:
    row(f"config: {key} {value}", MALFORMED, INSPECT, [CONFIG, key], shown, needed, config(**{key: value}))
row("config: another activation", UNSUPPORTED, INSPECT, [CONFIG, "hidden_act"], '"gelu"', "silu", config(hidden_act="gelu"))
row("config: an unknown RoPE", UNSUPPORTED, INSPECT, [CONFIG, "RoPE"], '"spiral"', "supported", config(rope_scaling={"rope_type": "spiral"}))
row("config: RoPE as a list", MALFORMED, INSPECT, [CONFIG, "rope_scaling"], "is []", "a JSON object is needed", config(rope_scaling=[]))
row("generation config: no JSON", MALFORMED, INSPECT, "{model}/generation_config.json", "not valid JSON", "line 1",
    files=change_file("generation_config.json", lambda raw: b"nonsense"))
row("generation config: a token as a text", MALFORMED, INSPECT, ["{model}/generation_config.json", "eos_token_id"], "</s>",
    "a whole number from 0", lambda model: model.generation.update(eos_token_id="</s>"))
row("generation config: a BOS that the model lacks", MALFORMED, PERPLEXITY + " --bos", ["{model}", "bos_token_id"], "999", str(VOCAB),
    lambda model: model.generation.update(bos_token_id=999))

# ---- the tensors against the config


def tensor(name, dtype="BF16", shape=(64,), raw=None):
    def change(model):
        size = math.prod(shape) * support.SIZES.get(dtype, 1)
        model.tensors[name] = (dtype, list(shape), raw if raw is not None else bytes(size))
    return change


def no_tensor(name):
    return lambda model: model.tensors.pop(name)


def value(name, number, dtype="F32"):
    def change(model):
        _, shape, _ = model.tensors[name]
        model.tensors[name] = (dtype, shape, to_bytes([number] * math.prod(shape), dtype))
    return change


UP, DOWN = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
row("tensors: one is missing", MALFORMED, INSPECT, ["{model}", UP], "is missing", "num_hidden_layers 2", no_tensor(UP))
row("tensors: one is unknown", MALFORMED, INSPECT, [WEIGHTS, '"model.layers.0.extra.weight"'], "is no tensor of LlamaForCausalLM",
    "num_hidden_layers 2", tensor("model.layers.0.extra.weight"))
row("tensors: one is transposed", MALFORMED, INSPECT, [WEIGHTS, UP], "[64, 96]", ["[96, 64]", "transposed?"], tensor(UP, shape=(64, 96)))
row("tensors: another vocabulary", MALFORMED, INSPECT, [WEIGHTS, "model.embed_tokens.weight"], f"[{VOCAB}, 64]", "[300, 64]",
    config(vocab_size=300))
row("tensors: whole numbers", UNSUPPORTED, INSPECT, [WEIGHTS, UP], "I32", "BF16, F16 and F32",
    tensor(UP, "I32", (96, 64), bytes(96 * 64 * 4)))
row("tensors: an FP8 checkpoint", UNSUPPORTED, INSPECT, [WEIGHTS, UP], "F8_E4M3", "BF16, F16 and F32", tensor(UP, "F8_E4M3", (96, 64)))
row("weights: NaN", FAILURE, QUANTIZE, ["{model}", UP], "nan at [0, 0]", "not made from non-finite weights", value(UP, math.nan))
row("weights: too small", FAILURE, QUANTIZE, ["{model}", DOWN], "1.4013e-45", "too small for a scale", value(DOWN, 1e-45))
row("weights: NaN logits", FAILURE, GENERATE, ["{model}", "token 0"], "nan", "broken", value("model.norm.weight", math.nan))
row("weights: NaN logits of a window", FAILURE, PERPLEXITY, "{model}", "window 0 at position 0", "broken",
    value("model.norm.weight", math.nan))


def odd_k(model):
    model.config["intermediate_size"] = 72
    for layer in range(support.LAYERS):
        for name, shape in [("gate", (72, 64)), ("up", (72, 64)), ("down", (64, 72))]:
            tensor(f"model.layers.{layer}.mlp.{name}_proj.weight", shape=shape)(model)


row("a K that is no multiple of 16", UNSUPPORTED, QUANTIZE, ["{model}", "model.layers.0.mlp.down_proj.weight"], "K = 72",
    ["multiple of 16", "--ignore"], odd_k)

# ---- quantization_config


def quantization(change):
    """A copy of the small checkpoint of llm-compressor."""
    def apply(folder):
        text = json.loads((LLMC / "config.json").read_text())
        text["quantization_config"] = change(text["quantization_config"]) or text["quantization_config"]
        (folder / "config.json").write_text(json.dumps(text))
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").symlink_to(LLMC / "model.safetensors")
    return apply


def group(quantization_config):
    return next(iter(quantization_config["config_groups"].values()))


def setting(*keys, value):
    def change(quantization_config):
        place = quantization_config
        for key in keys[:-1]:
            place = group(quantization_config) if key == "group" else place[key]
        place[keys[-1]] = value
    return quantization(change)


for name, code, change, where, given, needed in [
        ("a text", MALFORMED, quantization(lambda old: "none"), "quantization_config", 'is "none"', "an object is needed"),
        ("AWQ", UNSUPPORTED, setting("quant_method", value="awq"), "quant_method", '"awq"', "compressed-tensors"),
        ("ModelOpt", UNSUPPORTED, setting("quant_method", value="modelopt"), "quantization_config", "ModelOpt", "not supported"),
        ("a quantised cache", UNSUPPORTED, setting("kv_cache_scheme", value={"num_bits": 8}), "kv_cache_scheme", "is given",
         "not supported"),
        ("sparsity", UNSUPPORTED, setting("sparsity_config", value={"format": "sparse-bitmask"}), "sparsity_config",
         '"sparse-bitmask"', "dense"),
        ("frozen", UNSUPPORTED, setting("quantization_status", value="frozen"), "quantization_status", '"frozen"', "compressed"),
        ("no groups", MALFORMED, setting("config_groups", value={}), "config_groups", "config_groups", "at least one group"),
        ("eight bits", UNSUPPORTED, setting("group", "weights", value={"num_bits": 8, "type": "float", "group_size": 16}), "weights",
         "num_bits = 8", "num_bits 4"),
        ("groups of 32", UNSUPPORTED, setting("group", "weights", value={"num_bits": 4, "type": "float", "group_size": 32}), "weights",
         "group_size = 32", "group_size 16"),
        ("no weights", MALFORMED, setting("group", "weights", value=None), "group", "needs", "weights"),
        ("another format", UNSUPPORTED, setting("group", "format", value="pack-quantized"), "format", '"pack-quantized"',
         "nvfp4-pack-quantized"),
        ("scales at run time", UNSUPPORTED, setting("group", "input_activations",
                                                    value={"num_bits": 4, "type": "float", "group_size": 16, "dynamic": True}),
         "input_activations", "dynamic = true", "local"),
        ("an ignore list of numbers", MALFORMED, setting("ignore", value=[7]), "ignore", "holds 7", "texts are needed"),
        ("an ignore expression", MALFORMED, setting("ignore", value=["re:("]), "ignore", 're:(', "regular expression")]:
    row(f"quantization: {name}", code, INSPECT, [CONFIG, where], given, needed, files=change)

# ---- transform_config and its tensors


def transforms(change=lambda scheme: None, block=16, kind="hadamard", tensors=lambda tensors: None):
    """The small checkpoint with an input transform "v" of every layer; its matrix as a file stores it, F64, once."""
    scheme = {"type": kind, "head_dim": block, "precision": "torch.float64", "randomize": False, "requires_grad": False,
              "apply": [{"targets": ["Linear"], "location": "input", "inverse": False, "ignore": ["lm_head"]}]}
    change(scheme)

    def apply(folder):
        stored, metadata = read_safetensors(LLMC / "model.safetensors")
        stored[V_INPUT] = sylvester()
        tensors(stored)
        write_safetensors(folder / "model.safetensors", stored, metadata)
        text = json.loads((LLMC / "config.json").read_text())
        text["quantization_config"]["transform_config"] = {"config_groups": {"v": scheme}}
        (folder / "config.json").write_text(json.dumps(text))
    return apply


V_INPUT = "model.layers.0.mlp.down_proj.v_input.weight"


def sylvester(changes={}):
    values = [changes.get((i, j), -1.0 if bin(i & j).count("1") % 2 else 1.0) for i in range(16) for j in range(16)]
    return "F64", [16, 16], struct.pack("<256d", *values)


def entry(**values):
    return lambda scheme: scheme["apply"][0].update(values)


for name, code, given, needed, options in [
        ("an unknown type", UNSUPPORTED, 'the type "fourier"', "random-matrix", {"kind": "fourier"}),
        ("an unknown field", UNSUPPORTED, '"learnable"', "requires_grad", {"change": lambda scheme: scheme.update(learnable=True)}),
        ("an unknown location", UNSUPPORTED, 'the location "v_cache"', "k_cache", {"change": entry(location="v_cache")}),
        ("a block of text", MALFORMED, 'head_dim is "16"', "a whole number from 1", {"block": "16"}),
        ("a block that does not divide", MALFORMED, ["blocks of 128", "576"], ["possible: 2, 4, 8, 12, 16,", "576"], {"block": 128}),
        ("attention without head_dim", MALFORMED, "q_attn", "needs head_dim",
         {"change": entry(location="q_attn", targets="re:.*self_attn$"), "block": None}),
        ("an embedding's input", UNSUPPORTED, '"model.embed_tokens" is an embedding', "cannot be transformed",
         {"change": entry(targets=["Embedding"])}),
        ("attention of a linear layer", UNSUPPORTED, 'the target "Linear" means', "re:.*self_attn$", {"change": entry(location="k_cache"), "tensors": lambda tensors: tensors.pop(V_INPUT)}),
        ("no type", MALFORMED, "needs type", "hadamard, random-hadamard, random-matrix", {"kind": None}),
        ("no apply", MALFORMED, "needs apply", "a list", {"change": lambda scheme: scheme.pop("apply")}),
        ("targets that are not there", MALFORMED, 'match no module: "re:.*w1$"', 'Linear (15, first "model.layers.0.self_attn.q_proj")',
         {"change": entry(targets=["re:.*w1$"]), "tensors": lambda tensors: tensors.pop(V_INPUT)}),
        ("no targets", MALFORMED, "input is to be done at run time, but its targets are empty", "Linear (15",
         {"change": entry(targets=[]), "tensors": lambda tensors: tensors.pop(V_INPUT)}),
        ("a missing matrix", MALFORMED, "has one of that size", 'needs the matrix "model.layers.0.self_attn.q_proj.v_input.weight" [16, 16]',
         {"kind": "random-hadamard", "tensors": lambda tensors: tensors.pop(V_INPUT)}),
        ("sides of different modules", MALFORMED, 'only weight_input^-1 has "model.layers.0.mlp.gate_proj"', "must cover the same modules",
         {"change": lambda scheme: scheme["apply"].append(
             {**scheme["apply"][0], "location": "weight_input", "inverse": True}) or
             scheme["apply"][0].update(ignore=["lm_head", "re:.*layers.0.mlp.gate_proj$"])}),
        ("no permutation", MALFORMED, "needs the permutation", "randomize is true",
         {"change": lambda scheme: scheme.update(randomize=True)})]:
    row(f"transforms: {name}", code, INSPECT, [CONFIG, "transform_config", 'scheme "v"'], given, needed, files=transforms(**options))
for name, given, needed, matrix in [
        ("not square", "shape [16, 8]", "[16, 16] is needed", ("F64", [16, 8], bytes(1024))),
        ("another size", "shape [8, 8]", "[16, 16] is needed", ("F64", [8, 8], bytes(512))),
        ("of integers", "I64 [16, 16] given", "F64, F32, BF16 or F16", ("I64", [16, 16], bytes(2048))),
        ("with a NaN", "nan at [2, 3]", "finite", sylvester({(2, 3): math.nan})),
        ("not orthogonal", ["|c^2 M M^T - 1| = 0.125", "the worst row is 2"], "entries of +-1", sylvester({(2, 3): 1.0}))]:
    row(f"transforms: a matrix {name}", MALFORMED, INSPECT, [WEIGHTS, f'"{V_INPUT}"'], given, needed,
        files=transforms(tensors=lambda tensors, matrix=matrix: tensors.update({V_INPUT: matrix})))
for name, values in [("of zeros", [0.0] * 256), ("that is singular", [1.0] * 256)]:
    row(f"transforms: a random matrix {name}", MALFORMED, INSPECT, [WEIGHTS, f'"{V_INPUT}"'], "singular", "at most 4096 is needed",
        files=transforms(kind="random-matrix", tensors=lambda tensors, values=values: tensors.update(
            {V_INPUT: ("F64", [16, 16], struct.pack("<256d", *values))})))
row("transforms: a stray matrix", MALFORMED, INSPECT, [WEIGHTS, '"lm_head.v_input.weight"'], "belongs to no transform",
    "transform_config of config.json", files=transforms(tensors=lambda tensors: tensors.update({"lm_head.v_input.weight": sylvester()})))
row("transforms: a matrix without its transform", MALFORMED, INSPECT, [WEIGHTS, '.u_input.weight"'], "does not belong beside",
    "transform_config does not mention",
    files=transforms(tensors=lambda tensors: tensors.update({V_INPUT.replace("v_input", "u_input"): sylvester()})))

# ---- FP-Quant


def fp_quant(**config):
    def apply(folder):
        quantization(lambda old: {"quant_method": "fp_quant", "forward_dtype": "nvfp4", "forward_method": "abs_max",
                                  "hadamard_group_size": 16, "modules_to_not_convert": ["lm_head"], **config})(folder)
    return apply


for name, given, needed, config in [
        ("MXFP4", 'forward_dtype "mxfp4"', "nvfp4 is", {"forward_dtype": "mxfp4"}),
        ("an unknown method", 'forward_method "rms"', "abs_max and quest", {"forward_method": "rms"}),
        ("rounded weights", "pseudoquantization is true", "packed ones are needed", {"pseudoquantization": True}),
        ("master weights", "store_master_weights is true", "packed ones are needed", {"store_master_weights": True})]:
    row(f"FP-Quant: {name}", UNSUPPORTED, INSPECT, [CONFIG, "quantization_config"], given, needed, files=fp_quant(**config))
row("FP-Quant: no block size", MALFORMED, INSPECT, [CONFIG, "quantization_config"], "needs", "hadamard_group_size",
    files=fp_quant(hadamard_group_size=None))

# ---- the tensors of compressed-tensors

MODULE = "model.layers.0.mlp.up_proj"


def quantized(change):
    def apply(folder):
        tensors, metadata = read_safetensors(LLMC / "model.safetensors")
        change(tensors)
        write_safetensors(folder / "model.safetensors", tensors, metadata)
        (folder / "config.json").write_bytes((LLMC / "config.json").read_bytes())
    return apply


def part(leaf, **values):
    def change(tensors):
        name = f"{MODULE}.{leaf}"
        dtype, shape, raw = tensors[name]
        tensors[name] = (values.get("dtype", dtype), values.get("shape", shape), values.get("raw", raw))
    return quantized(change)


def no_part(leaf):
    return quantized(lambda tensors: tensors.pop(f"{MODULE}.{leaf}"))


def more(leaf, *tensor):
    def change(tensors):
        tensors[f"{MODULE}.{leaf}"] = tensor
    return quantized(change)


def scale(leaf, number):
    return part(leaf, raw=to_bytes([number], "F32"))


def first_scale(byte):
    def change(tensors):
        dtype, shape, raw = tensors[MODULE + ".weight_scale"]
        tensors[MODULE + ".weight_scale"] = (dtype, shape, bytes([byte]) + raw[1:])
    return quantized(change)


def reshaped_scale(change):
    def apply(tensors):
        dtype, shape, raw = tensors[MODULE + ".weight_scale"]
        tensors[MODULE + ".weight_scale"] = (dtype, change(shape), raw)
    return quantized(apply)


for name, change, leaf, given, needed in [
        ("no block scales", no_part("weight_scale"), "weight_packed", "has no", f"{MODULE}.weight_scale"),
        ("no global scale", no_part("weight_global_scale"), "weight_packed", "has no", f"{MODULE}.weight_global_scale"),
        ("no input scale", no_part("input_global_scale"), "weight_packed", "has no", f"{MODULE}.input_global_scale"),
        ("no codes", no_part("weight_packed"), "input_global_scale", "there is no", f"{MODULE}.weight_packed"),
        ("transposed scales", reshaped_scale(lambda shape: shape[::-1]), "weight_scale", "shape [", "it must be ["),
        ("scales in one row", reshaped_scale(lambda shape: [math.prod(shape)]), "weight_scale", "shape [", "it must be ["),
        ("scales as bytes", part("weight_scale", dtype="U8"), "weight_scale", "U8 given", "block scales are F8_E4M3"),
        ("codes as signed bytes", part("weight_packed", dtype="I8"), "weight_packed", "I8", "U8 [N, K/2]"),
        ("two global scales", part("weight_global_scale", shape=[2], raw=to_bytes([1, 1], "F32")), "weight_global_scale", "shape [2]",
         "one number"),
        ("a global scale of zero", scale("weight_global_scale", 0.0), "weight_global_scale", "global scale 0", "finite and positive"),
        ("a global scale of NaN", scale("weight_global_scale", math.nan), "weight_global_scale", "nan", "finite and positive"),
        ("a global scale of infinity", scale("weight_global_scale", math.inf), "weight_global_scale", "inf", "finite and positive"),
        ("a negative global scale", scale("weight_global_scale", -2.0), "weight_global_scale", "-2", "finite and positive"),
        ("an input scale of NaN", scale("input_global_scale", math.nan), "input_global_scale", "nan", "finite and positive"),
        ("the reciprocal of a global scale", scale("weight_global_scale", 1 / 4096), "weight_global_scale", "0.00024414062",
         "reciprocal is needed"),
        ("a block scale of NaN", first_scale(0x7F), "weight_scale", "byte 0x7F at row 0, block 0 is NaN", "0 to 448"),
        ("a negative block scale", first_scale(0xB8), "weight_scale", "byte 0xB8 at row 0, block 0 is negative", "0 to 448"),
        ("dense weights beside", more("weight", "BF16", [1], bytes(2)), "weight", "does not belong beside", "either quantised or dense"),
        ("a scale of ModelOpt", more("weight_scale_2", "F32", [1], bytes(4)), "weight_scale_2", "does not belong beside", "ModelOpt")]:
    row(f"compressed-tensors: {name}", MALFORMED, INSPECT, [WEIGHTS, f'"{MODULE}.{leaf}"'], given, needed, files=change)


def fp8_head(change=lambda tensors: None, setting=lambda group: None):
    """A folder with an FP8 lm_head, with a fault."""
    def apply(folder):
        out = folder.parent / (folder.name + "-fp8")
        done = halfbyte("quantize", "-m", folder, "-o", out, "--scheme", "NVFP4A16", "--head", "fp8")
        assert done.code == 0, done
        tensors, metadata = read_safetensors(out / "model.safetensors")
        change(tensors)
        write_safetensors(folder / "model.safetensors", tensors, metadata)
        config = json.loads((out / "config.json").read_text())
        setting(config["quantization_config"]["config_groups"]["group_0"])
        (folder / "config.json").write_text(json.dumps(config))
    return apply


def fp8_part(leaf, change):
    def apply(tensors):
        tensors["lm_head." + leaf] = change(*tensors["lm_head." + leaf])
    return fp8_head(apply)


def fp8_scale(number):
    return fp8_part("weight_scale", lambda dtype, shape, raw: (dtype, shape, raw[:4] + to_bytes([number], dtype) + raw[6:]))


for name, change, leaf, given, needed in [
        ("a weight of NaN", fp8_part("weight", lambda dtype, shape, raw: (dtype, shape, raw[:70] + b"\xff" + raw[71:])), "weight",
         "byte 0xFF at [1, 6] is NaN", "weights must be numbers"),
        ("no scale", fp8_head(lambda tensors: tensors.pop("lm_head.weight_scale")), "weight", "has no", "lm_head.weight_scale"),
        ("a scale of zero", fp8_scale(0.0), "weight_scale", "row 2 has the scale 0", "finite and positive"),
        ("a scale of NaN", fp8_scale(math.nan), "weight_scale", "row 2 has the scale", "finite and positive"),
        ("an infinite scale", fp8_scale(math.inf), "weight_scale", "row 2 has the scale inf", "finite and positive"),
        ("a negative scale", fp8_scale(-1.0), "weight_scale", "row 2 has the scale -1", "finite and positive"),
        ("scales in a row", fp8_part("weight_scale", lambda dtype, shape, raw: (dtype, shape[::-1], raw)), "weight_scale",
         f"shape [1, {VOCAB}]", f"[{VOCAB}, 1]"),
        ("one scale", fp8_part("weight_scale", lambda dtype, shape, raw: (dtype, [1], raw[:2])), "weight_scale", "shape [1]",
         "one for the whole tensor?"),
        ("scales as bytes", fp8_part("weight_scale", lambda dtype, shape, raw: ("U8", [*shape[:1], 2], raw)), "weight_scale", "U8 given",
         "BF16, F16 or F32"),
        ("fewer rows", fp8_part("weight", lambda dtype, shape, raw: (dtype, [VOCAB * 2, shape[1] // 2], raw)), "weight_scale",
         f"weights of {2 * VOCAB} rows", f"[{2 * VOCAB}, 1]"),
        ("an input scale", fp8_head(lambda tensors: tensors.update({"lm_head.input_scale": ("F32", [1], bytes(4))})), "input_scale",
         "does not belong beside", "weights only")]:
    row(f"FP8: {name}", MALFORMED, INSPECT, [WEIGHTS, f'"lm_head.{leaf}"'], given, needed, files=change)
for name, change, given in [
        ("a scale for the tensor", lambda group: group["weights"].update(strategy="tensor"), 'strategy = "tensor"'),
        ("blocks", lambda group: group["weights"].update(strategy="block", block_structure=[128, 128]), 'strategy = "block"'),
        ("asymmetric", lambda group: group["weights"].update(symmetric=False), "symmetric = false"),
        ("quantised inputs", lambda group: group.update(input_activations=group["weights"]), "input_activations are given")]:
    row(f"FP8: {name}", UNSUPPORTED, INSPECT, ["config.json", '"group_0"'], given, "is supported", files=fp8_head(setting=change))


def without_quantization(folder):
    quantized(lambda tensors: None)(folder)
    change_file("config.json", lambda raw: json.dumps({key: value for key, value in json.loads(raw).items()
                                                       if key != "quantization_config"}).encode())(folder)


row("compressed-tensors: no quantization_config", MALFORMED, INSPECT, [WEIGHTS, ".weight_packed"], "is quantised",
    "config.json has no quantization_config", files=without_quantization)

# ---- GGUF: {work}/tiny.gguf


def gguf(change=lambda raw: raw, extra=()):
    def apply(folder):
        path = ErrorTable.half.write_gguf(folder.parent / "tiny.gguf", extra=extra)
        path.write_bytes(change(path.read_bytes()))
    return apply


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def u32(number):
    return struct.pack("<II", 4, number)


def replaced(old, new):
    def change(raw):
        assert len(old) == len(new) and old in raw, old
        return raw.replace(old, new)
    return gguf(change)


def gguf_number(key, old, new):
    return replaced(gguf_text(key) + u32(old), gguf_text(key) + new)


def gguf_type(name, number):
    def change(raw):
        at = raw.index(gguf_text(name)) + len(gguf_text(name)) + 4 + 2 * 8
        return raw[:at] + struct.pack("<I", number) + raw[at + 4:]
    return gguf(change)


def at(position, new):
    return gguf(lambda raw: raw[:position] + new + raw[position + len(new):])


for name, code, change, where, given, needed in [
        ("empty", MALFORMED, gguf(lambda raw: b""), [], "0 are left", "needs 4 bytes"),
        ("another magic", MALFORMED, at(0, b"GGML"), [], '"GGML"', '"GGUF"'),
        ("version 1", UNSUPPORTED, at(4, struct.pack("<I", 1)), [], "version 1", "versions 2 and 3"),
        ("big-endian", UNSUPPORTED, at(4, struct.pack(">I", 3)), [], "big-endian", "little-endian"),
        ("a head cut off", MALFORMED, gguf(lambda raw: raw[:60]), [], "into 36 bytes", "cut off"),
        ("a tail cut off", MALFORMED, gguf(lambda raw: raw[:-100]), "tensor", "leave the", "cut off"),
        ("10^18 tensors", MALFORMED, at(8, struct.pack("<Q", 10**18)), [], "1000000000000000000 tensors", "do not fit"),
        ("10^18 values", MALFORMED, at(16, struct.pack("<Q", 10**18)), [], "1000000000000000000 metadata", "do not fit"),
        ("another architecture", UNSUPPORTED, replaced(gguf_text("llama"), gguf_text("mamba")), "architecture", '"mamba"', "llama"),
        ("a key that is missing", MALFORMED, replaced(b"llama.block_count", b"llama.block_cuont"), "llama.block_count", "is missing",
         "metadata key"),
        ("a fraction of layers", MALFORMED, gguf_number("llama.block_count", 2, struct.pack("<If", 6, 2.5)), "llama.block_count",
         "holds F32", "whole numbers are needed"),
        ("an unknown value type", MALFORMED, gguf_number("llama.block_count", 2, struct.pack("<II", 77, 2)), "llama.block_count",
         "unknown value type 77", "0 to 12 are known"),
        ("a key twice", MALFORMED, gguf(extra=[gguf_text("llama.block_count") + u32(2)]), "llama.block_count", "twice", "metadata key"),
        ("a truth of two", MALFORMED, gguf(extra=[gguf_text("llama.odd") + struct.pack("<IB", 7, 2)]), "llama.odd", "boolean",
         "neither 0 nor 1"),
        ("an odd alignment", MALFORMED, gguf(extra=[gguf_text("general.alignment") + u32(48)]), "general.alignment", "48", "power of two"),
        ("no heads", MALFORMED, gguf_number("llama.attention.head_count", 4, u32(0)), "llama.attention.head_count", "is 0",
         "must be positive"),
        ("more layers than tensors", MALFORMED, gguf_number("llama.block_count", 2, u32(3)), "model.layers.2.", "is missing",
         "num_hidden_layers 3"),
        ("another width", MALFORMED, gguf_number("llama.feed_forward_length", 96, u32(80)), "blk.0.ffn_", "96", "80"),
        ("experts", UNSUPPORTED, gguf(extra=[gguf_text("llama.expert_count") + u32(8)]), "llama.expert_count", "is 8", "experts are not supported"),
        ("an unknown RoPE", UNSUPPORTED, gguf(extra=[gguf_text("llama.rope.scaling.type") + struct.pack("<I", 8) + gguf_text("spiral")]),
         "RoPE", '"spiral"', "supported"),
        ("an unknown tensor", MALFORMED, replaced(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"), '"blk.0.attn_x.weight"', "not known",
         "llama architecture"),
        ("a tensor twice", MALFORMED, replaced(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"), '"blk.0.attn_k.weight"', "twice", "tensor"),
        ("a type that is not read", UNSUPPORTED, gguf_type("blk.0.attn_q.weight", 12), '"blk.0.attn_q.weight"', "Q4_K",
         "F32, F16, BF16, Q8_0, Q4_0 and Q4_1"),
        ("an unknown type", UNSUPPORTED, gguf_type("blk.0.attn_q.weight", 999), '"blk.0.attn_q.weight"', "999",
         "F32, F16, BF16, Q8_0, Q4_0 and Q4_1"),
        ("an id beyond the vocabulary", MALFORMED, gguf_number("tokenizer.ggml.bos_token_id", support.BOS, u32(9999)),
         "tokenizer.ggml.bos_token_id", "9999", f"{VOCAB} tokens")]:
    row(f"GGUF: {name}", code, "inspect {work}/tiny.gguf", ["{work}/tiny.gguf", *([where] if where else [])], given, needed, files=change)
for name, change, where, given, needed in [
        ("an unknown pre-tokenizer", replaced(gguf_text("gpt-2"), gguf_text("gpt-9")), "tokenizer.ggml.pre", '"gpt-9"',
         "smollm, llama-bpe and gpt-2"),
        ("another tokenizer", replaced(gguf_text("gpt2"), gguf_text("bert")), "tokenizer.ggml.model", '"bert"', "gpt2, a byte-level BPE")]:
    row(f"GGUF: {name}", UNSUPPORTED, "tokenize -m {work}/tiny.gguf -p x", ["{work}/tiny.gguf", where], given, needed, files=change)

# ---- tokenizers and chat templates

TOKENIZER = "{model}/tokenizer.json"


def tokenizer(*keys, value):
    def change(model):
        model.tokenizer = copy.deepcopy(model.tokenizer)
        place = model.tokenizer
        for key in keys[:-1]:
            place = place[key]
        if value is None:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value
    return change


def first_added(**values):
    entry = {"id": 256, "content": "<|endoftext|>", "special": True, **values}
    return tokenizer("added_tokens", value=[entry])


row("tokenizer: none", UNSUPPORTED, TOKENIZE, "{model}", "has no tokenizer.json", "which text needs", lambda model: setattr(model, "tokenizer", None))
row("tokenizer: SentencePiece", UNSUPPORTED, TOKENIZE, "{model}", "tokenizer.model (SentencePiece, not supported)", "tokenizer.json",
    files=instead("tokenizer.json", "tokenizer.model"))
row("tokenizer: no JSON", MALFORMED, TOKENIZE, TOKENIZER, "not valid JSON", "line 1",
    files=change_file("tokenizer.json", lambda raw: raw[:100]))
for name, code, change, where, given, needed in [
        ("Unigram", UNSUPPORTED, tokenizer("model", "type", value="Unigram"), "type", '"Unigram" (SentencePiece)', "byte-level BPE"),
        ("a list of tokens", MALFORMED, tokenizer("model", "vocab", value=[]), "model.vocab", "array", "an object"),
        ("a negative id", MALFORMED, tokenizer("model", "vocab", "A", value=-1), '"A"', "-1", "[0, 16777216)"),
        ("an id twice", MALFORMED, tokenizer("model", "vocab", "A", value=66), '"A"', '"B"', "one id, 66"),
        ("a merge of one", MALFORMED, tokenizer("model", "merges", value=["A"]), "merge 0", '"A', "two tokens"),
        ("a merge of the unknown", MALFORMED, tokenizer("model", "merges", value=[["A", "QQ"]]), "merge 0", '"QQ"', "model.vocab lacks"),
        ("no merges", MALFORMED, tokenizer("model", "merges", value=None), "model", "no member", "merges"),
        ("no pre-tokenizer", UNSUPPORTED, tokenizer("pre_tokenizer", value=None), "pre_tokenizer", "without a pre_tokenizer",
         "byte-level BPE"),
        ("Metaspace", UNSUPPORTED, tokenizer("pre_tokenizer", value={"type": "Metaspace"}), "pre_tokenizer", "Metaspace", "ByteLevel"),
        ("a broken expression", MALFORMED, tokenizer("pre_tokenizer", value={
            "type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}), '"("', "parenthes", "expression"),
        ("an unknown normalizer", UNSUPPORTED, tokenizer("normalizer", value={"type": "Lowercase"}), "normalizer", '"Lowercase"', "NFC"),
        ("an unknown decoder", UNSUPPORTED, tokenizer("decoder", value={"type": "WordPiece"}), "decoder", '"WordPiece"', "ByteLevel"),
        ("an unknown post-processor", UNSUPPORTED, tokenizer("post_processor", value={"type": "BertProcessing"}), "post_processor",
         '"BertProcessing"', "TemplateProcessing"),
        ("an added token with another's id", MALFORMED, first_added(id=65), '"<|endoftext|>"', "65", '"A"'),
        ("an added token without text", MALFORMED, first_added(content=""), "added_tokens[0]", "is empty", "added_tokens"),
        ("a flag as a text", MALFORMED, first_added(lstrip="no"), "added_tokens[0].lstrip", "string", "true or false")]:
    row(f"tokenizer: {name}", code, TOKENIZE, [TOKENIZER, where], given, needed, change)
row("tokenizer: of another model", MALFORMED, GENERATE, "{model}", "999", ["vocabulary of", str(VOCAB)],
    tokenizer("model", "vocab", "x", value=999))
row("chat: no template", UNSUPPORTED, GENERATE + " --chat", "{model}", "has no chat template", "--raw",
    lambda model: setattr(model, "chat_template", None))
row("chat: an unknown template", UNSUPPORTED, GENERATE + " --chat", "{model}", "chat template", ["ChatML", "--raw"],
    lambda model: setattr(model, "chat_template", "{% for message in messages %}[X]{{ message.content }}{% endfor %}"))


# ---- explain

for name, command, where, given, needed in [
        ("no operation", "explain", "operation", "is required", "halfbyte explain --help"),
        ("an unknown operation", "explain matmul", "operation", "matmul", ["quantize", "transform_quantize"]),
        ("a transform of quantize", "explain quantize --transform hadamard", "--transform", "quantize has no transform", "leave"),
        ("a size without a transform", "explain quantize --transform-n 32", "--transform-n", "quantize", "leave"),
        ("scales of a transform", "explain transform --dynamic", "--dynamic", "transform has no dynamic scales", "leave"),
        ("a layout of a transform", "explain transform --layout tiled_8x4", "--layout", "transform has no block scales", "leave"),
        ("a layout that there is not", "explain quantize --layout tiled", "--layout", "tiled", ["linear", "tiled_128x4"]),
        ("a size that does not divide", "explain transform --k 96 --transform-n 64", "transform.n", "K = 96", "16, 32"),
        ("nothing that divides", "explain transform_quantize --k 100", "K = 100", "transform.n = 32", "pad x"),
        ("tensor cores without a matrix", "explain transform --arithmetic tensor_core", "accumulation", "tensor_core", "matrix"),
        ("tensor cores for F32", "explain transform --arithmetic tensor_core --transform matrix --type f32", "accumulation",
         "x F32", "BF16 for both"),
        ("too little padding", "explain quantize --k 100 --padded-k 96", "padded_k = 96", "k = 100", "multiple of 16"),
        ("too few padded rows", "explain quantize --rows 9 --padded-rows 8", "padded_rows = 8", "rows = 9", "below"),
        ("more than can be addressed", "explain quantize --rows 1000000000000 --k 1000000000000", "x", "1000000000000", "2^63"),
        ("negative rows", "explain quantize --rows=-1", "--rows", "-1", "0"),
        ("an unknown architecture", "explain quantize --device sm_91", "device", "sm_91", "sm_90"),
        ("a device that is a word", "explain quantize --device first", "--device", "first", ["number", "sm_90"])]:
    row(f"explain: {name}", USAGE, command, where, given, needed)


# What no user should see: the words of a crash, of an assertion, of the C++ below.
UNWANTED = re.compile(r"terminate called|what\(\)|[Aa]ssert|nlohmann|json\.exception|std::|Aborted|core dumped|Traceback|basic_string|"
                      r"vector::|_M_|bad_alloc|u?int(8|16|32|64)_t|size_t|\.cpp\b|\.h:\d|errno|0x[0-9a-f]{6,}|Segmentation|runtime_error|"
                      r"invalid_argument|out_of_range|nullopt|\(null\)|%s|\{\}|iostream|filesystem error")


class ErrorTable(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.base, cls.half = TinyModel(), TinyModel("F16")
        cls.text = write_text(cls.work / "text.txt")

    def prepared(self, row):
        """The folder of a row with its model, and the names to fill in."""
        work = self.work / re.sub(r"\W+", "-", row.name)
        model = copy.copy(self.base)
        model.config, model.generation, model.tensors = dict(model.config), dict(model.generation), dict(model.tensors)
        if row.model:
            row.model(model)
        folder = model.write(work / "model")
        if row.files:
            row.files(folder)
        return {"work": work, "model": folder, "out": work / "out", "text": self.text, "llmc": LLMC}

    def test_messages(self):
        names = [row.name for row in ROWS]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreaterEqual(len(ROWS), 60)
        for row in ROWS:
            with self.subTest(row.name):
                fill = self.prepared(row)
                words = shlex.split(row.command) if isinstance(row.command, str) else row.command
                before = sorted(fill["work"].rglob("*"))
                result = halfbyte(*(word.format(**fill) if isinstance(word, str) else word for word in words))
                self.assertEqual(result.code, row.code, result)
                self.assertEqual(result.out, "", result)
                for part in [*row.where, *row.given, *row.needed]:
                    self.assertIn(part.format(**fill), result.err)
                self.assertRegex(result.err, r"\Ahalfbyte: error: [^\n]+\n")
                self.assertEqual(result.err.count("error:"), 1, result)
                self.assertLessEqual(result.err.count("\n"), 5, result)
                self.assertNotRegex(result.err, UNWANTED)
                self.assertTrue(result.err.isprintable() or all(c.isprintable() or c == "\n" for c in result.err), result)
                self.assertEqual(sorted(fill["work"].rglob("*")), before)  # nothing was made


if __name__ == "__main__":
    support.main()
