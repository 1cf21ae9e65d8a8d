#include "cpu/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "format/packed_weight.h"
#include "format/scale_layout.h"

namespace halfbyte::cpu {

// One row of one of the parts.
struct Source {
    const uint8_t* codes = nullptr;
    const NvFp4View* part = nullptr;
    int64_t row = 0;
};

// Tile by tile the 16 rows of it side by side, so that the writes run on and 16 streams are read.
static void pack_tile(const Source* sources, int count, int64_t k, uint8_t* codes, uint8_t* scales) {
    const int64_t blocks = (k + 15) / 16, whole = k / 16;
    for (int64_t first = 0; first < blocks; first += 4) {
        const int64_t end = std::min(first + 4, blocks);
        for (int r = 0; r < count; r++) {
            const NvFp4Shape& shape = sources[r].part->shape;
            // Four blocks' scales lie side by side in every layout.
            const uint8_t* scale = sources[r].part->block_scales +
                                   scale_offset(shape.layout, sources[r].row, first, shape.padded_blocks());
            for (int64_t block = first; block < end; block++) {
                const uint8_t* from = sources[r].codes + block * 8;
                uint8_t* to = codes + packed_code_byte(blocks, r, block * 16);
                uint8_t* to_second_half = codes + packed_code_byte(blocks, r, block * 16 + 8);
                std::memcpy(to, from, 4);
                std::memcpy(to_second_half, from + 4, 4);
                if (block == whole)
                    for (int64_t i = k - block * 16; i < 16; i++)
                        (i < 8 ? to[i / 2] : to_second_half[i / 2 - 4]) &= uint8_t(i % 2 == 0 ? 0xF0 : 0x0F);
                scales[packed_scale_byte(blocks, r, block)] = scale[block - first];
            }
        }
    }
}

PackedWeight pack_weight(ThreadPool& pool, std::span<const NvFp4View> parts) {
    PackedWeight packed{.n = 0, .k = parts.empty() ? 0 : parts[0].shape.k, .codes = {}, .block_scales = {}};
    for (const NvFp4View& part : parts) packed.n += part.shape.rows;
    const int64_t blocks = packed.blocks();
    packed.codes.resize(size_t(packed.tiles() * blocks * 128));
    packed.block_scales.resize(size_t(packed.tiles() * blocks * packed_tile_rows));
    pool.parallel_for(
        packed.tiles(), std::max<int64_t>(1, 4096 / (blocks + 1)), [&](int64_t begin, int64_t end) {
            const NvFp4View* part = parts.data();
            int64_t row = begin * packed_tile_rows;  // of the part
            for (int64_t tile = begin; tile < end; tile++) {
                Source sources[packed_tile_rows];
                int count = 0;
                for (; count < packed_tile_rows && tile * packed_tile_rows + count < packed.n;
                     count++, row++) {
                    while (row >= part->shape.rows) row -= part++->shape.rows;
                    sources[count] = {part->codes + row * (part->shape.padded_k / 2), part, row};
                }
                pack_tile(sources, count, packed.k, packed.codes.data() + tile * blocks * 128,
                          packed.block_scales.data() + tile * blocks * packed_tile_rows);
            }
        });
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
