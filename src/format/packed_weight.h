// Where a code and a block scale of a PackedWeight lie: the one description of its tiles
// (halfbyte/operations.h).
#pragma once

#include <cstdint>

#include "halfbyte/operations.h"

namespace halfbyte {

inline constexpr int64_t packed_tile_rows = 16;

// The byte that holds the code of (n, k); odd k lie in the high nibble.
constexpr int64_t packed_code_byte(int64_t blocks, int64_t n, int64_t k) {
    return (n / packed_tile_rows * blocks + k / 16) * 128 + k % 16 / 8 * 64 + n % packed_tile_rows * 4 +
           k % 8 / 2;
}

constexpr int64_t packed_scale_byte(int64_t blocks, int64_t n, int64_t block) {
    return (n / packed_tile_rows * blocks + block) * packed_tile_rows + n % packed_tile_rows;
}

inline uint8_t packed_code(const PackedWeight& w, int64_t n, int64_t k) {
    return uint8_t(w.codes[size_t(packed_code_byte(w.blocks(), n, k))] >> (k % 2 * 4) & 15);
}

inline uint8_t packed_scale(const PackedWeight& w, int64_t n, int64_t block) {
    return w.block_scales[size_t(packed_scale_byte(w.blocks(), n, block))];
}

}  // namespace halfbyte
