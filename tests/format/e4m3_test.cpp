#include "format/e4m3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/safetensors_file.h"

namespace halfbyte {
namespace {

// The definition: sign, exponent of bias 7, three mantissa bits; 0x7F and 0xFF are NaN.
double value_of(int byte) {
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    if ((byte & 0x7F) == 0x7F) return NAN;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return byte & 0x80 ? -magnitude : magnitude;
}

// The nearest of all values up to 448, the even byte at a tie, then the sign.
uint8_t nearest_byte(float value) {
    static const auto magnitudes = [] {
        std::vector<double> all;
        for (int byte = 0; byte <= 0x7E; byte++) all.push_back(value_of(byte));
        return all;
    }();
    const double magnitude = std::min(std::fabs(double(value)), 448.0);
    const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), magnitude);
    int best = int(above - magnitudes.begin());
    if (best > 0) {
        const double up = magnitudes[size_t(best)] - magnitude,
                     down = magnitude - magnitudes[size_t(best - 1)];
        if (down < up || (down == up && best % 2 == 1)) best--;
    }
    return uint8_t(best | (std::signbit(value) ? 0x80 : 0));
}

TEST(E4m3, All256BytesHaveTheirValueAndComeBack) {
    for (int byte = 0; byte < 256; byte++) {
        const float value = decode_e4m3(uint8_t(byte));
        if ((byte & 0x7F) == 0x7F) {
            EXPECT_TRUE(std::isnan(value)) << byte;
            continue;
        }
        EXPECT_EQ(double(value), value_of(byte)) << byte;
        EXPECT_EQ(std::signbit(value), byte >= 0x80) << byte;
        EXPECT_EQ(encode_e4m3(value), byte);
    }
}

TEST(E4m3, HasTheValuesOfTheReportedCases) {
    EXPECT_EQ(decode_e4m3(0x01), 0x1p-9f);
    EXPECT_EQ(decode_e4m3(0x07), 0.013671875f);
    EXPECT_EQ(decode_e4m3(0x08), 0x1p-6f);
    EXPECT_EQ(decode_e4m3(0x38), 1.0f);
    EXPECT_EQ(decode_e4m3(0x7E), 448.0f);
}

TEST(E4m3, AgreesWithMlDtypes) {
    const test::SafetensorsFile golden(test::golden_path("number_formats.safetensors"));
    const auto values = golden["e4m3.decode"].as<float>();
    ASSERT_EQ(values.size(), 256u);
    for (size_t byte = 0; byte < 256; byte++) {
        const float value = decode_e4m3(uint8_t(byte));
        if (std::isnan(values[byte]))
            EXPECT_TRUE(std::isnan(value)) << byte;
        else
            EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(values[byte])) << byte;
    }
    const auto inputs = golden["e4m3.encode_input"].as<float>();
    const auto bytes = golden["e4m3.encode_saturating"].as<uint8_t>();
    const auto unclipped = golden["e4m3.encode_ml_dtypes"].as<uint8_t>();
    ASSERT_EQ(inputs.size(), bytes.size());
    ASSERT_GT(inputs.size(), 5000u);
    for (size_t i = 0; i < inputs.size(); i++) {
        ASSERT_EQ(encode_e4m3(inputs[i]), bytes[i]) << std::hexfloat << inputs[i];
        if (std::fabs(inputs[i]) <= 464) {
            ASSERT_EQ(bytes[i], unclipped[i]) << inputs[i];
        }
    }
}

TEST(E4m3, EncodesTheNearestValue) {
    for (uint32_t upper = 0; upper < 65536; upper++) {
        for (const uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0xFFFFu}) {
            const float value = std::bit_cast<float>(upper << 16 | lower);
            if (std::isnan(value)) continue;
            ASSERT_EQ(encode_e4m3(value), nearest_byte(value)) << std::hexfloat << value;
        }
    }
}

TEST(E4m3, SaturatesAndNeverMakesANumberANaN) {
    for (const float value : {448.0f, 464.0f, 480.0f, 3.4e38f, INFINITY}) {
        EXPECT_EQ(encode_e4m3(value), 0x7E);
        EXPECT_EQ(encode_e4m3(-value), 0xFE);
    }
    EXPECT_EQ(encode_e4m3(NAN), 0x7F);
    EXPECT_EQ(encode_e4m3(-NAN) & 0x7F, 0x7F);
}

TEST(E4m3, TheSmallestResultIsAtTheTieOfZeroAndTheStep) {
    EXPECT_EQ(encode_e4m3(0x1p-10f), 0x00);
    EXPECT_EQ(encode_e4m3(0x1.000002p-10f), 0x01);
    EXPECT_EQ(encode_e4m3(-0x1p-10f), 0x80);
    EXPECT_EQ(encode_e4m3(-0.0f), 0x80);
    EXPECT_EQ(encode_e4m3(0x1p-149f), 0x00);
}

}  // namespace
}  // namespace halfbyte
