// The size of a product and the device memory that its kernels need besides the arguments.
#pragma once

#include <algorithm>

#include "format/gpu_weight.h"
#include "halfbyte/cuda.h"

namespace halfbyte::cuda {

inline constexpr int64_t matmul_chain_k = 1024;  // elements of a chain of additions (docs/numbers.md)
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

// Launch::workspace: for each strip of 16 weight rows the CTAs that have delivered its partial sums. Zero
// before and after every launch.
constexpr int64_t matmul_workspace_bytes(const MatmulSize& size) {
    return size.m == 0 ? 0 : round_up(16 + 4 * gpu_strips(size.n), 16);
}

// Launch::scratch, of the kernels for few rows: the activations as their operands, 16 bits each, K rounded up
// to whole groups and M to one of a few numbers; and the FP32 sums of all chains, [chains, n, m] with n
// rounded up to a strip and m to 8, so that whoever is last can add the chains in their order.
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
    return std::max(decode_scratch_bytes(size), prefill_scratch_bytes(size));
}

}  // namespace halfbyte::cuda
