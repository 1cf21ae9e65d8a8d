// The claims of docs/numbers.md: rounding the IEEE quotient y / SF to E2M1 is rounding the exact quotient,
// and so is rounding the product of |y| and 1/SF, if 1/SF is rounded down and the product up.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "format/e2m1.h"
#include "format/e2m1_rounding.h"
#include "format/e4m3.h"
#include "support/random.h"

namespace halfbyte {
namespace {

constexpr double midpoints[7] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};

uint8_t exact_code(float y, float SF) {
    int code = 0;
    for (int i = 0; i < 7; i++) {
        const double edge = double(SF) * midpoints[i], magnitude = std::fabs(double(y));
        code += i % 2 == 0 ? magnitude > edge : magnitude >= edge;  // a tie goes to the even code
    }
    return uint8_t(code | (std::signbit(y) ? 8 : 0));
}

// |y| * r, r = 1/SF rounded down, the product rounded up: FP64 holds both exactly enough to see which way to
// go.
float quotient_by_directed_reciprocal(float y, float SF) {
    float r = 1.0f / SF;
    if (double(r) * SF > 1.0) r = std::nextafter(r, 0.0f);
    const double product = std::fabs(double(y)) * double(r);
    float q = float(product);
    if (double(q) < product) q = std::nextafter(q, INFINITY);
    return std::copysign(q, y);
}

template <typename Check>
void for_many_pairs(Check&& check) {
    test::Random random(1);
    for (int byte = 1; byte <= 0x7E; byte++) {
        const float SF = decode_e4m3(uint8_t(byte));
        for (const double midpoint : midpoints) {
            const auto bits = std::bit_cast<uint32_t>(float(double(SF) * midpoint));
            for (uint32_t ulps = 0; ulps <= 40; ulps++) check(std::bit_cast<float>(bits + ulps - 20), SF);
        }
        for (int i = 0; i < 10000; i++) check(random.uniform(0, 9) * SF, SF);
        for (int i = 0; i < 2000; i++) {  // any exponent, subnormals and infinity among them
            const float y = std::bit_cast<float>(random.bits());
            if (!std::isnan(y)) check(y, SF);
        }
        for (const float y : {0.0f, -0.0f, 0x1p-149f, 0x1p-126f, 3.4e38f}) check(y, SF);
    }
}

TEST(Quotient, RoundingItToFp32NeverCrossesAMidpoint) {
    int64_t pairs = 0, wrong = 0;
    for_many_pairs([&](float y, float SF) {
        pairs++;
        wrong += encode_e2m1(y / SF) != exact_code(y, SF);
        wrong += encode_e2m1(-y / SF) != exact_code(-y, SF);
    });
    EXPECT_EQ(wrong, 0) << "of " << pairs;
}

TEST(Quotient, TheFormWithoutADivisionGivesTheSameCodes) {
    int64_t pairs = 0, wrong = 0;
    for_many_pairs([&](float y, float SF) {
        pairs++;
        wrong += encode_e2m1(quotient_by_directed_reciprocal(y, SF)) != exact_code(y, SF);
    });
    EXPECT_EQ(wrong, 0) << "of " << pairs;
}

// The CPU's form, with one correction, over every significand of y and of SF around each midpoint: the codes'
// quotients from 1/8 to 8. Scaling y and SF by powers of two changes nothing, but where y is subnormal and
// its code 0.
TEST(Quotient, OneCorrectionOfTheReciprocalGivesTheSameCodes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    constexpr uint32_t step = 9973;
#else
    constexpr uint32_t step = 97;  // 1, every pair of 4e8, was run too
#endif
    int64_t pairs = 0, wrong = 0;
    for (int byte = 0x38; byte < 0x40; byte++) {  // SF from 1 to 15/8
        const float SF = decode_e4m3(uint8_t(byte)), r = 1.0f / SF;
        const auto check = [&](float y) {
            pairs++;
            wrong += encode_e2m1(quotient_by_reciprocal(y, SF, r)) != exact_code(y, SF);
        };
        const uint32_t first = std::bit_cast<uint32_t>(SF / 8), last = std::bit_cast<uint32_t>(SF * 8);
        for (uint32_t bits = first; bits < last; bits += step) check(std::bit_cast<float>(bits));
        for (const double midpoint : midpoints) {
            const auto bits = std::bit_cast<uint32_t>(float(double(SF) * midpoint));
            for (uint32_t i = 0; i < 20001; i++) check(std::bit_cast<float>(bits + i - 10000));
        }
    }
    for_many_pairs([&](float y, float SF) {  // y limited to 6 SF, as the kernels do
        y = std::min(std::fabs(y), 6 * SF);
        pairs++;
        wrong += encode_e2m1(quotient_by_reciprocal(y, SF, 1.0f / SF)) != exact_code(y, SF);
    });
    EXPECT_EQ(wrong, 0) << "of " << pairs;
}

// Why the directions matter: with both rounded to nearest 116 of the 6,174 places at the midpoints go wrong.
TEST(Quotient, AReciprocalAloneFlipsCodes) {
    int64_t points = 0, wrong = 0;
    for (int byte = 1; byte <= 0x7E; byte++) {
        const float SF = decode_e4m3(uint8_t(byte)), r = 1.0f / SF;
        for (const double midpoint : midpoints) {
            const auto bits = std::bit_cast<uint32_t>(float(double(SF) * midpoint));
            for (uint32_t ulps = 0; ulps <= 6; ulps++, points++) {
                const float y = std::bit_cast<float>(bits + ulps - 3);
                wrong += encode_e2m1(y * r) != exact_code(y, SF);
            }
        }
    }
    EXPECT_EQ(points, 6174);
    EXPECT_EQ(wrong, 116);
}

}  // namespace
}  // namespace halfbyte
