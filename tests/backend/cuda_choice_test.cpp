// Which kernel runs, and what is said when none does; with the library that stands beside this program.
#include <functional>

#include "backend/fake_device.h"
#include "halfbyte/cuda.h"
#include "halfbyte/error.h"

namespace halfbyte::cuda {
namespace {

class CudaChoice : public test::WithFakeDevice {
  protected:
    float G = 1, scale = 0;
    uint8_t memory[4096] = {};

    QuantizeArgs quantize_args(int64_t rows) {
        return {.x = {memory, DType::bf16, rows, 16, 16},
                .encode_scale = &G,
                .shape = {rows, 16, rows, 16},
                .codes = memory + 2048,
                .block_scales = memory + 3072};
    }
    AmaxArgs amax_args() { return {.x = {memory, DType::f32, 2, 16, 16}, .per_row = true, .amax = &scale}; }

    void expect_error(ErrorKind kind, const std::vector<std::string>& parts,
                      const std::function<void()>& call) {
        try {
            call();
            FAIL() << parts.front() << ": no error";
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), kind) << error.what();
            for (const std::string& part : parts)
                EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
                    << part << " in: " << error.what();
        }
        EXPECT_TRUE(fake.launched.empty());
    }
};

TEST_F(CudaChoice, TheFirstKernelWithoutAReasonRuns) {
    quantize({}, quantize_args(32));
    quantize({}, quantize_args(31));
    EXPECT_EQ(fake.launched, (std::vector<std::string>{"first", "second"}));
}

TEST_F(CudaChoice, AnEmptyProblemGoesToTheKernelsToo) {
    quantize({}, quantize_args(0));
    EXPECT_EQ(fake.launched, std::vector<std::string>{"first"});
}

TEST_F(CudaChoice, AKernelAskedForByNameRunsOrFails) {
    quantize({.kernel = "second"}, quantize_args(32));
    EXPECT_EQ(fake.launched, std::vector<std::string>{"second"});
    fake.launched.clear();
    expect_error(ErrorKind::unsupported,
                 {"quantize", "first was asked for", "Fake (9.0)", "not a multiple of 16"},
                 [&] { quantize({.kernel = "first"}, quantize_args(31)); });
    expect_error(ErrorKind::usage, {"quantize", "no kernel third", "first, second"},
                 [&] { quantize({.kernel = "third"}, quantize_args(32)); });
    expect_error(ErrorKind::usage, {"count_bad_scales", "no kernel third"},
                 [&] { count_bad_scales({.kernel = "third"}, &G, 1, reinterpret_cast<int32_t*>(&scale)); });
}

TEST_F(CudaChoice, ALaunchThatFailsSaysWhatAndWhere) {
    fake.launch_error = "launch: CUDA error cudaErrorInvalidResourceHandle (invalid resource handle)";
    expect_error(ErrorKind::failure,
                 {"quantize, kernel second on Fake (9.0): " + fake.launch_error +
                  "; stream and pointers must belong to the current device 0"},
                 [&] { quantize({}, quantize_args(31)); });
    expect_error(ErrorKind::failure,
                 {"count_bad_scales on Fake (9.0): " + fake.launch_error, "current device 0"},
                 [&] { count_bad_scales({}, &G, 1, reinterpret_cast<int32_t*>(&scale)); });
}

TEST_F(CudaChoice, NoKernelIsAnErrorWithTheWholeTable) {
    expect_error(ErrorKind::unsupported, {"amax", "Fake (9.0)", "first: it is never", "second: it is never"},
                 [&] { amax({}, amax_args()); });
    const MxFp4DequantizeArgs none = {.shape = {0, 32, 0, 32}, .y = {nullptr, DType::f32, 0, 32, 32}};
    expect_error(ErrorKind::unsupported, {"mxfp4_dequantize", "none in this build"},
                 [&] { mxfp4_dequantize({}, none); });
    expect_error(ErrorKind::usage, {"mxfp4_dequantize", "no kernel x", "none in this build"},
                 [&] { mxfp4_dequantize({.kernel = "x"}, none); });
}

TEST_F(CudaChoice, ExplainNeedsNoDevice) {
    fake.unavailable_reason = "there is no driver";
    const auto table = explain(quantize_args(31), device_of_architecture("sm_90"));
    ASSERT_EQ(table.size(), 2u);
    EXPECT_EQ(table[0].name, "first");
    EXPECT_EQ(table[0].unsupported_reason, "rows are not a multiple of 16");
    EXPECT_EQ(table[1].name, "second");
    EXPECT_EQ(table[1].unsupported_reason, "");
    EXPECT_TRUE(fake.launched.empty());
    EXPECT_TRUE(devices().empty());
    EXPECT_EQ(unavailable_reason(), "there is no driver");
    expect_error(ErrorKind::unsupported, {"quantize: no GPU: there is no driver"},
                 [&] { quantize({}, quantize_args(32)); });
}

TEST_F(CudaChoice, ADeviceWithoutCodeForItIsTheReasonOfEveryKernel) {
    const std::vector<std::pair<std::string, bool>> devices = {{"sm_80", true},   {"sm_86", true},
                                                               {"sm_89", true},   {"sm_90", true},
                                                               {"sm_100", false}, {"sm_120", false}};
    for (const auto& [name, runs] : devices)
        for (const KernelStatus& status : explain(quantize_args(16), device_of_architecture(name)))
            EXPECT_EQ(status.unsupported_reason,
                      runs ? ""
                           : "not compiled for " + name +
                                 ": this build has sm_80, sm_90 (HALFBYTE_CUDA_ARCHITECTURES)");
    // The kernel's own reason stays, behind it.
    const std::string both =
        explain(quantize_args(15), device_of_architecture("sm_100"))[0].unsupported_reason;
    EXPECT_TRUE(both.starts_with("not compiled for sm_100: ")) << both;
    EXPECT_TRUE(both.ends_with("; rows are not a multiple of 16")) << both;
    fake.major = 10;
    expect_error(ErrorKind::unsupported,
                 {"quantize", "10.0", "not compiled for sm_100: this build has sm_80, sm_90"},
                 [&] { quantize({}, quantize_args(16)); });
    expect_error(ErrorKind::unsupported,
                 {"count_bad_scales: not compiled for sm_100: this build has sm_80, sm_90"},
                 [&] { count_bad_scales({}, &G, 1, reinterpret_cast<int32_t*>(&scale)); });
}

TEST_F(CudaChoice, EveryOperationReachesItsList) {
    const ConstMatrix x = {memory, DType::f32, 2, 16, 16};
    const Matrix y = {memory + 1024, DType::f32, 2, 16, 16};
    const MxFp4Shape mx = {2, 16, 2, 32};
    QuantizeArgs fused = quantize_args(2);
    fused.x = {};
    const BlockTransform hadamard = {.n = 16};
    silu_mul_quantize({}, {x, x, fused});
    rms_norm_quantize({}, {.x = x, .weight = {memory, DType::f32, 1, 16, 16}, .quantize = fused});
    transform_quantize({}, {x, hadamard, fused});
    transform({}, {x, hadamard, y});
    fake_quantize({}, {.x = x, .encode_scale = &G, .y = y});
    dequantize({}, {.a = {memory + 2048, memory + 3072, fused.shape}, .decode_scale = &G, .y = y});
    convert_scales({}, {.shape = fused.shape, .source = memory, .target = memory + 2048});
    mxfp4_quantize({}, {x, mx, memory + 2048, memory + 3072});
    alignas(16) static uint8_t packed[2048], scratch[4096];
    const PackedWeight w = {packed, 2, 16};
    const Launch launch = {
        .workspace = memory, .workspace_bytes = 32, .scratch = scratch, .scratch_bytes = sizeof(scratch)};
    pack_weight({}, {.parts = {{memory, memory + 512, fused.shape}}, .part_count = 1, .packed = packed});
    unpack_weight({}, {.w = w, .codes = memory, .block_scales = memory + 512});
    matmul_w4a4(launch, {.a = {memory, memory + 512, fused.shape},
                         .w = w,
                         .column_decode = &G,
                         .d = {memory + 1024, DType::f32, 2, 2, 2}});
    matmul_w4a16(launch, {.x = {memory, DType::f16, 2, 16, 16},
                          .w = w,
                          .column_decode = &G,
                          .d = {memory + 1024, DType::f32, 2, 2, 2}});
    EXPECT_EQ(fake.launched, std::vector<std::string>(12, "second"));
    fake.launched.clear();
    count_bad_scales({}, &G, 1, reinterpret_cast<int32_t*>(&scale));
    EXPECT_EQ(fake.launched, std::vector<std::string>{"count_bad_scales"});
}

TEST_F(CudaChoice, MemoryOfProducts) {
    // [3, 2048] times [20, 2048]: operands of 4 rows and 2 chains of [32, 8] FP32 sums.
    MatmulW4A16Args args = {.w = {nullptr, 20, 2048}, .d = {nullptr, DType::f32, 3, 20, 20}};
    EXPECT_EQ(scratch_bytes_of(args), 4 * 2048 * 2 + 2 * 32 * 8 * 4);
    args.w.n = 200;  // 13 strips
    EXPECT_EQ(scratch_bytes_of(args), 4 * 2048 * 2 + 2 * 208 * 8 * 4);
    args.d.rows = 1000;
    EXPECT_EQ(scratch_bytes_of(args), 1000 * 2048 * 2);
    const MatmulW4A4Args same = {.w = args.w, .d = args.d};
    EXPECT_EQ(scratch_bytes_of(same), 1000 * 2048 * 2);
    args.d.rows = 0;
    EXPECT_EQ(scratch_bytes_of(args), 0);
}

TEST_F(CudaChoice, WorkspaceOfDynamicScales) {
    QuantizeArgs args = quantize_args(5);
    EXPECT_EQ(workspace_bytes_of(args), 0);
    args.encode_scale = nullptr;
    args.dynamic_encode_scale = &scale;
    EXPECT_EQ(workspace_bytes_of(args), 32);  // 16 + 4 up to a multiple of 16
    args.scale_per_row = true;
    EXPECT_EQ(workspace_bytes_of(args), 48);  // 16 + 20
    quantize({.workspace = memory, .workspace_bytes = 48}, args);
    EXPECT_EQ(fake.launched, std::vector<std::string>{"second"});
}

}  // namespace
}  // namespace halfbyte::cuda
