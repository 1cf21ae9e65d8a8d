// The fma of levels without such an instruction, against std::fma.
#include "cpu/targets.h"

#include <gtest/gtest.h>

#include "cpu/vectors-inl.h"  // without foreach_target.h: of the lowest level, the only one without an fma
#include "support/random.h"

namespace halfbyte::test {

static void expect_same_fma(const float (&a)[4], const float (&b)[4], const float (&c)[4]) {
    float result[4];
    using namespace cpu::HWY_NAMESPACE;
    store(cpu::HWY_NAMESPACE::fma(load(a), load(b), load(c)), result);
    for (int i = 0; i < 4; i++) {
        const float expected = std::fma(a[i], b[i], c[i]);
        if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(result[i]));
        } else {
            EXPECT_EQ(std::bit_cast<uint32_t>(result[i]), std::bit_cast<uint32_t>(expected))
                << std::hexfloat << a[i] << " * " << b[i] << " + " << c[i];
        }
    }
}

TEST(EmulatedFma, RoundsOnceForRandomBits) {
    Random random(1);
    for (int round = 0; round < 200000; round++) {
        float a[4], b[4], c[4];
        for (int i = 0; i < 4; i++) {
            a[i] = std::bit_cast<float>(random.bits());
            b[i] = std::bit_cast<float>(random.bits());
            c[i] = std::bit_cast<float>(random.bits());
        }
        expect_same_fma(a, b, c);
    }
}

// c is a number of FP32, a * b half of its last place and a little: FP64 rounds the sum to the middle.
TEST(EmulatedFma, RoundsOnceWhereTwoRoundingsDiffer) {
    Random random(2);
    for (int round = 0; round < 200000; round++) {
        float a[4], b[4], c[4];
        for (int i = 0; i < 4; i++) {
            const int exponent = int(random.below(200)) - 100;
            c[i] = std::ldexp(1.0f + float(random.below(1 << 23)) * 0x1p-23f, exponent);
            if (random.below(2) == 0) c[i] = -c[i];
            const float tail = 1.0f + float(random.below(3) - 1) * 0x1p-23f,
                        factor = 1.0f + float(random.below(3) - 1) * 0x1p-23f;
            a[i] = std::ldexp(tail, exponent / 2 - 12);
            b[i] = std::ldexp(factor, exponent - exponent / 2 - 12) * (random.below(2) == 0 ? 1.0f : -1.0f);
        }
        expect_same_fma(a, b, c);
    }
    // 1 + 2^-24 + 2^-54: the FP64 sum is the middle 1 + 2^-24, which alone would go to 1.
    expect_same_fma({0x1.000002p-24f, 0x1.000002p-24f, 0x1p-24f, -0x1.000002p-24f},
                    {0x1.fffffep-1f, 0x1.0000000p0f, 0x1p0f, 0x1.fffffep-1f}, {1.0f, 1.0f, 1.0f, -1.0f});
}

TEST(EmulatedFma, RoundsSubnormalResultsOnce) {
    Random random(3);
    for (int round = 0; round < 200000; round++) {
        float a[4], b[4], c[4];
        for (int i = 0; i < 4; i++) {
            const int exponent = int(random.below(60)) - 30;
            a[i] = std::ldexp(1.0f + float(random.below(1 << 23)) * 0x1p-23f, exponent - 75);
            b[i] =
                std::ldexp(1.0f + float(random.below(4)) * 0.25f, -exponent - 74 + int(random.below(20)) - 4);
            c[i] = std::bit_cast<float>(uint32_t(random.below(0x01000000)));
            if (random.below(2) == 0) c[i] = -c[i];
        }
        expect_same_fma(a, b, c);
    }
}

TEST(EmulatedFma, KeepsZerosInfinitiesAndNaN) {
    const float inf = INFINITY;
    expect_same_fma({0.0f, -0.0f, 0.0f, -0.0f}, {1.0f, 1.0f, -1.0f, 0.0f}, {-0.0f, -0.0f, -0.0f, 0.0f});
    expect_same_fma({inf, inf, 1.0f, NAN}, {1.0f, 0.0f, 2.0f, 1.0f}, {-inf, 1.0f, inf, 1.0f});
    expect_same_fma({0x1.fffffep127f, 0x1p127f, -0x1p64f, 1.0f}, {1.0f, 2.0f, 0x1p64f, 1.0f},
                    {0x1p103f, 0.0f, 0.0f, -1.0f});
}

}  // namespace halfbyte::test
