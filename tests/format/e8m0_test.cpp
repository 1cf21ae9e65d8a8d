#include "format/e8m0.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "support/random.h"
#include "support/safetensors_file.h"

namespace halfbyte {
namespace {

TEST(E8m0, All256BytesArePowersOfTwoAndAgreeWithMlDtypes) {
    const test::SafetensorsFile golden(test::golden_path("number_formats.safetensors"));
    const auto values = golden["e8m0.decode"].as<float>();
    ASSERT_EQ(values.size(), 256u);
    for (int byte = 0; byte < 255; byte++) {
        EXPECT_EQ(double(decode_e8m0(uint8_t(byte))), std::ldexp(1.0, byte - 127)) << byte;
        EXPECT_EQ(decode_e8m0(uint8_t(byte)), values[size_t(byte)]) << byte;
    }
    EXPECT_TRUE(std::isnan(decode_e8m0(255)));
    EXPECT_TRUE(std::isnan(values[255]));
}

// The definition in words: the exponent of amax, one more from 1.75 times its power of two on, less the two
// binades that the code 6 lies above the scale.
int byte_for(float amax) {
    if (amax < FLT_MIN) return 0;
    const int exponent = std::ilogb(amax);
    const double significand = std::ldexp(double(amax), -exponent);
    return std::max(0, exponent + 127 + (significand >= 1.75 ? 1 : 0) - 2);
}

TEST(E8m0, TheScaleStepsUpAt1Point75OfEveryBinade) {
    for (int exponent = -126; exponent <= 127; exponent++) {
        for (const double significand : {1.0, 1.5, 1.75}) {
            const float step = float(std::ldexp(significand, exponent));
            const float below = std::nextafter(step, 0.0f), above = std::nextafter(step, INFINITY);
            for (const float amax : {below, step, above})
                EXPECT_EQ(encode_e8m0_for_amax(amax), byte_for(amax)) << std::hexfloat << amax;
        }
    }
    EXPECT_EQ(encode_e8m0_for_amax(1.0f), 125);                         // scale 1/4, 1 is code 6 (4.0)
    EXPECT_EQ(encode_e8m0_for_amax(std::nextafter(1.75f, 0.0f)), 125);  // 7 of the scale: clips to 6
    EXPECT_EQ(encode_e8m0_for_amax(1.75f), 126);
}

TEST(E8m0, TheLargestMagnitudeIs3Point5To7TimesTheScale) {
    test::Random random(1);
    for (int i = 0; i < 100000; i++) {
        const float amax = std::bit_cast<float>(random.bits() & 0x7FFFFFFF);
        if (!std::isfinite(amax) || amax < 0x1p-124f) continue;
        const double ratio = double(amax) / double(decode_e8m0(encode_e8m0_for_amax(amax)));
        ASSERT_GE(ratio, 3.5) << amax;
        ASSERT_LT(ratio, 7.0) << amax;
    }
}

TEST(E8m0, ZeroSubnormalsAndTheLargestValueStayInRange) {
    EXPECT_EQ(encode_e8m0_for_amax(0.0f), 0);
    EXPECT_EQ(encode_e8m0_for_amax(FLT_TRUE_MIN), 0);
    EXPECT_EQ(encode_e8m0_for_amax(std::nextafter(FLT_MIN, 0.0f)), 0);
    EXPECT_EQ(encode_e8m0_for_amax(0x1p-125f), 0);
    EXPECT_EQ(encode_e8m0_for_amax(0x1p-124f), 1);
    EXPECT_EQ(encode_e8m0_for_amax(FLT_MAX), 253);
    EXPECT_EQ(encode_e8m0_for_amax(INFINITY), 253);
    EXPECT_EQ(encode_e8m0_for_amax(std::bit_cast<float>(0x7FFFFFFFu)), 254);  // never 255, the NaN
}

}  // namespace
}  // namespace halfbyte
