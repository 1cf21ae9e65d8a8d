#include "format/e2m1.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/safetensors_file.h"

namespace halfbyte {
namespace {

// The definition: the nearest of the eight values, the even code at a tie, then the sign.
uint8_t nearest_code(float value) {
    const double magnitude = std::fmin(std::fabs(double(value)), 8.0);  // keeps the differences exact
    int best = 0;
    for (int code = 1; code < 8; code++) {
        const double here = std::fabs(magnitude - double(e2m1_values[code]));
        const double there = std::fabs(magnitude - double(e2m1_values[best]));
        if (here < there || (here == there && code % 2 == 0)) best = code;
    }
    return uint8_t(best | (std::signbit(value) ? 8 : 0));
}

TEST(E2m1, All16CodesHaveTheirValueAndComeBack) {
    const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint8_t code = 0; code < 16; code++) {
        const float value = decode_e2m1(code);
        EXPECT_EQ(std::fabs(value), magnitudes[code & 7]);
        EXPECT_EQ(std::signbit(value), code >= 8);
        EXPECT_EQ(encode_e2m1(value), code);
        EXPECT_EQ(std::bit_cast<uint32_t>(decode_e2m1(uint8_t(code | 0xA0))), std::bit_cast<uint32_t>(value));
    }
}

TEST(E2m1, AgreesWithMlDtypes) {
    const test::SafetensorsFile golden(test::golden_path("number_formats.safetensors"));
    const auto values = golden["e2m1.decode"].as<float>();
    ASSERT_EQ(values.size(), 16u);
    for (size_t code = 0; code < 16; code++)
        EXPECT_EQ(std::bit_cast<uint32_t>(decode_e2m1(uint8_t(code))), std::bit_cast<uint32_t>(values[code]))
            << code;
    const auto inputs = golden["e2m1.encode_input"].as<float>();
    const auto codes = golden["e2m1.encode"].as<uint8_t>();
    ASSERT_EQ(inputs.size(), codes.size());
    ASSERT_GT(inputs.size(), 4000u);
    for (size_t i = 0; i < inputs.size(); i++)
        ASSERT_EQ(encode_e2m1(inputs[i]), codes[i]) << std::hexfloat << inputs[i];
}

// Every sign, exponent and the upper mantissa bits, each at a representable midpoint and one unit beside it.
TEST(E2m1, EncodesTheNearestValue) {
    for (uint32_t upper = 0; upper < 65536; upper++) {
        for (const uint32_t lower : {0u, 1u, 0xFFFFu}) {
            const float value = std::bit_cast<float>(upper << 16 | lower);
            if (std::isnan(value)) continue;
            ASSERT_EQ(encode_e2m1(value), nearest_code(value)) << std::hexfloat << value;
        }
    }
}

TEST(E2m1, TiesGoToTheEvenCode) {
    const float midpoints[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const uint8_t codes[] = {0, 2, 2, 4, 4, 6, 6};
    for (int i = 0; i < 7; i++) {
        EXPECT_EQ(encode_e2m1(midpoints[i]), codes[i]);
        EXPECT_EQ(encode_e2m1(-midpoints[i]), codes[i] | 8);
    }
}

TEST(E2m1, SaturatesAndMakesEveryNaNCode7) {
    EXPECT_EQ(encode_e2m1(INFINITY), 7);
    EXPECT_EQ(encode_e2m1(-INFINITY), 15);
    EXPECT_EQ(encode_e2m1(1e30f), 7);
    for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu})
        EXPECT_EQ(encode_e2m1(std::bit_cast<float>(bits)), 7) << std::hex << bits;
}

}  // namespace
}  // namespace halfbyte
