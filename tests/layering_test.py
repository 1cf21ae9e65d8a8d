#!/usr/bin/env python3
"""The structure of the sources: a layer includes itself and the layers below it, never one above.

  core < format < transform < reference < cpu, cuda < backend < checkpoint < model < quantizer, bench < cli

Besides: include/halfbyte includes the standard library and halfbyte/ only; CLI11 is for src/cli alone; outside src/cli
nothing writes to stdout or stderr, ends the process or reads the environment; every header has #pragma once (but
Highway's *-inl.h).

Run with the repository's root as argument. The same checks first run on planted violations, each of which must be found.
"""
import os
import re
import sys
import tempfile

LEVELS = [["core"], ["format"], ["transform"], ["reference"], ["cpu", "cuda"], ["backend"], ["checkpoint"], ["model"],
          ["quantizer", "bench"], ["cli"]]
LEVEL_OF = {layer: level for level, layers in enumerate(LEVELS) for layer in layers}
SOURCES = (".h", ".hpp", ".cuh", ".cpp", ".cc", ".cu", ".inl")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
# Comments and literals, so that words inside them do not count. Raw strings come before plain ones.
COMMENT = r"//[^\n]*|/\*.*?\*/"
LITERAL = r'R"([^()\\\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\''
SKIPPED = re.compile(COMMENT + "|" + LITERAL, re.DOTALL)

FORBIDDEN = [
    (re.compile(r"\bstd\s*::\s*(?:cout|cerr|clog|wcout|wcerr)\b|\b(?:stdout|stderr)\b|\bSTD(?:OUT|ERR)_FILENO\b"),
     "writes to stdout or stderr"),
    (re.compile(r"(?<![\w.>])(?:std\s*::\s*)?(?:printf|vprintf|puts|putchar|perror)\s*\(|\bfmt\s*::\s*(?:print|println)\s*\("),
     "writes to stdout or stderr"),
    (re.compile(r"(?<![\w.>])(?:std\s*::\s*)?(?:exit|_exit|_Exit|quick_exit|abort|terminate)\s*\("), "ends the process"),
    (re.compile(r"\b(?:getenv|secure_getenv|setenv|putenv|unsetenv)\s*\("), "uses the environment"),
]


def without(pattern, text):
    """text with every match replaced by a space, the number of lines kept."""
    def blank(match):
        return " " + "\n" * match.group(0).count("\n")
    return pattern.sub(blank, text)


def without_comments(text):
    """text without comments; literals are matched too, so that // inside one is not a comment, but stay."""
    def keep_literals(match):
        return " " + "\n" * match.group(0).count("\n") if match.group(0).startswith(("//", "/*")) else match.group(0)
    return SKIPPED.sub(keep_literals, text)


def files_below(folder):
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith(SOURCES):
                yield os.path.join(path, name)


def check(root):
    """The violations below root as "file:line: what", and how many files and includes were looked at."""
    violations, files, includes, layers = [], 0, 0, set()
    for top in ("include", "src"):
        for path in files_below(os.path.join(root, top)):
            files += 1
            name = os.path.relpath(path, root).replace(os.sep, "/")
            with open(path, encoding="utf-8") as file:
                text = file.read()
            code = without_comments(text)

            def report(position, what):
                violations.append(f"{name}:{code.count(chr(10), 0, position) + 1}: {what}")

            layer = name.split("/")[1] if top == "src" and name.count("/") >= 2 else None
            if layer is not None:
                layers.add(layer)
            if layer is not None and layer not in LEVEL_OF:
                report(0, f"the layer {layer} has no place in the order of this test")
            for match in INCLUDE.finditer(code):
                includes += 1
                quoted, target = match.group(1) == '"', match.group(2)
                first = target.split("/")[0]
                if top == "include":
                    if quoted and first != "halfbyte":
                        report(match.start(), f"a public header includes {target}")
                    if not quoted and ("/" in target or "." in target):
                        report(match.start(), f"a public header includes <{target}>, which is not of the standard library")
                elif layer in LEVEL_OF:
                    if first in LEVEL_OF and first != layer and LEVEL_OF[first] >= LEVEL_OF[layer]:
                        report(match.start(), f"{layer} includes {target} of {first}, which is not below it")
                    if first == "CLI" and layer != "cli":
                        report(match.start(), f"{layer} includes {target}; only cli may use CLI11")
                    if target.startswith(".."):
                        report(match.start(), f"includes {target}; name it from src/ on")
            if layer != "cli":
                plain = without(SKIPPED, text)
                for pattern, what in FORBIDDEN:
                    for match in pattern.finditer(plain):
                        line = plain.count("\n", 0, match.start()) + 1
                        violations.append(f"{name}:{line}: {what}: {' '.join(match.group(0).split())}")
            # Highway includes a *-inl.h once for each instruction set; it has a guard of another kind.
            header = name.endswith((".h", ".hpp", ".cuh")) and not name.endswith("-inl.h")
            if header and not re.search(r"^#pragma once$", code, re.MULTILINE):
                report(0, "a header without #pragma once")
    return violations, files, includes, sorted(layers, key=lambda l: (LEVEL_OF.get(l, 99), l))


# (file, content, what must be found; None: nothing). Each lies alone in a tree.
PLANTED = [
    ("src/core/a.cpp", '#include "format/e4m3.h"\n', "core includes format/e4m3.h"),
    ("src/format/a.h", '#pragma once\n#include "reference/exp.h"\n', "format includes reference/exp.h"),
    ("src/reference/a.cpp", '#  include <cpu/kernels.h>\n', "reference includes cpu/kernels.h"),
    ("src/cpu/a.cpp", '#include "cuda/a.h"\n', "cpu includes cuda/a.h"),
    ("src/bench/a.cpp", '#include "quantizer/q.h"\n', "bench includes quantizer/q.h"),
    ("src/model/deep/a.cpp", '\n\n#include "quantizer/q.h"\n', "src/model/deep/a.cpp:3: model includes quantizer/q.h"),
    ("src/format/a.cpp", '#include "transform/hadamard.h"\n', "format includes transform/hadamard.h"),
    ("src/reference/b.cpp", '#include "transform/hadamard.h"\n#include "core/check.h"\n#include "reference/b.h"\n', None),
    ("src/cli/a.cpp", '#include <CLI/CLI.hpp>\n#include "model/llama.h"\nint f() { fmt::print("x"); exit(1); }\n', None),
    ("src/model/a.cpp", "#include <CLI/CLI.hpp>\n", "only cli may use CLI11"),
    ("src/core/b.cpp", '#include "../format/e4m3.h"\n', "name it from src/ on"),
    ("src/odd/a.cpp", "int x;\n", "odd has no place"),
    ("include/halfbyte/a.h", '#pragma once\n#include "core/check.h"\n', "a public header includes core/check.h"),
    ("include/halfbyte/b.h", "#pragma once\n#include <fmt/format.h>\n", "not of the standard library"),
    ("include/halfbyte/c.h", '#pragma once\n#include <vector>\n#include "halfbyte/a.h"\n', None),
    ("include/halfbyte/d.h", "struct A {};\n", "without #pragma once"),
    ("src/core/c.h", "// #pragma once\n", "without #pragma once"),
    ("src/core/d.cpp", 'void f() { std::cout << 1; }\n', "writes to stdout"),
    ("src/core/e.cpp", 'void f() { std :: cerr << 1; }\n', "writes to stdout"),
    ("src/core/f.cpp", 'void f() { printf("x"); }\n', "writes to stdout"),
    ("src/core/g.cpp", 'void f() { std::fprintf(stderr, "x"); }\n', "writes to stdout"),
    ("src/core/h.cpp", 'void f() { fmt::print("x"); }\n', "writes to stdout"),
    ("src/core/i.cpp", "void f() { std::abort(); }\n", "ends the process"),
    ("src/core/j.cpp", "int a = 1'000;\n/* no */ void f() { exit(1); }\n", "src/core/j.cpp:2: ends the process"),
    ("src/core/k.cpp", 'auto s = "//"; auto p = getenv("A");\n', "uses the environment"),
    ("src/core/l.cpp", '// std::cout, exit(1)\n/* getenv("A")\n abort() */ auto s = "exit(1) std::cerr";\n'
                       'auto r = R"x(abort() ")x";\nvoid f(P& p) { p.exit(1); snprintf(b, 1, "x"); on_exit(); }\n', None),
]


def self_test():
    for name, content, expected in PLANTED:
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path))
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
            found = check(root)[0]
        right = not found if expected is None else any(expected in violation for violation in found)
        if not right:
            sys.exit(f"layering_test.py is broken: {content!r} in {name} gave {found}, expected {expected!r}")
    print(f"self-test: {sum(expected is not None for _, _, expected in PLANTED)} planted violations found, "
          f"{sum(expected is None for _, _, expected in PLANTED)} clean files passed")


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    self_test()
    violations, files, includes, layers = check(root)
    print(f"{root}: {files} files, {includes} includes, layers {' < '.join(layers)}")
    for violation in violations:
        print(violation)
    if files == 0 or "core" not in layers:
        sys.exit("no sources found")
    if violations:
        sys.exit(f"{len(violations)} violations")
    print("no violation")


main()
