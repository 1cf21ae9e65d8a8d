// What the kernels' host code decides without a GPU: reasons, and the description of a product for cuBLASLt.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/cublaslt.h"
#include "cuda/kernels.h"
#include "cuda/matmul_scratch.h"

namespace halfbyte::cuda {
namespace {

alignas(64) uint8_t memory[64];
float* const numbers = reinterpret_cast<float*>(memory);

// The reason of one kernel of a list.
template <typename Args>
std::string reason_of(KernelList<Args> list, std::string_view name, const Args& args, int major,
                      int minor = 0) {
    const auto kernel =
        std::find_if(list.begin(), list.end(), [&](const auto& one) { return one.name == name; });
    EXPECT_NE(kernel, list.end()) << name;
    return kernel->unsupported_reason(args, {.name = "none", .major = major, .minor = minor});
}

MatmulW4A4Args nvfp4_args() {
    return {.a = {memory, memory, {100, 4096, 128, 4096, ScaleLayout::tiled_128x4}},
            .w = {memory, 300, 4096},
            .row_decode = numbers,
            .column_decode = numbers,
            .d = {memory, DType::bf16, 100, 300, 304},
            .accumulation = Accumulation::tensor_core};
}
MatmulW4A16Args dequantised_args() {
    return {.x = {memory, DType::f16, 5, 80, 96},
            .w = {memory, 300, 80},
            .column_decode = numbers,
            .d = {memory, DType::f32, 5, 300, 304},
            .accumulation = Accumulation::library};
}

TEST(CublasLt, DescribesAProductAsAPlainValue) {
    LtProduct dequantised = {.operand = CUDA_R_16F,
                             .result = CUDA_R_32F,
                             .m = 5,
                             .n = 300,
                             .k = 80,
                             .x_stride = 96,
                             .w_stride = 128,
                             .d_stride = 300,
                             .x_alignment = lt_alignment_of(memory)};
    EXPECT_EQ(lt_product(dequantised_args()), dequantised);
    dequantised.k = 81;
    EXPECT_NE(lt_product(dequantised_args()), dequantised);
    const LtProduct nvfp4 = {.operand = CUDA_R_4F_E2M1,
                             .result = CUDA_R_32F,
                             .m = 100,
                             .n = 300,
                             .k = 4096,
                             .x_stride = 4096,
                             .w_stride = 4096,
                             .d_stride = 300,
                             .x_alignment = lt_alignment_of(memory),
                             .x_scales = memory,
                             .w_scales = memory + 16};
    EXPECT_EQ(lt_product(nvfp4_args(), memory + 16), nvfp4);
}

TEST(CublasLt, KnowsHowAnAddressIsAligned) {
    const auto* at = reinterpret_cast<const uint8_t*>(0x1000);
    EXPECT_EQ(lt_alignment_of(at), 256);
    EXPECT_EQ(lt_alignment_of(at + 128), 128);
    EXPECT_EQ(lt_alignment_of(at + 16), 16);
    EXPECT_EQ(lt_alignment_of(at + 6), 2);
}

TEST(CublasLt, ScratchHoldsTheWeightInTheFormThatItReads) {
    const UnpackedScratch scratch({100, 300, 4096});
    EXPECT_EQ(scratch.sums, 32 << 20);
    EXPECT_EQ(scratch.weight, scratch.sums + 120064);          // 100 x 300 numbers, in whole 256 bytes
    EXPECT_EQ(scratch.block_scales, scratch.weight + 614400);  // 300 rows of 2048 bytes
    EXPECT_EQ(scratch.bytes, 256 + scratch.block_scales + 384 * 4096 / 16);  // 3 tiles of 128 rows
    EXPECT_EQ(matmul_scratch_bytes(nvfp4_args()), scratch.bytes);
    EXPECT_EQ(matmul_scratch_bytes(dequantised_args()), 256 + (32 << 20) + 6144 + 300 * 128 * 2);
    MatmulW4A4Args contract = nvfp4_args();
    contract.accumulation = Accumulation::contract;
    EXPECT_LT(matmul_scratch_bytes(contract), 32 << 20);
}

TEST(CublasLt, Nvfp4SaysWhyNot) {
    const KernelList<MatmulW4A4Args> list = halfbyte_cuda_kernels()->matmul_w4a4;
    const auto reason = [&](const MatmulW4A4Args& args, int major, int minor = 0) {
        return reason_of(list, "cublaslt_nvfp4", args, major, minor);
    };
    for (const auto& [major, minor] : {std::pair(10, 0), {10, 3}, {12, 0}})
        EXPECT_EQ(reason(nvfp4_args(), major, minor), lt_unavailable_reason()) << major << "." << minor;
    EXPECT_NE(reason(nvfp4_args(), 9).find("not supported"), std::string::npos);
    MatmulW4A4Args args = nvfp4_args();
    args.accumulation = Accumulation::contract;
    EXPECT_NE(reason(args, 10).find("accumulation is tensor_core; contract is asked"), std::string::npos);
    args = nvfp4_args(), args.a.shape.layout = ScaleLayout::linear;
    EXPECT_NE(reason(args, 10).find("tiles of 128 rows"), std::string::npos);
    args = nvfp4_args(), args.a.shape.k = args.w.k = 4080;
    EXPECT_NE(reason(args, 10).find("K = 4080, padded to 4096: a multiple of 64"), std::string::npos);
    args.a.shape.k = args.a.shape.padded_k = args.w.k = 4064;
    EXPECT_NE(reason(args, 10).find("K = 4064, padded to 4064: a multiple of 64"), std::string::npos);
    args = nvfp4_args(), args.a.codes = memory + 8;
    EXPECT_NE(reason(args, 10).find("aligned to 16"), std::string::npos);
    args = nvfp4_args(), args.encode_scale = numbers;
    EXPECT_NE(reason(args, 10).find("quantise on the way"), std::string::npos);
}

TEST(CublasLt, DequantisedSaysWhyNot) {
    const KernelList<MatmulW4A16Args> list = halfbyte_cuda_kernels()->matmul_w4a16;
    const auto reason = [&](const MatmulW4A16Args& args) {
        return reason_of(list, "cublaslt_dequantised", args, 9);
    };
    MatmulW4A16Args args = dequantised_args();
    args.accumulation = Accumulation::tensor_core;
    EXPECT_NE(reason(args).find("accumulation is library; tensor_core is asked"), std::string::npos);
    args = dequantised_args(), args.w.k = args.x.cols = 0;
    EXPECT_NE(reason(args).find("K = 0"), std::string::npos);
    args = dequantised_args(), args.d.rows = args.x.rows = 0;
    EXPECT_EQ(reason(args), lt_unavailable_reason());
}

TEST(Products, ScratchHoldsTheExpandedWeightFromTheRowsOnThatNeedIt) {
    MatmulW4A4Args args = nvfp4_args();  // N = 300, K = 4096
    args.accumulation = Accumulation::contract;
    const auto bytes = [&](int64_t rows) {
        args.d.rows = args.a.shape.rows = rows;
        return matmul_scratch_bytes(args);
    };
    const int64_t weight =
        24 * 64 * 16 * 64 * 2;  // 19 strips are 3 tiles of 8, 64 groups, 16 rows of 64 BF16
    EXPECT_EQ(bytes(1025), weight + 1025 * 4096 * 2);
    EXPECT_EQ(bytes(1024), 1024 * 4096 * 2);
    args.w.k = 4160;  // 65 groups are 17 times 4
    EXPECT_EQ(bytes(1025), 24 * 68 * 16 * 64 * 2 + 1025 * 4160 * 2);
}

TEST(Products, FewRowsDoNotExpandTheWeight) {
    MatmulW4A4Args args = nvfp4_args();
    args.accumulation = Accumulation::contract;
    EXPECT_NE(reason_of(halfbyte_cuda_kernels()->matmul_w4a4, "prefill_expanded", args, 9).find("M = 100"),
              std::string::npos);
    args.d.rows = args.a.shape.rows = 1025;
    EXPECT_EQ(reason_of(halfbyte_cuda_kernels()->matmul_w4a4, "prefill_expanded", args, 9), "");
    EXPECT_NE(reason_of(halfbyte_cuda_kernels()->matmul_w4a4, "prefill_expanded", args, 10), "");
}

// A kernel of one arithmetic never stands in for another.
TEST(Products, NoKernelRunsInAnArithmeticThatWasNotAskedFor) {
    const Kernels& kernels = *halfbyte_cuda_kernels();
    for (const int major : {8, 9, 10, 12})
        for (const Accumulation accumulation :
             {Accumulation::contract, Accumulation::tensor_core, Accumulation::library}) {
            MatmulW4A4Args w4a4 = nvfp4_args();
            w4a4.accumulation = accumulation;
            MatmulW4A16Args w4a16 = dequantised_args();
            w4a16.accumulation = accumulation;
            const DeviceInfo device = {
                .name = "none", .major = major, .multiprocessors = 132, .shared_memory_per_block = 227 << 10};
            for (const auto& kernel : kernels.matmul_w4a4)
                if (kernel.unsupported_reason(w4a4, device).empty()) {
                    const bool tensor_core = kernel.name.find("tensor_core") != std::string::npos ||
                                             kernel.name.find("nvfp4") != std::string::npos;
                    EXPECT_EQ(accumulation == Accumulation::tensor_core, tensor_core) << kernel.name;
                    EXPECT_NE(accumulation, Accumulation::library) << kernel.name;
                }
            for (const auto& kernel : kernels.matmul_w4a16)
                if (kernel.unsupported_reason(w4a16, device).empty()) {
                    const bool library = kernel.name.find("cublaslt") != std::string::npos;
                    EXPECT_EQ(accumulation == Accumulation::library, library) << kernel.name;
                    EXPECT_NE(accumulation, Accumulation::contract) << kernel.name;
                }
        }
}

}  // namespace
}  // namespace halfbyte::cuda
