#!/bin/sh
# scripts/packages.sh GROUP...  installs the Debian packages of build, manual, test, fuzz or lint that are missing.
# Sourced by demo.sh and test.sh for need_packages NAME...

build_packages="g++ cmake ninja-build pkg-config nlohmann-json3-dev libcli11-dev libfmt-dev libpcre2-dev libutf8proc-dev
                libhwy-dev python3 python3-pip ca-certificates"
manual_packages="help2man"
test_packages="libgtest-dev librapidcheck-dev libbenchmark-dev help2man fish zsh g++-aarch64-linux-gnu qemu-user"
fuzz_packages="clang-19 libclang-rt-19-dev"
lint_packages="clang-19 clang-tidy-19 clang-format-19"

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Prints the line to run and ends the script when this user cannot install.
require_root() {
    [ "$(id -u)" = 0 ] && return
    command -v sudo >/dev/null 2>&1 && return
    echo "Some packages are missing and there is neither root nor sudo here. Run this as root, then start again:" >&2
    echo "  apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $*" >&2
    exit 1
}

need_packages() {
    missing=""
    for package in "$@"; do
        dpkg-query -W -f='${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed$' ||
            missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    require_root $missing
    echo "Installing:$missing" >&2
    as_root apt-get update -qq >&2
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
}

case "$0" in
*/packages.sh | packages.sh)  # run, not sourced
    set -eu
    [ $# -gt 0 ] || set -- --help
    for group in "$@"; do
        case "$group" in
        build | manual | test | fuzz | lint) eval "need_packages \$${group}_packages" ;;
        *) sed -n '2s/^# //p' "$0" >&2; exit 2 ;;
        esac
    done
    ;;
esac
