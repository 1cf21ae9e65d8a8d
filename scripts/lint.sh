#!/bin/sh
# clang-format on every source file and clang-tidy on every one that is compiled.
set -eu
cd "$(dirname "$0")/.."
find include src tests bench -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort | xargs clang-format-19 --dry-run --Werror
# Without precompiled headers, so that a missing include is seen; by clang, so that it knows every warning option.
cmake -S . -B build/lint -G Ninja -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DHALFBYTE_TESTS=ON -DHALFBYTE_BENCHMARKS=ON >/dev/null
# Without the CUDA toolkit its host code is not compiled and stays out.
find src -name '*.cpp' | while read -r file; do
    grep -qF "/$file\"" build/lint/compile_commands.json && echo "$file"
done | sort | xargs -P "$(nproc)" -n 1 clang-tidy-19 --quiet --extra-arg=-Wno-deprecated-declarations \
    -p build/lint
echo "lint: clean"
