#include "cpu/packed_weight.h"

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte::test {

static std::vector<NvFp4Shape> shapes() {
    std::vector<NvFp4Shape> all;
    for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4})
        for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
                 {0, 16}, {3, 0}, {1, 1}, {15, 15}, {16, 16}, {17, 17}, {33, 1000}, {150, 80}}) {
            all.push_back(NvFp4Shape::of(n, k, layout));
            NvFp4Shape padded = all.back();
            padded.padded_rows += 5;
            padded.padded_k += 48;
            all.push_back(padded);
        }
    return all;
}

TEST(PackedWeight, IsTheDocumentedLayout) {
    for (const NvFp4Shape& shape : shapes()) {
        const Quantized q = random_quantized(shape, 1);
        const PackedWeight packed = cpu::pack_weight(q.view()), expected = pack(q);
        EXPECT_EQ(packed.n, shape.rows);
        EXPECT_EQ(packed.k, shape.k);
        EXPECT_EQ(packed.codes, expected.codes);
        EXPECT_EQ(packed.block_scales, expected.block_scales);
    }
}

// Parts of any height, which begin and end inside a tile, each in a layout of its own.
TEST(PackedWeight, HoldsPartsOneBelowTheOther) {
    for (const int64_t k : {16, 37, 1000}) {
        std::vector<Quantized> parts;
        std::vector<NvFp4View> views;
        int64_t n = 0;
        for (const auto& [rows, layout] :
             std::vector<std::pair<int64_t, ScaleLayout>>{{17, ScaleLayout::linear},
                                                          {0, ScaleLayout::linear},
                                                          {3, ScaleLayout::tiled_8x4},
                                                          {150, ScaleLayout::tiled_128x4}}) {
            parts.push_back(random_quantized(NvFp4Shape::of(rows, k, layout), uint32_t(n + 4)));
            n += rows;
        }
        Quantized whole(NvFp4Shape::of(n, k));
        n = 0;
        for (const Quantized& part : parts) {
            views.push_back(part.view());
            for (int64_t row = 0; row < part.shape.rows; row++, n++) {
                for (int64_t i = 0; i < k; i++) whole.set_code(n, i, part.code(row, i));
                for (int64_t block = 0; block < part.shape.blocks(); block++)
                    whole.scales[whole.scale_place(n, block)] = part.scale(row, block);
            }
        }
        const PackedWeight expected = pack(whole);
        for (const int threads : {1, 3}) {
            ThreadPool pool(threads);
            const PackedWeight packed = cpu::pack_weight(pool, views);
            EXPECT_EQ(packed.n, n);
            EXPECT_EQ(packed.k, k);
            EXPECT_EQ(packed.codes, expected.codes);
            EXPECT_EQ(packed.block_scales, expected.block_scales);
        }
    }
}

TEST(PackedWeight, UnpacksToTheLinearForm) {
    for (const NvFp4Shape& shape : shapes()) {
        const Quantized q = random_quantized(shape, 2);
        Quantized unpacked(NvFp4Shape::of(shape.rows, shape.k));
        cpu::unpack_weight(cpu::pack_weight(q.view()), unpacked.codes.data(), unpacked.scales.data());
        const Quantized expected = random_quantized(unpacked.shape, 2);
        EXPECT_TRUE(
            same_bytes(unpacked.codes.bytes(), expected.codes.bytes(), std::max<int64_t>(1, shape.k)));
        EXPECT_TRUE(same_bytes(unpacked.scales.bytes(), expected.scales.bytes(),
                               std::max<int64_t>(1, shape.blocks())));
        EXPECT_TRUE(unpacked.codes.guards_intact() && unpacked.scales.guards_intact());
    }
}

TEST(PackedWeight, IgnoresWhatLiesBeyondK) {
    for (const uint8_t garbage : {uint8_t(0x7F), uint8_t(0xFF)}) {
        NvFp4Shape shape = NvFp4Shape::of(17, 37, ScaleLayout::tiled_8x4);
        shape.padded_k += 16;
        const Quantized clean = random_quantized(shape, 3);
        Quantized dirty(shape, garbage);
        for (int64_t row = 0; row < shape.rows; row++) {
            for (int64_t k = 0; k < shape.k; k++) dirty.set_code(row, k, clean.code(row, k));
            for (int64_t block = 0; block < shape.blocks(); block++)
                dirty.scales[dirty.scale_place(row, block)] = clean.scale(row, block);
        }
        EXPECT_EQ(cpu::pack_weight(dirty.view()).codes, cpu::pack_weight(clean.view()).codes);
        EXPECT_EQ(cpu::pack_weight(dirty.view()).block_scales, cpu::pack_weight(clean.view()).block_scales);
    }
}

}  // namespace halfbyte::test
