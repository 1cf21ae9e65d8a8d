// The operations on NVIDIA GPUs. They live in a library of their own, libhalfbyte_cuda.so, which is opened
// when it is first needed, so that one program serves machines with and without CUDA.
//
// All pointers of the arguments are device pointers, aligned to their element only; alignment to 16 bytes is
// faster. They, the stream and the workspace belong to the calling thread's current device
// (cudaSetDevice). Results overlap no input and no other result; y of transform and of fake_quantize may be
// x's own memory. Every operation is one kernel launch in the caller's stream, a product a few (of more than
// 64 rows without the kernels of 9.0 one or two for each 64, or 8, rows): no allocation, no synchronisation,
// no reading of device data by the host, so it can be captured into a CUDA graph; but the first product by
// cuBLASLt in a process must come before, since its handle is made then. What is known on the host is checked
// before the launch and throws Error (usage); a device or driver that cannot is Error (unsupported), a failed
// launch Error (failure). The bits are those of the CPU (docs/numbers.md).
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
    // For dynamic scales and one amax of all rows: device memory, 4-byte aligned, zero before its
    // first use; the kernel leaves it zero. A workspace serves one stream at a time.
    void* workspace = nullptr;
    int64_t workspace_bytes = 0;  // at least workspace_bytes_of(args)
    // For products: device memory aligned to 16, whatever is in it. It serves one stream at a time too.
    void* scratch = nullptr;
    // At least scratch_bytes_of(args). Of more than 1,024 rows W4A4 holds the weight in BF16 there,
    // cuBLASLt's products FP32 [M, N] and the weight.
    int64_t scratch_bytes = 0;
    // For products: the packed weight was complete before anything began that is ahead in the stream and may
    // still run, as it is in a model that is loaded. A product of few rows then reads it meanwhile.
    bool weight_is_settled = false;
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

// A weight [n, k] packed for the products on a GPU: device memory of packed_weight_bytes(n, k) bytes, aligned
// to 16. src/format/gpu_weight.h describes every bit. Nothing of the codes and scales is lost, unpack_weight
// gives them back.
struct PackedWeight {
    const uint8_t* data = nullptr;
    int64_t n = 0, k = 0;
};
int64_t packed_weight_bytes(int64_t n, int64_t k);

// The rows of up to 8 parts of the same k, one below the other (the partitions of a fused layer).
struct PackWeightArgs {
    static constexpr int most_parts = 8;
    NvFp4View parts[most_parts];
    int part_count = 0;
    uint8_t* packed = nullptr;  // out, packed_weight_bytes(sum of the parts' rows, k), aligned to 16
};
struct UnpackWeightArgs {
    PackedWeight w;
    uint8_t* codes = nullptr;         // out [n, Kp/2], Kp = k rounded up to 16
    uint8_t* block_scales = nullptr;  // out [n, Kp/16], linear
};

// d[m,n] = round_T(fl(fl(acc * alpha) + bias[n])), alpha = fl(row_decode[m] * column_decode[n]), acc as in
// halfbyte::MatmulW4A4Args: the bits are the CPU's. The activations are quantised (a), or x is quantised on
// the way with the given encode scales, to the same bits.
struct MatmulW4A4Args {
    NvFp4View a;                          // [M, K], any layout; or, with an encode_scale,
    ConstMatrix x;                        // [M, K]
    const float* encode_scale = nullptr;  // null, or G > 0: one number, or [M] if encode_scale_per_row
    bool encode_scale_per_row = false;
    PackedWeight w;                     // [N, K]
    const float* row_decode = nullptr;  // Da: one number, or [M] if row_decode_per_row; null: 1
    bool row_decode_per_row = false;
    const float* column_decode = nullptr;  // Dw: [N]
    const void* bias = nullptr;            // [N] of bias_type, or null
    DType bias_type = DType::f32;
    Matrix d;  // out [M, N]
    // contract; tensor_core: the sums are the matrix unit's (cuBLASLt's on Blackwell). There is no library.
    Accumulation accumulation = Accumulation::contract;
};

// d[m,n] = round_T(fl(fl(acc * column_decode[n]) + bias[n])), acc the sum over k of x * (code * SF): chains
// of 1024 elements from +0 as the matrix unit adds them, then added in order in FP32. The bits of a row
// depend on nothing but the row and the architecture.
struct MatmulW4A16Args {
    ConstMatrix x;                         // [M, K] BF16 or FP16
    PackedWeight w;                        // [N, K]
    const float* column_decode = nullptr;  // Dw: [N]
    const void* bias = nullptr;            // [N] of bias_type, or null
    DType bias_type = DType::f32;
    Matrix d;  // out [M, N]
    // tensor_core, what stands above; library: dequantised to x's type, then cuBLASLt
    Accumulation accumulation = Accumulation::tensor_core;
};

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
std::vector<KernelStatus> explain(const PackWeightArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const UnpackWeightArgs& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const MatmulW4A4Args& args, const DeviceInfo& device);
std::vector<KernelStatus> explain(const MatmulW4A16Args& args, const DeviceInfo& device);

// Bytes of Launch::workspace: for quantising with dynamic scales, 0 for given ones; for one amax of all rows,
// 0 for one per row.
int64_t workspace_bytes_of(const QuantizeArgs& args);
int64_t workspace_bytes_of(const AmaxArgs& args);
// For the products: enough for every kernel that explain() lists.
int64_t scratch_bytes_of(const MatmulW4A4Args& args);
int64_t scratch_bytes_of(const MatmulW4A16Args& args);

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
void pack_weight(const Launch& launch, const PackWeightArgs& args);
void unpack_weight(const Launch& launch, const UnpackWeightArgs& args);
void matmul_w4a4(const Launch& launch, const MatmulW4A4Args& args);
void matmul_w4a16(const Launch& launch, const MatmulW4A16Args& args);

// For debugging: adds to *bad the number of scales outside (0, inf), NaN included. bad is device memory.
void count_bad_scales(const Launch& launch, const float* scales, int64_t count, int32_t* bad);

}  // namespace halfbyte::cuda
