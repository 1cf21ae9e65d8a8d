#!/bin/sh
# From a clone to a real model in NVFP4: quantised, inspected, evaluated in three arithmetics, generating text.
set -eu
cd "$(dirname "$0")"
. scripts/packages.sh
need_packages $build_packages

mkdir -p build
[ -x build/release/halfbyte ] || echo "Building halfbyte, which takes a few minutes (log: build/demo-build.log)" >&2
if ! { cmake --preset release -DHALFBYTE_TESTS=OFF -DHALFBYTE_BENCHMARKS=OFF && cmake --build --preset release \
    --target halfbyte; } >build/demo-build.log 2>&1; then
    cat build/demo-build.log >&2
    exit 1
fi
scripts/get_model.sh
scripts/get_text.sh
exec python3 scripts/demo.py
