#include "reference/exp.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "core/word_hash.h"

namespace halfbyte {
namespace {

int64_t ulps_between(float a, float b) {  // both >= 0: the order of the patterns is the order of the values
    return std::abs(int64_t(std::bit_cast<uint32_t>(a)) - int64_t(std::bit_cast<uint32_t>(b)));
}

// The double result is within 2^-52 of exp(x): rounding it gives the correctly rounded FP32 but for about one
// in 2^28.
float correctly_rounded(float x) {
    return float(std::exp(double(x)));
}

// Every exponent from 2^-149 to the ends, 2.3 million values of both signs.
TEST(Exp, IsAtMostOneUlpFromTheCorrectlyRoundedResult) {
    int64_t worst = 0, tried = 0;
    float worst_x = 0;
    for (const uint32_t sign : {0u, 0x80000000u}) {
        const uint32_t end = std::bit_cast<uint32_t>(sign ? 104.0f : reference::exp_overflow);
        for (uint32_t bits = 0; bits <= end; bits += 967) {
            const float x = std::bit_cast<float>(sign | bits);
            const int64_t ulps = ulps_between(reference::exp(x), correctly_rounded(x));
            if (ulps > worst) worst = ulps, worst_x = x;
            tried++;
        }
    }
    EXPECT_LE(worst, 1) << std::hexfloat << worst_x;
    EXPECT_GT(tried, 2000000);
}

// Where the argument reduction changes k, the subnormal results, and each end, value by value.
TEST(Exp, IsAtMostOneUlpOffAroundEveryHalfMultipleOfLn2) {
    for (int k = -150; k <= 127; k++) {
        const auto centre = float((k + 0.5) * 0.69314718055994530942);
        float x = centre;
        for (int i = 0; i < 50; i++) x = std::nextafter(x, -INFINITY);
        for (int i = 0; i < 100; i++, x = std::nextafter(x, INFINITY)) {
            if (x > reference::exp_overflow || x < reference::exp_underflow) continue;
            ASSERT_LE(ulps_between(reference::exp(x), correctly_rounded(x)), 1) << std::hexfloat << x;
        }
    }
}

// 22,402 results; the hash was computed from the definition with exact rational arithmetic.
TEST(Exp, HasTheBitsOfItsDefinition) {
    WordHash hash;
    for (const uint32_t sign : {0u, 0x80000000u}) {
        const uint32_t end = std::bit_cast<uint32_t>(sign ? 104.0f : 88.7228f);
        for (uint32_t bits = 0; bits <= end; bits += 99991) {
            const float y = reference::exp(std::bit_cast<float>(sign | bits));
            hash.add({&y, 1});
        }
    }
    EXPECT_EQ(hash.value(), 0x48116F8F626B21CEu);
}

TEST(Exp, HasExactAndSpecialValues) {
    EXPECT_EQ(reference::exp(0.0f), 1.0f);
    EXPECT_EQ(reference::exp(-0.0f), 1.0f);
    EXPECT_EQ(reference::exp(FLT_TRUE_MIN), 1.0f);
    EXPECT_EQ(reference::exp(1.0f), 0x1.5BF0A8p1f);
    EXPECT_EQ(reference::exp(INFINITY), INFINITY);
    EXPECT_EQ(reference::exp(-INFINITY), 0.0f);
    EXPECT_TRUE(std::isnan(reference::exp(NAN)));
    EXPECT_TRUE(std::isnan(reference::exp(-NAN)));
}

TEST(Exp, OverflowsAbove88Point7228AndIsZeroBelowMinus104) {
    EXPECT_TRUE(std::isfinite(reference::exp(88.7228f)));
    EXPECT_EQ(reference::exp(std::nextafter(88.7228f, INFINITY)), INFINITY);
    EXPECT_EQ(reference::exp(FLT_MAX), INFINITY);
    EXPECT_EQ(reference::exp(-104.0f), 0.0f);
    EXPECT_EQ(reference::exp(std::nextafter(-104.0f, -INFINITY)), 0.0f);
    EXPECT_EQ(reference::exp(-103.0f), FLT_TRUE_MIN);
    EXPECT_EQ(reference::exp(-FLT_MAX), 0.0f);
}

TEST(Exp, DoesNotDecreaseTowardsItsEnds) {
    for (const float end : {88.7228f, -87.3365f, -103.97208f, -104.0f}) {
        float x = end;
        for (int i = 0; i < 2000; i++) x = std::nextafter(x, -INFINITY);
        float before = reference::exp(x);
        for (int i = 0; i < 4000; i++) {
            x = std::nextafter(x, INFINITY);
            const float here = reference::exp(x);
            ASSERT_GE(here, before) << std::hexfloat << x;
            before = here;
        }
    }
}

}  // namespace
}  // namespace halfbyte
