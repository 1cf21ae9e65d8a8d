"""halfbyte explain, and what env says of GPUs: on any machine, with and without libhalfbyte_cuda.so."""

import re
import shutil
import subprocess
from pathlib import Path

import support
from support import PROGRAM, UNSUPPORTED, USAGE, TestCase

OPERATIONS = ["quantize", "silu_mul_quantize", "rms_norm_quantize", "transform_quantize", "transform", "fake_quantize",
              "dequantize", "convert_scales", "amax", "mxfp4_quantize", "mxfp4_dequantize", "pack_weight", "unpack_weight"]
PRODUCTS = ["matmul_w4a4", "matmul_w4a16"]
UNTYPED = ["convert_scales", "pack_weight", "unpack_weight"]


class Explain(TestCase):
    def first_that_can(self, table):
        return next((kernel["name"] for kernel in table["kernels"] if kernel["unsupported_reason"] is None), None)

    def test_the_first_kernel_without_a_reason_is_chosen(self):
        for operation in OPERATIONS:
            type_f32 = [] if operation in UNTYPED else ["--type", "f32"]
            for more in [[], ["--rows", "0"], ["--unaligned"], [*type_f32, "--device", "sm_80"], ["--rows", "2147483392"]]:
                value = self.json("explain", operation, *more)
                self.assertEqual(value["operation"], operation)
                for table in [value["cpu"], value["cuda"]]:
                    self.assertEqual(table["chosen"], self.first_that_can(table), value)
                self.assertEqual([kernel["name"] for kernel in value["cpu"]["kernels"]], ["avx512", "avx2", "scalar"])

    def test_products(self):
        for operation in PRODUCTS:
            for more in [[], ["--rows", "0"], ["--n", "0"], ["--unaligned"], ["--type", "f16", "--device", "sm_80"],
                         ["--rows", "65536", "--n", "28672", "--k", "8192"], ["--arithmetic", "library"],
                         *([["--quantize", "--scale-per-row"], ["--layout", "tiled_8x4"]] if operation == "matmul_w4a4" else [])]:
                value = self.json("explain", operation, *more)
                for table in [value["cpu"], value["cuda"]]:
                    self.assertEqual(table["chosen"], self.first_that_can(table), value)
        text = self.ok("explain", "matmul_w4a4", "--rows", "8", "--n", "100", "--k", "80", "--quantize", "--type", "f16").out
        self.assertIn("matmul_w4a4 of F16 [8, 80], quantised on the way, and a packed weight [100, 80] to F16, "
                      "arithmetic contract, given global scale", text.splitlines()[0])
        self.assertRegex(text, "no: the CPU quantises first, then multiplies")
        text = self.ok("explain", "matmul_w4a4", "--k", "80", "--layout", "tiled_8x4").out
        self.assertIn("matmul_w4a4 of NVFP4 [1, 80] and a packed weight [4096, 80] to BF16, arithmetic contract, "
                      "block scales tiled_8x4", text.splitlines()[0])
        self.assertIn("arithmetic tensor_core", self.ok("explain", "matmul_w4a16").out.splitlines()[0])
        self.assertIn("pack_weight of [5, 80], block scales linear", self.ok("explain", "pack_weight", "--rows", "5", "--k", "80").out)
        self.refused(UNSUPPORTED, ["65537 rows", "65536", "split"], "explain", "matmul_w4a4", "--rows", "65537")
        contract = self.ok("explain", "matmul_w4a16", "--arithmetic", "contract").out
        self.assertIn("runs", contract[: contract.index("GPU")])
        self.assertNotIn("runs", contract[contract.index("GPU") :])
        self.refused(USAGE, ["x has type F32", "BF16 and F16"], "explain", "matmul_w4a16", "--type", "f32")

    def test_the_order_of_a_products_kernels_depends_on_its_size(self):
        if self.json("env")["cuda"]["library"] is None:
            self.skipTest("this build has no libhalfbyte_cuda.so")
        for operation in PRODUCTS:
            names = {rows: [kernel["name"] for kernel in
                            self.json("explain", operation, "--rows", rows, "--n", "8192", "--k", "8192", "--device", "sm_90")
                            ["cuda"]["kernels"]] for rows in ["8", "4096"]}
            self.assertEqual(sorted(names["8"]), sorted(names["4096"]))
            many = "prefill_expanded" if operation == "matmul_w4a4" else "prefill"
            self.assertEqual([names["8"][0], names["4096"][0]], ["decode", many])
            library = self.json("explain", operation, "--arithmetic", "library", "--device", "sm_90")["cuda"]["kernels"]
            for kernel in library:  # nothing stands in for an arithmetic that was asked for
                if kernel["name"] != "cublaslt_dequantised":
                    self.assertIsNotNone(kernel["unsupported_reason"], kernel)

    def test_the_level_that_is_asked_for(self):
        self.assertEqual(self.json("explain", "quantize", "--cpu-level", "scalar")["cpu"]["chosen"], "scalar")
        self.assertRegex(self.ok("explain", "quantize", "--cpu-level", "scalar").out, r"\n  scalar +runs\n")

    def test_the_text_says_the_problem(self):
        text = self.ok("explain", "transform_quantize", "--rows", "100", "--k", "4096", "--type", "f16", "--layout", "tiled_128x4",
                       "--padded-rows", "128", "--padded-k", "8192", "--transform", "matrix", "--transform-n", "64", "--dynamic",
                       "--scale-per-row", "--unaligned", "--device", "sm_90").out
        for part in ["transform_quantize of F16 [100, 4096]", "matrix transform of size 64, arithmetic contract",
                     "tiled_128x4, padded to [128, 8192]", "dynamic global scale for each row", "aligned to elements only"]:
            self.assertIn(part, text.splitlines()[0])

    def test_a_device_without_code_for_it(self):
        cuda = self.json("env")["cuda"]
        if cuda["library"] is None:
            self.skipTest("this build has no libhalfbyte_cuda.so")
        self.assertTrue(cuda["architectures"])
        for device in {"sm_100", "sm_120"} - {f"sm_{number}" for number in cuda["architectures"]}:
            table = self.json("explain", "quantize", "--device", device)["cuda"]
            self.assertIsNone(table["chosen"])
            for kernel in table["kernels"]:
                self.assertIn(f"not compiled for {device}: this build has sm_", kernel["unsupported_reason"])
            # What the kernel itself lacks stands behind it.
            kernels = self.json("explain", "quantize", "--dynamic", "--device", device)["cuda"]["kernels"]
            self.assertRegex(kernels[0]["unsupported_reason"], "^not compiled for .*; the scales are dynamic")

    def test_shared_memory_of_a_given_matrix(self):
        """docs/hardware.md: what has too little for which n."""
        if self.json("env")["cuda"]["library"] is None:
            self.skipTest("this build has no libhalfbyte_cuda.so")
        for device, bytes_there in [("sm_80", 166912), ("sm_86", 101376)]:
            for n in [16, 32, 64, 128]:
                table = self.json("explain", "transform", "--transform", "matrix", "--transform-n", str(n), "--device", device)
                reason, = [kernel["unsupported_reason"] for kernel in table["cuda"]["kernels"] if kernel["name"] == "matrix"]
                found = re.search(r"it needs (\d+) bytes of shared memory, the device has (\d+)", reason or "")
                self.assertEqual(found is not None, device == "sm_86" and n == 128, reason)
                if found:
                    self.assertEqual(int(found[2]), bytes_there)
                    self.assertEqual(int(found[1]), 144384)

    def test_options_without_a_use_are_refused(self):
        for operation, *option in [("transform", "--layout", "tiled_8x4"), ("amax", "--padded-k", "4096"),
                                   ("dequantize", "--dynamic"), ("mxfp4_quantize", "--scale-per-row"),
                                   ("convert_scales", "--type", "f16"), ("fake_quantize", "--transform-n", "16"),
                                   ("quantize", "--n", "16"), ("matmul_w4a16", "--quantize"), ("pack_weight", "--type", "f16"),
                                   ("unpack_weight", "--layout", "tiled_8x4"), ("matmul_w4a16", "--scale-per-row")]:
            self.refused(USAGE, [option[0], f"{operation} has no"], "explain", operation, *option)

    def test_an_empty_device_is_refused(self):
        self.refused(USAGE, ["--device", "sm_90"], "explain", "quantize", "--device", "")

    def test_devices(self):
        env = self.json("env")
        devices = env["cuda"]["devices"]
        self.assertEqual("cuda" in env["backends"], bool(devices))
        self.assertEqual(env["cuda"]["unavailable_reason"] is None, bool(devices))
        for device in devices:
            value = self.json("explain", "quantize", "--device", str(device["ordinal"]))
            self.assertEqual(value["cuda"]["compute_capability"], device["compute_capability"])
        if devices:
            self.refused(USAGE, ["--device 99", f"0 to {len(devices) - 1}"], "explain", "quantize", "--device", "99")
        else:
            self.refused(UNSUPPORTED, ["--device 0", env["cuda"]["unavailable_reason"], "sm_90"], "explain", "quantize",
                         "--device", "0")
            self.assertIn(env["cuda"]["unavailable_reason"], self.ok("env").out)
            self.assertNotIn("no: no ", self.ok("env").out)

    def test_without_the_library(self):
        """A program that was copied away from it."""
        program = Path(shutil.copy(PROGRAM, self.work))
        for command in [["env"], ["explain", "quantize"]]:
            done = subprocess.run([program, *command], capture_output=True, text=True, timeout=100)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for part in [f"libhalfbyte_cuda.so was not found in {program.parent}", "-DHALFBYTE_CUDA=ON"]:
                self.assertIn(part, done.stdout)


if __name__ == "__main__":
    support.main()
