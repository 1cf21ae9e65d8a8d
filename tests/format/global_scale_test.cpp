#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>

#include "format/dynamic_scale.h"
#include "halfbyte/nvfp4.h"
#include "support/random.h"
#include "support/throws.h"

namespace halfbyte {
namespace {

TEST(GlobalScale, AWordIsKeptAndTheOtherSenseIsItsRoundedReciprocal) {
    for (const float word :
         {1.0f, 3584.0f, 22016.0f, 12343.1035f, std::bit_cast<float>(0x39924925u), 0x1p-126f, 0x1p126f}) {
        EXPECT_EQ(EncodeScale(word).word(), word);
        EXPECT_EQ(EncodeScale(word).encode(), word);
        EXPECT_EQ(EncodeScale(word).decode(), float(1.0 / double(word)));
        EXPECT_EQ(DecodeScale(word).word(), word);
        EXPECT_EQ(DecodeScale(word).decode(), word);
        EXPECT_EQ(DecodeScale(word).encode(), float(1.0 / double(word)));
    }
}

TEST(GlobalScale, FromAmaxPutsTheLargestBlockScaleOn448) {
    EXPECT_EQ(EncodeScale::from_amax(0.75f).word(), 3584.0f);
    EXPECT_EQ(std::bit_cast<uint32_t>(DecodeScale::from_amax(0.75f).word()), 0x39924925u);
    EXPECT_EQ(EncodeScale::from_amax(2.0f).word(), 1344.0f);
    EXPECT_EQ(std::bit_cast<uint32_t>(DecodeScale::from_amax(2.0f).word()), 0x3A430C31u);
    EXPECT_EQ(EncodeScale::from_amax(0.0f).word(), 1.0f);
    EXPECT_EQ(DecodeScale::from_amax(0.0f).word(), 1.0f);
    test::Random random(1);
    for (int i = 0; i < 10000; i++) {
        const float amax = std::ldexp(random.uniform(1, 2), int(random.below(200)) - 100);
        ASSERT_EQ(EncodeScale::from_amax(amax).word(), float(2688.0 / double(amax)));
        ASSERT_EQ(DecodeScale::from_amax(amax).word(), float(double(amax) / 2688.0));
    }
}

// For these amax the two kinds of file encode with multipliers that differ in the last bit: the type says
// which is meant.
TEST(GlobalScale, TheTwoSensesOfOneAmaxCanDifferInTheLastBit) {
    for (const float amax : {0.5078125f, 0.51171875f, 0.515625f}) {
        const EncodeScale g = EncodeScale::from_amax(amax);
        const DecodeScale d = DecodeScale::from_amax(amax);
        const int64_t ulps =
            std::abs(int64_t(std::bit_cast<uint32_t>(g.encode())) - std::bit_cast<uint32_t>(d.encode())) +
            std::abs(int64_t(std::bit_cast<uint32_t>(g.decode())) - std::bit_cast<uint32_t>(d.decode()));
        EXPECT_GE(ulps, 1) << amax;
        EXPECT_LE(ulps, 2) << amax;
    }
}

TEST(GlobalScale, RefusesWhatIsNotFiniteAndPositiveInBothSenses) {
    const float reciprocal_overflows = 0x1p-128f;  // 1 / 2^-128 is beyond FP32
    for (const float word :
         {0.0f, -0.0f, -1.0f, INFINITY, -INFINITY, NAN, FLT_TRUE_MIN, reciprocal_overflows}) {
        EXPECT_TRUE(test::throws(ErrorKind::malformed, "(encode)", [&] { EncodeScale scale(word); })) << word;
        EXPECT_TRUE(test::throws(ErrorKind::malformed, "(decode)", [&] { DecodeScale scale(word); })) << word;
    }
    EXPECT_NO_THROW(EncodeScale(FLT_MAX));  // 1 / FLT_MAX is subnormal, and kept
}

TEST(GlobalScale, RefusesAnAmaxThatHasNoScale) {
    for (const float amax : {2e-39f, INFINITY, NAN, -1.0f}) {  // 2688 / 2e-39 is beyond FP32
        EXPECT_TRUE(test::throws(ErrorKind::malformed, "finite and positive", [&] {
            EncodeScale::from_amax(amax);
        })) << amax;
        EXPECT_TRUE(test::throws(ErrorKind::malformed, "finite and positive", [&] {
            DecodeScale::from_amax(amax);
        })) << amax;
    }
}

TEST(DynamicScale, IsTheEncodeScaleAndHasAValueForEveryAmax) {
    test::Random random(2);
    for (int i = 0; i < 10000; i++) {
        const float amax = std::ldexp(random.uniform(1, 2), int(random.below(200)) - 100);
        ASSERT_EQ(dynamic_encode_scale(amax), EncodeScale::from_amax(amax).encode());
    }
    EXPECT_EQ(dynamic_encode_scale(0.0f), 1.0f);
    EXPECT_EQ(dynamic_encode_scale(FLT_MAX), float(2688.0 / double(FLT_MAX)));
    EXPECT_EQ(dynamic_encode_scale(FLT_TRUE_MIN), FLT_MAX);
    // 2688 / FLT_MAX = 0x1.5p11 / 2^128 = 0x1.5p-117: the last amax whose quotient is rounded to infinity
    // lies below.
    const float edge = 0x1.5p-117f;
    EXPECT_EQ(dynamic_encode_scale(std::nextafter(edge, 0.0f)), FLT_MAX);
    EXPECT_EQ(dynamic_encode_scale(edge), FLT_MAX);  // 2^128, infinity before the minimum
    EXPECT_LT(dynamic_encode_scale(std::nextafter(edge, 1.0f)), FLT_MAX);
    EXPECT_EQ(1.0f / FLT_MAX, 0x1p-128f);
}

}  // namespace
}  // namespace halfbyte
