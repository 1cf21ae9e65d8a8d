#include "core/float_environment.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <stdexcept>

namespace halfbyte {
namespace {

volatile float smallest_normal = 0x1p-126f, half = 0.5f, one = 1.0f, tiny = 0x1p-60f;

bool keeps_subnormals() {
    const volatile float subnormal = smallest_normal * half;
    const volatile float back = subnormal / half;  // 0 if the operand is read as zero
    return subnormal != 0.0f && back == smallest_normal;
}

TEST(FloatEnvironment, NeutralisesARoundingModeAndRestoresIt) {
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
        std::fesetround(mode);
        int inside;
        float sum;
        {
            const FloatEnvironment environment;
            inside = std::fegetround();
            sum = one + tiny;
        }
        const int after = std::fegetround();
        std::fesetround(FE_TONEAREST);
        EXPECT_EQ(inside, FE_TONEAREST);
        EXPECT_EQ(sum, 1.0f);
        EXPECT_EQ(after, mode);
    }
}

#if defined(__x86_64__)
TEST(FloatEnvironment, NeutralisesFlushToZeroAndRestoresIt) {
    const unsigned before = _mm_getcsr(), flushing = before | 0x8040;
    _mm_setcsr(flushing);
    const bool outside = keeps_subnormals();
    bool inside;
    {
        const FloatEnvironment environment;
        inside = keeps_subnormals();
    }
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_FALSE(outside);
    EXPECT_TRUE(inside);
    EXPECT_EQ(after & 0xFFC0, flushing & 0xFFC0);
}

TEST(FloatEnvironment, KeepsTheExceptionFlagsOfTheCaller) {
    for (const int mode : {FE_TONEAREST, FE_UPWARD}) {
        std::fesetround(mode);
        std::feclearexcept(FE_ALL_EXCEPT);
        std::feraiseexcept(FE_DIVBYZERO);
        {
            const FloatEnvironment environment;
            const volatile float rounded = one / (one + one + one);
            (void)rounded;
        }
        const int after = std::fetestexcept(FE_DIVBYZERO | FE_INEXACT);
        std::fesetround(FE_TONEAREST);
        std::feclearexcept(FE_ALL_EXCEPT);
        EXPECT_EQ(after, FE_DIVBYZERO);
    }
}

TEST(FloatEnvironment, IsRestoredWhenAnExceptionLeavesTheScope) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    try {
        const FloatEnvironment environment;
        throw std::runtime_error("out");
    } catch (const std::runtime_error&) {
    }
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & 0x8040, 0x8040u);
}
#endif

TEST(FloatEnvironment, TheOrdinaryStateKeepsSubnormals) {
    EXPECT_TRUE(keeps_subnormals());
}

}  // namespace
}  // namespace halfbyte
