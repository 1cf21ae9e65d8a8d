#!/bin/sh
# ./test.sh             builds release and runs every test
# ./test.sh --sanitize  the same with AddressSanitizer and UndefinedBehaviorSanitizer
# ./test.sh --lint      clang-format and clang-tidy 19
set -eu
cd "$(dirname "$0")"
. scripts/packages.sh

run_tests() {
    cmake --preset "$1" -DHALFBYTE_TESTS=ON -DHALFBYTE_BENCHMARKS="$2"
    cmake --build --preset "$1"
    ctest --preset "$1" --parallel "$(nproc)"
}

case "${1:-}" in
"")
    need_packages $build_packages $test_packages
    scripts/get_model.sh
    scripts/get_text.sh
    run_tests release ON
    ;;
--sanitize)
    need_packages $build_packages $test_packages
    scripts/get_model.sh
    scripts/get_text.sh
    run_tests asan OFF
    ;;
--lint)
    need_packages $build_packages $test_packages $lint_packages
    scripts/lint.sh
    ;;
*)
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
    ;;
esac
