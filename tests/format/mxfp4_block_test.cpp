// The MXFP4 block rule against an oracle in double, where v / 2^(byte - 127) and every midpoint are exact.
#include "format/mxfp4_block.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <vector>

#include "halfbyte/operations.h"
#include "support/random.h"

namespace halfbyte {
namespace {

constexpr double midpoints[7] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
constexpr bool up_at_tie[7] = {false, true, false, true, false, true, false};

uint8_t exact_code(float v, int byte) {
    const double quotient = std::ldexp(std::fabs(double(v)), 127 - byte);
    int code = 0;
    for (int i = 0; i < 7; i++) code += quotient > midpoints[i] || (quotient == midpoints[i] && up_at_tie[i]);
    return uint8_t(code | (std::signbit(v) ? 8 : 0));
}

struct Block {
    uint8_t byte;
    uint8_t codes[32];
};

Block quantize(std::vector<float> values) {
    Block block;
    values.resize(32);
    block.byte = quantize_mxfp4_block(values.data(), block.codes);
    return block;
}

float moved(float value, int ulps) {
    return std::bit_cast<float>(uint32_t(int64_t(std::bit_cast<uint32_t>(value)) + ulps));
}

// Every byte whose midpoints FP32 holds: all but 253, where the last one is above FLT_MAX. 4 times the scale
// is an amax that gives the byte.
TEST(Mxfp4Block, EveryMidpointOfEveryScaleAndItsNeighboursRoundExactly) {
    for (int byte = 0; byte <= 252; byte++) {
        for (int ulps = -3; ulps <= 3; ulps++) {
            std::vector<float> values = {float(std::ldexp(4.0, byte - 127))};
            for (const double midpoint : midpoints) {
                const float v = moved(float(std::ldexp(midpoint, byte - 127)), ulps);
                values.push_back(v);
                values.push_back(-v);
            }
            const Block block = quantize(values);
            ASSERT_EQ(block.byte, byte);
            for (size_t i = 0; i < values.size(); i++)
                ASSERT_EQ(block.codes[i], exact_code(values[i], block.byte))
                    << "byte " << byte << std::hexfloat << ", v " << values[i];
        }
    }
}

TEST(Mxfp4Block, RandomBitsRoundExactly) {
    test::Random random(1);
    for (int round = 0; round < 20000; round++) {
        std::vector<float> values;
        const int64_t exponent = random.below(250);
        for (int i = 0; i < 32; i++) {
            const uint32_t place = uint32_t(exponent + random.below(5));
            values.push_back(std::bit_cast<float>((random.bits() & 0x807FFFFF) | place << 23));
        }
        const Block block = quantize(values);
        for (size_t i = 0; i < 32; i++)
            ASSERT_EQ(block.codes[i], exact_code(values[i], block.byte)) << std::hexfloat << values[i];
    }
}

TEST(Mxfp4Block, AmaxIsFrom3Point5To7ScalesAndClipsAt6) {
    const Block below = quantize({1.0f, std::nextafter(1.75f, 0.0f)}), at = quantize({1.0f, 1.75f});
    EXPECT_EQ(below.byte, 125);
    EXPECT_EQ(below.codes[0], 6);  // 4
    EXPECT_EQ(below.codes[1], 7);  // 7 - u clips to 6
    EXPECT_EQ(at.byte, 126);
    EXPECT_EQ(at.codes[0], 4);  // 2
    EXPECT_EQ(at.codes[1], 6);  // 3.5: the tie goes to 4
}

TEST(Mxfp4Block, ZerosKeepTheirSignsAndByte0) {
    const Block block = quantize({0.0f, -0.0f});
    EXPECT_EQ(block.byte, 0);
    EXPECT_EQ(block.codes[0], 0);
    EXPECT_EQ(block.codes[1], 8);
    for (int i = 2; i < 32; i++) EXPECT_EQ(block.codes[i], 0);
}

// Byte 0 is 2^-127; its reciprocal 2^127 times a subnormal is exact.
TEST(Mxfp4Block, SubnormalsAreQuantisedWithByte0) {
    const Block block = quantize({0x1p-127f, -0x1.8p-127f, 0x1p-149f, 0x1p-129f, 0x1.8p-129f, 0x1p-126f});
    EXPECT_EQ(block.byte, 0);
    const uint8_t expected[] = {2, 11, 0, 0, 1, 4};  // 1, -1.5, 2^-22, 0.25 down, 0.375 up, 2
    for (int i = 0; i < 6; i++) EXPECT_EQ(block.codes[i], expected[i]) << i;
}

TEST(Mxfp4Block, TheLargestValuesDoNotOverflow) {
    const Block block = quantize({FLT_MAX, -FLT_MAX, 0x1p127f, 0x1p-149f, -0x1p-149f});
    EXPECT_EQ(block.byte, 253);
    const uint8_t expected[] = {6, 14, 4, 0, 8};  // 4, -4, 2, and what underflows keeps its sign
    for (int i = 0; i < 5; i++) EXPECT_EQ(block.codes[i], expected[i]) << i;
}

TEST(Mxfp4Block, AnInfinityMakesTheLargestByteAndIsClipped) {
    const Block block = quantize({INFINITY, -INFINITY, FLT_MAX, 1.0f, -1.0f});
    EXPECT_EQ(block.byte, 253);
    const uint8_t expected[] = {7, 15, 6, 0, 8};
    for (int i = 0; i < 5; i++) EXPECT_EQ(block.codes[i], expected[i]) << i;
}

TEST(Mxfp4Block, ANaNIsCode7AndLeavesTheOthersAlone) {
    const float negative_nan = std::bit_cast<float>(0xFFC00000u);
    const Block plain = quantize({1.0f, -0.5f, 0.0f, 0.0f}),
                block = quantize({1.0f, -0.5f, NAN, negative_nan});
    EXPECT_EQ(block.byte, plain.byte);
    EXPECT_EQ(block.codes[0], plain.codes[0]);
    EXPECT_EQ(block.codes[1], plain.codes[1]);
    EXPECT_EQ(block.codes[2], 7);
    EXPECT_EQ(block.codes[3], 7);
    const Block all = quantize(std::vector<float>(32, NAN));
    EXPECT_EQ(all.byte, 0);
    for (const uint8_t code : all.codes) EXPECT_EQ(code, 7);
}

TEST(Mxfp4Shape, PadsKTo32AndSizesEveryLayout) {
    const MxFp4Shape shape = MxFp4Shape::of(150, 65);
    EXPECT_EQ(shape.padded_rows, 150);
    EXPECT_EQ(shape.padded_k, 96);
    EXPECT_EQ(shape.blocks(), 3);
    EXPECT_EQ(shape.padded_blocks(), 3);
    EXPECT_EQ(shape.code_bytes(), 150 * 48);
    EXPECT_EQ(shape.scale_bytes(), 450);
    EXPECT_EQ(MxFp4Shape::of(150, 65, ScaleLayout::tiled_128x4).scale_bytes(), 256 * 4);
    EXPECT_EQ(MxFp4Shape::of(150, 129, ScaleLayout::tiled_8x4).scale_bytes(), 152 * 8);
    EXPECT_EQ(MxFp4Shape::of(0, 0).scale_bytes(), 0);
}

}  // namespace
}  // namespace halfbyte
