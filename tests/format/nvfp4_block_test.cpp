// The block rule against an oracle in double, where every product of an E4M3 scale and a midpoint, and every
// FP32 value, is exact.
#include "format/nvfp4_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "core/float16.h"
#include "support/random.h"
#include "support/safetensors_file.h"

namespace halfbyte {
namespace {

constexpr double midpoints[7] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
constexpr bool up_at_tie[7] = {false, true, false, true, false, true, false};

// The code of y / SF by comparing |y| with SF times each midpoint.
uint8_t exact_code(float y, float SF) {
    int code = 0;
    for (int i = 0; i < 7; i++) {
        const double edge = double(SF) * midpoints[i], magnitude = std::fabs(double(y));
        code += magnitude > edge || (magnitude == edge && up_at_tie[i]);
    }
    return uint8_t(code | (std::signbit(y) ? 8 : 0));
}

struct Block {
    uint8_t scale;
    uint8_t codes[16];
    QuantizeStats stats;
};

Block quantize(std::vector<float> values, float G, Rounding rounding = Rounding::contract) {
    Block block;
    values.resize(16);
    block.scale = quantize_nvfp4_block(values.data(), G, rounding, block.codes, &block.stats);
    return block;
}

// `value` moved by a number of FP32 units.
float moved(float value, int ulps) {
    return std::bit_cast<float>(uint32_t(int64_t(std::bit_cast<uint32_t>(value)) + ulps));
}

// All 126 scales, 7 midpoints, -3 to +3 ulp, both signs; G a power of two keeps y = fl(v * G) at that place
// exactly.
TEST(Nvfp4Block, EveryMidpointOfEveryScaleAndItsNeighboursRoundExactly) {
    int64_t points = 0;
    for (const float G : {1.0f, 0x1p-20f, 0x1p30f}) {
        for (int byte = 1; byte <= 0x7E; byte++) {
            const float SF = decode_e4m3(uint8_t(byte));
            for (int ulps = -3; ulps <= 3; ulps++) {
                std::vector<float> values = {6 * SF / G};  // fixes the block's scale
                for (const double midpoint : midpoints)
                    values.push_back(moved(float(double(SF) * midpoint), ulps) / G);
                for (int i = 0; i < 8; i++) values.push_back(-values[size_t(i)]);
                const Block block = quantize(values, G);
                ASSERT_EQ(block.scale, byte);
                for (size_t i = 0; i < 16; i++, points++)
                    ASSERT_EQ(block.codes[i], exact_code(values[i] * G, SF))
                        << "scale " << byte << ", ulp " << ulps << ", value " << std::hexfloat << values[i];
                ASSERT_EQ(block.stats.clipped, 0);
            }
        }
    }
    EXPECT_EQ(points, 3 * 126 * 7 * 16);
}

// Single values that a multiplication by 1/SF rounds wrongly, and an exact tie.
TEST(Nvfp4Block, RoundsTheReportedCasesRight) {
    const struct {
        uint8_t byte;
        float value;
        uint8_t code;
    } cases[] = {{0x07, 0x1.87fffep-6f, 3},
                 {0x07, 0x1.87fffep-5f, 5},
                 {0x0E, 0x1.87fffep-5f, 3},
                 {0x0F, 0x1.67fffep-6f, 1},
                 {0x0F, 0x1.2cp-5f, 2}};
    for (const auto& [byte, value, code] : cases) {
        const Block block = quantize({6 * decode_e4m3(byte), value, -value}, 1.0f);
        EXPECT_EQ(block.scale, byte);
        EXPECT_EQ(block.codes[1], code) << std::hexfloat << value;
        EXPECT_EQ(block.codes[2], code | 8) << std::hexfloat << value;
    }
}

// Each FP32 operation once, by rounding the exact double product.
void expect_four_steps(const std::vector<float>& values, float G) {
    float amax = 0;
    for (const float value : values) amax = std::max(amax, std::fabs(value));
    const float a = float(double(amax) * double(std::bit_cast<float>(0x3E2AAAABu)));
    const float s = float(double(G) * double(a));
    const Block block = quantize(values, G);
    ASSERT_EQ(block.scale, encode_e4m3(s)) << std::hexfloat << "amax " << amax << ", G " << G;
    const float SF = decode_e4m3(block.scale);
    for (size_t i = 0; i < values.size(); i++) {
        const float y = float(double(values[i]) * double(G));
        ASSERT_EQ(block.codes[i], SF == 0 ? uint8_t(std::signbit(y) ? 8 : 0) : exact_code(y, SF))
            << values[i];
    }
}

TEST(Nvfp4Block, RandomBlocksFollowTheFourSteps) {
    test::Random random(1);
    for (int round = 0; round < 20000; round++) {
        const float G = std::ldexp(random.uniform(1, 2), int(random.below(40)) - 20);
        const float size = std::ldexp(1.0f, int(random.below(24)) - 12);
        std::vector<float> values;
        for (int i = 0; i < 16; i++) values.push_back(random.normal() * size / G);
        expect_four_steps(values, G);
    }
}

// amax such that s lies at, or within a few units of, the midpoint of two block scales: here the order in
// which 1/6 and G are multiplied decides the byte.
TEST(Nvfp4Block, TheOrderOfTheScalesProductsDecidesAtMidpoints) {
    test::Random random(2);
    int64_t other_order = 0, division = 0;
    for (int round = 0; round < 20000; round++) {
        const float G = std::ldexp(random.uniform(1, 2), int(random.below(40)) - 20);
        const auto byte = uint8_t(random.below(0x7E));
        const double midpoint = (double(decode_e4m3(byte)) + double(decode_e4m3(uint8_t(byte + 1)))) / 2;
        const float amax = moved(float(6 * midpoint / double(G)), int(random.below(5)) - 2);
        expect_four_steps({amax, amax / 3, -amax / 7}, G);
        const uint8_t scale = quantize({amax}, G).scale;
        other_order += scale != encode_e4m3((G * amax) * one_sixth);
        division += scale != encode_e4m3(G * (amax / 6.0f));
    }
    EXPECT_GT(other_order, 100);
    EXPECT_GT(division, 100);
}

TEST(Nvfp4Block, VllmOrderReproducesItsGoldenCodes) {
    const test::SafetensorsFile golden(test::golden_path("nvfp4.safetensors"));
    int64_t blocks = 0;
    for (const std::string& name : golden.cases(".vllm_order.codes")) {
        const auto input = golden[name + ".input"].as<uint16_t>();
        const auto codes = golden[name + ".vllm_order.codes"].as<uint8_t>();
        const auto scales = golden[name + ".contract.block_scale"].as<uint8_t>();
        const float G = golden[name + ".contract.encode_scale"].as<float>()[0];
        for (size_t b = 0; b < scales.size(); b++, blocks++) {
            std::vector<float> values;
            for (size_t i = 0; i < 16; i++) values.push_back(to_float(BFloat16{input[b * 16 + i]}));
            const Block block = quantize(values, G, Rounding::vllm);
            ASSERT_EQ(block.scale, scales[b]) << name;
            for (size_t i = 0; i < 8; i++)
                ASSERT_EQ(block.codes[2 * i] | block.codes[2 * i + 1] << 4, codes[b * 8 + i])
                    << name << ", block " << b;
        }
    }
    EXPECT_GT(blocks, 15000);
}

TEST(Nvfp4Block, AZeroBlockKeepsTheSignsOfItsZeros) {
    const Block block = quantize({0.0f, -0.0f}, 100.0f);
    EXPECT_EQ(block.scale, 0);
    EXPECT_EQ(block.codes[0], 0);
    EXPECT_EQ(block.codes[1], 8);
    EXPECT_EQ(block.stats,
              (QuantizeStats{.values = 0, .blocks = 1}));  // zeros are not flushed, they are zero
}

TEST(Nvfp4Block, ASmallBlockIsFlushedAndCounted) {
    const Block flushed = quantize({0.005859375f, -0.001f}, 1.0f);
    EXPECT_EQ(flushed.scale, 0x00);
    EXPECT_EQ(flushed.codes[0], 0);
    EXPECT_EQ(flushed.codes[1], 8);
    EXPECT_EQ(flushed.stats.flushed, 1);
    const Block kept = quantize({0.005889892578125f}, 1.0f);  // the next BF16 value
    EXPECT_EQ(kept.scale, 0x01);
    EXPECT_EQ(kept.stats.flushed, 0);
}

TEST(Nvfp4Block, ALargeBlockSaturatesAndItsClippedValuesAreCounted) {
    const Block block = quantize({3000.0f, -2689.0f, 2688.0f, 1.0f}, 1.0f);
    EXPECT_EQ(block.scale, 0x7E);
    EXPECT_EQ(block.codes[0], 7);
    EXPECT_EQ(block.codes[1], 15);
    EXPECT_EQ(block.codes[2], 7);
    EXPECT_EQ(block.stats.clipped, 2);
    EXPECT_EQ(quantize({2688.0f}, 1.0f).stats.clipped, 0);
    EXPECT_EQ(quantize({FLT_MAX}, FLT_MAX).scale, 0x7E);  // overflow to infinity saturates as well
    EXPECT_EQ(quantize({FLT_MAX}, FLT_MAX).codes[0], 7);
}

// A scale rounded down leaves 6 a little below |y| / SF: not clipping, only rounding.
TEST(Nvfp4Block, RoundingOfTheScaleIsNotClipping) {
    const Block block = quantize({6.3f}, 1.0f);
    EXPECT_EQ(block.scale, 0x38);
    EXPECT_EQ(block.codes[0], 7);
    EXPECT_EQ(block.stats.clipped, 0);
}

TEST(Nvfp4Block, ANaNIsCode7AndAddsNothingToAmax) {
    for (const float nan : {NAN, -NAN}) {
        const Block with = quantize({6.0f, nan, -1.0f}, 1.0f), without = quantize({6.0f, 0.0f, -1.0f}, 1.0f);
        EXPECT_EQ(with.scale, without.scale);
        EXPECT_EQ(with.codes[1], 7);
        EXPECT_EQ(with.codes[2], without.codes[2]);
        EXPECT_EQ(with.stats.non_finite, 1);
    }
    const Block all = quantize(std::vector<float>(16, NAN), 1.0f);
    EXPECT_EQ(all.scale, 0);
    for (const uint8_t code : all.codes) EXPECT_EQ(code, 7);
    EXPECT_EQ(all.stats.non_finite, 16);
    EXPECT_EQ(all.stats.flushed, 0);
    EXPECT_EQ(quantize({NAN, 1.0f}, 1.0f, Rounding::vllm).codes[0], 7);
}

TEST(Nvfp4Block, AnInfinityMakesTheScale448AndGetsPlusOrMinus6) {
    const Block block = quantize({INFINITY, -INFINITY, 100.0f, -0.0f}, 1.0f);
    EXPECT_EQ(block.scale, 0x7E);
    EXPECT_EQ(block.codes[0], 7);
    EXPECT_EQ(block.codes[1], 15);
    EXPECT_EQ(block.codes[2], exact_code(100.0f, 448.0f));
    EXPECT_EQ(block.codes[3], 8);
    EXPECT_EQ(block.stats.non_finite, 2);
    EXPECT_EQ(block.stats.clipped, 2);
}

TEST(Nvfp4Block, CountsAddUpAndAreOptional) {
    QuantizeStats stats;
    uint8_t codes[16];
    const std::vector<float> values(16, NAN);
    for (int i = 0; i < 3; i++) quantize_nvfp4_block(values.data(), 1.0f, Rounding::contract, codes, &stats);
    quantize_nvfp4_block(values.data(), 1.0f, Rounding::contract, codes);
    EXPECT_EQ(stats.blocks, 3);
    EXPECT_EQ(stats.non_finite, 48);
}

}  // namespace
}  // namespace halfbyte
