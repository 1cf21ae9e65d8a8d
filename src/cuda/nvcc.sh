#!/bin/sh
# nvcc.sh COMMAND...: runs a compiler command; what `ptxas -v` says of registers, stack and spills goes to OBJECT.ptxas and not
# to the console. Everything else that was said is passed on.
object=""
previous=""
for argument in "$@"; do
    [ "$previous" = -o ] && object=$argument
    previous=$argument
done
case "$object" in
*.o) ;;
*) exec "$@" ;;
esac
said=$object.said
"$@" 2>"$said"
code=$?
resources='^ptxas info|^ +[0-9]+ bytes stack frame'
grep -E "$resources" "$said" >"$object.ptxas"
grep -Ev "$resources" "$said" >&2
rm -f "$said"
exit $code
