// Stands for libhalfbyte_cuda.so: compiled for 8.0 and 9.0, one device; a kernel notes its name and does
// nothing else.
#include "backend/fake_cuda_library.h"

#include "cuda/kernels.h"
#include "halfbyte/error.h"
#include "halfbyte/version.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION version
#endif

namespace halfbyte::cuda {
namespace {

test::FakeCuda& state() {
    static test::FakeCuda fake;
    return fake;
}

std::vector<DeviceInfo> fake_devices() {
    if (!state().unavailable_reason.empty()) return {};
    return {
        {.ordinal = 0, .name = "Fake", .major = state().major, .minor = state().minor, .multiprocessors = 4}};
}

template <typename Args>
std::string never(const Args&, const DeviceInfo&) {
    return "it is never ready";
}
template <typename Args>
std::string always(const Args&, const DeviceInfo&) {
    return "";
}
std::string sixteen_rows(const QuantizeArgs& args, const DeviceInfo&) {
    return args.x.rows % 16 == 0 ? "" : "rows are not a multiple of 16";
}
void launch(const char* name) {
    if (!state().launch_error.empty()) throw Error(ErrorKind::failure, state().launch_error);
    state().launched.push_back(name);
}
template <typename Args>
void launch_first(const Args&, const Launch&, const DeviceInfo&) {
    launch("first");
}
template <typename Args>
void launch_second(const Args&, const Launch&, const DeviceInfo&) {
    launch("second");
}

// One kernel, "second", that can do everything.
template <typename Args>
KernelList<Args> one() {
    static const Kernel<Args> list[] = {{"second", always<Args>, launch_second<Args>}};
    return list;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) test::FakeCuda* fake_cuda_state() {
    return &state();
}

extern "C" __attribute__((visibility("default"))) const Kernels* halfbyte_cuda_kernels() {
    static const Kernel<QuantizeArgs> quantize[] = {
        {"first", sixteen_rows, launch_first<QuantizeArgs>},
        {"second", always<QuantizeArgs>, launch_second<QuantizeArgs>}};
    static const Kernel<AmaxArgs> amax[] = {{"first", never<AmaxArgs>, launch_first<AmaxArgs>},
                                            {"second", never<AmaxArgs>, launch_second<AmaxArgs>}};
    static const Kernels all = {
        .version = FAKE_VERSION,
        .unavailable_reason = [] { return state().unavailable_reason; },
        .devices = fake_devices,
        .current_device = [] { return fake_devices().at(0); },
        .architectures = [] { return std::vector<int>{80, 90}; },
        .quantize = quantize,
        .silu_mul_quantize = one<SiluMulQuantizeArgs>(),
        .rms_norm_quantize = one<RmsNormQuantizeArgs>(),
        .transform_quantize = one<TransformQuantizeArgs>(),
        .transform = one<TransformArgs>(),
        .fake_quantize = one<FakeQuantizeArgs>(),
        .dequantize = one<DequantizeArgs>(),
        .convert_scales = one<ConvertScalesArgs>(),
        .amax = amax,
        .mxfp4_quantize = one<MxFp4QuantizeArgs>(),
        .mxfp4_dequantize = {},
        .pack_weight = one<PackWeightArgs>(),
        .unpack_weight = one<UnpackWeightArgs>(),
        .matmul_w4a4 = one<MatmulW4A4Args>(),
        .matmul_w4a16 = one<MatmulW4A16Args>(),
        .count_bad_scales = [](Stream, const float*, int64_t, int32_t*) { launch("count_bad_scales"); },
    };
    return &all;
}

}  // namespace halfbyte::cuda
