// NVFP4 codes and block scales, in any layout and of up to 8 parts, into the packed form that the products
// read (format/gpu_weight.h): every byte of it once, whatever padding the parts hold.
//
// A CTA has a strip of 16 rows, a warp of it every fourth group of 64 elements. Lane l, with g = l / 4 and q
// = l % 4, makes word b of block b from the elements 2q, 2q + 1, 2q + 8, 2q + 9 of the rows g and g + 8: two
// bytes of codes of each row. A strip has its flag from one CTA, so no atomics.
#include "cuda/launch.h"
#include "cuda/operations.h"
#include "cuda/ptx/launch.cuh"
#include "format/gpu_weight.h"

namespace halfbyte::cuda {
namespace {

constexpr int warps = 4, threads = warps * 32;
constexpr uint8_t scale_of_one = 0x38;

// A row of the packed weight in the part that it comes from; codes = null: there is no such row.
struct Row {
    const uint8_t* codes = nullptr;
    const uint8_t* scales = nullptr;
    NvFp4Shape shape;
    int64_t row = 0;

    __device__ Row(const PackWeightArgs& args, int64_t n) : row(n) {
        for (int i = 0; i < args.part_count; i++) {
            shape = args.parts[i].shape;
            if (row < shape.rows) {
                codes = args.parts[i].codes + row * (shape.padded_k / 2);
                scales = args.parts[i].block_scales;
                return;
            }
            row -= shape.rows;
        }
    }
    // The codes of k and k + 1, k even; elements from the row's end on are 0.
    __device__ uint32_t pair(int64_t k) const {
        if (codes == nullptr || k >= shape.k) return 0;
        return k + 1 < shape.k ? codes[k / 2] : codes[k / 2] & 15;
    }
    __device__ bool has_block(int64_t block) const { return codes != nullptr && block < shape.blocks(); }
    __device__ uint8_t scale(int64_t block) const {
        return scales[scale_offset(shape.layout, row, block, shape.padded_blocks())];
    }
};

// The bits of a pair's two codes in the word of (row, k), k even, row 0 or 8 and k 0 or 8 for the four kinds.
template <int row, int k>
__device__ __forceinline__ uint32_t placed(uint32_t pair) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) word |= (pair >> i & 1) << gpu_code_bit(row, k + i / 4, i % 4);
    return word;
}

__global__ void __launch_bounds__(threads)
    pack_weight_kernel(const __grid_constant__ PackWeightArgs args, int64_t n, int64_t k) {
    ptx::wait_for_previous_kernel();
    const int lane = int(threadIdx.x % 32), g = lane / 4, q = lane % 4;
    const int64_t strip = blockIdx.x, groups = gpu_groups(k);
    const Row low(args, strip * gpu_strip_rows + g), high(args, strip * gpu_strip_rows + g + 8);
    const int scale_row = g + q % 2 * 8;  // of the lane's two scales, of blocks first_block and the next
    const int first_block = q / 2 * 2;
    const Row scaled(args, strip * gpu_strip_rows + scale_row);
    bool special = false;
    for (int64_t group = threadIdx.x / 32; group < groups; group += warps) {
        uint8_t* out = args.packed + (strip * groups + group) * gpu_group_bytes;
        uint32_t words[gpu_group_blocks];
#pragma unroll
        for (int b = 0; b < gpu_group_blocks; b++) {
            const int64_t first = group * gpu_group_k + b * 16 + q * 2;
            words[b] = placed<0, 0>(low.pair(first)) | placed<8, 0>(high.pair(first)) |
                       placed<0, 8>(low.pair(first + 8)) | placed<8, 8>(high.pair(first + 8));
        }
        *reinterpret_cast<uint4*>(out + lane * 16) = {words[0], words[1], words[2], words[3]};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t block = group * gpu_group_blocks + first_block + i;
            uint8_t scale = scale_of_one;
            if (scaled.has_block(block)) {
                scale = scaled.scale(block);
                special |= gpu_scale_is_special(scale);
            }
            out[gpu_scale_byte(scale_row, first_block + i)] = scale;
        }
    }
    special = __syncthreads_or(special);
    uint8_t* const flags = args.packed + gpu_weight_flags(n, k);
    if (threadIdx.x == 0) flags[strip] = special;
    if (strip == gridDim.x - 1) {  // up to a multiple of 16
        uint8_t* const end = args.packed + gpu_weight_bytes(n, k);
        for (uint8_t* byte = flags + gridDim.x + threadIdx.x; byte < end; byte += threads) *byte = 0;
    }
}

void launch_pack(const PackWeightArgs& args, const Launch& launch, const DeviceInfo&) {
    int64_t n = 0;
    for (int i = 0; i < args.part_count; i++) n += args.parts[i].shape.rows;
    if (n == 0) return;
    launch_grid(pack_weight_kernel, dim3(unsigned(gpu_strips(n))), threads, 0, launch, args, n,
                args.parts[0].shape.k);
}

}  // namespace

const Kernel<PackWeightArgs> kernel::pack_weight = {"pack_weight", no_reason<PackWeightArgs>, launch_pack};

}  // namespace halfbyte::cuda
