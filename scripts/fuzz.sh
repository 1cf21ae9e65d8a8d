#!/bin/sh
# scripts/fuzz.sh SECONDS [HARNESS...]: runs the harnesses of build/fuzz (all of them if none is named) for that long
# each, as many at once as there are CPUs. They start from tests/fuzz/corpus and write into build/fuzz only: new inputs
# into corpus/HARNESS, where the next run goes on from, findings into findings/HARNESS-*, what libFuzzer says into
# HARNESS.log. Fails if there is a finding.
set -eu
cd "$(dirname "$0")/.."

if [ "${1:-}" = --one ]; then
    seconds=$2 name=$3
    profile=0
    case "$name" in
    safetensors) length=4096 profile=1 ;;
    gguf) length=8192 profile=1 ;;
    *) length=8192 ;;
    esac
    cd build/fuzz
    rm -rf "tmp/$name"
    mkdir -p "corpus/$name" findings "tmp/$name"
    stored=../../tests/fuzz/corpus/$name status=0
    # A pattern's memory and a shard's are small: 64 MiB in one piece, or 1 GiB in all, is a finding.
    export TMPDIR="$PWD/tmp/$name"
    export ASAN_OPTIONS=malloc_context_size=4:detect_stack_use_after_return=0  # twice as fast
    "tests/fuzz_$name" "corpus/$name" "$stored" -dict="../../tests/fuzz/$name.dict" \
        -artifact_prefix="findings/$name-" -max_len="$length" -max_total_time="$seconds" -timeout=25 \
        -malloc_limit_mb=64 -rss_limit_mb=1024 -use_value_profile="$profile" -print_final_stats=1 >"$name.log" 2>&1 || status=$?
    rm -rf "tmp/$name"
    last=$(grep -E '^#[0-9]+.* cov: ' "$name.log" | tail -n 1)
    echo "fuzz $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$name.log") inputs in $seconds s;" \
        "${last#*	}"
    [ "$status" = 0 ] || { tail -n 40 "$name.log"; exit "$status"; }
    exit 0
fi

seconds=$1
shift
[ $# -gt 0 ] || set -- config folder gguf safetensors tokenizer
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 scripts/fuzz.sh --one "$seconds"
