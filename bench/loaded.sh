#!/bin/sh
# bench/loaded.sh MODEL [PROGRAM]: generating beside two busy processes, on two processors, against its fair share.
# Of P processors and 2 busy loops, our T threads may have T * P / (T + 2) processors' worth of time, so at best
# quiet * P / (T + 2) tokens/s for T >= P, and for T < P quiet * min(1, P / (T + 2)). A slowdown of more than 1.5 beyond
# that is threads waiting for threads. Exit codes:
#   0    no more than that; the table is on stdout
#   1    not measured: something failed, which stderr tells; no table
#   2    wrong arguments
#   3    a slowdown of more than 1.5; the table is on stdout
#   77   this process may use one processor only
#   130  interrupted
set -eu
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: bench/loaded.sh MODEL [PROGRAM]; $# arguments given, PROGRAM is build/release/halfbyte by default" >&2
    exit 2
fi
model=$1 program=${2:-build/release/halfbyte}
tokens() { # THREADS
    csv=$(taskset -c "$cpus" "$program" bench -m "$model" -p 0 -n 128 --repeats 3 --threads "$1" --min-time 0.05 --quiet --format csv) || {
        echo "loaded.sh: $program bench -m $model --threads $1 ended with exit code $?; it must run to be measured" >&2
        exit 1
    }
    rate=$(printf '%s\n' "$csv" | sed -n 's/^tg128,[0-9]*,\([0-9.]*\),.*/\1/p')
    case $rate in
    *[1-9]*) echo "$rate" ;;
    *) echo "loaded.sh: $program bench --format csv printed '$csv'; a line tg128,THREADS,TOKENS_PER_SECOND, is needed" >&2
        exit 1 ;;
    esac
}
for tool in taskset python3; do
    command -v $tool >/dev/null || { echo "loaded.sh: $tool is needed and not installed" >&2; exit 1; }
done
allowed=$(taskset -pc $$) || exit 1
cpus=$(echo "$allowed" | sed 's/.*: //' | python3 -c '
import sys
cpus = []
for part in sys.stdin.read().strip().split(","):
    first, _, last = part.partition("-")
    cpus += range(int(first), int(last or first) + 1)
print(",".join(map(str, cpus[:2])))') || exit 1
case $cpus in *,*) ;; *) echo "loaded.sh: two processors are needed; this process may use $cpus" >&2; exit 77 ;; esac

loops=
stop() { for pid in $loops; do kill "$pid" 2>/dev/null || :; done; loops=; }
trap stop EXIT
trap 'exit 130' INT TERM
# Each by itself: of several assignments in one command only the last one's failure is seen.
quiet1=$(tokens 1) || exit 1
quiet2=$(tokens 2) || exit 1
for _ in 1 2; do
    taskset -c "$cpus" sh -c 'while :; do :; done' &
    loops="$loops $!"
done
sleep 1
busy1=$(tokens 1) || exit 1
busy2=$(tokens 2) || exit 1
stop
python3 - "$quiet1" "$busy1" "$quiet2" "$busy2" <<'P'
import sys
quiet1, busy1, quiet2, busy2 = map(float, sys.argv[1:])
worst = 0
print("| threads | quiet, tokens/s | beside 2 busy loops | fair share | slower than fair |")
print("| ---: | ---: | ---: | ---: | ---: |")
for threads, quiet, busy in [(1, quiet1, busy1), (2, quiet2, busy2)]:
    fair = quiet * min(1, 2 / (threads + 2))
    worst = max(worst, fair / busy)
    print(f"| {threads} | {quiet:.1f} | {busy:.1f} | {fair:.1f} | {fair / busy:.2f} x |")
sys.exit(3 if worst > 1.5 else 0)  # an error of Python ends with 1
P
