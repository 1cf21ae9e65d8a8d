#!/bin/sh
# bench/cpu_run.sh RESULTS [PEER]: everything that docs/performance.md says of CPUs, measured on this machine and written
# into it. RESULTS is a folder for the JSON of each step, its path without blanks; a step whose file is there already is
# not run again, and one that fails ends the run. PEER is a build of llama.cpp (bench/peers/llama_cpp.py); without it its
# tables stay as they are. About an hour on two quiet processors; nothing else should run.
set -eu
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: bench/cpu_run.sh RESULTS [PEER]; $# arguments given" >&2
    exit 2
fi
cd "$(dirname "$0")/.."
results=$1 peer=${2:-} program=build/release/halfbyte
scripts/get_model.sh
scripts/get_text.sh
source=build/model/SmolLM2-135M-Instruct.Q4_1.gguf
mkdir -p "$results"

step() { # FILE COMMAND...: its stdout becomes the file, whole or not at all
    file=$results/$1
    shift
    [ -e "$file" ] && return
    echo "$file" >&2
    "$@" >"$file.part"
    mv "$file.part" "$file"
}
step date date -u +%Y-%m-%d
step commit git rev-parse --short HEAD
quantize() { # FOLDER OPTIONS
    folder=$results/$1
    shift
    [ -d "$folder" ] || $program quantize -m $source -o "$folder" "$@"
}
quantize W4A4 --scheme NVFP4 --calibrate build/text/calibrate.txt
quantize W4A4-head-nvfp4 --scheme NVFP4 --calibrate build/text/calibrate.txt --head nvfp4
quantize W4A4-head-fp8 --scheme NVFP4 --calibrate build/text/calibrate.txt --head fp8
quantize W4A16 --scheme NVFP4A16
ours="W4A4 W4A4-head-nvfp4 W4A4-head-fp8 W4A16"

step kernels.json $program bench kernels --format json
environment=$($program env --format json)
level=$(printf '%s\n' "$environment" | sed -n 's/.*"cpu_level": "\(.*\)".*/\1/p')
if [ "$level" = avx512 ]; then
    step kernels-avx2.json $program bench kernels --cpu-level avx2 --format json
fi
for model in $ours; do step "model-$model.json" $program bench -m "$results/$model" --format json; done
step model-source.json $program bench -m $source --format json
if [ -x build/release/halfbyte-model-profile ]; then # of a build with HALFBYTE_BENCHMARKS
    step profile.md build/release/halfbyte-model-profile "$results/W4A4"
fi
loaded() { bench/loaded.sh "$results/W4A4" || [ $? -eq 3 ]; } # 3: slower than it may be; the table tells that
step loaded.md loaded
step instructions.md bench/instructions.sh
if [ -n "$peer" ]; then
    [ -e "$results/peer/NVFP4.gguf" ] || bench/peers/llama_cpp.py make "$peer" $source "$results/peer"
    paths=
    for model in $ours; do paths="$paths $results/$model"; done
    # shellcheck disable=SC2086
    step peer-models.md bench/peers/llama_cpp.py models "$peer" "$results/peer" $paths $source --json "$results/peer-models.json"
    step peer-kernels.md bench/peers/llama_cpp.py kernels "$peer" --json "$results/peer-kernels.json"
    if [ "$level" = avx512 ]; then
        step peer-kernels-avx2.md bench/peers/llama_cpp.py kernels "$peer" --cpu-level avx2 \
            --json "$results/peer-kernels-avx2.json"
    fi
fi
bench/performance_tables.py "$results"
