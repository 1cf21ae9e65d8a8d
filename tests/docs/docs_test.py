"""The documents do what they say: every command in them is run, and what stands under a command is what it prints.

A fenced block is, by the words behind its fence:
  sh               commands
  console          commands behind "$ ", each with what it prints (stdout and stderr)
  hexdump NAME     a file: lines of bytes in hexadecimal, and lines of text that begin with "{" or a quote, as they are
  json NAME, c++ PATH   a file, or a copy of one in the repository
  text, json, c++  shown only
The commands of one document are run by one shell, in a folder that looks like a clone after building, with a small model as
MODEL.gguf and DIR. Commands that build or install are what continuous integration itself runs; of them the names are checked.
"""

import json
import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

import support
from support import DEMO_MODEL, DEMO_TEXT, PROGRAM, TestCase, TinyModel, halfbyte

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "tests/fuzz").glob("*.md")])
BUILDS = re.compile(r"\./(demo|test)\.sh|cmake|scripts/packages\.sh|pip install|\bpython3? -m venv|apt-get|scripts/fuzz\.sh|build/fuzz/")
# Seconds, speeds and memory are those of one machine; so is the width of their columns.
MEASURED = [(re.compile(r" +\d+(\.\d+)? s\b"), " _ s"), (re.compile(r" +\d+(\.\d+)? tokens/s"), " _ tokens/s"),
            (re.compile(r"(peak memory|needs about) \d+ MiB"), r"\1 _ MiB")]


def blocks_of(document):
    """(kind, name, lines) of each fenced block."""
    kind = None
    for line in document.read_text().splitlines():
        if kind is None and line.startswith("```"):
            kind, name, lines = *(line[3:].split() + ["", ""])[:2], []
        elif kind is not None and line == "```":
            yield kind, name, lines
            kind = None
        elif kind is not None:
            lines.append(line)
    assert kind is None, f"{document}: a fence is not closed"


def commands_of(lines):
    """One command a line; a backslash at the end goes on."""
    return [command for command in "\n".join(lines).replace("\\\n", " ").split("\n") if command.strip()]


def without_measurements(text):
    for pattern, replacement in MEASURED:
        text = pattern.sub(replacement, text)
    return text.rstrip("\n")


def clone_after_building(folder):
    """What a reader has after the build: the program, the scripts, the demo's files; and a small model under two names."""
    (folder / "build/release").mkdir(parents=True)
    (folder / "build/release/halfbyte").symlink_to(PROGRAM)
    (folder / "build/model").symlink_to(DEMO_MODEL.parent)
    (folder / "build/text").symlink_to(DEMO_TEXT)
    for name in ["scripts", "docs", "tests", "README.md"]:
        (folder / name).symlink_to(ROOT / name)
    model = TinyModel()
    model.config["max_position_embeddings"] = 2048
    model.write(folder / "DIR")
    model.write_gguf(folder / "MODEL.gguf")
    for seed, name in enumerate(["calibrate.txt", "evaluate.txt"]):
        support.write_text(folder / name, 11000, seed)
    for name in [".zfunc", ".config/fish/completions"]:
        (folder / name).mkdir(parents=True)
    return folder


def run_in(folder, commands):
    """[(exit code, output)] of each command, all run by one shell."""
    script = "".join(f"{command}\nprintf '\\n<%s>\\n' $?\n" for command in commands)
    environment = os.environ | {"HOME": str(folder), "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=550)
    pieces = re.split(r"\n<(\d+)>\n", done.stdout)
    return [(int(pieces[i + 1]), pieces[i]) for i in range(0, 2 * len(commands), 2)]


class Documents(TestCase):
    def check_document(self, document):
        folder = clone_after_building(self.work / str(document.relative_to(ROOT)).replace("/", "-"))
        commands, expected = [], []
        for kind, name, lines in blocks_of(document):
            if kind == "hexdump":
                data = b"".join(line.encode() if line[0] in '{"' else bytes.fromhex(line) for line in lines)
                (folder / name).write_bytes(data)
            elif kind in ("json", "c++") and name:
                if (ROOT / name).exists():
                    self.assertEqual("\n".join(lines) + "\n", (ROOT / name).read_text(), f"{document}: {name}")
                else:
                    (folder / name).write_text("\n".join(lines))
            elif kind == "sh":
                for command in commands_of(lines):
                    if BUILDS.search(command):
                        self.check_build(command)
                    else:
                        commands.append(command)
                        expected.append(None)
            elif kind == "console":
                for piece in re.split(r"^\$ ", "\n".join(lines), flags=re.MULTILINE)[1:]:
                    command, _, output = piece.partition("\n")
                    commands.append(command)
                    expected.append(output)
            else:
                self.assertIn(kind, ["text", "json", "c++"], f"{document}: a block must say what it is")
        for command, output, (code, printed) in zip(commands, expected, run_in(folder, commands)):
            with self.subTest(document=document.name, command=command):
                self.assertEqual(code, 0, printed)
                if output is not None:
                    self.assertEqual(without_measurements(printed), without_measurements(output))
        return len(commands)

    def check_build(self, command):
        """Presets, and options of the scripts, must exist."""
        presets = {preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
        for name in re.findall(r"--preset (\S+)", command):
            self.assertIn(name, presets, command)
        for script, option in re.findall(r"((?:\./|scripts/)\w+\.sh)(?: (--\w+))?", command):
            self.assertTrue((ROOT / script).exists(), command)
            self.assertIn(option, (ROOT / script).read_text(), command)

    def test_every_command_of_the_documents(self):
        for path, script in [(DEMO_MODEL, "get_model.sh"), (DEMO_TEXT / "evaluate.txt", "get_text.sh")]:
            if not path.exists():
                self.skipTest(f"{path} is not there; scripts/{script} gets it")
        self.assertGreater(sum(self.check_document(document) for document in DOCUMENTS), 15)

    def test_links_lead_somewhere(self):
        for document in DOCUMENTS:
            text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
            for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
                if "://" not in target:
                    self.assertTrue((document.parent / target).exists(), f"{document.name}: {target}")

    def test_options_named_in_the_text_exist(self):
        """`halfbyte COMMAND --option` in running text."""
        for document in DOCUMENTS:
            text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
            for command, options in re.findall(r"`halfbyte (\w+)([^`]*)`", text):
                help_text = halfbyte(command, "--help").out
                for option in re.findall(r"(?<!\S)--?[a-z][\w-]*", options):
                    self.assertRegex(help_text, rf"(^|[ ,]){re.escape(option)}\b", f"{document.name}: {command}")


class Examples(TestCase):
    def test_every_example_of_the_help_texts(self):
        """In the order of the program's own list: what quantize makes is what the later ones use."""
        folder = clone_after_building(self.work / "examples")
        names = re.findall(r"^  (\w+)", self.ok("--help").out.split("Subcommands:\n")[1].split("\n\n")[0], re.MULTILINE)
        examples = []
        for name in names:
            lines = [line.strip() for line in self.ok(name, "--help").out.split("Examples:\n")[1].splitlines()]
            self.assertTrue(all(f"halfbyte {name}" in line for line in lines), lines)
            examples += lines
        for example, (code, printed) in zip(examples, run_in(folder, examples)):
            with self.subTest(example=example):
                self.assertEqual(code, 0, printed)


class Reference(TestCase):
    def test_the_command_line_reference_is_that_of_the_program(self):
        made = subprocess.run(["python3", ROOT / "scripts/cli_reference.py", PROGRAM], capture_output=True, text=True, check=True)
        self.assertEqual(made.stdout, (ROOT / "docs/cli.md").read_text(),
                         "run: python3 scripts/cli_reference.py build/release/halfbyte > docs/cli.md")


if __name__ == "__main__":
    support.main()
