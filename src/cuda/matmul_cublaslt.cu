// The products that cuBLASLt computes, asked for by their arithmetic alone. It reads no packed weight, so
// each launch first writes the weight into the scratch in a form that it reads:
//   cublaslt_dequantised (W4A16, library): code * SF in the type of x, exact
//   cublaslt_nvfp4 (W4A4, tensor_core, Blackwell): codes [n, k/2] and block scales in tiles of 128 x 4
// Its FP32 sums become d in a kernel of their own, since each column has its factor.
// The order of its sums is its own, and may depend on M.
#include "cuda/cublaslt.h"
#include "cuda/device/block.cuh"
#include "cuda/device/unpack.cuh"
#include "cuda/launch.h"
#include "cuda/operations.h"
#include "cuda/products.h"
#include "cuda/ptx/launch.cuh"

namespace halfbyte::cuda {
namespace {

constexpr int threads = 256;

// d from the sums [m, n].
__global__ void __launch_bounds__(threads) finish_product(const float* sums, const ProductOutput output) {
    ptx::wait_for_previous_kernel();
    const uint32_t n = blockIdx.x * threads + threadIdx.x;
    if (n >= output.columns) return;
    const ProductOutput::Column column = output.column_of(n);
    for (uint32_t m = blockIdx.y; m < output.rows; m += gridDim.y)
        output.store(m, n, column.value(sums[uint64_t(m) * output.columns + n], output.row_decode_of(m)));
}

// [n, stride] = code * SF, stride = k rounded up to whole groups. A CTA for a strip of 16 rows, a warp for
// a group at a time. A lane has the elements 2q, 2q + 1, 2q + 8, 2q + 9 of the rows g and g + 8 in every
// block of the group; shared memory makes whole rows of 128 bytes of them.
template <typename T>
__global__ void __launch_bounds__(threads) dequantise_weight(PackedWeight w, T* values, int64_t stride) {
    constexpr int padded = 36;  // words of a row of 32: lanes that write one column meet all banks
    __shared__ __align__(16) uint32_t rows[threads / 32][gpu_strip_rows][padded];
    ptx::wait_for_previous_kernel();
    const int lane = int(threadIdx.x % 32), g = lane / 4, q = lane % 4;
    uint32_t(&tile)[gpu_strip_rows][padded] = rows[threadIdx.x / 32];
    const int64_t groups = gpu_groups(w.k);
    const auto put = [&](int row, int column, uint32_t pair, float SF) {
        alignas(4) const T two[2] = {T(decode_e2m1(pair & 15) * SF), T(decode_e2m1(pair >> 4) * SF)};
        tile[row][column] = *reinterpret_cast<const uint32_t*>(two);
    };
    for (int64_t group = threadIdx.x / 32; group < groups; group += threads / 32) {
        const uint8_t* in = w.data + (blockIdx.x * groups + group) * gpu_group_bytes;
        const uint4 loaded = *reinterpret_cast<const uint4*>(in + lane * 16);
        const uint32_t words[gpu_group_blocks] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
        for (int b = 0; b < gpu_group_blocks; b++) {
            const float low = ptx::decode_e4m3(in[gpu_scale_byte(g, b)]);
            const float high = ptx::decode_e4m3(in[gpu_scale_byte(g + 8, b)]);
            put(g, b * 8 + q, pair_of<0, 0>(words[b]), low);
            put(g, b * 8 + 4 + q, pair_of<0, 8>(words[b]), low);
            put(g + 8, b * 8 + q, pair_of<8, 0>(words[b]), high);
            put(g + 8, b * 8 + 4 + q, pair_of<8, 8>(words[b]), high);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < int(gpu_strip_rows); i += 4) {
            const int row = i + lane / 8, word = lane % 8 * 4;
            const int64_t n = int64_t(blockIdx.x) * gpu_strip_rows + row;
            if (n < w.n)
                *reinterpret_cast<uint4*>(values + n * stride + group * gpu_group_k + word * 2) =
                    *reinterpret_cast<const uint4*>(&tile[row][word]);
        }
        __syncwarp();
    }
}

// The heuristic is asked only where the device is the calling thread's own: explain() needs no GPU.
std::string heuristic_reason(const LtProduct& product, const DeviceInfo& device) {
    int ordinal = 0, major = 0, minor = 0;
    const bool there =
        cudaGetDevice(&ordinal) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess;
    if (!there || major != device.major || minor != device.minor) return "";
    return lt_unsupported_reason(product);
}

uint8_t* scratch_at(const Launch& launch, int64_t offset) {
    const auto base = reinterpret_cast<uintptr_t>(launch.scratch);
    return reinterpret_cast<uint8_t*>((base + lt_alignment - 1) / lt_alignment * lt_alignment) + offset;
}

// d from the product's sums, which lie in the scratch.
template <typename Args>
void multiply_and_finish(const Args& args, const LtProduct& product, const void* x, const void* w,
                         const Launch& launch) {
    uint8_t* const sums = scratch_at(launch, LtScratch(size_of_product(args)).sums);
    lt_matmul(product, x, w, sums, scratch_at(launch, 0), launch.stream);
    const dim3 grid(unsigned((args.w.n + threads - 1) / threads),
                    unsigned(std::min<int64_t>(args.d.rows, 65535)));
    launch_grid(finish_product, grid, threads, 0, launch, reinterpret_cast<const float*>(sums),
                output_of(args, 0, args.d.rows));
}

// ---- W4A16

std::string dequantised_reason(const MatmulW4A16Args& args, const DeviceInfo& device) {
    const std::string other = accumulation_reason(args.accumulation, Accumulation::library);
    if (!other.empty()) return other;
    if (args.w.k == 0) return no_k_reason;
    if (!lt_unavailable_reason().empty()) return lt_unavailable_reason();
    if (args.d.rows == 0 || args.w.n == 0) return "";
    return heuristic_reason(lt_product(args), device);
}

void launch_dequantised(const MatmulW4A16Args& args, const Launch& launch, const DeviceInfo&) {
    if (args.d.rows == 0 || args.w.n == 0) return;
    const LtProduct product = lt_product(args);
    uint8_t* const values = scratch_at(launch, LtScratch(size_of_product(args)).weight);
    const auto dequantise = [&](auto element) {
        using T = decltype(element);
        launch_grid(dequantise_weight<T>, dim3(unsigned(gpu_strips(args.w.n))), threads, 0, launch, args.w,
                    reinterpret_cast<T*>(values), product.w_stride);
    };
    if (args.x.type == DType::bf16)
        dequantise(__nv_bfloat16());
    else
        dequantise(__half());
    multiply_and_finish(args, product, args.x.data, values, launch);
}

// ---- W4A4

std::string nvfp4_reason(const MatmulW4A4Args& args, const DeviceInfo& device) {
    const NvFp4Shape& shape = args.a.shape;
    const std::string other = accumulation_reason(args.accumulation, Accumulation::tensor_core);
    if (!other.empty()) return other;
    if (device.major < 10)
        return "cuBLASLt's heuristic: not supported, products of E2M1 begin with compute capability 10.0";
    if (args.encode_scale != nullptr) return "it does not quantise on the way";
    if (shape.layout != ScaleLayout::tiled_128x4)
        return "the block scales of a are not in tiles of 128 rows and 4 blocks";
    // So that the tiles of block scales hold none of blocks that are not there.
    if (args.w.k == 0) return no_k_reason;
    if (args.w.k % 64 != 0 || shape.padded_k != shape.k)
        return "K = " + std::to_string(args.w.k) + ", padded to " + std::to_string(shape.padded_k) +
               ": a multiple of 64 without padding is needed";
    if (!is_aligned(args.a.codes, 16) || !is_aligned(args.a.block_scales, 16))
        return "the codes or block scales of a are not aligned to 16 bytes";
    if (!lt_unavailable_reason().empty()) return lt_unavailable_reason();
    if (args.d.rows == 0 || args.w.n == 0) return "";
    // Where the weight's scales will lie does not matter to the heuristic, but that they are there may.
    return heuristic_reason(lt_product(args, args.a.block_scales), device);
}

void launch_nvfp4(const MatmulW4A4Args& args, const Launch& launch, const DeviceInfo&) {
    if (args.d.rows == 0 || args.w.n == 0) return;
    const UnpackedScratch scratch(size_of_product(args));
    uint8_t *const codes = scratch_at(launch, scratch.weight), *const scales =
                                                                   scratch_at(launch, scratch.block_scales);
    check_cuda(cudaMemsetAsync(scales, 0, size_t(scratch.block_scale_bytes), launch.stream), "memset");
    launch_unpack_weight({args.w, codes, scales}, ScaleLayout::tiled_128x4, launch);
    multiply_and_finish(args, lt_product(args, scales), args.a.codes, codes, launch);
}

}  // namespace

const Kernel<MatmulW4A16Args> kernel::cublaslt_dequantised = {"cublaslt_dequantised", dequantised_reason,
                                                              launch_dequantised};
const Kernel<MatmulW4A4Args> kernel::cublaslt_nvfp4 = {"cublaslt_nvfp4", nvfp4_reason, launch_nvfp4};

}  // namespace halfbyte::cuda
