#include <gtest/gtest.h>

#include <cmath>

#include "reference/reference.h"
#include "reference/sum32_oracle.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
constexpr int64_t sizes[] = {1, 15, 17, 64, 576, 1000};

double unit_of(DType type) {
    return type == DType::f32 ? 0 : type == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

// The mean of squares passes ceil(K/32) fma, 5 additions, the division by K and the sum with epsilon; all
// terms are positive, and the square root halves the relative error. Square root, reciprocal, r * i and * w
// add one each.
double relative_tolerance(int64_t K, DType type) {
    return test::gamma((std::ceil(double(K) / 32) + 7) / 2 + 4) + 1.01 * unit_of(type);
}

void expect_norm(const OwnedMatrix& r, const OwnedMatrix& weight, float epsilon, const OwnedMatrix& y) {
    std::vector<double> exact, tolerance;
    for (int64_t row = 0; row < r.rows(); row++) {
        double squares = 0;
        for (int64_t k = 0; k < r.cols(); k++) squares += double(r.at(row, k)) * double(r.at(row, k));
        const double inverse = 1 / std::sqrt(squares / double(r.cols()) + double(epsilon));
        for (int64_t k = 0; k < r.cols(); k++) {
            exact.push_back(double(r.at(row, k)) * inverse * double(weight.at(0, k)));
            // FP16 has subnormals from 2^-14 down: half a step of 2^-24 there.
            const double smallest = y.type() == DType::f16 ? 0x1p-25 : 0;
            tolerance.push_back(relative_tolerance(r.cols(), y.type()) * std::fabs(exact.back()) + smallest);
        }
    }
    EXPECT_TRUE(test::within(y.values(), exact, tolerance, r.cols())) << name_of(y.type());
}

TEST(RmsNorm, FollowsItsFormula) {
    for (const DType type : types) {
        for (const DType weight_type : types) {
            for (const int64_t K : sizes) {
                const OwnedMatrix x = test::random_matrix(4, K, type, uint64_t(K), 3.0f, K + 3);
                const OwnedMatrix weight = test::random_matrix(1, K, weight_type, 2);
                OwnedMatrix y(4, K, type, K + 5);
                reference::rms_norm({.x = x.input(),
                                     .residual = {},
                                     .weight = weight.input(),
                                     .epsilon = 1e-5f,
                                     .y = y.view()});
                expect_norm(x, weight, 1e-5f, y);
                EXPECT_TRUE(y.gaps_intact());
            }
        }
    }
}

TEST(RmsNorm, TheResidualSumIsRoundedWrittenBackAndUsed) {
    for (const DType type : types) {
        for (const int64_t K : sizes) {
            const OwnedMatrix x = test::random_matrix(3, K, type, 3),
                              weight = test::random_matrix(1, K, type, 4);
            OwnedMatrix residual = test::random_matrix(3, K, type, 5, 1.0f, K + 2);
            std::vector<float> sums;
            for (int64_t i = 0; i < 3 * K; i++)
                sums.push_back(round_to_type(
                    float(double(x.at(i / K, i % K)) + double(residual.at(i / K, i % K))), type));
            OwnedMatrix y(3, K, type);
            reference::rms_norm({.x = x.input(),
                                 .residual = residual.view(),
                                 .weight = weight.input(),
                                 .epsilon = 1e-6f,
                                 .y = y.view()});
            EXPECT_TRUE(test::same_values(residual.values(), sums, K)) << name_of(type);
            EXPECT_TRUE(residual.gaps_intact());
            expect_norm(residual, weight, 1e-6f, y);
        }
    }
}

TEST(RmsNorm, AResultMayTakeTheInputsPlace) {
    OwnedMatrix x = test::random_matrix(3, 65, DType::bf16, 6);
    const OwnedMatrix weight = test::random_matrix(1, 65, DType::bf16, 7);
    OwnedMatrix y(3, 65, DType::bf16);
    reference::rms_norm(
        {.x = x.input(), .residual = {}, .weight = weight.input(), .epsilon = 1e-5f, .y = y.view()});
    reference::rms_norm(
        {.x = x.input(), .residual = {}, .weight = weight.input(), .epsilon = 1e-5f, .y = x.view()});
    EXPECT_TRUE(test::same_values(x.values(), y.values(), 65));
}

// Operation by operation; one of FP32 numbers in double, then rounded, is correctly rounded.
TEST(RmsNorm, EveryStepIsRounded) {
    for (int64_t K = 1; K < 200; K++) {
        const OwnedMatrix x = test::random_matrix(1, K, DType::f32, uint64_t(K)),
                          weight = test::random_matrix(1, K, DType::f32, 1);
        OwnedMatrix y(1, K);
        reference::rms_norm(
            {.x = x.input(), .residual = {}, .weight = weight.input(), .epsilon = 1e-3f, .y = y.view()});
        const float mean = float(double(test::sum32_of(x.values(), x.values())) / double(K));
        const float root = float(std::sqrt(double(float(double(mean) + double(1e-3f))))),
                    inverse = float(1.0 / double(root));
        std::vector<float> expected;
        for (int64_t k = 0; k < K; k++) {
            const float scaled = float(double(x.at(0, k)) * double(inverse));
            expected.push_back(float(double(scaled) * double(weight.at(0, k))));
        }
        EXPECT_TRUE(test::same_values(y.values(), expected, K)) << K;
    }
}

TEST(RmsNorm, AZeroRowIsZeroAndARowDependsOnItselfAlone) {
    OwnedMatrix x = test::random_matrix(3, 40, DType::f32, 8);
    const OwnedMatrix weight = test::random_matrix(1, 40, DType::f32, 9);
    const OwnedMatrix last = x.row(2);
    for (int64_t k = 0; k < 40; k++) x.set(0, k, 0.0f), x.set(1, k, NAN);
    OwnedMatrix y(3, 40), one(1, 40);
    reference::rms_norm(
        {.x = x.input(), .residual = {}, .weight = weight.input(), .epsilon = 1e-5f, .y = y.view()});
    reference::rms_norm(
        {.x = last.input(), .residual = {}, .weight = weight.input(), .epsilon = 1e-5f, .y = one.view()});
    for (int64_t k = 0; k < 40; k++) EXPECT_EQ(y.at(0, k), 0.0f);
    EXPECT_TRUE(test::same_values(y.row(2).values(), one.values(), 40));
}

}  // namespace
}  // namespace halfbyte
