#include <gtest/gtest.h>

#include <cmath>

#include "core/word_hash.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;

struct Table {
    std::vector<float> cos, sin;
    Table(double theta, int64_t head_dim, int64_t positions)
        : cos(size_t(positions * head_dim / 2)), sin(cos.size()) {
        reference::rope_table(theta, head_dim, positions, cos.data(), sin.data());
    }
};

// cos, then sin, of the demo's model: theta 100000, heads of 64, 8192 positions. The same on every machine.
TEST(RopeTable, OfTheDemoModelHasItsHash) {
    const Table table(100000, 64, 8192);
    WordHash hash;
    hash.add(table.cos);
    hash.add(table.sin);
    EXPECT_EQ(hash.value(), 0x15F65802F737E38Au)
        << std::hex << hash.value();  // computed in quadruple precision
}

// Frequencies and angles are FP32 by definition; cosine and sine of the FP32 angle are rounded once.
TEST(RopeTable, HoldsTheRoundedCosineAndSineOfTheRoundedAngle) {
    for (const int64_t head_dim : {2, 64, 80, 128}) {
        const Table table(10000, head_dim, 300);
        const int64_t half = head_dim / 2;
        for (int64_t i = 0; i < half; i++) {
            const auto frequency =
                float(std::pow(10000.0L, -2.0L * (long double)(i) / (long double)(head_dim)));
            for (int64_t position = 0; position < 300; position++) {
                const auto angle = float(double(position) * double(frequency));
                const long double cos = std::cos((long double)(angle)), sin = std::sin((long double)(angle));
                const size_t at = size_t(position * half + i);
                // Half a unit of FP32, and a hair for the rounding to FP64 before it.
                ASSERT_LE(std::fabs((long double)(table.cos[at]) - cos),
                          0x1.000001p-25L * 2 * std::fabs(cos) + 0x1p-60L)
                    << position;
                ASSERT_LE(std::fabs((long double)(table.sin[at]) - sin),
                          0x1.000001p-25L * 2 * std::fabs(sin) + 0x1p-60L)
                    << position;
            }
        }
    }
}

TEST(RopeTable, PositionZeroDoesNotRotate) {
    const Table table(100000, 64, 1);
    for (int i = 0; i < 32; i++) {
        EXPECT_EQ(table.cos[size_t(i)], 1.0f);
        EXPECT_EQ(table.sin[size_t(i)], 0.0f);
    }
}

TEST(Rope, RotatesEachPairWithEveryStepRounded) {
    const int64_t heads = 3, head_dim = 8, half = 4, first = 5;
    const Table table(10000, head_dim, 12);
    const OwnedMatrix before = test::random_matrix(7, heads * head_dim, DType::f32, 1);
    OwnedMatrix x = test::random_matrix(7, heads * head_dim, DType::f32, 1, 1.0f, heads * head_dim + 5);
    reference::rope({.x = x.view(),
                     .heads = heads,
                     .head_dim = head_dim,
                     .first_position = first,
                     .cos = table.cos.data(),
                     .sin = table.sin.data()});
    const auto times = [](float a, float b) { return float(double(a) * double(b)); };
    for (int64_t t = 0; t < 7; t++) {
        for (int64_t head = 0; head < heads; head++) {
            for (int64_t i = 0; i < half; i++) {
                const float a = before.at(t, head * head_dim + i),
                            b = before.at(t, head * head_dim + i + half);
                const float c = table.cos[size_t((first + t) * half + i)],
                            s = table.sin[size_t((first + t) * half + i)];
                EXPECT_EQ(x.at(t, head * head_dim + i), float(double(times(a, c)) - double(times(b, s))));
                EXPECT_EQ(x.at(t, head * head_dim + i + half),
                          float(double(times(b, c)) + double(times(a, s))));
            }
        }
    }
    EXPECT_TRUE(x.gaps_intact());
}

// A rotation: the scalar product of a rotated query and key depends on the distance of their positions alone.
TEST(Rope, ScalarProductsDependOnTheDistanceOnly) {
    const Table table(10000, 64, 200);
    const OwnedMatrix q = test::random_matrix(1, 64, DType::f32, 2),
                      k = test::random_matrix(1, 64, DType::f32, 3);
    const auto score = [&](int64_t q_position, int64_t k_position) {
        double sum = 0, magnitude = 0;
        OwnedMatrix rotated_q = q.row(0), rotated_k = k.row(0);
        for (const auto& [x, position] : {std::pair(&rotated_q, q_position), {&rotated_k, k_position}})
            reference::rope({.x = x->view(),
                             .heads = 1,
                             .head_dim = 64,
                             .first_position = position,
                             .cos = table.cos.data(),
                             .sin = table.sin.data()});
        for (int64_t i = 0; i < 64; i++) {
            sum += double(rotated_q.at(0, i)) * double(rotated_k.at(0, i));
            magnitude += std::fabs(double(q.at(0, i))) + std::fabs(double(k.at(0, i)));
        }
        return std::pair(sum, magnitude);
    };
    const auto [near, size] = score(20, 7);
    const auto [far, unused] = score(193, 180);
    // Values below 4; the angles, at most 200, are off by 200 u, the rest by a few u.
    EXPECT_NEAR(near, far, 4 * 4 * (200 + 8) * test::u * size);
    EXPECT_GT(std::fabs(near - score(20, 8).first), 0.01);
}

}  // namespace
}  // namespace halfbyte
