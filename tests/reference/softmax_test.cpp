#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/exp.h"
#include "reference/reference.h"
#include "reference/sum32_oracle.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;

OwnedMatrix softmax(const OwnedMatrix& x) {
    OwnedMatrix y(x.rows(), x.cols(), DType::f32, x.cols() + 3);
    reference::softmax({.x = x.input(), .y = y.view()});
    EXPECT_TRUE(y.gaps_intact());
    return y;
}

// With R the range of a row: fl(x - m) is off by R u, which exp turns into a relative error; exp adds 3 u.
// Both stand in the numerator and in every term of the sum, which adds ceil(K/32) + 5 roundings of positive
// terms; the division one. Results may be subnormal: half a step of 2^-149 for exp and for the quotient.
TEST(Softmax, FollowsItsFormula) {
    for (const int64_t K : {1, 2, 17, 31, 32, 33, 64, 1000, 4096}) {
        for (const float spread : {0.1f, 3.0f, 30.0f}) {
            const OwnedMatrix x = test::random_matrix(3, K, DType::f32, uint64_t(K), spread, K + 1),
                              y = softmax(x);
            std::vector<double> exact, tolerance;
            for (int64_t row = 0; row < 3; row++) {
                double largest = -INFINITY, smallest = INFINITY, sum = 0;
                for (const float value : x.row(row).values())
                    largest = std::max(largest, double(value)), smallest = std::min(smallest, double(value));
                for (const float value : x.row(row).values()) sum += std::exp(double(value) - largest);
                for (const float value : x.row(row).values()) {
                    exact.push_back(std::exp(double(value) - largest) / sum);
                    const double relative =
                        2 * (largest - smallest + 3) * test::u + test::gamma(std::ceil(double(K) / 32) + 6);
                    tolerance.push_back(1.01 * relative * exact.back() + 0x1p-149);
                }
            }
            EXPECT_TRUE(test::within(y.values(), exact, tolerance, K))
                << "K = " << K << ", spread " << spread;
        }
    }
}

TEST(Softmax, EveryStepIsRounded) {
    for (int64_t K = 1; K < 200; K++) {
        const OwnedMatrix x = test::random_matrix(1, K, DType::f32, uint64_t(K), 2.0f);
        const std::vector<float> inputs = x.values();
        const float largest = *std::max_element(inputs.begin(), inputs.end());
        std::vector<float> e, expected;
        for (const float value : inputs) e.push_back(reference::exp(float(double(value) - double(largest))));
        for (const float value : e) expected.push_back(float(double(value) / double(test::sum32_of(e))));
        EXPECT_TRUE(test::same_values(softmax(x).values(), expected, K)) << K;
    }
}

TEST(Softmax, EqualInputsShareEqually) {
    const OwnedMatrix y = softmax(test::matrix_of(std::vector<float>(64, 1234.5f), 1, 64));
    for (const float value : y.values()) EXPECT_EQ(value, 1.0f / 64);
}

TEST(Softmax, MayWriteOverItsInput) {
    OwnedMatrix x = test::random_matrix(3, 70, DType::f32, 1);
    const OwnedMatrix y = softmax(x);
    reference::softmax({.x = x.input(), .y = x.view()});
    EXPECT_TRUE(test::same_values(x.values(), y.values(), 70));
}

TEST(Softmax, MinusInfinityGetsZeroAndANaNSpoilsItsRowOnly) {
    const OwnedMatrix x = test::matrix_of({0, -INFINITY, 0, NAN, 1, 2}, 2, 3);
    EXPECT_TRUE(test::same_values(softmax(x).values(), std::vector<float>{0.5f, 0, 0.5f, NAN, NAN, NAN}, 3));
}

}  // namespace
}  // namespace halfbyte
