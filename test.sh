#!/bin/sh
# ./test.sh             builds release and runs every test
# ./test.sh --sanitize  the same with AddressSanitizer and UndefinedBehaviorSanitizer, the threads with
#                       ThreadSanitizer, and every reader of files fuzzed for 20 seconds
# ./test.sh --lint      clang-format and clang-tidy 19
# ./test.sh --cuda      compiles the GPU's kernels for every architecture that they are written for
# ./test.sh --interop [VENV]  with transformers, compressed-tensors and llm-compressor, in build/interop-venv or VENV
set -eu
cd "$(dirname "$0")"
. scripts/packages.sh

run_tests() {
    cmake --preset "$1" -DHALFBYTE_TESTS=ON -DHALFBYTE_BENCHMARKS="$2"
    cmake --build --preset "$1"
    ctest --preset "$1" --parallel "$(nproc)"
}

# The tests in which threads meet.
run_tsan() {
    cmake --preset tsan -DHALFBYTE_TESTS=ON
    cmake --build --preset tsan
    # The sanitizer's fixed addresses are taken where the kernel randomises much.
    fixed=""
    setarch -R true 2>/dev/null && fixed="setarch -R"
    for program in core model; do  # the demo's model would take an hour
        $fixed "build/tsan/tests/${program}_test" --gtest_brief=1 \
            --gtest_filter='-DemoModel.*:Decoder.ContinuesAsTransformersDoes'
    done
}

run_fuzzers() {
    cmake --preset fuzz
    cmake --build --preset fuzz
    scripts/fuzz.sh 20
}

case "${1:-}" in
"")
    need_packages $build_packages $test_packages
    scripts/get_model.sh
    scripts/get_text.sh
    run_tests release ON
    ;;
--sanitize)
    need_packages $build_packages $test_packages $fuzz_packages
    scripts/get_model.sh
    scripts/get_text.sh
    run_tests asan OFF
    run_tsan
    run_fuzzers
    ;;
--lint)
    need_packages $build_packages $test_packages $lint_packages
    scripts/lint.sh
    ;;
--cuda)
    need_packages $build_packages
    cmake -S . -B build/cuda -G Ninja -DHALFBYTE_CUDA=ON -DHALFBYTE_TESTS=OFF \
        "-DHALFBYTE_CUDA_ARCHITECTURES=80;86;89;90a;100a;120a"
    cmake --build build/cuda --target halfbyte_cuda
    ;;
--interop)
    need_packages $build_packages $test_packages python3-venv
    scripts/get_model.sh
    scripts/get_text.sh
    cmake --preset release -DHALFBYTE_TESTS=ON
    cmake --build --preset release --target halfbyte interop_dequantize
    venv=${2:-build/interop-venv}
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r tests/interop/requirements.txt
    "$venv/bin/python" -B tests/interop/run.py
    ;;
*)
    sed -n '2,7s/^# //p' "$0" >&2
    exit 2
    ;;
esac
