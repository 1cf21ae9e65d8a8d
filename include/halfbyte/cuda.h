// The operations on NVIDIA GPUs. They live in a library of their own, libhalfbyte_cuda.so, which is opened
// when it is first needed, so that one program serves machines with and without CUDA.
//
// All pointers of the arguments are device pointers, aligned to their element only; alignment to 16 bytes is
// faster. They, the stream and the workspace belong to the calling thread's current device
// (cudaSetDevice). Results overlap no input and no other result; y of transform and of fake_quantize may be
// x's own memory. Every operation is one kernel launch in the caller's stream: no allocation, no
// synchronisation, no reading of device data by the host, so it can be captured into a CUDA graph. What is
// known on the host is checked before the launch and throws Error (usage); a device or driver that cannot is
// Error (unsupported), a failed launch Error (failure). The bits are those of the CPU (docs/numbers.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "halfbyte/operations.h"

struct CUstream_st;  // CUDA's, in no namespace

namespace halfbyte::cuda {

using Stream = CUstream_st*;  // cudaStream_t; null is the default stream

struct Launch {
    Stream stream = nullptr;
    std::string_view kernel;  // empty: the first of explain() without a reason; a name: it runs or fails
    // For dynamic scales and one amax of all rows: device memory, 4-byte aligned, zero before its first use;
    // the kernel leaves it zero. A workspace serves one stream at a time.
    void* workspace = nullptr;
    int64_t workspace_bytes = 0;  // at least workspace_bytes_of(args)
};

struct DeviceInfo {
    int ordinal = 0;
    std::string name;
    int major = 0, minor = 0;  // compute capability, 9.0 for Hopper
    int multiprocessors = 0;
    int64_t shared_memory_per_block = 0;  // bytes, with opt-in
    int64_t memory = 0;                   // bytes
};

// Empty if libhalfbyte_cuda.so is there and its driver finds a device; else what is missing.
std::string unavailable_reason();
std::vector<DeviceInfo> devices();  // empty if unavailable

struct KernelStatus {
    std::string name;
    std::string unsupported_reason;  // empty: it can run; the first such one does
};
// The kernels of an operation for these arguments on that device, in the order of the choice. Needs no GPU.
std::vector<KernelStatus> explain(const QuantizeArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const SiluMulQuantizeArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const RmsNormQuantizeArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const TransformQuantizeArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const TransformArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const FakeQuantizeArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const DequantizeArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const ConvertScalesArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const AmaxArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const MxFp4QuantizeArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const MxFp4DequantizeArgs& args, const DeviceInfo& device);

// Bytes of Launch::workspace: for quantising with dynamic scales, 0 for given ones; for one amax of all rows,
// 0 for one per row.
int64_t workspace_bytes_of(const QuantizeArgs& args);
int64_t workspace_bytes_of(const AmaxArgs& args);

void quantize(const Launch& launch, const QuantizeArgs& args);
void silu_mul_quantize(const Launch& launch, const SiluMulQuantizeArgs& args);
void rms_norm_quantize(const Launch& launch, const RmsNormQuantizeArgs& args);
void transform_quantize(const Launch& launch, const TransformQuantizeArgs& args);
void transform(const Launch& launch, const TransformArgs& args);
void fake_quantize(const Launch& launch, const FakeQuantizeArgs& args);
void dequantize(const Launch& launch, const DequantizeArgs& args);
void convert_scales(const Launch& launch, const ConvertScalesArgs& args);
void amax(const Launch& launch, const AmaxArgs& args);
void mxfp4_quantize(const Launch& launch, const MxFp4QuantizeArgs& args);
void mxfp4_dequantize(const Launch& launch, const MxFp4DequantizeArgs& args);

// For debugging: adds to *bad the number of scales outside (0, inf), NaN included. bad is device memory.
void count_bad_scales(const Launch& launch, const float* scales, int64_t count, int32_t* bad);

}  // namespace halfbyte::cuda
