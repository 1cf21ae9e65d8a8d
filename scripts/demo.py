"""The four steps of the demo: runs build/release/halfbyte and prints what it reports, a line or two a step."""

import json
import os
import subprocess
import sys

PROGRAM = "build/release/halfbyte"
MODEL = "build/model/SmolLM2-135M-Instruct.Q4_1.gguf"
OUT = "build/demo/SmolLM2-135M-Instruct-NVFP4"
QUESTION = "What is the capital of France?"


def halfbyte(*arguments):
    done = subprocess.run([PROGRAM, *arguments, "--format", "json"], stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def say(text):
    print(text, flush=True)


def mebibytes(count):
    return f"{count / 2**20:.0f} MiB"


def main():
    os.makedirs("build/demo", exist_ok=True)
    machine = halfbyte("env")
    say(f"halfbyte {machine['version']}, {machine['cpu_level_description']}, {machine['threads']} threads")
    say("Model: SmolLM2-135M-Instruct, weights dequantised from a 4-bit GGUF")

    made = halfbyte("quantize", "-m", MODEL, "-o", OUT, "--scheme", "NVFP4", "--calibrate", "build/text/calibrate.txt",
                    "--calibrate-tokens", "2048", "--force")
    worst = made["worst"][0]
    say(f"[1/4] quantize    {mebibytes(made['source_bytes'])} BF16 -> {mebibytes(made['output_bytes'])} NVFP4 (W4A4)"
        f"     {made['seconds']:.1f} s, peak {mebibytes(made['peak_memory_bytes'])}")
    say(f"      worst layer {worst['tensor'].removesuffix('.weight')}, SNR {worst['snr_db']:.1f} dB;"
        f" clipped {made['clipped_values']} values, flushed {made['flushed_blocks']} blocks")

    seen = halfbyte("inspect", OUT)
    formats = dict(seen["formats"])
    linears = formats.pop("NVFP4")
    others = ", ".join(f"{count} {name} tensors" for name, count in formats.items())
    say(f"[2/4] inspect     {linears} NVFP4 linears, {others}, {seen['bits_per_weight']:.2f} bits per weight")

    result = halfbyte("perplexity", "-m", OUT, "--source", MODEL, "-f", "build/text/evaluate.txt", "--windows", "8",
                      "--window-size", "512")
    say(f"[3/4] perplexity  Jargon File 4.4.7, 8 windows x 512, {result['tokens']} tokens, lower is better")
    rows = {row["arithmetic"]: row for row in result["results"]}
    same = rows["simulated"]["logits_hash"] == rows["kernel"]["logits_hash"]
    for name, label in (("source-bf16", "source, BF16 weights"), ("simulated", "exported file, simulated"),
                        ("kernel", "exported file, kernels")):
        row = rows[name]
        kl = "" if row["kl_to_source"] is None else f"KL {row['kl_to_source']:.4f}"
        if name == "kernel":
            kl += " (same bits)" if same else " (DIFFERENT BITS)"
        say(f"      {label:<25} {row['perplexity']:>7.2f} +- {row['standard_error']:<6.2f} {kl:<23}"
            f" {row['tokens_run'] / row['seconds']:>6.0f} tokens/s")

    said = halfbyte("generate", "-m", OUT, "--chat", "-p", QUESTION, "-n", "48", "--temp", "0")
    speed = len(said["tokens"]) / said["seconds"] if said["seconds"] > 0 else 0
    say(f'[4/4] generate    "{QUESTION}" -> {" ".join(said["text"].split())}    {speed:.0f} tokens/s')
    say(f"Your own model: {PROGRAM} quantize -m MODEL.gguf -o OUT --scheme NVFP4 --calibrate TEXT")


main()
