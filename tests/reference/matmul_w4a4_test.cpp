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

struct Problem {
    Quantized a, w;
    PackedWeight packed;
    float Da = 1.0f;
    std::vector<float> Dw;

    Problem(int64_t M, int64_t N, int64_t K, uint64_t seed)
        : a(test::random_quantized(NvFp4Shape::of(M, K), seed)),
          w(test::random_quantized(NvFp4Shape::of(N, K), seed + 1)),
          packed(test::pack(w)),
          Dw(size_t(N), 1.0f) {}
    MatmulW4A4Args args(OwnedMatrix& d) const {
        return {.a = a.view(), .w = &packed, .row_decode = &Da, .column_decode = Dw.data(), .d = d.view()};
    }
    OwnedMatrix run(DType type = DType::f32) const {
        OwnedMatrix d(a.shape.rows, w.shape.rows, type);
        reference::matmul_w4a4(args(d));
        return d;
    }
};

// The exact block sum, in double.
double block_sum(const Problem& p, int64_t m, int64_t n, int64_t block) {
    double sum = 0;
    for (int64_t k = block * 16; k < std::min(block * 16 + 16, p.a.shape.k); k++)
        sum += double(decode_e2m1(p.a.code(m, k))) * double(decode_e2m1(p.w.code(n, k)));
    return sum * double(decode_e4m3(p.a.scale(m, block))) * double(decode_e4m3(p.w.scale(n, block)));
}

// Every FP32 addition is one rounding of a double sum of two FP32 numbers (which rounds the exact sum
// correctly).
float accumulator(const Problem& p, int64_t m, int64_t n) {
    float total = 0;
    for (int64_t first = 0; first < p.a.shape.blocks(); first += 64) {
        float chain = 0;
        for (int64_t block = first; block < std::min(first + 64, p.a.shape.blocks()); block++) {
            const double product = block_sum(p, m, n, block);
            EXPECT_EQ(double(float(product)), product);  // exact in FP32
            chain = float(double(chain) + product);
        }
        total = float(double(total) + double(chain));
    }
    return total;
}

constexpr int64_t all_k[] = {0, 1, 15, 16, 17, 33, 63, 65, 1000, 1024, 1040, 2064};

TEST(MatmulW4A4, AddsExactBlockSumsInChainsOf64) {
    for (const int64_t K : all_k) {
        const Problem p(3, 18, K, uint64_t(K));
        std::vector<float> expected;
        for (int64_t i = 0; i < 3 * 18; i++) expected.push_back(accumulator(p, i / 18, i % 18));
        EXPECT_TRUE(test::same_values(p.run().values(), expected, 18)) << "K = " << K;
    }
}

TEST(MatmulW4A4, StaysWithinTheDerivedBoundOfTheExactSum) {
    for (const int64_t K : all_k) {
        const Problem p(3, 18, K, uint64_t(K) + 50);
        std::vector<int64_t> sums(3 * 18), magnitudes(3 * 18);
        reference::exact_product(p.a.view(), p.packed, sums.data(), magnitudes.data());
        std::vector<double> exact, bound;
        for (int64_t i = 0; i < 3 * 18; i++) {
            double sum = 0, magnitude = 0;  // in units of 2^-20 both are integers below 2^53 here
            for (int64_t block = 0; block < p.a.shape.blocks(); block++) {
                const double product = block_sum(p, i / 18, i % 18, block);
                sum += product, magnitude += std::fabs(product);
            }
            ASSERT_EQ(double(sums[size_t(i)]) * 0x1p-20, sum);
            ASSERT_EQ(double(magnitudes[size_t(i)]) * 0x1p-20, magnitude);
            exact.push_back(sum);
            bound.push_back(test::gamma(62 + std::ceil(double(K) / 1024)) * magnitude);
        }
        EXPECT_TRUE(test::within(p.run().values(), exact, bound, 18)) << "K = " << K;
    }
}

// 2^24, then 127 times 1. One long chain would lose every 1; two chains keep the 64 of the second.
TEST(MatmulW4A4, TheSecondChainStartsAtZero) {
    Problem p(1, 1, 2048, 1);
    for (int64_t k = 0; k < 2048; k++) {
        const bool large = k < 16;
        p.a.set_code(0, k, large ? 6 : k % 16 == 0 ? 2 : 0);  // 4 * 4 * 16 = 2^8, or 1 * 1
        p.w.set_code(0, k, large ? 6 : 2);
    }
    for (int64_t block = 0; block < 128; block++)
        p.a.scales[block] = p.w.scales[block] = encode_e4m3(block == 0 ? 256.0f : 1.0f);
    p.packed = test::pack(p.w);
    EXPECT_EQ(p.run().at(0, 0), 0x1p24f + 64);
}

TEST(MatmulW4A4, TheLargestBlockIsExact) {
    Problem p(1, 1, 16, 1);
    for (int64_t k = 0; k < 16; k++) p.a.set_code(0, k, 7), p.w.set_code(0, k, 15);
    p.a.scales[0] = p.w.scales[0] = 0x7E;
    p.packed = test::pack(p.w);
    EXPECT_EQ(p.run().at(0, 0), -16.0f * 36 * 448 * 448);
    p.a.scales[0] = p.w.scales[0] = 0x01;
    p.packed = test::pack(p.w);
    EXPECT_EQ(p.run().at(0, 0), -16.0f * 36 * 0x1p-18f);
}

TEST(MatmulW4A4, ARowHasTheSameBitsAloneAndInABatch) {
    const Problem p(21, 33, 1040, 2);
    const OwnedMatrix all = p.run();
    for (int64_t row = 0; row < 21; row++) {
        Problem one(1, 33, 1040, 2);
        one.packed = p.packed;
        for (int64_t k = 0; k < 1040; k++) one.a.set_code(0, k, p.a.code(row, k));
        for (int64_t block = 0; block < 65; block++) one.a.scales[block] = p.a.scale(row, block);
        EXPECT_TRUE(test::same_values(one.run().values(), all.row(row).values(), 33)) << row;
    }
}

// alpha = fl(Da[m] * Dw[n]); d = fl(fl(acc * alpha) + bias); a product or sum of two FP32 in double rounds
// once.
TEST(MatmulW4A4, AlphaPerColumnAndRowAndEveryBiasTypeRoundWhereTheContractSays) {
    Problem p(4, 19, 80, 3);
    test::Random random(4);
    std::vector<float> Da;
    for (int i = 0; i < 4; i++) Da.push_back(random.uniform(1e-4f, 1e-3f));
    for (float& scale : p.Dw) scale = random.uniform(1e-4f, 1e-3f);
    for (const bool per_row : {false, true}) {
        for (const DType bias_type : {DType::f32, DType::bf16, DType::f16}) {
            const OwnedMatrix bias = test::random_matrix(1, 19, bias_type, 5, 10.0f);
            for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
                for (const bool with_bias : {false, true}) {
                    OwnedMatrix d(4, 19, type, 23);
                    MatmulW4A4Args args = p.args(d);
                    args.row_decode = Da.data();
                    args.row_decode_per_row = per_row;
                    args.bias = with_bias ? bias.data() : nullptr;
                    args.bias_type = bias_type;
                    reference::matmul_w4a4(args);
                    std::vector<float> expected;
                    for (int64_t m = 0; m < 4; m++) {
                        for (int64_t n = 0; n < 19; n++) {
                            const float alpha =
                                float(double(Da[per_row ? size_t(m) : 0]) * double(p.Dw[size_t(n)]));
                            float value = float(double(accumulator(p, m, n)) * double(alpha));
                            if (with_bias) value = float(double(value) + double(bias.at(0, n)));
                            expected.push_back(round_to_type(value, type));
                        }
                    }
                    EXPECT_TRUE(test::same_values(d.values(), expected, 19))
                        << name_of(type) << name_of(bias_type);
                    EXPECT_TRUE(d.gaps_intact());
                }
            }
        }
    }
}

// A fused layer with a scale of its own for each part is the parts one after the other.
TEST(MatmulW4A4, AFusedLayerWithUnequalScalesIsItsPartsByteForByte) {
    const Problem fused(5, 40, 96, 6);
    for (const float ratio : {1.2547f, 10.0f}) {
        Problem whole = fused;
        for (size_t n = 0; n < 40; n++) whole.Dw[n] = n < 23 ? 3.85e-5f : 3.85e-5f * ratio;
        const OwnedMatrix d = whole.run(DType::bf16);
        for (const auto& [first, last] : {std::pair<int64_t, int64_t>(0, 23), {23, 40}}) {
            Quantized w(NvFp4Shape::of(last - first, 96), 0);
            for (int64_t n = first; n < last; n++) {
                for (int64_t k = 0; k < 96; k++) w.set_code(n - first, k, fused.w.code(n, k));
                for (int64_t block = 0; block < 6; block++)
                    w.scales[w.scale_place(n - first, block)] = fused.w.scale(n, block);
            }
            const PackedWeight packed = test::pack(w);
            OwnedMatrix part(5, last - first, DType::bf16);
            reference::matmul_w4a4({.a = fused.a.view(),
                                    .w = &packed,
                                    .row_decode = &whole.Da,
                                    .column_decode = whole.Dw.data() + first,
                                    .d = part.view()});
            for (int64_t m = 0; m < 5; m++)
                for (int64_t n = first; n < last; n++) EXPECT_EQ(part.at(m, n - first), d.at(m, n));
        }
    }
}

TEST(MatmulW4A4, Fp16OverflowGivesInfinityAndTheScaleIsAppliedBeforeRounding) {
    Problem p(1, 1, 32, 7);  // x = 1 (code 2, scale 1) times 6 * 448, 32 times: 86,016
    for (int64_t k = 0; k < 32; k++) p.a.set_code(0, k, 2), p.w.set_code(0, k, 7);
    for (int64_t block = 0; block < 2; block++) p.a.scales[block] = 0x38, p.w.scales[block] = 0x7E;
    p.packed = test::pack(p.w);
    EXPECT_EQ(p.run(DType::f32).at(0, 0), 86016.0f);
    EXPECT_EQ(p.run(DType::f16).at(0, 0), INFINITY);
    p.Dw[0] = 0x1p-8f;
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) EXPECT_EQ(p.run(type).at(0, 0), 336.0f);
}

TEST(MatmulW4A4, TheSmallestScalesGiveTheirProduct) {
    Problem p(1, 1, 16, 8);  // x = 1 times 0.5 * 2^-9, 16 times
    for (int64_t k = 0; k < 16; k++) p.a.set_code(0, k, 2), p.w.set_code(0, k, 1);
    p.a.scales[0] = 0x38, p.w.scales[0] = 0x01;
    p.packed = test::pack(p.w);
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) EXPECT_EQ(p.run(type).at(0, 0), 0.015625f);
}

TEST(MatmulW4A4, EmptySizesAreAllowedAndAnEmptySumIsTheBias) {
    EXPECT_TRUE(Problem(0, 5, 32, 9).run().values().empty());
    EXPECT_TRUE(Problem(5, 0, 32, 9).run().values().empty());
    const Problem p(2, 3, 0, 9);
    const std::vector<float> bias = {1, -2, 3};
    OwnedMatrix d(2, 3);
    MatmulW4A4Args args = p.args(d);
    args.bias = bias.data();
    reference::matmul_w4a4(args);
    EXPECT_EQ(d.values(), (std::vector<float>{1, -2, 3, 1, -2, 3}));
}

}  // namespace
}  // namespace halfbyte
