// Where the results of a block go: codes and block scales with all their padding, or elements again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/device/block.cuh"
#include "format/scale_layout.h"

namespace halfbyte::cuda {

// The encode scale of a row.
struct EncodeScales {
    const float* data = nullptr;
    bool per_row = false;

    __device__ __forceinline__ float operator()(uint32_t row) const {
        return __ldg(per_row ? data + row : data);
    }
};

// The blocks of [rows, columns] are quantised, those around them, up to the padding of codes and scales,
// written as zero.
struct NvFp4Output {
    uint8_t* codes = nullptr;  // [padded_rows, 8 * padded_columns]
    uint8_t* scales = nullptr;
    uint32_t rows = 0, columns = 0;                // of blocks that have elements
    uint32_t padded_rows = 0, padded_columns = 0;  // of codes
    uint32_t grid_rows = 0, grid_columns = 0;      // of scales: what a grid has to cover
    ScaleLayout layout = ScaleLayout::linear;
    bool aligned = false;              // codes to 8 bytes
    bool pairs_aligned = false;        // the scales of an even column and of the next one to 2 bytes
    uint32_t partial_column = ~0u;     // the column whose blocks are not whole, if there is one,
    uint2 partial_codes = {~0u, ~0u};  // and the bits of its codes that count: missing elements keep nibble 0

    __device__ __forceinline__ bool holds_elements(uint32_t row, uint32_t column) const {
        return row < rows && column < columns;
    }

    // Any position of the grid or beyond; the block is zero where there are no elements.
    __device__ __forceinline__ void store(uint32_t row, uint32_t column, const QuantizedBlock& block) const {
        store_codes_at(codes_of(row, column), row, column, block.codes);
        store_scale(row, column, block.scale);
    }

    __device__ __forceinline__ uint8_t* codes_of(uint32_t row, uint32_t column) const {
        return codes + (uint64_t(row) * padded_columns + column) * 8;
    }
    // address: codes_of(row, column)
    __device__ __forceinline__ void store_codes_at(uint8_t* address, uint32_t row, uint32_t column,
                                                   uint2 block) const {
        if (column == partial_column) {
            block.x &= partial_codes.x;
            block.y &= partial_codes.y;
        }
        if (row < padded_rows && column < padded_columns) store_codes(address, block, aligned);
    }
    __device__ __forceinline__ void store_scale(uint32_t row, uint32_t column, uint32_t scale) const {
        if (row < grid_rows && column < grid_columns)
            scales[scale_offset(layout, row, column, padded_columns)] = uint8_t(scale);
    }
    __device__ __forceinline__ uint8_t* scale_of(uint32_t row, uint32_t column) const {
        return scales + scale_offset(layout, row, column, padded_columns);
    }
    // The scales of rows row, row + 32, + 64, + 96 in four bytes, row % 128 < 32; tiled_128x4, scales aligned
    // to 4 bytes, four lanes with columns 0..3 of a tile together. There the 16 bytes of a row and those 32,
    // 64, 96 below it are neighbours: the lanes exchange bytes, so that each writes the four columns of one
    // row.
    __device__ __forceinline__ void store_scales_of_4_rows(uint32_t row, uint32_t column,
                                                           const uint32_t (&bytes)[1]) const {
        uint32_t other = __shfl_xor_sync(~0u, bytes[0], 1);
        uint32_t own = __byte_perm(bytes[0], other, column & 1 ? 0x3715 : 0x6240);
        other = __shfl_xor_sync(~0u, own, 2);
        own = __byte_perm(own, other, column & 2 ? 0x3276 : 0x5410);
        row += column % 4 * 32;
        if (row < grid_rows && column < grid_columns)
            *reinterpret_cast<uint32_t*>(scale_of(row, column & ~3u)) = own;
    }
    // The same for two columns a lane, byte i of pairs[j] that of column + i % 2 in row + 32 (2 j + i / 2),
    // and scales aligned to 8 bytes: each of two lanes writes the four columns of two rows.
    __device__ __forceinline__ void store_scales_of_4_rows(uint32_t row, uint32_t column,
                                                           const uint32_t (&pairs)[2]) const {
        const bool upper = column & 2;
        const uint32_t other = __shfl_xor_sync(~0u, upper ? pairs[0] : pairs[1], 1);
        const uint32_t first = upper ? other : pairs[0], second = upper ? pairs[1] : other;
        row += upper ? 64 : 0;
        if (row < grid_rows && column < grid_columns)
            *reinterpret_cast<uint2*>(scale_of(row, column & ~3u)) =
                make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
    }
};

}  // namespace halfbyte::cuda
