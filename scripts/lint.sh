#!/bin/sh
# clang-format on every source file and clang-tidy on every one that is compiled.
set -eu
cd "$(dirname "$0")/.."
find include src tests bench -name '*.h' -o -name '*.cpp' | sort | xargs clang-format-19 --dry-run --Werror
cmake --preset dev -DHALFBYTE_TESTS=ON -DHALFBYTE_BENCHMARKS=ON -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
find src -name '*.cpp' | sort | xargs -P "$(nproc)" -n 1 clang-tidy-19 --quiet -p build/dev
echo "lint: clean"
