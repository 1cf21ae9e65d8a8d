#include <gtest/gtest.h>

#include <cmath>

#include "reference/quantized.h"
#include "support/compare.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::Quantized;

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

TEST(FakeQuantize, IsQuantisingAndDequantisingWithTheReciprocal) {
    for (const DType type : types) {
        for (const DType result : types) {
            for (const auto& [rows, k] :
                 {std::pair<int64_t, int64_t>(0, 16), {2, 0}, {1, 1}, {3, 15}, {2, 17}, {15, 33}}) {
                OwnedMatrix x = test::random_matrix(rows, k, type, uint64_t(k + 1), 3.0f, k + 3);
                if (rows > 1 && k > 4) x.set(1, 2, NAN), x.set(1, 3, -INFINITY), x.set(0, 0, -0.0f);
                std::vector<float> G;
                for (int64_t row = 0; row < rows; row++) G.push_back(100.0f + 3 * float(row));
                OwnedMatrix expected(rows, k, result), y(rows, k, result, k + 5, 0x7F);
                for (int64_t row = 0; row < rows; row++) {
                    const Quantized q = test::quantize(x.row(row), G[size_t(row)]);
                    const OwnedMatrix one = test::dequantize(q, float(1 / double(G[size_t(row)])), result);
                    for (int64_t i = 0; i < k; i++) expected.set(row, i, one.at(0, i));
                }
                reference::fake_quantize(
                    {.x = x.input(), .encode_scale = G.data(), .scale_per_row = true, .y = y.view()});
                EXPECT_TRUE(test::same_values(y.values(), expected.values(), std::max<int64_t>(1, k)));
                EXPECT_TRUE(y.gaps_intact());
            }
        }
    }
}

TEST(FakeQuantize, TakesOneScaleForAllRowsAndMayWriteOverItsInput) {
    for (const DType type : types) {
        OwnedMatrix x = test::random_matrix(4, 50, type, 3);
        const float G = 700.0f;
        const OwnedMatrix expected = test::dequantize(test::quantize(x, G), 1.0f / G, type);
        reference::fake_quantize({.x = x.input(), .encode_scale = &G, .y = x.view()});
        EXPECT_TRUE(test::same_values(x.values(), expected.values(), 50)) << name_of(type);
    }
}

TEST(FakeQuantize, ANaNBecomesCode7AndAnInfinityTheLargest) {
    OwnedMatrix x = test::matrix_of({NAN, INFINITY, -INFINITY, 0}, 1, 4), y(1, 4);
    const float G = 1.0f;
    reference::fake_quantize({.x = x.input(), .encode_scale = &G, .y = y.view()});
    EXPECT_EQ(y.values(), (std::vector<float>{2688, 2688, -2688, 0}));
}

}  // namespace
}  // namespace halfbyte
