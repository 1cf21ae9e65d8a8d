#include "format/scale_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "format/packed_weight.h"
#include "support/safetensors_file.h"

namespace halfbyte {
namespace {

constexpr ScaleLayout layouts[] = {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4};

TEST(ScaleLayout, AgreesWithTheGoldenBuffersOfEveryLayout) {
    const test::SafetensorsFile golden(test::golden_path("scale_layouts.safetensors"));
    const auto names = golden.cases(".linear");
    ASSERT_EQ(names.size(), 7u);
    for (const std::string& name : names) {
        const auto& linear = golden[name + ".linear"];
        const auto scales = linear.as<uint8_t>();
        const int64_t rows = linear.shape[0], blocks = linear.shape[1];
        for (const auto& [layout, part] : {std::pair(ScaleLayout::tiled_128x4, ".tiled_128x4"),
                                           std::pair(ScaleLayout::tiled_8x4, ".tiled_8x4")}) {
            const auto expected = golden[name + part].as<uint8_t>();
            const auto offsets = golden[name + part + ".offset"].as<int32_t>();
            std::vector<uint8_t> buffer(size_t(scale_buffer_bytes(layout, rows, blocks)));
            for (int64_t row = 0; row < rows; row++) {
                for (int64_t block = 0; block < blocks; block++) {
                    const int64_t offset = scale_offset(layout, row, block, blocks), i = row * blocks + block;
                    ASSERT_EQ(offset, offsets[size_t(i)]) << name << part << " " << row << " " << block;
                    ASSERT_EQ(scale_offset(ScaleLayout::linear, row, block, blocks), i);
                    buffer[size_t(offset)] = scales[size_t(i)];
                }
            }
            EXPECT_EQ(buffer, expected) << name << part;
        }
    }
}

TEST(ScaleLayout, PlacesTheReportedExamples) {
    const struct {
        int64_t row, block, offset;
    } examples[] = {{0, 0, 0},     {1, 0, 16},  {31, 3, 499},   {32, 0, 4},
                    {127, 3, 511}, {0, 4, 512}, {128, 0, 1024}, {129, 4, 1552}};
    for (const auto& [row, block, offset] : examples) {
        EXPECT_EQ(scale_offset(ScaleLayout::tiled_128x4, row, block, 5), offset) << row << ", " << block;
        EXPECT_EQ(scale_position(ScaleLayout::tiled_128x4, offset, 5), (ScalePosition{row, block}));
    }
    EXPECT_EQ(NvFp4Shape::of(130, 80, ScaleLayout::tiled_128x4).scale_bytes(), 2048);
}

TEST(ScaleLayout, BuffersHaveTheReportedSizes) {
    const struct {
        int64_t rows, k, bytes, live, padded_k;
    } table[] = {{128, 48, 512, 384, 64},
                 {128, 80, 1024, 640, 96},
                 {150, 48, 1024, 450, 64},
                 {150, 80, 2048, 750, 96},
                 {64, 7152, 57344, 28608, 7168},
                 {33, 16, 512, 33, 32},
                 {1, 16, 512, 1, 32},
                 {0, 64, 0, 0, 64},
                 {17, 1856, 14848, 1972, 1856}};
    for (const auto& [rows, k, bytes, live, padded_k] : table) {
        NvFp4Shape shape = NvFp4Shape::of(rows, k, ScaleLayout::tiled_128x4);
        EXPECT_EQ(shape.scale_bytes(), bytes) << rows << " x " << k;
        EXPECT_EQ(shape.rows * shape.blocks(), live) << rows << " x " << k;
        shape.padded_k = padded_k;  // K padded for the matrix unit fills the same tiles
        EXPECT_EQ(shape.scale_bytes(), bytes) << rows << " x " << k;
    }
}

TEST(NvFp4Shape, RoundsKUpToWholeBlocks) {
    const NvFp4Shape shape = NvFp4Shape::of(3, 17);
    EXPECT_EQ(shape, (NvFp4Shape{3, 17, 3, 32, ScaleLayout::linear}));
    EXPECT_EQ(shape.blocks(), 2);
    EXPECT_EQ(shape.code_bytes(), 48);
    EXPECT_EQ(shape.scale_bytes(), 6);
    EXPECT_EQ(NvFp4Shape::of(0, 0).code_bytes(), 0);
    EXPECT_EQ(NvFp4Shape::of(5, 0, ScaleLayout::tiled_8x4).scale_bytes(), 0);
    const NvFp4Shape large = NvFp4Shape::of(int64_t(1) << 20, int64_t(1) << 20);  // 64-bit sizes
    EXPECT_EQ(large.code_bytes(), int64_t(1) << 39);
    EXPECT_EQ(large.scale_bytes(), int64_t(1) << 36);
}

// Both maps together are the identity, in both directions, and no two scales share a byte.
RC_GTEST_PROP(ScaleLayout, TheMapAndItsInverseAreBijections, ()) {
    const auto rows = *rc::gen::inRange<int64_t>(1, 300), blocks = *rc::gen::inRange<int64_t>(1, 40);
    for (const ScaleLayout layout : layouts) {
        const int64_t size = scale_buffer_bytes(layout, rows, blocks);
        std::vector<bool> used(static_cast<size_t>(size));
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t block = 0; block < blocks; block++) {
                const int64_t offset = scale_offset(layout, row, block, blocks);
                RC_ASSERT(offset >= 0 && offset < size);
                RC_ASSERT(!used[size_t(offset)]);
                used[size_t(offset)] = true;
                RC_ASSERT((scale_position(layout, offset, blocks) == ScalePosition{row, block}));
            }
        }
        for (int64_t offset = 0; offset < size; offset++) {
            const ScalePosition place = scale_position(layout, offset, blocks);
            RC_ASSERT(scale_offset(layout, place.row, place.block, blocks) == offset);
            RC_ASSERT((place.row < rows && place.block < blocks) == used[size_t(offset)]);
        }
    }
}

RC_GTEST_PROP(PackedWeight, EveryCodeAndScaleHasAPlaceOfItsOwn, ()) {
    const auto n = *rc::gen::inRange<int64_t>(1, 70), k = *rc::gen::inRange<int64_t>(1, 200);
    PackedWeight w{.n = n, .k = k, .codes = {}, .block_scales = {}};
    const int64_t rows = w.tiles() * packed_tile_rows;
    std::vector<int> codes(size_t(rows * w.blocks() * 8)), scales(size_t(rows * w.blocks()));
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < w.blocks() * 16; i++)
            codes.at(size_t(packed_code_byte(w.blocks(), row, i))) += i % 2 == 0 ? 1 : 16;
        for (int64_t block = 0; block < w.blocks(); block++)
            scales.at(size_t(packed_scale_byte(w.blocks(), row, block)))++;
    }
    RC_ASSERT(std::all_of(codes.begin(), codes.end(), [](int count) { return count == 17; }));
    RC_ASSERT(std::all_of(scales.begin(), scales.end(), [](int count) { return count == 1; }));
}

}  // namespace
}  // namespace halfbyte
