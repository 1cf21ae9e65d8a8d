#!/usr/bin/env python3
"""halfbyte beside llama.cpp, taken in turns on one machine. Nothing of llama.cpp is built here; PEER is the folder of a
build with BUILD_SHARED_LIBS (its default): bin/llama-bench, bin/llama-quantize, bin/libggml*.so.

  llama_cpp.py make PEER SOURCE.gguf FOLDER        FOLDER/{BF16,Q8_0,Q4_0,Q4_K_M,MXFP4,NVFP4}.gguf out of one model
  llama_cpp.py models PEER FOLDER OURS...          pp512 and tg128 of those files and of halfbyte's models OURS
  llama_cpp.py kernels PEER                        a product of weights by type, in L2 and from memory

Each round runs every row once, ours and theirs; a row is the median of the rounds. Ratios are ours to theirs. A table goes
to stdout, every sample to --json FILE, for bench/performance_tables.py.

llama.cpp builds from the archive of PyPI's llama-cpp-python 0.3.36 (vendor/llama.cpp; its file .git must go first):
  cmake -S llama.cpp -B PEER -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \\
        -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  ninja -C PEER llama-bench llama-quantize
"""

import argparse
import ctypes
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

LINEARS = r"(attn|ffn)_[a-z]+\.weight"  # llama-quantize has no NVFP4 and MXFP4 of a whole dense model by name
TYPES = ["BF16", "Q8_0", "Q4_0", "Q4_K_M", "MXFP4", "NVFP4"]
FOUR_BITS = ["Q4_0", "Q4_K_M", "MXFP4", "NVFP4"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def say(text):
    print(text, file=sys.stderr)


# ---- models

def make(arguments):
    folder, quantize = Path(arguments.folder), Path(arguments.peer) / "bin/llama-quantize"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "BF16.gguf"
    run(quantize, "--allow-requantize", arguments.source, source, "BF16")
    for name in TYPES[1:]:
        if name in ("MXFP4", "NVFP4"):  # head and embedding as Q8_0, which is also what they are beside Q4_0
            run(quantize, "--tensor-type", f"{LINEARS}={name.lower()}", source, folder / f"{name}.gguf", "Q8_0")
        else:
            run(quantize, source, folder / f"{name}.gguf", name)
        say(f"{folder / name}.gguf")


def their_model(peer, file, threads):
    out = run(peer / "bin/llama-bench", "-m", file, "-t", threads, "-p", 512, "-n", 128, "-r", 1, "-o", "jsonl")
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {("pp512" if row["n_prompt"] else "tg128"): row["avg_ts"] for row in rows}


def our_model(program, model, threads):
    value = json.loads(run(program, "bench", "-m", model, "--threads", threads, "--repeats", 1, "--min-time", 0.1,
                           "--quiet", "--format", "json"))
    return {row["test"]: row["value"] for row in value["rows"]}


def models(arguments):
    peer = Path(arguments.peer)
    files = {name: Path(arguments.folder) / f"{name}.gguf" for name in TYPES}
    missing = [str(file) for file in files.values() if not file.exists()]
    if missing:
        sys.exit(f"{', '.join(missing)}: not there; 'llama_cpp.py make' makes them")
    samples = {}
    for i in range(arguments.rounds):
        for threads in arguments.threads:
            for who, names in [("halfbyte", arguments.ours), ("llama.cpp", TYPES)]:
                for name in names:
                    found = our_model(arguments.halfbyte, name, threads) if who == "halfbyte" else \
                        their_model(peer, files[name], threads)
                    for test, value in found.items():
                        samples.setdefault((who, name, test, threads), []).append(value)
        say(f"round {i + 1} of {arguments.rounds}")
    rows = [{"who": who, "model": name, "test": test, "threads": threads, "samples": values}
            for (who, name, test, threads), values in samples.items()]
    return {"rows": rows}, table_of_models(rows)


def table_of_models(rows):
    """One line a model; behind each figure of ours its ratio to the fastest 4-bit type, to NVFP4 and to BF16 of the peer."""
    columns = sorted({(row["threads"], row["test"]) for row in rows})
    middle = {(row["who"], row["model"], row["threads"], row["test"]): statistics.median(row["samples"]) for row in rows}
    lines = ["| | " + " | ".join(f"{test}, {threads} thread{'s' * (threads > 1)}" for threads, test in columns) + " |",
             "| --- |" + " ---: |" * len(columns)]
    for who in ["halfbyte", "llama.cpp"]:
        for name in dict.fromkeys(row["model"] for row in rows if row["who"] == who):
            cells = []
            for column in columns:
                value = middle[(who, name, *column)]
                cell = f"{value:.0f}"
                if who == "halfbyte":
                    theirs = {kind: middle[("llama.cpp", kind, *column)] for kind in TYPES}
                    best = max(FOUR_BITS, key=theirs.get)
                    cell += f" ({value / theirs[best]:.2f} x {best}, {value / theirs['NVFP4']:.2f} x NVFP4, " \
                            f"{value / theirs['BF16']:.2f} x BF16)"
                cells.append(cell)
            lines.append(f"| {who}, {Path(name).name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# ---- kernels, through ggml's own functions

class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Plan(ctypes.Structure):
    _fields_ = [("work_size", ctypes.c_size_t), ("work_data", ctypes.c_void_p), ("n_threads", ctypes.c_int),
                ("threadpool", ctypes.c_void_p), ("abort_callback", ctypes.c_void_p), ("abort_data", ctypes.c_void_p),
                ("use_ref", ctypes.c_bool)]


GGML_TYPES = {"F32": 0, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "BF16": 30, "MXFP4": 39, "NVFP4": 40}


class Ggml:
    def __init__(self, peer):
        load = lambda name: ctypes.CDLL(str(peer / "bin" / name), mode=ctypes.RTLD_GLOBAL)
        base, cpu = load("libggml-base.so"), load("libggml-cpu.so")
        pointer, int64, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t

        def function(library, name, result, *arguments):
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), found)

        function(base, "ggml_init", pointer, InitParams)
        function(base, "ggml_free", None, pointer)
        function(base, "ggml_new_tensor_2d", pointer, pointer, ctypes.c_int, int64, int64)
        function(base, "ggml_mul_mat", pointer, pointer, pointer, pointer)
        function(base, "ggml_new_graph", pointer, pointer)
        function(base, "ggml_build_forward_expand", None, pointer, pointer)
        function(base, "ggml_quantize_chunk", size, ctypes.c_int, pointer, pointer, int64, int64, int64, pointer)
        function(base, "ggml_row_size", size, ctypes.c_int, int64)
        function(base, "ggml_get_data", pointer, pointer)
        function(base, "ggml_type_name", ctypes.c_char_p, ctypes.c_int)
        function(cpu, "ggml_cpu_init", None)
        function(cpu, "ggml_graph_plan", Plan, pointer, ctypes.c_int, pointer)
        function(cpu, "ggml_graph_compute", ctypes.c_int, pointer, ctypes.POINTER(Plan))
        self.cpu_init()
        for name, number in GGML_TYPES.items():
            if self.type_name(number).decode().upper() != name.upper():
                sys.exit(f"{peer}: type {number} is {self.type_name(number).decode()}, {name} is needed; "
                         "this script knows llama-cpp-python 0.3.36")


class Product:
    """d[M, N] = x[M, K] w[N, K]^T, each of `sets` weights once in a graph; x is quantised inside, as llama.cpp does."""

    def __init__(self, ggml, kind, m, n, k, sets):
        self.ggml, self.products = ggml, m * n * k * sets
        row = ggml.row_size(GGML_TYPES[kind], k)
        room = sets * (n * row + m * n * 4 + 4096) + m * k * 4 + (64 << 20)
        self.context = ggml.init(InitParams(room, None, False))
        x = ggml.new_tensor_2d(self.context, 0, k, m)
        source = random.Random(1)
        values = (ctypes.c_float * (16 * k))(*(source.gauss(0, 1) for _ in range(16 * k)))
        for i in range(m):
            ctypes.memmove(ggml.get_data(x) + i * k * 4, ctypes.addressof(values) + i % 16 * k * 4, k * 4)
        rows = ctypes.create_string_buffer(16 * row)
        ggml.quantize_chunk(GGML_TYPES[kind], values, rows, 0, 16, k, None)
        self.graph = ggml.new_graph(self.context)
        for _ in range(sets):
            w = ggml.new_tensor_2d(self.context, GGML_TYPES[kind], k, n)
            for i in range(0, n, 16):
                ctypes.memmove(ggml.get_data(w) + i * row, rows, min(16, n - i) * row)
            ggml.build_forward_expand(self.graph, ggml.mul_mat(self.context, w, x))

    def rate(self, threads):
        """10^9 multiply-adds a second: of processor time with one thread, as halfbyte bench does."""
        plan = self.ggml.graph_plan(self.graph, threads, None)
        work = ctypes.create_string_buffer(plan.work_size + 64)
        plan.work_data = ctypes.addressof(work)
        clock = time.thread_time if threads == 1 else time.monotonic
        times = []
        for _ in range(4):  # the first one warms up
            begin, count = clock(), 0
            while count == 0 or clock() - begin < 0.05:
                self.ggml.graph_compute(self.graph, ctypes.byref(plan))
                count += 1
            times.append((clock() - begin) / count)
        return self.products / min(times[1:]) / 1e9

    def __del__(self):
        self.ggml.free(self.context)


def kernels(arguments):
    ggml = Ggml(Path(arguments.peer))
    shapes = [("L2", m, 256, 2048, 32) for m in (1, 8, 512)] + [("memory", m, 4096, 4096, 0) for m in (1, 8, 512)]
    kinds = ["NVFP4", "MXFP4", "Q4_0", "Q4_K", "BF16"]
    samples = {}
    for i in range(arguments.rounds):
        for threads in arguments.threads:
            value = json.loads(run(arguments.halfbyte, "bench", "kernels", "--filter",
                                   "^matmul_.* M=(1|8|512) N=(256 K=2048 L2|128 K=1024 L2|4096)", "--threads", threads,
                                   "--min-time", 0.2, "--quiet", "--format", "json",
                                   *(["--cpu-level", arguments.cpu_level] if arguments.cpu_level else [])))
            for row in value["rows"]:
                m = int(row["shape"].split()[0][2:])
                samples.setdefault(("halfbyte", row["kernel"], row["from"], m, threads), []).append(row["value"])
            for kind in kinds:
                for where, m, n, k, sets in shapes:
                    # From memory as many weights as get past the caches at M = 1, fewer where they no longer matter.
                    count = sets or (max(2, (arguments.memory << 20) // (n * ggml.row_size(GGML_TYPES[kind], k)))
                                     if m == 1 else 2)
                    rate = Product(ggml, kind, m, n if kind != "BF16" or where != "L2" else 128,
                                   k if kind != "BF16" or where != "L2" else 1024, count if m < 512 or not sets else 2).rate(threads)
                    samples.setdefault(("llama.cpp", kind, where, m, threads), []).append(rate)
        say(f"round {i + 1} of {arguments.rounds}")
    rows = [{"who": who, "kernel": kernel, "from": where, "M": m, "threads": threads, "samples": values}
            for (who, kernel, where, m, threads), values in samples.items()]
    return {"rows": rows}, table_of_kernels(rows)


def table_of_kernels(rows):
    columns = sorted({(row["threads"], row["from"], row["M"]) for row in rows})
    middle = {(row["who"], row["kernel"], row["threads"], row["from"], row["M"]): statistics.median(row["samples"]) for row in rows}
    lines = ["| GMAC/s | " + " | ".join(f"{threads} thread{'s' * (threads > 1)}, {where}, M = {m}" for threads, where, m in columns) + " |",
             "| --- |" + " ---: |" * len(columns)]
    for who in ["halfbyte", "llama.cpp"]:
        for kernel in dict.fromkeys(row["kernel"] for row in rows if row["who"] == who):
            cells = []
            for column in columns:
                value = middle[(who, kernel, *column)]
                cell = f"{value:.1f}"
                if who == "halfbyte" and kernel != "matmul_bf16":
                    theirs = {kind: middle[("llama.cpp", kind, *column)] for kind in ["NVFP4", "MXFP4", "Q4_0", "Q4_K"]}
                    best = max(theirs, key=theirs.get)
                    cell += f" ({value / theirs['NVFP4']:.1f} x NVFP4, {value / theirs[best]:.1f} x {best})"
                cells.append(cell)
            lines.append(f"| {who} {kernel} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--halfbyte", default="build/release/halfbyte", help="the program (build/release/halfbyte)")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("peer")
    making.add_argument("source")
    making.add_argument("folder")
    of_models, of_kernels = commands.add_parser("models"), commands.add_parser("kernels")
    for command in (of_models, of_kernels):
        command.add_argument("peer")
        command.add_argument("--threads", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2])
        command.add_argument("--rounds", type=int, default=5)
        command.add_argument("--json", help="every sample")
    of_models.add_argument("folder")
    of_models.add_argument("ours", nargs="+")
    of_kernels.add_argument("--memory", type=int, default=1024, help="MiB that get past the caches (1024)")
    of_kernels.add_argument("--cpu-level", help="of halfbyte; llama.cpp has the one that it was built for")
    arguments = parser.parse_args()
    if arguments.command == "make":
        return make(arguments)
    result, table = models(arguments) if arguments.command == "models" else kernels(arguments)
    result |= {"peer": "llama.cpp of llama-cpp-python 0.3.36", "table": arguments.command, "rounds": arguments.rounds}
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")
    print(table)


if __name__ == "__main__":
    main()
