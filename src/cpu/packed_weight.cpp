#include "cpu/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "format/packed_weight.h"
#include "format/scale_layout.h"

namespace halfbyte::cpu {

PackedWeight pack_weight(const NvFp4View& w) {
    const NvFp4Shape& shape = w.shape;
    PackedWeight packed{.n = shape.rows, .k = shape.k, .codes = {}, .block_scales = {}};
    const int64_t blocks = packed.blocks();
    packed.codes.resize(size_t(packed.tiles() * blocks * 128));
    packed.block_scales.resize(size_t(packed.tiles() * blocks * packed_tile_rows));
    for (int64_t n = 0; n < shape.rows; n++) {
        for (int64_t block = 0; block < blocks; block++) {
            uint8_t codes[8];
            std::memcpy(codes, w.codes + n * (shape.padded_k / 2) + block * 8, 8);
            for (int64_t k = shape.k - block * 16; k < 16; k++)
                codes[k / 2] = uint8_t(codes[k / 2] & (k % 2 == 0 ? 0xF0 : 0x0F));
            std::memcpy(&packed.codes[size_t(packed_code_byte(blocks, n, block * 16))], codes, 4);
            std::memcpy(&packed.codes[size_t(packed_code_byte(blocks, n, block * 16 + 8))], codes + 4, 4);
            packed.block_scales[size_t(packed_scale_byte(blocks, n, block))] =
                w.block_scales[scale_offset(shape.layout, n, block, shape.padded_blocks())];
        }
    }
    return packed;
}

void unpack_weight(const PackedWeight& w, uint8_t* codes, uint8_t* block_scales) {
    const int64_t blocks = w.blocks();
    for (int64_t n = 0; n < w.n; n++) {
        for (int64_t block = 0; block < blocks; block++) {
            uint8_t* row = codes + (n * blocks + block) * 8;
            std::memcpy(row, &w.codes[size_t(packed_code_byte(blocks, n, block * 16))], 4);
            std::memcpy(row + 4, &w.codes[size_t(packed_code_byte(blocks, n, block * 16 + 8))], 4);
            block_scales[n * blocks + block] = w.block_scales[size_t(packed_scale_byte(blocks, n, block))];
        }
    }
}

}  // namespace halfbyte::cpu
