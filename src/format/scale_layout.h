// The maps of block scales: one function per layout, each with its inverse. Used by every backend.
#pragma once

#include <cstdint>

#include "halfbyte/nvfp4.h"

namespace halfbyte {

constexpr int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

struct ScalePosition {
    int64_t row, block;
    bool operator==(const ScalePosition&) const = default;
};

// Byte offset of the scale of (row, block); blocks_per_row is padded_k / 16. An unsigned Index saves a GPU
// the divisions of signed numbers; the offset has 64 bits.
template <typename Index>
constexpr int64_t scale_offset(ScaleLayout layout, Index row, Index block, Index blocks_per_row) {
    const Index tiles_per_row = (blocks_per_row + 3) / 4;
    switch (layout) {
        case ScaleLayout::tiled_128x4:
            return (int64_t(row / 128) * tiles_per_row + block / 4) * 512 + (row % 32) * 16 +
                   (row / 32 % 4) * 4 + block % 4;
        case ScaleLayout::tiled_8x4:
            return (int64_t(row / 8) * tiles_per_row + block / 4) * 32 + (row % 8) * 4 + block % 4;
        case ScaleLayout::linear:
            break;
    }
    return int64_t(row) * blocks_per_row + block;
}
constexpr int64_t scale_offset(ScaleLayout layout, int64_t row, int64_t block, int64_t blocks_per_row) {
    return scale_offset<int64_t>(layout, row, block, blocks_per_row);
}

// The inverse, for every offset below scale_bytes(). In a tiled layout the row may lie beyond padded_rows and
// the block beyond blocks_per_row: that byte is tile padding.
constexpr ScalePosition scale_position(ScaleLayout layout, int64_t offset, int64_t blocks_per_row) {
    const int64_t tiles_per_row = (blocks_per_row + 3) / 4;
    switch (layout) {
        case ScaleLayout::tiled_128x4: {
            const int64_t tile = offset / 512, inside = offset % 512;
            return {tile / tiles_per_row * 128 + inside / 4 % 4 * 32 + inside / 16,
                    tile % tiles_per_row * 4 + inside % 4};
        }
        case ScaleLayout::tiled_8x4: {
            const int64_t tile = offset / 32, inside = offset % 32;
            return {tile / tiles_per_row * 8 + inside / 4, tile % tiles_per_row * 4 + inside % 4};
        }
        case ScaleLayout::linear:
            break;
    }
    return {offset / blocks_per_row, offset % blocks_per_row};
}

// Rows and blocks of a row that a scale buffer holds: whole tiles.
constexpr int64_t scale_rows(ScaleLayout layout, int64_t padded_rows) {
    return round_up(padded_rows, layout == ScaleLayout::tiled_128x4 ? 128
                                 : layout == ScaleLayout::tiled_8x4 ? 8
                                                                    : 1);
}
constexpr int64_t scale_columns(ScaleLayout layout, int64_t blocks_per_row) {
    return round_up(blocks_per_row, layout == ScaleLayout::linear ? 1 : 4);
}

// Bytes of a scale buffer, tile padding included.
constexpr int64_t scale_buffer_bytes(ScaleLayout layout, int64_t padded_rows, int64_t blocks_per_row) {
    return scale_rows(layout, padded_rows) * scale_columns(layout, blocks_per_row);
}

}  // namespace halfbyte
