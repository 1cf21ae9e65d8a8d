#include <gtest/gtest.h>

#include <cmath>

#include "reference/exp.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

double unit_of(DType type) {
    return type == DType::f32 ? 0 : type == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

// exp is at most 1.5 ulp, so 3u, off; the sum with 1, the division and the product round once each: 6
// roundings.
TEST(SiluMul, FollowsItsFormula) {
    for (const DType type : types) {
        const OwnedMatrix gate = test::random_matrix(5, 333, type, 1, 8.0f, 340),
                          up = test::random_matrix(5, 333, type, 2);
        OwnedMatrix y(5, 333, type, 335);
        reference::silu_mul({.gate = gate.input(), .up = up.input(), .y = y.view()});
        std::vector<double> exact, tolerance;
        for (int64_t i = 0; i < 5 * 333; i++) {
            const double g = gate.at(i / 333, i % 333);
            exact.push_back(g / (1 + std::exp(-g)) * double(up.at(i / 333, i % 333)));
            const double smallest = type == DType::f16 ? 0x1p-25 : 0;  // half a step of FP16's subnormals
            tolerance.push_back((test::gamma(6) + 1.01 * unit_of(type)) * std::fabs(exact.back()) + smallest);
        }
        EXPECT_TRUE(test::within(y.values(), exact, tolerance, 333)) << name_of(type);
        EXPECT_TRUE(y.gaps_intact());
    }
}

TEST(SiluMul, RoundsEveryStep) {
    test::Random random(3);
    for (int i = 0; i < 1000; i++) {
        const OwnedMatrix gate = test::matrix_of({random.normal() * 5}, 1, 1),
                          up = test::matrix_of({random.normal()}, 1, 1);
        OwnedMatrix y(1, 1);
        reference::silu_mul({.gate = gate.input(), .up = up.input(), .y = y.view()});
        const float g = gate.at(0, 0), denominator = float(1.0 + double(reference::exp(-g)));
        const float silu = float(double(g) / double(denominator));
        ASSERT_EQ(y.at(0, 0), float(double(silu) * double(up.at(0, 0))));
    }
}

TEST(SiluMul, MayWriteOverEitherInput) {
    for (const bool over_gate : {true, false}) {
        OwnedMatrix gate = test::random_matrix(3, 50, DType::bf16, 4),
                    up = test::random_matrix(3, 50, DType::bf16, 5);
        OwnedMatrix y(3, 50, DType::bf16);
        reference::silu_mul({.gate = gate.input(), .up = up.input(), .y = y.view()});
        OwnedMatrix& target = over_gate ? gate : up;
        const ConstMatrix g = gate.input(), second = up.input();
        reference::silu_mul({.gate = g, .up = second, .y = target.view()});
        EXPECT_TRUE(test::same_values(target.values(), y.values(), 50));
    }
}

TEST(SiluMul, TheEndsAreDefined) {
    const OwnedMatrix gate = test::matrix_of({0.0f, -0.0f, 200.0f, -200.0f, INFINITY, -INFINITY, NAN}, 1, 7);
    const OwnedMatrix up = test::matrix_of(std::vector<float>(7, 1.0f), 1, 7);
    OwnedMatrix y(1, 7);
    reference::silu_mul({.gate = gate.input(), .up = up.input(), .y = y.view()});
    // -200 / infinity is -0; -infinity / infinity is NaN, as the formula says.
    EXPECT_TRUE(
        test::same_values(y.values(), std::vector<float>{0.0f, -0.0f, 200.0f, -0.0f, INFINITY, NAN, NAN}, 7));
}

}  // namespace
}  // namespace halfbyte
