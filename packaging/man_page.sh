#!/bin/sh
# man_page.sh HELP2MAN PROGRAM VERSION OUT [COMMAND]: the manual page of the program or of one command, made of its --help.
set -eu
help2man=$1 program=$2 version=$3 out=$4 command=${5:-}
mkdir -p "$(dirname "$out")"
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

# help2man wants one program and names the page after it.
page=$scratch/$(basename "$out" .1)
printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$program" "$command" >"$page"
chmod +x "$page"

if [ -n "$command" ]; then
    others=halfbyte
else
    others=$("$program" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/halfbyte-\1/p')
fi
{
    echo '[SEE ALSO]'
    for other in $others; do echo ".BR $other (1)"; done
} >"$scratch/also"

"$help2man" --no-info --section=1 --source="halfbyte $version" --version-string="$version" --manual='halfbyte manual' \
    --name="$("$page" --help | sed -n '1{s/\.$//;p;q}')" --include="$scratch/also" "$page" |
    # An example is a line of its own.
    awk '/^\.SH/ && open { print ".fi"; open = 0 } { print } /^\.SH EXAMPLES/ { getline; print ".nf"; open = 1 }
         END { if (open) print ".fi" }' >"$scratch/page"
mv "$scratch/page" "$out"
