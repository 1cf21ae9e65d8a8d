#!/usr/bin/env python3
"""The tables of docs/performance.md that are a run's:  bench/performance_tables.py RESULTS [DOCUMENT]

RESULTS is the folder that bench/cpu_run.sh fills. Between <!-- NAME --> and <!-- end NAME --> stands what is made here; a
table whose files are missing stays as it was.
"""

import json
import re
import sys
from pathlib import Path


def table(heads, rows):
    """heads: names, of numbers with a colon behind."""
    lines = ["| " + " | ".join(head.rstrip(":") for head in heads) + " |",
             "| " + " | ".join("---:" if head.endswith(":") else "---" for head in heads) + " |"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def number(value):
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def percent(value):
    return "" if value is None else f"{100 * value:.0f} %"


def machine(results):
    value = json.loads((results / "kernels.json").read_text())
    text = f"{value['processor']}, {value['processors_allowed']} processors, level `{value['cpu_level']}`, " \
           f"{value['l2_bytes'] >> 10} KiB of L2 a core, largest cache {value['largest_cache_bytes'] >> 20} MiB; " \
           f"{(results / 'date').read_text().strip()}, commit {(results / 'commit').read_text().strip()}.\n\n"
    names = {"memory_read": "memory read, GB/s", "memory_copy": "memory copy, GB/s", "l2_read": "L2 read, GB/s",
             "l2_copy": "L2 copy, GB/s", "int8": "int8, GMAC/s", "fp32": "FP32, GMAC/s"}
    rows = [[names[key]] + [number(limits[key]["value"]) + f" ({percent(limits[key]['spread'])})" if limits[key] else ""
                            for limits in value["limits"]] for key in names]
    return text + table(["limit (scatter)"] + [f"{limits['threads']} thread{'s' * (limits['threads'] > 1)}:"
                                               for limits in value["limits"]], rows)


def kernels(path):
    value = json.loads(path.read_text())
    threads = [limits["threads"] for limits in value["limits"]]
    lines, order = {}, []
    for row in value["rows"]:
        key = (row["kernel"], row["shape"], row["from"])
        if key not in lines:
            order.append(key)
        lines.setdefault(key, {})[row["threads"]] = row
    rows = []
    for key in order:
        found = lines[key]
        cells = [f"`{key[0]}`", key[1], key[2], found[threads[0]]["unit"]]
        for count in threads:
            row = found[count]
            cells += [number(row["value"]) if "difference" not in row else "WRONG", percent(row["share"])]
        bounds = [found[count]["bound"] or "" for count in threads]
        rows.append(cells + [" / ".join(dict.fromkeys(bounds))])
    heads = ["kernel", "shape", "from", "unit"]
    for count in threads:
        heads += [f"{count} thread{'s' * (count > 1)}:", "share:"]
    return table(heads + ["of"], rows)


def models(results):
    rows = []
    for path in sorted(results.glob("model-*.json")):
        value = json.loads(path.read_text())
        for load in value["loads"]:
            found = {row["test"]: row for row in value["rows"] if row["threads"] == load["threads"]}
            peak = load["first_token_peak_memory_bytes"]
            rows.append([path.stem.removeprefix("model-"), value["description"], load["threads"]] +
                        [cell for row in found.values() for cell in
                         (f"{row['value']:.0f} +- {row['deviation']:.0f}", percent(row["share"]), row["bound"] or "")] +
                        [f"{load['load_seconds']:.2f}", f"{load['first_token_seconds']:.2f}",
                         "" if peak is None else f"{peak / 2**20:.0f}"])
    return table(["file", "what it is", "threads:", "pp512, tokens/s:", "share:", "of", "tg128, tokens/s:", "share:", "of", "load, s:",
                  "first token, s:", "peak, MiB:"], rows)


def main():
    results = Path(sys.argv[1])
    document = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).resolve().parents[1] / "docs/performance.md"
    read = lambda path: path.read_text().strip()
    made = {"machine": (results / "kernels.json", lambda path: machine(results)),
            "kernels": (results / "kernels.json", kernels),
            "kernels-avx2": (results / "kernels-avx2.json", kernels),
            "models": (results / "model-W4A4.json", lambda path: models(results)),
            "peer-models": (results / "peer-models.md", read),
            "peer-kernels": (results / "peer-kernels.md", read),
            "profile": (results / "profile.md", read),
            "peer-kernels-avx2": (results / "peer-kernels-avx2.md", read),
            "loaded": (results / "loaded.md", read),
            "instructions": (results / "instructions.md", read)}
    text = document.read_text()
    for name, (path, make) in made.items():
        if not path.exists():
            print(f"{path} is not there: the table '{name}' stays as it was", file=sys.stderr)
            continue
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not pattern.search(text):
            sys.exit(f"{document} has no '<!-- {name} -->' with its end")
        content = make(path)
        text = pattern.sub(lambda match: match.group(1) + content + "\n" + match.group(2), text)
    document.write_text(text)


if __name__ == "__main__":
    main()
