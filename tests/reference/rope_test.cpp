#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/word_hash.h"
#include "reference/reference.h"
#include "reference/rope_scaling.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte {
namespace {

using reference::RopeScaling;
using test::OwnedMatrix;

// Llama 3.1 (heads of 128, factor 8) and 3.2 1B (heads of 64, factor 32).
RopeScaling llama3(double factor) {
    return {.kind = RopeScaling::Kind::llama3, .factor = factor};
}

struct Table {
    std::vector<float> cos, sin;
    Table(double theta, int64_t head_dim, int64_t positions, const RopeScaling& scaling = {})
        : cos(size_t(positions * head_dim / 2)), sin(cos.size()) {
        reference::rope_table(theta, scaling, head_dim, positions, cos.data(), sin.data());
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

// The same of Llama 3.1: theta 500000, heads of 128, the first 2048 positions.
TEST(RopeTable, OfLlama31HasItsHash) {
    const Table table(500000, 128, 2048, llama3(8));
    WordHash hash;
    hash.add(table.cos);
    hash.add(table.sin);
    EXPECT_EQ(hash.value(), 0x97F1C8E82AD6375Cu) << std::hex << hash.value();  // computed in 120 bits
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

// Inverse frequencies by transformers 5.17.0, in FP32 (torch 2.11.0 on a CPU), theta 500000.
const std::vector<float> transformers_llama31 = {
    0x1p+0f,         0x1.a11582p-1f,  0x1.53c38cp-1f,  0x1.14c708p-1f,  0x1.c2ef78p-2f,  0x1.6f56fap-2f,
    0x1.2b3dc6p-2f,  0x1.e788c2p-3f,  0x1.8d276p-3f,   0x1.43874p-3f,   0x1.078d4p-3f,   0x1.ad6338p-4f,
    0x1.5dc95ap-4f,  0x1.1cf13p-4f,   0x1.d03ccep-5f,  0x1.7a2d08p-5f,  0x1.34119p-5f,   0x1.f5ea7ep-6f,
    0x1.98de92p-6f,  0x1.4d1272p-6f,  0x1.0f5386p-6f,  0x1.ba0dd8p-7f,  0x1.681adap-7f,  0x1.2558fep-7f,
    0x1.ddee9ep-8f,  0x1.8554ecp-8f,  0x1.3d2804p-8f,  0x1.025c6ap-8f,  0x1.a4ee4p-9f,   0x1.1bfa0cp-9f,
    0x1.67a23ap-10f, 0x1.c12f3cp-11f, 0x1.132ba4p-11f, 0x1.47e21p-12f,  0x1.765ba4p-13f, 0x1.90d10cp-14f,
    0x1.46831ap-14f, 0x1.09fb7ep-14f, 0x1.b15902p-15f, 0x1.610332p-15f, 0x1.1f91fp-15f,  0x1.d484dep-16f,
    0x1.7da9e8p-16f, 0x1.36e8eap-16f, 0x1.fa8b86p-17f, 0x1.9ca3eap-17f, 0x1.5024d6p-17f, 0x1.11d41ep-17f,
    0x1.be2188p-18f, 0x1.6b6d0ep-18f, 0x1.280d96p-18f, 0x1.e257p-19f,   0x1.88ec2p-19f,  0x1.4014d2p-19f,
    0x1.04be68p-19f, 0x1.a8d01p-20f,  0x1.5a0f4ep-20f, 0x1.19e8p-20f,   0x1.cb4a9ap-21f, 0x1.76258ep-21f,
    0x1.30c94ep-21f, 0x1.f09184p-22f, 0x1.94836p-22f,  0x1.4985fep-22f};
const std::vector<float> transformers_llama32 = {
    0x1p+0f,         0x1.53c38cp-1f,  0x1.c2ef78p-2f, 0x1.2b3dc6p-2f,  0x1.8d276p-3f,   0x1.078d4p-3f,
    0x1.5dc95ap-4f,  0x1.d03ccep-5f,  0x1.34119p-5f,  0x1.98de92p-6f,  0x1.0f5386p-6f,  0x1.681adap-7f,
    0x1.ddee9ep-8f,  0x1.3d2804p-8f,  0x1.a4ee4p-9f,  0x1.524f36p-10f, 0x1.c26c4p-12f,  0x1.9731eep-14f,
    0x1.46831ap-16f, 0x1.b15902p-17f, 0x1.1f91fp-17f, 0x1.7da9e8p-18f, 0x1.fa8b86p-19f, 0x1.5024d6p-19f,
    0x1.be2188p-20f, 0x1.280d96p-20f, 0x1.88ec2p-21f, 0x1.04be68p-21f, 0x1.5a0f4ep-22f, 0x1.cb4a9ap-23f,
    0x1.30c94ep-23f, 0x1.94836p-24f};

// Their power and division are off by up to 8 units u of FP32. On the line, the turns (at most 4, so 40 u)
// less 1, divided by 3, are off by 16 u of f, the unscaled frequency.
TEST(RopeFrequencies, OfLlama3AreThoseOfTransformers) {
    for (const auto& [golden, factor] :
         {std::pair(transformers_llama31, 8.0), {transformers_llama32, 32.0}}) {
        const int64_t head_dim = 2 * int64_t(golden.size());
        const auto plain = reference::rope_frequencies(500000, {}, head_dim),
                   scaled = reference::rope_frequencies(500000, llama3(factor), head_dim);
        int kept = 0, divided = 0;
        for (size_t i = 0; i < golden.size(); i++) {
            const bool on_line = scaled[i] != plain[i] && scaled[i] != plain[i] / factor;
            kept += scaled[i] == plain[i];
            divided += scaled[i] == plain[i] / factor;
            EXPECT_NEAR(double(golden[i]), scaled[i],
                        test::u * (9 * scaled[i] + (on_line ? 16 * plain[i] : 0)))
                << factor << " " << i;
        }
        EXPECT_GT(kept, 0);
        EXPECT_GT(divided, 0);
        EXPECT_LT(kept + divided, int(golden.size()));
    }
}

TEST(RopeFrequencies, AreDividedAsTheScalingSays) {
    const auto plain = reference::rope_frequencies(10000, {}, 8),
               linear =
                   reference::rope_frequencies(10000, {.kind = RopeScaling::Kind::linear, .factor = 3}, 8),
               divided = reference::rope_frequencies(
                   10000, {.kind = RopeScaling::Kind::divisors, .divisors = {1, 2.5f, 7, 0.5f}}, 8);
    const double divisors[] = {1, 2.5, 7, 0.5};
    for (size_t i = 0; i < 4; i++) {
        EXPECT_EQ(linear[i], plain[i] / 3);
        EXPECT_EQ(divided[i], plain[i] / divisors[i]);
    }
    // Four turns of 8192 positions and more: kept. One and less: divided.
    const RopeScaling scaling = {.kind = RopeScaling::Kind::llama3,
                                 .factor = 5,
                                 .low_freq_factor = 2,
                                 .high_freq_factor = 3,
                                 .original_positions = 1000};
    for (const auto& [turns, wanted] :
         {std::pair(3.0, 1.0), {2.75, 0.75 + 0.25 / 5}, {2.5, 0.5 + 0.5 / 5}, {2.0, 1.0 / 5}}) {
        const double f =
            turns * 2 * std::numbers::pi / 1000;  // of the second pair of a head of 4: theta^(-1/2)
        EXPECT_NEAR(reference::rope_frequencies(1 / (f * f), scaling, 4)[1] / f, wanted, 1e-12) << turns;
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
