#include "cpu/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "format/packed_weight.h"
#include "format/scale_layout.h"

namespace halfbyte::cpu {

namespace {

// One row of one of the parts.
struct Source {
    const uint8_t* codes = nullptr;
    const NvFp4View* part = nullptr;
    int64_t row = 0;
};

using Words = uint32_t __attribute__((vector_size(16)));

static Words load_words(const uint8_t* bytes) {
    Words words;
    std::memcpy(&words, bytes, sizeof words);
    return words;
}

// The codes of four rows from `row` on and of two whole blocks: a transpose of 4 x 4 words, since the words
// of a tile's rows lie side by side.
void pack_four_rows(const Source* sources, int64_t row, int64_t block, int64_t blocks, uint8_t* codes) {
    Words a[4];
    for (int i = 0; i < 4; i++) a[i] = load_words(sources[row + i].codes + block * 8);
    const Words low01 = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5),
                low23 = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5),
                high01 = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7),
                high23 = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
    const Words columns[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                              __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                              __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                              __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++)
        std::memcpy(codes + packed_code_byte(blocks, row, block * 16 + i * 8), &columns[i], sizeof(Words));
}

// The codes of one row and block; those beyond k as zeros.
void pack_block(const uint8_t* from, int64_t row, int64_t block, int64_t blocks, int64_t k, uint8_t* codes) {
    uint8_t kept[8];
    std::memcpy(kept, from + block * 8, 8);
    for (int64_t i = std::max<int64_t>(0, k - block * 16); i < 16; i++)
        kept[i / 2] &= uint8_t(i % 2 == 0 ? 0xF0 : 0x0F);
    std::memcpy(codes + packed_code_byte(blocks, row, block * 16), kept, 4);
    std::memcpy(codes + packed_code_byte(blocks, row, block * 16 + 8), kept + 4, 4);
}

// A few blocks of all rows at a time, so that the writes stay in L1 while each row is read as a stream.
void pack_tile(const Source* sources, int count, int64_t k, uint8_t* codes, uint8_t* scales) {
    const int64_t blocks = (k + 15) / 16, whole_pairs = k / 32;
    for (int64_t first = 0; first < blocks; first += 4) {
        const int64_t end = std::min(first + 4, blocks);
        const int64_t vector_end = std::min(end, whole_pairs * 2);
        const int vector_rows = count / 4 * 4;
        for (int64_t block = first; block < vector_end; block += 2)
            for (int r = 0; r < vector_rows; r += 4) pack_four_rows(sources, r, block, blocks, codes);
        for (int r = 0; r < count; r++) {
            for (int64_t block = r < vector_rows ? std::max(first, vector_end) : first; block < end; block++)
                pack_block(sources[r].codes, r, block, blocks, k, codes);
            // Four blocks' scales lie side by side in every layout.
            const NvFp4Shape& shape = sources[r].part->shape;
            const uint8_t* scale = sources[r].part->block_scales +
                                   scale_offset(shape.layout, sources[r].row, first, shape.padded_blocks());
            for (int64_t block = first; block < end; block++)
                scales[packed_scale_byte(blocks, r, block)] = scale[block - first];
        }
    }
}

}  // namespace

PackedWeight pack_weight(ThreadPool& pool, std::span<const NvFp4View> parts,
                         std::pmr::memory_resource* memory) {
    PackedWeight packed{.n = 0,
                        .k = parts.empty() ? 0 : parts[0].shape.k,
                        .codes = std::pmr::vector<uint8_t>(memory),
                        .block_scales = std::pmr::vector<uint8_t>(memory)};
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
