"""The completion scripts in the shells themselves: what <Tab> would offer."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
import unittest
from pathlib import Path

import support
from support import PROGRAM, TestCase


class Shell:
    """The same questions to every shell; a shell answers with the words it offers."""

    def setUp(self):
        if not shutil.which(self.shell):
            self.skipTest(f"{self.shell} is not installed")
        self.script = self.work / self.shell
        self.script.write_text(self.ok("completion", self.shell).out)
        (self.work / "folder/model").mkdir(parents=True, exist_ok=True)
        (self.work / "folder/modest.txt").touch()
        self.environment = os.environ | {"PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}", "HOME": str(self.work),
                                         "XDG_CONFIG_HOME": str(self.work), "XDG_DATA_HOME": str(self.work), "TERM": "dumb"}

    def test_commands(self):
        self.assertEqual(self.offered("halfbyte p"), {"perplexity"})
        self.assertLessEqual({"quantize", "inspect", "perplexity", "generate", "tokenize", "logits", "env", "completion"},
                             self.offered("halfbyte "))

    def test_options_of_a_command(self):
        self.assertEqual(self.offered("halfbyte quantize --calibrate"), {"--calibrate", "--calibrate-tokens"})
        self.assertEqual(self.offered("halfbyte env --cal"), set())

    def test_values(self):
        self.assertEqual(self.offered("halfbyte env --cpu-level "), {"scalar", "avx2", "avx512", "best"})
        self.assertEqual(self.offered("halfbyte quantize -m x --scheme NVFP4A"), {"NVFP4A16"})
        self.assertEqual(self.offered("halfbyte completion f"), {"fish"})

    def test_values_behind_an_equals_sign(self):
        self.assertEqual({word.removeprefix("--format=") for word in self.offered("halfbyte env --format=j")}, {"json"})

    def test_paths(self):
        def names(line):
            last = {word.rstrip("/").rsplit("/", 1)[-1] for word in self.offered(line)}
            return last - {"folder"}  # zsh matches the path part by part

        self.assertEqual(names("halfbyte quantize -m folder/mod"), {"model", "modest.txt"})
        self.assertEqual(names("halfbyte inspect folder/mod"), {"model", "modest.txt"})
        self.assertEqual(names("halfbyte quantize -o folder/mod"), {"model"})


class Bash(Shell, TestCase):
    shell = "bash"

    def offered(self, line):
        # COMP_WORDS as readline makes them: cut also at "=".
        words = re.findall(r"=|[^\s=]+", line) + ([""] if line[-1] in " =" else [])
        script = (f'source "{self.script}"; COMP_WORDS=("$@"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _halfbyte; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "--norc", "-c", script, "bash", *words], cwd=self.work, env=self.environment,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())


class Fish(Shell, TestCase):
    shell = "fish"

    def offered(self, line):
        done = subprocess.run(["fish", "--no-config", "-c", f'source "{self.script}"; complete -C "{line}"'], cwd=self.work,
                              env=self.environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stderr, "")
        return {offer.split("\t")[0] for offer in done.stdout.splitlines()}


class Zsh(Shell, TestCase):
    """Only a real line editor completes in zsh: one on a terminal, with a widget that prints what there is to choose from."""

    shell = "zsh"

    def offered(self, line):
        rc = self.work / "zshrc"
        rc.write_text('autoload -Uz compinit && compinit -u -D\n'
                      f'source "{self.script}"\n'
                      "zstyle ':completion:*' format ''\n"
                      # _describe and _arguments end in compadd, whose -O gives the matches.
                      'compadd() { local -a found; builtin compadd -O found "$@"; offers+=($found); builtin compadd "$@" }\n'
                      'typeset -ga offers\n'
                      'show() { offers=(); BUFFER=$line; CURSOR=$#BUFFER; zle complete-it; '
                      'print -r -- "<<${(j: :)offers}>>"; exit }\n'
                      'zle -C complete-it complete-word _main_complete\n'
                      'zle -N show; bindkey "^X" show\n'
                      'PS1="ready>"\n')
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.work)
            os.execvpe("zsh", ["zsh", "-f", "-i"], self.environment | {"line": line})
        seen, deadline, sent = "", time.monotonic() + 60, 0
        try:
            while not re.search(r"<<(.*?)>>", seen, re.DOTALL):
                self.assertLess(time.monotonic(), deadline, seen)
                if select.select([terminal], [], [], 0.2)[0]:
                    try:
                        seen += os.read(terminal, 4096).decode()
                    except OSError:
                        break
                if sent == 0:
                    os.write(terminal, f"source {rc}\n".encode())
                    sent = 1
                elif sent == 1 and "ready>" in seen.replace('PS1="ready>"', ""):
                    os.write(terminal, b"\x18")
                    sent = 2
        finally:
            os.close(terminal)
            os.waitpid(pid, 0)
        return set(re.search(r"<<(.*?)>>", seen, re.DOTALL).group(1).split())


if __name__ == "__main__":
    support.main()
