"""docs/cli.md out of the program's own help:  scripts/cli_reference.py build/release/halfbyte > docs/cli.md"""

import re
import subprocess
import sys


def help_of(program, *command):
    return subprocess.run([program, *command, "--help"], capture_output=True, text=True, check=True).stdout.rstrip()


def commands_of(program):
    listed = help_of(program).split("Subcommands:\n")[1].split("\n\n")[0]
    return re.findall(r"^  (\w+)", listed, re.MULTILINE)


def main():
    program = sys.argv[1]
    print("# The command line\n\nMade from the program's help by `scripts/cli_reference.py`; a test compares the two.")
    for command in [[], *([name] for name in commands_of(program))]:
        print(f"\n## {' '.join(['halfbyte', *command])}\n\n```text\n{help_of(program, *command)}\n```")


if __name__ == "__main__":
    main()
