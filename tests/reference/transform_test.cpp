#include <gtest/gtest.h>

#include <cmath>

#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"
#include "support/safetensors_file.h"
#include "transform/hadamard.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

OwnedMatrix transform(const OwnedMatrix& x, const BlockTransform& t, DType type = DType::f32) {
    OwnedMatrix y(x.rows(), x.cols(), type, x.cols() + 3, 0x7F);
    reference::transform({.x = x.input(), .transform = t, .y = y.view()});
    EXPECT_TRUE(y.gaps_intact());
    return y;
}

// The sum of |x| over the block that column k of the row belongs to.
double magnitude(const OwnedMatrix& x, int64_t row, int64_t k, int64_t n) {
    double sum = 0;
    for (int64_t i = k / n * n; i < k / n * n + n; i++) sum += std::fabs(double(x.at(row, i)));
    return sum;
}

// Whether every sum of values of the block, in any order, is exact: all are multiples of one power of two q,
// and the sum of magnitudes is at most 2^24 q.
bool sums_are_exact(const OwnedMatrix& x, int64_t row, int64_t k, int64_t n) {
    double q = INFINITY;
    for (int64_t i = k / n * n; i < k / n * n + n; i++) {
        const double value = x.at(row, i);
        if (value == 0) continue;
        double step = std::ldexp(1.0, std::ilogb(value));
        while (std::fmod(value, step) != 0) step /= 2;
        q = std::min(q, step);
    }
    return magnitude(x, row, k, n) <= 0x1p24 * q;
}

struct Golden {
    test::SafetensorsFile file{test::golden_path("transforms.safetensors")};
    OwnedMatrix x{5, 384, DType::bf16};
    Golden() { std::memcpy(x.data(), file["x"].bytes.data(), file["x"].bytes.size()); }
};

// Every entry is +-1. Butterflies add log2(n) times, fma n times from +0, of which the first is exact; the
// scale is rounded and its product: gamma(log2(n) + 2) or gamma(n + 1) of the sum of magnitudes over sqrt(n)
// against the exact result. The other tool's FP64 result is exact next to that (2^-29 of it: the
// factor 1.0001). Its FP32 result adds n - 1 times in an order of its own, and its division by sqrt(n) rounds
// at most 3 times.
TEST(Transform, StaysWithinItsBoundOfCompressedTensors) {
    const Golden golden;
    int butterflies = 0, general = 0;
    for (const std::string& name : golden.file.cases(".online_float64")) {
        SCOPED_TRACE(name);
        const std::vector<float> matrix = golden.file[name].as<float>();
        const int64_t n = golden.file[name].shape[0];
        const auto signs = sylvester_signs(matrix.data(), n);
        const auto scale = float(1 / std::sqrt(double(n)));
        const auto exact = golden.file[name + ".online_float64"].as<double>();
        const auto compare = [&](const BlockTransform& t, double roundings) {
            const OwnedMatrix y = transform(golden.x, t);
            std::vector<double> tolerance, tolerance_float32;
            for (int64_t i = 0; i < 5 * 384; i++) {
                const double size = magnitude(golden.x, i / 384, i % 384, n) / std::sqrt(double(n));
                tolerance.push_back(1.0001 * test::gamma(roundings) * size);
                tolerance_float32.push_back(1.0001 * (test::gamma(roundings) + test::gamma(double(n) + 2)) *
                                            size);
            }
            EXPECT_TRUE(test::within(y.values(), exact, tolerance, 384));
            if (!golden.file.contains(name + ".online_float32")) return;  // 96
            const auto float32 = golden.file[name + ".online_float32"].as<float>();
            EXPECT_TRUE(test::within(y.values(), std::vector<double>(float32.begin(), float32.end()),
                                     tolerance_float32, 384));
        };
        compare({.n = n, .matrix = matrix.data(), .scale = scale}, double(n) + 1);
        general++;
        if (!signs) continue;
        EXPECT_EQ(scale, hadamard_scale(int(n)));
        compare({.n = n, .signs = signs->data(), .scale = scale}, std::log2(double(n)) + 2);
        butterflies++;
    }
    EXPECT_EQ(general, 9);
    EXPECT_EQ(butterflies, 7);
}

// Where no sum rounds in any order and 1/sqrt(n) is a power of two (16, 64), everybody has the same bits.
TEST(Transform, HasTheBitsOfCompressedTensorsWhereSumsAreExact) {
    const Golden golden;
    int64_t compared = 0;
    for (const std::string name :
         {"hadamard_16", "hadamard_64", "random_hadamard_16_seed42", "random_hadamard_64_seed42"}) {
        const std::vector<float> matrix = golden.file[name].as<float>();
        const int64_t n = golden.file[name].shape[0];
        const auto signs = sylvester_signs(matrix.data(), n);
        ASSERT_TRUE(signs.has_value()) << name;
        const OwnedMatrix fast =
            transform(golden.x, {.n = n, .signs = signs->data(), .scale = hadamard_scale(int(n))});
        const OwnedMatrix slow =
            transform(golden.x, {.n = n, .matrix = matrix.data(), .scale = hadamard_scale(int(n))});
        const auto theirs = golden.file[name + ".online_float32"].as<float>();
        for (int64_t i = 0; i < 5 * 384; i++) {
            if (!sums_are_exact(golden.x, i / 384, i % 384, n)) continue;
            ASSERT_EQ(fast.at(i / 384, i % 384), theirs[size_t(i)]) << name << " " << i;
            ASSERT_EQ(slow.at(i / 384, i % 384), theirs[size_t(i)]) << name << " " << i;
            compared++;
        }
    }
    EXPECT_GT(compared, 1000);
}

TEST(Transform, HadamardIsSignsButterflyScaleAndOneRoundingToTheType) {
    for (const DType type : types) {
        for (const int n : {16, 32, 64, 128}) {
            const OwnedMatrix x = test::random_matrix(3, 3 * n, type, uint64_t(n), 2.0f, 3 * n + 1);
            test::Random random(9);
            std::vector<float> signs;
            for (int i = 0; i < n; i++) signs.push_back(random.below(2) ? 1.0f : -1.0f);
            for (const bool with_signs : {false, true}) {
                for (const float scale : {hadamard_scale(n), 1.0f}) {
                    std::vector<float> expected;
                    for (int64_t row = 0; row < 3; row++) {
                        for (int64_t block = 0; block < 3; block++) {
                            std::vector<float> values;
                            for (int64_t i = 0; i < n; i++)
                                values.push_back(x.at(row, block * n + i) *
                                                 (with_signs ? signs[size_t(i)] : 1.0f));
                            hadamard_butterfly(values.data(), n);
                            for (const float value : values)
                                expected.push_back(round_to_type(float(double(value) * double(scale)), type));
                        }
                    }
                    const BlockTransform t{
                        .n = n, .signs = with_signs ? signs.data() : nullptr, .scale = scale};
                    EXPECT_TRUE(test::same_values(transform(x, t, type).values(), expected, 3 * n))
                        << n << " " << name_of(type);
                }
            }
        }
    }
}

// T is not symmetric here: x_k meets row k of T.
TEST(Transform, AnyMatrixIsAChainOfFmaFromPlusZeroInOrderOfK) {
    for (const DType matrix_type : {DType::f32, DType::bf16}) {
        for (const DType type : types) {
            for (const int64_t n : {16, 32, 64, 128}) {
                const OwnedMatrix x = test::random_matrix(2, 2 * n, type, uint64_t(n), 2.0f, 2 * n + 1);
                const OwnedMatrix T = test::random_matrix(n, n, matrix_type, uint64_t(n + 1));
                std::vector<float> expected;
                for (int64_t row = 0; row < 2; row++) {
                    for (int64_t j = 0; j < 2 * n; j++) {
                        float sum = 0;
                        for (int64_t k = 0; k < n; k++)
                            sum = std::fma(x.at(row, j / n * n + k), T.at(k, j % n), sum);
                        expected.push_back(round_to_type(0.3f * sum, type));
                    }
                }
                const BlockTransform t{.n = n, .matrix = T.data(), .matrix_type = matrix_type, .scale = 0.3f};
                EXPECT_TRUE(test::same_values(transform(x, t, type).values(), expected, 2 * n)) << n;
            }
        }
    }
}

// Small integers: both forms are exact, so a matrix that is Sylvester's may take either.
TEST(Transform, ButterflyAndMatrixAreEqualInExactArithmetic) {
    test::Random random(3);
    for (const int n : {16, 32, 64, 128}) {
        OwnedMatrix x(4, 2 * n);
        for (int64_t i = 0; i < 8 * n; i++) x.set(i / (2 * n), i % (2 * n), float(random.below(2047) - 1023));
        std::vector<float> matrix;
        for (int k = 0; k < n; k++)
            for (int j = 0; j < n; j++) matrix.push_back((k % 3 == 0 ? -1.0f : 1.0f) * sylvester(k, j));
        const auto signs = sylvester_signs(matrix.data(), n);
        ASSERT_TRUE(signs.has_value());
        EXPECT_TRUE(test::same_values(transform(x, {.n = n, .signs = signs->data()}).values(),
                                      transform(x, {.n = n, .matrix = matrix.data()}).values(), 2 * n))
            << n;
    }
}

TEST(Transform, AZeroSumIsPlusZeroByMatrixAndFollowsTheAdditionsByButterfly) {
    const OwnedMatrix x = test::matrix_of(std::vector<float>(16, -0.0f), 1, 16);
    const std::vector<float> matrix(256, 1.0f);
    for (const float value : transform(x, {.n = 16, .matrix = matrix.data()}).values())
        EXPECT_EQ(std::bit_cast<uint32_t>(value), 0u);  // fma(-0, 1, +0)
    const std::vector<float> y = transform(x, {.n = 16}).values();
    EXPECT_TRUE(std::signbit(y[0]));  // -0 + -0
    for (size_t j = 1; j < 16; j++) EXPECT_EQ(std::bit_cast<uint32_t>(y[j]), 0u) << j;
}

TEST(Transform, ANaNOrInfinitySpoilsItsBlockOnly) {
    OwnedMatrix x = test::random_matrix(1, 48, DType::f32, 4);
    const OwnedMatrix before = transform(x, {.n = 16});
    x.set(0, 20, NAN);
    const OwnedMatrix after = transform(x, {.n = 16});
    for (int64_t k = 0; k < 48; k++) {
        if (k / 16 == 1) {
            EXPECT_TRUE(std::isnan(after.at(0, k))) << k;
        } else {
            EXPECT_EQ(after.at(0, k), before.at(0, k)) << k;
        }
    }
    x.set(0, 20, INFINITY);
    for (int64_t k = 16; k < 32; k++)
        EXPECT_EQ(transform(x, {.n = 16}).at(0, k), sylvester(4, int(k) - 16) * INFINITY) << k;
}

TEST(Transform, MayWriteOverItsInputAndTakesNothing) {
    const OwnedMatrix T = test::random_matrix(32, 32, DType::f32, 6);
    for (const BlockTransform& t : {BlockTransform{.n = 32}, BlockTransform{.n = 32, .matrix = T.data()}}) {
        OwnedMatrix x = test::random_matrix(3, 96, DType::bf16, 5);
        const OwnedMatrix y = transform(x, t, DType::bf16);
        reference::transform({.x = x.input(), .transform = t, .y = x.view()});
        EXPECT_TRUE(test::same_values(x.values(), y.values(), 96));
        transform(OwnedMatrix(0, 64), t);
        transform(OwnedMatrix(3, 0), t);
    }
}

}  // namespace
}  // namespace halfbyte
