// From arguments to a launched kernel: what all kernel files share on the host. No fmt here: nvcc 13 does not
// compile version 9 of it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "cuda/device/grid.cuh"
#include "cuda/device/output.cuh"
#include "cuda/kernels.h"
#include "halfbyte/error.h"

namespace halfbyte::cuda {

inline void check_cuda(cudaError_t status, const char* what) {
    if (status != cudaSuccess)
        throw Error(ErrorKind::failure, std::string(what) + ": CUDA error " + cudaGetErrorName(status) +
                                            " (" + cudaGetErrorString(status) + ")");
}

template <typename... Parameters, typename... Values>
void launch_with(cudaLaunchAttribute attribute, void (*kernel)(Parameters...), dim3 grid, int threads,
                 size_t shared_bytes, const Launch& launch, const Values&... values) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = launch.stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(values)...), "launch");
}

// A kernel that may start before the one ahead of it in the stream has ended: it calls
// wait_for_previous_kernel() before it touches memory that the one ahead may write.
template <typename... Parameters, typename... Values>
void launch_grid(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes,
                 const Launch& launch, const Values&... values) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    launch_with(attribute, kernel, grid, threads, shared_bytes, launch, values...);
}

// The same for clusters of CTAs; one CTA needs no cluster, which devices before 9.0 do not have.
template <typename... Parameters, typename... Values>
void launch_clusters(void (*kernel)(Parameters...), unsigned cluster, unsigned clusters, int threads,
                     size_t shared_bytes, const Launch& launch, const Values&... values) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(cluster * clusters);
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = launch.stream;
    config.attrs = attributes;
    config.numAttrs = cluster == 1 ? 1 : 2;
    check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(values)...), "launch");
}

// Allows the kernel all shared memory that a CTA can have beside what it declares. A later call with less
// would take back what an earlier one needs.
inline void allow_shared_memory(const void* kernel, const DeviceInfo& device) {
    static std::mutex mutex;
    static std::set<std::pair<const void*, int>> allowed;
    const std::lock_guard lock(mutex);
    if (allowed.contains({kernel, device.ordinal})) return;
    int most = 0;  // not the DeviceInfo's, which may describe a smaller device
    check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.ordinal),
               "shared memory");
    cudaFuncAttributes attributes;
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "shared memory");
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    most - int(attributes.sharedSizeBytes)),
               "shared memory");
    allowed.insert({kernel, device.ordinal});
}

// As many CTAs of the kernel as run on the device at once, and no more than `ctas`.
template <typename... Parameters>
dim3 resident_grid(void (*kernel)(Parameters...), int64_t ctas, int threads, size_t shared_bytes,
                   const DeviceInfo& device) {
    if (shared_bytes > (48 << 10)) allow_shared_memory(reinterpret_cast<const void*>(kernel), device);
    int per_multiprocessor = 0;
    check_cuda(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, threads, shared_bytes),
        "occupancy");
    if (per_multiprocessor == 0)
        throw Error(ErrorKind::unsupported, "launch: a CTA of " + std::to_string(threads) + " threads and " +
                                                std::to_string(shared_bytes) +
                                                " bytes of shared memory does not fit on this device");
    return dim3(unsigned(std::clamp<int64_t>(ctas, 1, int64_t(per_multiprocessor) * device.multiprocessors)));
}

// For kernels whose CTAs stay and take their share of the work in turn.
template <typename... Parameters, typename... Values>
void launch_resident(void (*kernel)(Parameters...), int64_t ctas, int threads, size_t shared_bytes,
                     const Launch& launch, const DeviceInfo& device, const Values&... values) {
    launch_grid(kernel, resident_grid(kernel, ctas, threads, shared_bytes, device), threads, shared_bytes,
                launch, values...);
}

// The same for CTAs that wait for each other.
template <typename... Parameters, typename... Values>
void launch_cooperative(void (*kernel)(Parameters...), int64_t ctas, int threads, size_t shared_bytes,
                        const Launch& launch, const DeviceInfo& device, const Values&... values) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    launch_with(attribute, kernel, resident_grid(kernel, ctas, threads, shared_bytes, device), threads,
                shared_bytes, launch, values...);
}

inline bool is_aligned(const void* address, size_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

// Every row begins at a multiple of 16 bytes.
template <typename M>
bool rows_aligned(const M& matrix) {
    return is_aligned(matrix.data, 16) &&
           (matrix.rows <= 1 || matrix.stride * int64_t(size_of(matrix.type)) % 16 == 0);
}

inline NvFp4Output output_of(const QuantizeArgs& args) {
    const NvFp4Shape& shape = args.shape;
    NvFp4Output output{args.codes,
                       args.block_scales,
                       uint32_t(shape.rows),
                       uint32_t(shape.blocks()),
                       uint32_t(shape.padded_rows),
                       uint32_t(shape.padded_blocks()),
                       uint32_t(scale_rows(shape.layout, shape.padded_rows)),
                       uint32_t(scale_columns(shape.layout, shape.padded_blocks())),
                       shape.layout,
                       is_aligned(args.codes, 8),
                       is_aligned(args.block_scales, 2) &&
                           (shape.layout != ScaleLayout::linear || shape.padded_blocks() % 2 == 0)};
    if (shape.k % block_elements != 0) {
        const uint64_t bits = (uint64_t(1) << (4 * (shape.k % block_elements))) - 1;
        output.partial_column = output.columns - 1;
        output.partial_codes = {uint32_t(bits), uint32_t(bits >> 32)};
    }
    return output;
}

template <typename T, typename M>
BlockMatrix<T> blocks_of(const M& matrix) {
    return {static_cast<T*>(matrix.data), matrix.stride, matrix.cols,
            rows_aligned(matrix) ? uint32_t(matrix.cols / block_elements) : 0};
}

inline DynamicScales dynamic_scales_of(const QuantizeArgs& args, const Launch& launch) {
    return {static_cast<Workspace*>(launch.workspace), args.dynamic_encode_scale, args.dynamic_decode_scale,
            args.scale_per_row ? args.shape.rows : 1, args.scale_per_row};
}

// body(T()) with the CUDA type.
template <typename Body>
void with_type(DType type, const Body& body) {
    if (type == DType::f32) return body(float());
    if (type == DType::bf16) return body(__nv_bfloat16());
    body(__half());
}

template <typename Args>
std::string no_reason(const Args&, const DeviceInfo&) {
    return "";
}

inline std::string first_reason(const std::string& one, const std::string& other) {
    return one.empty() ? other : one;
}

// Kernels that quantise come in two: with scales that are given, and with scales that the kernel finds first.
inline std::string rounding_reason(const QuantizeArgs& args) {
    return args.rounding == Rounding::contract ? "" : "the rounding of vLLM is for comparisons on a CPU";
}
inline std::string given_scales_reason(const QuantizeArgs& args) {
    return first_reason(rounding_reason(args),
                        args.dynamic_encode_scale == nullptr ? "" : "the scales are dynamic, not given");
}
inline std::string dynamic_scales_reason(const QuantizeArgs& args) {
    return first_reason(rounding_reason(args),
                        args.dynamic_encode_scale != nullptr ? "" : "the scales are given, not dynamic");
}

}  // namespace halfbyte::cuda
