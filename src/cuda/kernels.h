// What libhalfbyte_cuda.so gives: for every operation the ordered list of its kernels. Arguments are trusted
// here: src/backend has checked them. Plain C++: src/backend reads it without CUDA's headers.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halfbyte/cuda.h"

namespace halfbyte::cuda {

template <typename Args>
struct Kernel {
    std::string_view name;
    // Empty if the kernel computes this problem on this device; else why not, for the table of explain().
    std::string (*unsupported_reason)(const Args&, const DeviceInfo&);
    void (*launch)(const Args&, const Launch&, const DeviceInfo&);  // throws Error (failure)
};

template <typename Args>
using KernelList = std::span<const Kernel<Args>>;

struct Kernels {
    std::string_view version;             // of the build; another one is refused
    std::string (*unavailable_reason)();  // empty if there is a driver and a device
    std::vector<DeviceInfo> (*devices)();
    DeviceInfo (*current_device)();       // of the calling thread
    std::vector<int> (*architectures)();  // what was compiled: 80, 90, 100, ...
    KernelList<QuantizeArgs> quantize;
    KernelList<SiluMulQuantizeArgs> silu_mul_quantize;
    KernelList<RmsNormQuantizeArgs> rms_norm_quantize;
    KernelList<TransformQuantizeArgs> transform_quantize;
    KernelList<TransformArgs> transform;
    KernelList<FakeQuantizeArgs> fake_quantize;
    KernelList<DequantizeArgs> dequantize;
    KernelList<ConvertScalesArgs> convert_scales;
    KernelList<AmaxArgs> amax;
    KernelList<MxFp4QuantizeArgs> mxfp4_quantize;
    KernelList<MxFp4DequantizeArgs> mxfp4_dequantize;
    KernelList<PackWeightArgs> pack_weight;
    KernelList<UnpackWeightArgs> unpack_weight;
    KernelList<MatmulW4A4Args> matmul_w4a4;
    KernelList<MatmulW4A16Args> matmul_w4a16;
    void (*count_bad_scales)(Stream, const float*, int64_t, int32_t*);
};

// The one symbol of libhalfbyte_cuda.so.
extern "C" const Kernels* halfbyte_cuda_kernels();

}  // namespace halfbyte::cuda
