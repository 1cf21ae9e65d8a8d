"""Runs the tests of this folder and prints what they compared, as docs/interop.md shows it.

    python run.py [Class ...]
"""

import datetime
import os
import platform
import subprocess
import sys
import unittest

import common
import export_test
import llm_compressor_test
import torch
from importlib.metadata import version

commit = subprocess.run(["git", "-C", str(common.REPOSITORY), "log", "-1", "--format=%h"], capture_output=True, text=True).stdout.strip()
print(f"{datetime.date.today():%d %B %Y}, {common.halfbyte('--version').out.strip()}, commit {commit}")
print(f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in [
    "torch", "transformers", "compressed-tensors", "tokenizers", "safetensors", "llmcompressor"]))
print(f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads", flush=True)

suite = unittest.TestSuite()
for module in [export_test, llm_compressor_test]:
    for tests in unittest.defaultTestLoader.loadTestsFromModule(module):
        if not sys.argv[1:] or any(type(test).__name__ in sys.argv[1:] for test in tests):
            suite.addTest(tests)
outcome = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
print()
for what, seen in common.results:
    print(f"{what:<75} {seen}")
sys.exit(0 if outcome.wasSuccessful() and outcome.testsRun > 0 else 1)
