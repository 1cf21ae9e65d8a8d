#!/usr/bin/env python3
"""What each kernel needs of a multiprocessor of Hopper, as `ptxas -v` said it: no spill, no stack frame, no more registers than allowed.

  resources_test.py FOLDER_OF_OBJECTS registers.txt

Every .cu.o of the folder has its .ptxas beside it (src/cuda/nvcc.sh). The same checks first run on planted logs.
"""
import re
import subprocess
import sys
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
FUNCTION = re.compile(r"Function properties for (\w+)")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
MEASURED = "sm_90a"  # the architecture that the kernels are tuned for; on others some spill


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def short(name):
    """'void halfbyte::cuda::(anonymous namespace)::f<int>(Args)' to 'f<int>'."""
    name = re.sub(r"\(anonymous namespace\)|_GLOBAL__N__\w+|_NV_ANON_NAMESPACE", "", name)
    name = re.sub(r"\b(halfbyte|cuda)::(:*)", "", name)
    name = re.sub(r"(^|[ <(,])::+", r"\1", name)
    depth = 0
    for i, character in enumerate(name):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "(" and depth == 0:
            name = name[:i]
            break
    return name.removeprefix("void ").strip()


def kernels_of(text):
    """[name, architecture, registers, stack bytes, spill bytes]; a device function that was not inlined is one too."""
    found, architecture, name = [], "", None
    for line in text.splitlines():
        if match := ENTRY.search(line):
            architecture = match[2]
        elif match := FUNCTION.search(line):
            found.append([match[1], architecture, None, None, None])
        elif (match := STACK.search(line)) and found:
            found[-1][3:] = int(match[1]), int(match[2]) + int(match[3])
        elif (match := USED.search(line)) and found:
            found[-1][2] = int(match[1])
    for kernel, name in zip(found, demangled([kernel[0] for kernel in found])):
        kernel[0] = short(name)
    return found


def limits_of(text):
    rows = [line.rsplit(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(re.compile(pattern), int(number)) for pattern, number in rows]


def violations_of(kernels, limits):
    for name, architecture, registers, stack, spills in kernels:
        where = f"{name} for {architecture}"
        if stack is None or spills is None:
            yield f"{where}: the log does not say its stack frame"
            continue
        if architecture != MEASURED:
            continue
        if spills:
            yield f"{where}: {spills} bytes of spills"
        if stack:
            yield f"{where}: a stack frame of {stack} bytes"
        if registers is None:  # of a function that is called, the caller counts them
            continue
        allowed = next((number for pattern, number in limits if pattern.fullmatch(name)), None)
        if allowed is None:
            yield f"{where}: no line of registers.txt fits; it uses {registers} registers"
        elif registers > allowed:
            yield f"{where}: {registers} registers, {allowed} allowed"


def check(folder, limits_text):
    """(kernels, violations) of every object below folder."""
    limits, kernels, violations = limits_of(limits_text), [], []
    objects = sorted(Path(folder).rglob("*.cu.o"))
    if not objects:
        violations.append(f"{folder}: no .cu.o; build the target halfbyte_cuda first")
    for path in objects:
        log = Path(f"{path}.ptxas")
        here = kernels_of(log.read_text()) if log.exists() else []
        if not here:
            violations.append(f"{log}: no kernel in it; remove {path.name} and build again")
        kernels += here
    return kernels, violations + list(violations_of(kernels, limits))


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN8halfbyte4cuda7exampleEPf' for 'sm_90a'
ptxas info    : Function properties for _ZN8halfbyte4cuda7exampleEPf
    {} bytes stack frame, {} bytes spill stores, {} bytes spill loads
ptxas info    : Used {} registers, used 0 barriers
"""
PLANTED = [(LOG.format(0, 0, 0, 40), "example 40", None), (LOG.format(0, 0, 0, 41), "example 40", "41 registers, 40 allowed"),
           (LOG.format(0, 8, 0, 40), "example 40", "8 bytes of spills"), (LOG.format(0, 0, 4, 40), "example 40", "4 bytes of spills"),
           (LOG.format(16, 0, 0, 40), "example 40", "a stack frame of 16"), (LOG.format(0, 0, 0, 40), "exam 40", "no line of registers.txt"),
           (LOG.format(0, 0, 0, 40), "# x\n\nex.* 39\nexample 40", "39 allowed"),
           (LOG.format(16, 8, 0, 41).replace("sm_90a", "sm_80"), "example 40", None),
           (LOG.format(0, 0, 0, 1).replace("stack frame", ""), "example 40", "does not say")]
NAMES = [("void halfbyte::cuda::(anonymous namespace)::f<(int)4, halfbyte::A>(float const*, long)", "f<(int)4, A>"),
         ("halfbyte::cuda::_GLOBAL__N__a49f_17_convert_scales_cu_9476::g(halfbyte::X)", "g")]


def self_test():
    for log, limits, expected in PLANTED:
        found = list(violations_of(kernels_of(log), limits_of(limits)))
        right = not found if expected is None else any(expected in violation for violation in found)
        if not right:
            sys.exit(f"resources_test.py is broken: {log!r} with {limits!r} gave {found}, expected {expected!r}")
    for name, expected in NAMES:
        if short(name) != expected:
            sys.exit(f"resources_test.py is broken: {name!r} became {short(name)!r}, expected {expected!r}")
    print(f"self-test: {len(PLANTED)} planted logs and {len(NAMES)} names read as expected")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    self_test()
    kernels, violations = check(sys.argv[1], Path(sys.argv[2]).read_text())
    width = max([len(kernel[0]) for kernel in kernels] + [6])
    print(f"{'kernel':<{width}}  {'for':<7} registers  stack  spills")
    for name, architecture, registers, stack, spills in sorted(kernels, key=lambda kernel: kernel[:2]):
        print(f"{name:<{width}}  {architecture:<7} {registers if registers is not None else '-':>9}  {stack!s:>5}  {spills!s:>6}")
    for violation in violations:
        print(violation)
    if violations:
        sys.exit(f"{len(violations)} violations")
    print(f"{len(kernels)} kernels, no violation")


main()
