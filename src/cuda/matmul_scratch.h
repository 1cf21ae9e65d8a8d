// The size of a product and the device memory that its kernels need besides the arguments.
#pragma once

#include <algorithm>

#include "format/gpu_weight.h"
#include "halfbyte/cuda.h"

namespace halfbyte::cuda {

inline constexpr int64_t matmul_chain_k = 1024;  // elements of a chain of additions (docs/numbers.md)
inline constexpr uint32_t chain_groups = matmul_chain_k / gpu_group_k;
inline constexpr int64_t most_decode_rows = 64;  // of the kernels for few rows

struct MatmulSize {
    int64_t m, n, k;
};
constexpr MatmulSize size_of_product(const MatmulW4A4Args& args) {
    return {args.d.rows, args.w.n, args.w.k};
}
constexpr MatmulSize size_of_product(const MatmulW4A16Args& args) {
    return {args.d.rows, args.w.n, args.w.k};
}

// Launch::scratch, of the kernels for few rows, each part if it is needed: the activations as their operands,
// 16 bits each, K rounded up to whole groups and M to one of a few numbers; and the FP32 sums of all chains,
// n rounded up to a strip and m to 8 (DecodeProblem::sums).
constexpr int64_t decode_scratch_bytes(const MatmulSize& size) {
    int64_t rows = 1;
    while (rows < std::min(size.m, most_decode_rows)) rows *= 2;
    const int64_t chains = (size.k + matmul_chain_k - 1) / matmul_chain_k;
    return round_up(size.k, gpu_group_k) * std::max<int64_t>(rows, 4) * 2 +
           chains * round_up(size.n, gpu_strip_rows) * round_up(rows, 8) * 4;
}
// Of the kernels for many rows: the activations once more, BF16 and without padding of their rows but to
// whole groups.
constexpr int64_t prefill_scratch_bytes(const MatmulSize& size) {
    return size.m * round_up(size.k, gpu_group_k) * 2;
}
constexpr int64_t matmul_scratch_bytes(const MatmulSize& size) {
    if (size.m == 0) return 0;
    return std::max(decode_scratch_bytes(size), prefill_scratch_bytes(size));
}

// Of the kernel that expands the weight (device/prefill_expand.cuh), which it does from so many rows on: the
// expanded weight, then the activations.
inline constexpr int64_t least_expanded_rows = 1025;
inline constexpr int64_t expanded_group_bytes = gpu_strip_rows * gpu_group_k * 2, expanded_tile_strips = 8,
                         expanded_whole_groups = 4;
constexpr int64_t expanded_weight_bytes(const MatmulSize& size) {
    return round_up(gpu_strips(size.n), expanded_tile_strips) *
           round_up(gpu_groups(size.k), expanded_whole_groups) * expanded_group_bytes;
}

// Of the kernels that call cuBLASLt: its own workspace, FP32 sums [m, n], then the weight in a form that it
// reads. The parts begin at multiples of lt_alignment bytes, counted from the first such in the scratch.
inline constexpr int64_t lt_workspace_bytes = int64_t(32) << 20, lt_alignment = 256;
struct LtScratch {
    int64_t sums, weight;

    explicit constexpr LtScratch(const MatmulSize& size)
        : sums(lt_workspace_bytes), weight(sums + round_up(size.m * size.n * 4, lt_alignment)) {}
};
// W4A16: [n, k] of x's type, rows of whole groups.
constexpr int64_t dequantised_scratch_bytes(const MatmulSize& size) {
    return lt_alignment + LtScratch(size).weight + size.n * round_up(size.k, gpu_group_k) * 2;
}
// W4A4: codes [n, k / 2], block scales in tiles of 128 rows and 4 blocks.
struct UnpackedScratch : LtScratch {
    int64_t block_scales, block_scale_bytes, bytes;

    explicit constexpr UnpackedScratch(const MatmulSize& size)
        : LtScratch(size),
          block_scales(weight + round_up(size.n * round_up(size.k, 16) / 2, lt_alignment)),
          block_scale_bytes(scale_buffer_bytes(ScaleLayout::tiled_128x4, size.n, (size.k + 15) / 16)),
          bytes(lt_alignment + block_scales + block_scale_bytes) {}
};

constexpr int64_t matmul_scratch_bytes(const MatmulW4A4Args& args) {
    const MatmulSize size = size_of_product(args);
    const int64_t own = matmul_scratch_bytes(size);
    if (size.m == 0) return own;
    if (args.accumulation == Accumulation::tensor_core) return std::max(own, UnpackedScratch(size).bytes);
    return size.m < least_expanded_rows ? own : expanded_weight_bytes(size) + own;
}
constexpr int64_t matmul_scratch_bytes(const MatmulW4A16Args& args) {
    const MatmulSize size = size_of_product(args);
    const int64_t own = matmul_scratch_bytes(size);
    if (size.m == 0 || args.accumulation != Accumulation::library) return own;
    return std::max(own, dequantised_scratch_bytes(size));
}

}  // namespace halfbyte::cuda
