// A packed weight as BF16 elements, in the form in which wgmma reads its operand A from shared memory: tiles
// of 128 rows; of each its groups of 64 elements of K, their number rounded up to a multiple of 4; of each
// group 128 rows of 128 bytes, 128-byte swizzle. What lies behind the rows and blocks of the weight is zeros.
// The elements are code * SF times the power of two of Fragments.
#pragma once

#include "cuda/device/fragments.cuh"
#include "cuda/launch.h"
#include "cuda/matmul_scratch.h"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/launch.cuh"
#include "cuda/ptx/memory.cuh"
#include "format/gpu_weight.h"

namespace halfbyte::cuda {

// Of a strip's group, of a weight that has so many groups.
constexpr uint64_t expanded_offset(uint32_t strip, uint32_t group, uint32_t groups) {
    const uint64_t tile = strip / expanded_tile_strips, whole = round_up(groups, expanded_whole_groups);
    return ((tile * whole + group) * expanded_tile_strips + strip % expanded_tile_strips) *
           expanded_group_bytes;
}

inline constexpr int expand_weight_warps = 8;

// A CTA for a strip, also for those that are not there but fill the last tile; a warp for a group at a time.
static __global__ void __launch_bounds__(expand_weight_warps * 32)
    expand_weight(PackedWeight w, uint8_t* expanded, uint32_t exponent) {
    __shared__ __align__(128) uint8_t memory[expand_weight_warps * expanded_group_bytes];
    ptx::wait_for_previous_kernel();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, strip = blockIdx.x,
                   groups = uint32_t(gpu_groups(w.k)), strips = uint32_t(gpu_strips(w.n));
    const uint32_t buffer = ptx::shared_address(memory) + warp * uint32_t(expanded_group_bytes);
    // Lane l gives stmatrix the row l % 8 of the matrix l / 8: rows 0 to 7 or 8 to 15 of the strip, the first
    // or the second half of a block.
    const uint32_t row = lane / 8 % 2 * 8 + lane % 8, half = lane / 16;
    const bool special = strip < strips && w.data[gpu_weight_flags(w.n, w.k) + strip] != 0;
    for (uint32_t group = warp; group < round_up(groups, expanded_whole_groups);
         group += expand_weight_warps) {
        uint4 codes = make_uint4(0, 0, 0, 0);
        uint2 scales = make_uint2(0, 0);
        if (strip < strips && group < groups) {
            const uint8_t* in = w.data + (uint64_t(strip) * groups + group) * gpu_group_bytes;
            codes = *reinterpret_cast<const uint4*>(in + lane * 16);
            scales = *reinterpret_cast<const uint2*>(in + gpu_group_code_bytes + lane / 4 * 8);
        }
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (uint32_t block = 0; block < 4; block++) {
            uint32_t a[4];
            dequantize<__nv_bfloat16>(words[block],
                                      special ? scales_of<__nv_bfloat16, true>(scales, block, exponent)
                                              : scales_of<__nv_bfloat16, false>(scales, block, exponent),
                                      a);
            ptx::store_matrices(buffer + row * 128 + ((2 * block + half) ^ row % 8) * 16, a);
        }
        __syncwarp();
        uint8_t* const out = expanded + expanded_offset(strip, group, groups);
#pragma unroll
        for (uint32_t i = lane * 16; i < expanded_group_bytes; i += 512)
            *reinterpret_cast<uint4*>(out + i) = ptx::load_shared_16(buffer + i);
        __syncwarp();
    }
}

// expanded: expanded_weight_bytes(w).
inline void launch_expand_weight(const PackedWeight& w, uint8_t* expanded, const Launch& launch) {
    const auto strips = unsigned(round_up(gpu_strips(w.n), expanded_tile_strips));
    launch_grid(expand_weight, dim3(strips), expand_weight_warps * 32, 0, launch, w, expanded,
                Fragments<__nv_bfloat16>::scale_exponent);
}

}  // namespace halfbyte::cuda
