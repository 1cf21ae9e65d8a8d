#!/bin/sh
# build/text/evaluate.txt and calibrate.txt from the Jargon File 4.4.7 (public domain), out of Debian's jargon-text.
# No-break spaces become spaces, each paragraph becomes one line, with an empty line between.
set -eu
cd "$(dirname "$0")/.."
. scripts/packages.sh
evaluate=37cfe03404efd5c2524deccb50b368e807a32380cf9d60bf4d405510c0f33920
calibrate=2f5f28ce7e799bb1df5c59b275feab84b5d2bba931c2942790883b92f42f2230

intact() {
    [ -f "$1/evaluate.txt" ] && [ -f "$1/calibrate.txt" ] &&
        printf '%s  %s\n' "$evaluate" "$1/evaluate.txt" "$calibrate" "$1/calibrate.txt" | sha256sum --check --status
}
intact build/text && exit 0

mkdir -p build/text
work=$(mktemp -d build/text/download.XXXXXX)
trap 'rm -rf "$work"' EXIT
download() { (cd "$work" && apt-get download -qq jargon-text >/dev/null 2>&1); }
if ! download; then  # no package lists yet
    require_root jargon-text
    as_root apt-get update -qq >&2
    download || { echo "get_text.sh: 'apt-get download jargon-text' fails; is Debian's main archive enabled?" >&2; exit 1; }
fi
dpkg-deb -x "$work"/jargon-text_*.deb "$work/package"
gzip -dc "$work/package/usr/share/doc/jargon-text/jargon.txt.gz" | sed 's/\xc2\xa0/ /g' >"$work/jargon.txt"

# prose FIRST NEXT: the lines from the one that begins with FIRST to before the one that begins with NEXT.
prose() {
    awk -v first="$1" -v next_part="$2" 'index($0, next_part) == 1 { exit } index($0, first) == 1 { on = 1 } on' \
        "$work/jargon.txt" |
        awk 'BEGIN { RS = ""; ORS = "\n\n" } { gsub(/[ \t\n]+/, " "); sub(/^ /, ""); print }'
}
prose "Chapter 1. Hacker Slang" "Glossary" >"$work/evaluate.txt"
prose "Appendix A. Hacker Folklore" "Appendix B" >"$work/calibrate.txt"
intact "$work" || { echo "get_text.sh: the text has not the expected sha256; another version of jargon-text?" >&2; exit 1; }
mv "$work/evaluate.txt" "$work/calibrate.txt" build/text/
