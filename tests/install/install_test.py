"""The installed tree: a ten-line consumer built by CMake and by pkg-config, headers, manual pages, completions."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

BUILD, VERSION, CXX = (os.environ[name] for name in ("HALFBYTE_BUILD_DIR", "HALFBYTE_VERSION", "CXX"))
CUDA = os.environ["HALFBYTE_CUDA_BUILT"] == "ON"
CONSUMER = Path(__file__).parent / "consumer"
# The worked block of docs/numbers.md.
PRINTED = "ff ee cd ab 20 43 65 76 scale 7e\n"


def run(*arguments, **options):
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, timeout=250, **options)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(tempfile.mkdtemp(prefix="halfbyte-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        run("cmake", "--install", BUILD, "--prefix", cls.work / "first")
        # Somewhere else than it was installed: nothing in it may hold the old place.
        cls.prefix = (cls.work / "first").rename(cls.work / "moved")
        pkg_config, = cls.prefix.glob("lib*/**/pkgconfig")
        cls.environment = os.environ | {"PKG_CONFIG_PATH": str(pkg_config)}

    def test_a_consumer_by_cmake(self):
        build = self.work / "cmake"
        run("cmake", "-S", CONSUMER, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={CXX}")
        run("cmake", "--build", build)
        self.assertEqual(run(build / "consumer"), PRINTED)
        # The example of docs/hardware.md, where the CUDA toolkit is found: the same block twice.
        if (build / "quantize_gpu").exists():
            shutil.copy(build / "quantize_gpu", self.prefix / "bin")  # from there it finds the GPU's library
            self.assertRegex(run(self.prefix / "bin/quantize_gpu"), f"^(no GPU: .*\n|{PRINTED}{PRINTED})$")

    def test_a_version_that_is_not_there_is_refused_by_cmake(self):
        shutil.copytree(CONSUMER, self.work / "newer")
        text = (self.work / "newer/CMakeLists.txt").read_text()
        (self.work / "newer/CMakeLists.txt").write_text(text.replace("halfbyte 0.1", "halfbyte 0.99"))
        done = subprocess.run(["cmake", "-S", self.work / "newer", "-B", self.work / "newer-build",
                               f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={CXX}"],
                              capture_output=True, text=True, timeout=250)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('requested version "0.99"', done.stderr)

    def test_a_consumer_by_pkg_config(self):
        self.assertEqual(run("pkg-config", "--modversion", "halfbyte", env=self.environment), VERSION + "\n")
        flags = run("pkg-config", "--cflags", "--libs", "halfbyte", env=self.environment).split()
        program = self.work / "by-pkg-config"
        run(CXX, "-std=c++20", CONSUMER / "main.cpp", "-o", program, *flags)
        libraries = str(next(self.prefix.glob("lib*/**/libhalfbyte.*")).parent)
        self.assertEqual(run(program, env=os.environ | {"LD_LIBRARY_PATH": libraries}), PRINTED)

    def test_each_header_stands_alone(self):
        headers = sorted((self.prefix / "include/halfbyte").iterdir())
        self.assertEqual([header.name for header in headers],
                         ["context.h", "cuda.h", "dtype.h", "error.h", "nvfp4.h", "operations.h", "version.h"])
        for header in headers:
            run(CXX, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c++",
                "-I", self.prefix / "include", "-include", header, "/dev/null")

    def test_the_program_runs_from_its_new_place(self):
        self.assertEqual(run(self.prefix / "bin/halfbyte", "--version"), f"halfbyte {VERSION}\n")

    def test_the_program_finds_the_library_of_the_gpu(self):
        cuda = json.loads(run(self.prefix / "bin/halfbyte", "env", "--format", "json"))["cuda"]
        if CUDA:
            library, = self.prefix.glob("lib*/**/libhalfbyte_cuda.so")
            self.assertEqual(cuda["library"], str(library))
        else:
            self.assertEqual(list(self.prefix.rglob("libhalfbyte_cuda*")), [])
            self.assertIsNone(cuda["library"])
            self.check_not_found(cuda["unavailable_reason"])

    def check_not_found(self, reason):
        for part in ["libhalfbyte_cuda.so was not found in", "-DHALFBYTE_CUDA=ON"]:
            self.assertIn(part, reason)

    def test_a_consumer_of_cuda_h_alone(self):
        """A static library is part of the program, so the program's folder counts; a shared one is beside the GPU's."""
        flags = run("pkg-config", "--cflags", "--libs", "halfbyte", env=self.environment).split()
        program = self.work / "gpu"
        run(CXX, "-std=c++20", CONSUMER / "gpu.cpp", "-o", program, *flags)
        libraries = str(next(self.prefix.glob("lib*/**/libhalfbyte.*")).parent)
        reason = run(program, env=os.environ | {"LD_LIBRARY_PATH": libraries})
        if CUDA:
            self.assertNotIn("was not found", reason)
        else:
            self.check_not_found(reason)

    def test_completions_of_three_shells(self):
        for name in ["bash-completion/completions/halfbyte", "zsh/site-functions/_halfbyte",
                     "fish/vendor_completions.d/halfbyte.fish"]:
            self.assertIn("perplexity", (self.prefix / "share" / name).read_text())

    def test_manual_pages(self):
        if not shutil.which("help2man"):
            self.skipTest("help2man is not installed, so this build has no manual pages")
        commands = [line.split()[0] for line in run(self.prefix / "bin/halfbyte", "--help").split("Subcommands:")[1]
                    .splitlines() if line.startswith("  ") and line[2] != " "]
        self.assertIn("quantize", commands)
        pages = self.prefix / "share/man/man1"
        self.assertEqual({page.name for page in pages.iterdir()},
                         {"halfbyte.1"} | {f"halfbyte-{command}.1" for command in commands})
        for command in commands:
            page = (pages / f"halfbyte-{command}.1").read_text()
            for part in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS", ".SH EXAMPLES", "SEE ALSO"]:
                self.assertIn(part, page, command)


if __name__ == "__main__":
    unittest.main(verbosity=2)
