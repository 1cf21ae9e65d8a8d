// The products of unquantised activations: W4A16 and dense weights.
#include <gtest/gtest.h>

#include <cmath>

#include "format/e2m1.h"
#include "format/e4m3.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::Quantized;

constexpr int64_t all_k[] = {0, 1, 15, 16, 17, 31, 32, 33, 63, 65, 1000, 1024, 1040};
constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

OwnedMatrix w4a16(const OwnedMatrix& x, const Quantized& w, const std::vector<float>& Dw,
                  DType type = DType::f32, const float* bias = nullptr) {
    const PackedWeight packed = test::pack(w);
    OwnedMatrix d(x.rows(), w.shape.rows, type, w.shape.rows + 2);
    reference::matmul_w4a16(
        {.x = x.input(), .w = &packed, .column_decode = Dw.data(), .bias = bias, .d = d.view()});
    EXPECT_TRUE(d.gaps_intact());
    return d;
}

// A lane of sum32 takes ceil(K/32) fma, the lanes five additions, the decode scale one product: ceil(K/32) +
// 6 roundings.
TEST(MatmulW4A16, StaysWithinTheDerivedBoundOfTheExactProduct) {
    for (const DType type : types) {
        for (const int64_t K : all_k) {
            const OwnedMatrix x = test::random_matrix(3, K, type, uint64_t(K));
            const Quantized w = test::random_quantized(NvFp4Shape::of(18, K), uint64_t(K) + 1);
            std::vector<float> Dw;
            for (int i = 0; i < 18; i++) Dw.push_back(0.001f * float(i + 1));
            std::vector<double> exact, bound;
            for (int64_t m = 0; m < 3; m++) {
                for (int64_t n = 0; n < 18; n++) {
                    double sum = 0, magnitude = 0;
                    for (int64_t k = 0; k < K; k++) {
                        const double product = double(x.at(m, k)) * double(decode_e2m1(w.code(n, k))) *
                                               double(decode_e4m3(w.scale(n, k / 16))) *
                                               double(Dw[size_t(n)]);
                        sum += product, magnitude += std::fabs(product);
                    }
                    exact.push_back(sum);
                    // The oracle's own roundings in double are a millionth of the bound.
                    bound.push_back(1.000001 * test::gamma(std::ceil(double(K) / 32) + 6) * magnitude);
                }
            }
            EXPECT_TRUE(test::within(w4a16(x, w, Dw).values(), exact, bound, 18))
                << name_of(type) << ", K = " << K;
        }
    }
}

TEST(MatmulW4A16, ARowHasTheSameBitsAloneAndInABatch) {
    const OwnedMatrix x = test::random_matrix(9, 200, DType::bf16, 1);
    const Quantized w = test::random_quantized(NvFp4Shape::of(20, 200), 2);
    const std::vector<float> Dw(20, 0.01f);
    const OwnedMatrix all = w4a16(x, w, Dw);
    for (int64_t row = 0; row < 9; row++)
        EXPECT_TRUE(test::same_values(w4a16(x.row(row), w, Dw).values(), all.row(row).values(), 20)) << row;
}

TEST(MatmulW4A16, ScaleBiasAndTypeRoundOneAfterTheOther) {
    const OwnedMatrix x = test::random_matrix(2, 48, DType::bf16, 3);
    const Quantized w = test::random_quantized(NvFp4Shape::of(5, 48), 4);
    const std::vector<float> ones(5, 1.0f), Dw = {0.1f, 0.2f, 0.3f, 0.4f, 0.7f},
                                            bias = {1e3f, -1e3f, 0.1f, 0, 3};
    const OwnedMatrix sum = w4a16(x, w, ones);
    for (const DType type : types) {
        std::vector<float> expected;
        for (int64_t m = 0; m < 2; m++) {
            for (int64_t n = 0; n < 5; n++) {
                const float scaled = float(double(sum.at(m, n)) * double(Dw[size_t(n)]));
                expected.push_back(round_to_type(float(double(scaled) + double(bias[size_t(n)])), type));
            }
        }
        EXPECT_TRUE(test::same_values(w4a16(x, w, Dw, type, bias.data()).values(), expected, 5))
            << name_of(type);
    }
}

TEST(MatmulW4A16, TheReportedFp16CasesAreExact) {
    OwnedMatrix x(1, 32, DType::f16);
    for (int64_t k = 0; k < 32; k++) x.set(0, k, 1.0f);
    Quantized w(NvFp4Shape::of(1, 32), 0);
    for (int64_t k = 0; k < 32; k++) w.set_code(0, k, 7);
    w.scales[0] = w.scales[1] = 0x7E;
    EXPECT_EQ(w4a16(x, w, {1.0f}, DType::f32).at(0, 0), 86016.0f);
    EXPECT_EQ(w4a16(x, w, {1.0f}, DType::f16).at(0, 0), INFINITY);
    for (const DType type : types) EXPECT_EQ(w4a16(x, w, {0x1p-8f}, type).at(0, 0), 336.0f);
    for (int64_t k = 0; k < 32; k++) w.set_code(0, k, k < 16 ? 1 : 0);
    w.scales[0] = w.scales[1] = 0x01;
    for (const DType type : types) EXPECT_EQ(w4a16(x, w, {1.0f}, type).at(0, 0), 0.015625f);
}

// Weights decoded first give the bits of matmul_dense with F32, the scale and the bias behind it one rounding
// each.
TEST(MatmulW8A16, IsTheDenseProductTimesTheScale) {
    test::Random random(10);
    for (const int64_t K : all_k) {
        const OwnedMatrix x = test::random_matrix(3, K, DType::bf16, uint64_t(K) + 20);
        std::vector<uint8_t> w(size_t(7 * K + 1));
        OwnedMatrix decoded(7, K), sum(3, 7), d(3, 7), biased(3, 7);
        for (int64_t i = 0; i < 7 * K; i++) {
            w[size_t(i)] = uint8_t(random.bits());
            if ((w[size_t(i)] & 0x7F) == 0x7F) w[size_t(i)] = 1;
            decoded.set(i / K, i % K, decode_e4m3(w[size_t(i)]));
        }
        std::vector<float> scale, bias, expected, expected_biased;
        for (int i = 0; i < 7; i++) scale.push_back(0.001f * float(i + 1)), bias.push_back(float(i) - 3.3f);
        MatmulW8A16Args args = {.x = x.input(),
                                .w = {w.data(), DType::f8_e4m3, 7, K, K},
                                .column_decode = scale.data(),
                                .d = d.view()};
        reference::matmul_w8a16(args);
        args.bias = bias.data();
        args.d = biased.view();
        reference::matmul_w8a16(args);
        reference::matmul_dense({.x = x.input(), .w = decoded.input(), .d = sum.view()});
        for (int64_t i = 0; i < 21; i++) {
            const size_t n = size_t(i % 7);
            expected.push_back(float(double(sum.at(i / 7, i % 7)) * double(scale[n])));
            expected_biased.push_back(float(double(expected.back()) + double(bias[n])));
        }
        EXPECT_TRUE(test::same_values(d.values(), expected, 7)) << K;
        EXPECT_TRUE(test::same_values(biased.values(), expected_biased, 7)) << K;
    }
}

TEST(MatmulDense, StaysWithinTheDerivedBoundOfTheExactProduct) {
    for (const DType x_type : types) {
        for (const DType w_type : types) {
            for (const int64_t K : all_k) {
                const OwnedMatrix x = test::random_matrix(3, K, x_type, uint64_t(K));
                const OwnedMatrix w = test::random_matrix(7, K, w_type, uint64_t(K) + 1, 0.1f, K + 1);
                OwnedMatrix d(3, 7);
                reference::matmul_dense({.x = x.input(), .w = w.input(), .d = d.view()});
                std::vector<double> exact, bound;
                for (int64_t m = 0; m < 3; m++) {
                    for (int64_t n = 0; n < 7; n++) {
                        double sum = 0, magnitude = 0;
                        for (int64_t k = 0; k < K; k++) {
                            const double product = double(x.at(m, k)) * double(w.at(n, k));
                            sum += product, magnitude += std::fabs(product);
                        }
                        exact.push_back(sum);
                        bound.push_back(1.000001 * test::gamma(std::ceil(double(K) / 32) + 5) * magnitude);
                    }
                }
                EXPECT_TRUE(test::within(d.values(), exact, bound, 7))
                    << name_of(x_type) << name_of(w_type) << K;
            }
        }
    }
}

// Decoding the weights first (D = 1) gives the bits of W4A16: code * SF is exact.
TEST(MatmulDense, OfDecodedWeightsIsW4A16) {
    const OwnedMatrix x = test::random_matrix(4, 117, DType::bf16, 5);
    const Quantized w = test::random_quantized(NvFp4Shape::of(11, 117), 6);
    for (const DType type : types) {
        OwnedMatrix decoded(11, 117, type), d(4, 11);
        const float D = 1.0f;
        reference::dequantize({.a = w.view(), .decode_scale = &D, .y = decoded.view()});
        reference::matmul_dense({.x = x.input(), .w = decoded.input(), .d = d.view()});
        EXPECT_TRUE(test::same_values(d.values(), w4a16(x, w, std::vector<float>(11, 1.0f)).values(), 11))
            << name_of(type);
    }
}

TEST(MatmulDense, AddsTheBiasThenRoundsToTheType) {
    const OwnedMatrix x = test::random_matrix(2, 48, DType::bf16, 7),
                      w = test::random_matrix(5, 48, DType::bf16, 8);
    OwnedMatrix sum(2, 5);
    reference::matmul_dense({.x = x.input(), .w = w.input(), .d = sum.view()});
    for (const DType bias_type : types) {
        const OwnedMatrix bias = test::random_matrix(1, 5, bias_type, 9, 100.0f);
        for (const DType type : types) {
            OwnedMatrix d(2, 5, type);
            reference::matmul_dense(
                {.x = x.input(), .w = w.input(), .bias = bias.data(), .bias_type = bias_type, .d = d.view()});
            std::vector<float> expected;
            for (int64_t i = 0; i < 10; i++)
                expected.push_back(
                    round_to_type(float(double(sum.at(i / 5, i % 5)) + double(bias.at(0, i % 5))), type));
            EXPECT_TRUE(test::same_values(d.values(), expected, 5)) << name_of(type);
        }
    }
}

}  // namespace
}  // namespace halfbyte
