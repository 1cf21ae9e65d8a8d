// Codes out of the words of a packed weight (format/gpu_weight.h).
#pragma once

#include <cstdint>

#include "format/gpu_weight.h"

namespace halfbyte::cuda {

// The two codes (row, k) and (row, k + 1) of a word, k even, row 0 or 8 and k 0 or 8 for the four kinds.
template <int row, int k>
__device__ __forceinline__ uint8_t pair_of(uint32_t word) {
    uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) pair |= (word >> gpu_code_bit(row, k + i / 4, i % 4) & 1) << i;
    return uint8_t(pair);
}

}  // namespace halfbyte::cuda
