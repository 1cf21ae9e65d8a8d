// BF16 and FP16 against an oracle in double, where every FP32 value and every quotient by a power of two is
// exact.
#include "core/float16.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "support/random.h"

namespace halfbyte {
namespace {

struct Format {
    int mantissa_bits, smallest_exponent, largest_exponent;  // of normal numbers
};
constexpr Format bf16{7, -126, 127}, fp16{10, -14, 15};

// The value of a pattern, from the definition of the format.
double decode(const Format& format, uint16_t bits) {
    const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
    const int exponent = (bits & 0x7FFF) >> format.mantissa_bits;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == format.largest_exponent - format.smallest_exponent + 2)
        return mantissa != 0 ? NAN : sign * INFINITY;
    const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
    if (exponent == 0) return sign * std::ldexp(fraction, format.smallest_exponent);
    return sign * std::ldexp(1 + fraction, exponent - 1 + format.smallest_exponent);
}

// Nearest even in the format, as a double.
double nearest(const Format& format, float value) {
    const double x = double(value);
    if (x == 0 || !std::isfinite(x)) return x;
    const int exponent = std::max(std::ilogb(x), format.smallest_exponent);
    const double unit = std::ldexp(1.0, exponent - format.mantissa_bits);
    const double rounded = std::nearbyint(x / unit) * unit;
    return std::fabs(rounded) >= std::ldexp(1.0, format.largest_exponent + 1) ? std::copysign(INFINITY, x)
                                                                              : rounded;
}

bool same(double a, double b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

// Counts the values that `round_to` gets wrong and remembers the last.
template <typename T>
struct Checker {
    const Format& format;
    int64_t checked = 0, wrong = 0;
    uint32_t last = 0;

    void operator()(uint32_t bits) {
        const float value = std::bit_cast<float>(bits);
        checked++;
        if (same(decode(format, round_to<T>(value).bits), nearest(format, value))) return;
        wrong++;
        last = bits;
    }
};

TEST(Float16, WideningAll65536PatternsGivesTheirValues) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        ASSERT_TRUE(same(double(to_float(Float16{uint16_t(bits)})), decode(fp16, uint16_t(bits))))
            << std::hex << bits;
        ASSERT_TRUE(same(double(to_float(BFloat16{uint16_t(bits)})), decode(bf16, uint16_t(bits))))
            << std::hex << bits;
    }
}

TEST(Float16, All65536PatternsSurviveWideningAndNarrowing) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float half = to_float(Float16{uint16_t(bits)}), brain = to_float(BFloat16{uint16_t(bits)});
        const uint16_t half_back = round_to<Float16>(half).bits, brain_back = round_to<BFloat16>(brain).bits;
        if (std::isnan(half))
            ASSERT_TRUE(std::isnan(to_float(Float16{half_back}))) << std::hex << bits;
        else
            ASSERT_EQ(half_back, bits);
        if (std::isnan(brain))
            ASSERT_TRUE(std::isnan(to_float(BFloat16{brain_back}))) << std::hex << bits;
        else
            ASSERT_EQ(brain_back, bits);
    }
}

// Every sign, exponent and kept mantissa, each with the cut-off bits below, at and above one half.
TEST(Float16, NarrowingToBFloat16IsNearestEven) {
    Checker<BFloat16> check{bf16};
    for (uint32_t kept = 0; kept < 1u << 16; kept++)
        for (const uint32_t rest : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) check(kept << 16 | rest);
    EXPECT_EQ(check.wrong, 0) << "of " << check.checked << ", for example " << std::hex << check.last;
}

TEST(Float16, NarrowingToFloat16IsNearestEven) {
    Checker<Float16> check{fp16};
    for (uint32_t kept = 0; kept < 1u << 19; kept++)
        for (const uint32_t rest : {0u, 1u, 0xFFFu, 0x1000u, 0x1001u, 0x1FFFu}) check(kept << 13 | rest);
    EXPECT_EQ(check.wrong, 0) << "of " << check.checked << ", for example " << std::hex << check.last;
}

TEST(Float16, SubnormalResultsRoundTiesToEven) {
    Checker<Float16> half{fp16};
    Checker<BFloat16> brain{bf16};
    for (uint32_t m = 0; m < 1024; m++) {
        const uint32_t tie = std::bit_cast<uint32_t>((float(m) + 0.5f) * 0x1p-24f);
        for (const uint32_t bits : {tie - 1, tie, tie + 1}) half(bits), half(bits | 0x80000000);
    }
    for (uint32_t m = 0; m < 128; m++)
        for (const uint32_t bits : {m << 16 | 0x7FFF, m << 16 | 0x8000, m << 16 | 0x8001})
            brain(bits), brain(bits | 0x80000000);
    EXPECT_EQ(half.wrong, 0) << std::hex << half.last;
    EXPECT_EQ(brain.wrong, 0) << std::hex << brain.last;
    EXPECT_EQ(round_to<Float16>(0x1p-25f).bits, 0);  // a tie with 0
    EXPECT_EQ(round_to<Float16>(0x1.000002p-25f).bits, 1);
}

TEST(Float16, RandomPatternsRoundToNearestEven) {
    Checker<Float16> half{fp16};
    Checker<BFloat16> brain{bf16};
    test::Random random(1);
    for (int i = 0; i < 1000000; i++) {
        const uint32_t bits = random.bits();
        half(bits), brain(bits);
    }
    EXPECT_EQ(half.wrong, 0) << std::hex << half.last;
    EXPECT_EQ(brain.wrong, 0) << std::hex << brain.last;
}

TEST(Float16, OverflowGivesInfinity) {
    EXPECT_EQ(round_to<Float16>(65519.996f).bits, 0x7BFF);  // 65504
    EXPECT_EQ(round_to<Float16>(65520.0f).bits, 0x7C00);
    EXPECT_EQ(round_to<Float16>(-FLT_MAX).bits, 0xFC00);
    EXPECT_EQ(round_to<BFloat16>(0x1.FEFFFEp127f).bits, 0x7F7F);
    EXPECT_EQ(round_to<BFloat16>(0x1.FFp127f).bits, 0x7F80);
    EXPECT_EQ(round_to<BFloat16>(-INFINITY).bits, 0xFF80);
}

TEST(Float16, EveryNaNStaysANaNOfItsSign) {
    for (const uint32_t bits :
         {0x7F800001u, 0x7FBFFFFFu, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
        const uint16_t half = round_to<Float16>(std::bit_cast<float>(bits)).bits;
        const uint16_t brain = round_to<BFloat16>(std::bit_cast<float>(bits)).bits;
        EXPECT_TRUE(std::isnan(decode(fp16, half))) << std::hex << bits;
        EXPECT_TRUE(std::isnan(decode(bf16, brain))) << std::hex << bits;
        EXPECT_EQ(half >> 15, bits >> 31);
        EXPECT_EQ(brain >> 15, bits >> 31);
    }
}

}  // namespace
}  // namespace halfbyte
