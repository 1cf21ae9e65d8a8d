#!/usr/bin/env python3
"""Humming's NVFP4 W4A16 beside cuBLAS with BF16 on one GPU: the shapes of halfbyte-cuda-bench's products, in CUDA graphs over weights
that rotate through more than 1 GB. Nothing of Humming is built here; it compiles its kernels when a layer is first called:

  pip install torch humming-kernels==0.1.20
  humming_w4a16.py [--shape N K]... [--rows M]... > humming.json

A row has the microseconds of the layer, of its batch-invariant mode and of torch.mm with BF16 (the medians of 15 replays), and how far
the layer's result is from torch.mm's with the same weight in BF16, as a ratio of norms: quantising alone makes about 0.1. SM clock and
power are read while the row runs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading

import humming
import torch
from humming.layer import HummingLayer

SHAPES = [(8192, 8192), (28672, 8192), (4096, 4096)]
ROWS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
NVFP4 = {"dtype": "float4e2m1", "scale_dtype": "float8e4m3", "group_size": 16, "scale_2_type": "tensor"}
ROTATED_BYTES = 1.1e9
REPLAYS = 15


class Conditions:
    """Medians of SM clock and power, asked of nvidia-smi while a block runs; empty where there is none."""

    def __enter__(self):
        self.samples, self.done = [], threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def sample(self):
        command = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-i", "0"]
        while not self.done.is_set():
            try:
                out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout
                self.samples.append([float(value) for value in out.split(",")])
            except (OSError, ValueError, subprocess.SubprocessError):
                return

    def __exit__(self, *error):
        self.done.set()
        self.thread.join()

    def row(self):
        if not self.samples:
            return {}
        clocks, watts = zip(*self.samples)
        return {"sm_mhz": statistics.median(clocks), "watts": statistics.median(watts)}


def microseconds(call, launches):
    """The median time of call(i), i = 0 .. launches - 1, in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(2):
            call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(launches):
            call(i)
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / launches)
    return statistics.median(times)


def copies_for(bytes_each):
    return int(ROTATED_BYTES / bytes_each) + 1


def make_layer(weight):
    layer = HummingLayer(shape_n=weight.shape[0], shape_k=weight.shape[1], weight_config=NVFP4, torch_dtype=torch.bfloat16).cuda()
    layer.load_from_unquantized(weight)
    layer.transform()
    return layer


def measure(layers, dense, m, k):
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(m, dense[0].shape[0], device="cuda", dtype=torch.bfloat16)
    launches = 5 if m >= 1024 else 16 if m > 64 else None
    row = {}
    with Conditions() as conditions:
        row["cublas_us"] = microseconds(lambda i: torch.mm(x, dense[i % len(dense)].t(), out=out), launches or len(dense))
    exact = torch.mm(x, dense[0].t()).float()
    for name, config in [("humming", None), ("humming_batch_invariant", {"use_batch_invariant": True})]:
        more = {} if config is None else {"compute_config": config}
        try:
            given = layers[0](x, **more).float()
            row[f"{name}_distance"] = ((given - exact).norm() / exact.norm()).item()
            with Conditions() as conditions:
                row[f"{name}_us"] = microseconds(lambda i, more=more: layers[i % len(layers)](x, **more), launches or len(layers))
            if config is None:
                row.update(conditions.row())
        except Exception as error:  # what it does not compute is a row too
            row[f"{name}_error"] = repr(error)[:300]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs=2, type=int, action="append", metavar=("N", "K"))
    parser.add_argument("--rows", type=int, action="append", metavar="M")
    arguments = parser.parse_args()
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "humming": getattr(humming, "__version__", "unknown"), "rows": []}
    for n, k in arguments.shape or SHAPES:
        torch.manual_seed(0)
        weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        dense = [weight.clone() for _ in range(copies_for(n * k * 2))]
        layers = [make_layer(weight) for _ in range(copies_for(n * k * 0.5625))]
        for m in arguments.rows or ROWS:
            row = {"n": n, "k": k, "m": m, **measure(layers, dense, m, k)}
            report["rows"].append(row)
            print(json.dumps(row), file=sys.stderr)
        del weight, dense, layers
        torch.cuda.empty_cache()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
