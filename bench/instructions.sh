#!/bin/sh
# bench/instructions.sh [PROGRAM] [LEVEL...]: instructions per multiply-add or value of the kernels, by callgrind: a number that
# no other program disturbs. Levels are those that valgrind runs (avx2, scalar). Only what happens inside the public
# operation is counted; "calls" of the report says how often it was called.
set -eu
program=${1:-build/release/halfbyte}
[ $# -eq 0 ] || shift
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
command -v valgrind >/dev/null || { echo "instructions.sh: valgrind is needed (apt-get install valgrind)" >&2; exit 77; }

count() { # LEVEL OPERATION ROW: a line of the table
    valgrind --tool=callgrind --callgrind-out-file="$work/out" --collect-atstart=no \
        --toggle-collect="halfbyte::$2(halfbyte::Context const&, *" \
        "$program" bench kernels --filter "^$3\$" --threads 1 --cpu-level "$1" --min-time 0 --quiet --format json \
        >"$work/json" 2>"$work/errors" || { cat "$work/errors" >&2; exit 1; }
    python3 - "$1" "$work/json" "$work/out" <<'P'
import json, re, sys
level, report, counts = sys.argv[1:]
rows = json.load(open(report))["rows"]
assert len(rows) == 1, rows
total = int(re.search(r"^(?:totals|summary): (\d+)", open(counts).read(), re.MULTILINE).group(1))
row = rows[0]
per_item = total / row["calls"] / row["items"]
print(f"| {row['kernel']} | {row['shape']} | {level} | {per_item:.3f} | {row['unit'].split('/')[0][1:]} |", flush=True)
P
}
echo "| kernel | shape | level | instructions | per |"
echo "| --- | --- | --- | ---: | --- |"
for level in ${*:-avx2 scalar}; do
    for m in 1 8 64; do count "$level" matmul_w4a4 "matmul_w4a4 M=$m N=256 K=2048 L2"; done
    for m in 1 8; do count "$level" matmul_w4a16 "matmul_w4a16 M=$m N=256 K=2048 L2"; done
    for m in 1 8; do count "$level" matmul_dense "matmul_bf16 M=$m N=128 K=1024 L2"; done
    count "$level" quantize 'quantize_bf16 16x4096 L2'
    count "$level" rms_norm 'rms_norm 16x4096 L2'
    count "$level" silu_mul 'silu_mul 16x4096 L2'
    count "$level" transform 'hadamard_128 16x4096 L2'
done
