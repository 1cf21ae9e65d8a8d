// The W4A16 product at every level against the reference.
#include "cpu/every_level.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte::test {
namespace {

struct Problem {
    OwnedMatrix x;
    PackedWeight w;
    std::vector<float> column_decode;
    OwnedMatrix bias;

    Problem(int64_t m, int64_t n, int64_t k, uint64_t seed, DType x_type = DType::f32,
            DType bias_type = DType::f32)
        : x(random_matrix(m, k, x_type, seed, 1.0f, k + 5)),
          w(pack(random_quantized(NvFp4Shape::of(n, k), seed + 1))),
          bias(random_matrix(1, n, bias_type, seed + 2)) {
        Random random(seed + 3);
        for (int64_t i = 0; i < n; i++) column_decode.push_back(random.uniform(1e-4f, 1e-3f));
    }

    MatmulW4A16Args args(OwnedMatrix& d, bool with_bias = true) const {
        return {.x = x.view(),
                .w = &w,
                .column_decode = column_decode.data(),
                .bias = with_bias ? bias.data() : nullptr,
                .bias_type = bias.type(),
                .d = d.view()};
    }
};

void expect_reference_bits(const Problem& problem, DType type, bool with_bias = true) {
    const int64_t m = problem.x.rows(), n = problem.w.n;
    OwnedMatrix expected(m, n, type);
    by_reference(reference::matmul_w4a16, problem.args(expected, with_bias));
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix d(m, n, type, n + 3, 0x7F);
        kernels.matmul_w4a16(pool, problem.args(d, with_bias));
        EXPECT_TRUE(same_values(d.values(), expected.values(), std::max<int64_t>(1, n)));
        EXPECT_TRUE(d.gaps_intact());
    });
}

}  // namespace

TEST(MatmulW4A16, HasTheReferencesBitsForEverySize) {
    const int64_t sizes[][3] = {{0, 16, 16},   {3, 0, 16},     {2, 5, 0},      {1, 1, 1},     {1, 15, 15},
                                {15, 16, 16},  {16, 17, 17},   {17, 33, 33},   {1, 63, 65},   {33, 15, 63},
                                {63, 1, 65},   {65, 17, 1000}, {5, 33, 1024},  {9, 16, 1040}, {2, 65, 1040},
                                {1, 1000, 33}, {1, 1024, 17},  {1, 20, 2000},  {2, 20, 1056}, {1, 17, 31},
                                {3, 1040, 16}, {6, 17, 1047},  {8, 40, 1057},  {8, 33, 520},  {4, 70, 2063},
                                {1000, 2, 15}, {1040, 1, 1},   {40, 1000, 200}};
    uint64_t seed = 1;
    for (const auto& [m, n, k] : sizes) {
        SCOPED_TRACE(testing::Message() << "M " << m << " N " << n << " K " << k);
        expect_reference_bits(Problem(m, n, k, seed += 10), DType::f32);
    }
}

TEST(MatmulW4A16, TakesEveryTypeOfInputBiasAndOutput) {
    uint64_t seed = 1000;
    for (const DType x_type : {DType::f32, DType::bf16, DType::f16})
        for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
            expect_reference_bits(Problem(7, 50, 72, seed, x_type, type), type, seed % 20 == 0);
            seed += 10;
        }
}

TEST(MatmulW4A16, DecodesEveryScaleByte) {
    Problem problem(3, 256, 40, 2000);
    for (int64_t n = 0; n < 256; n++)
        for (int64_t block = 0; block < 3; block++)
            problem.w.block_scales[size_t(packed_scale_byte(3, n, block))] =
                uint8_t(block == n % 3 ? n : 0x38);
    expect_reference_bits(problem, DType::f32);
}

// Weights of -0 leave a lane that holds -0 as it is, weights of +0 make it +0.
TEST(MatmulW4A16, KeepsSignsOfZeroLikeTheReference) {
    Problem problem(2, 16, 64, 3000);
    for (int64_t row = 0; row < 2; row++)
        for (int64_t k = 0; k < 64; k++) problem.x.set(row, k, k < 32 ? -0x1p-149f : row == 0 ? 1.0f : -1.0f);
    for (int64_t n = 0; n < 16; n++) {
        for (int64_t k = 0; k < 64; k++) {
            uint8_t& pair = problem.w.codes[size_t(packed_code_byte(4, n, k))];
            const int code = k < 32 ? 1 : int(n % 2) * 8;  // 0.5 * 2^-9 * 2^-149 rounds to 0
            pair = uint8_t(k % 2 == 0 ? (pair & 0xF0) | code : (pair & 0x0F) | code << 4);
        }
        for (int64_t block = 0; block < 4; block++)
            problem.w.block_scales[size_t(packed_scale_byte(4, n, block))] = 1;
    }
    expect_reference_bits(problem, DType::f32, false);
}

// The codes beyond K are 0, but with a negative scale they mean -0, which must not be added to a lane of -0.
TEST(MatmulW4A16, WhatIsBeyondKIsNotAdded) {
    for (const int64_t k : {33, 41, 50, 79, 520, 1030})
        for (const int64_t m : {1, 2, 4}) {
            SCOPED_TRACE(testing::Message() << "M " << m << " K " << k);
            Problem problem(m, 19, k, 3100);
            const int64_t last = problem.w.blocks() - 1;
            for (int64_t row = 0; row < m; row++)
                for (int64_t i = 0; i < k; i++) problem.x.set(row, i, -0x1p-149f);
            for (int64_t n = 0; n < 19; n++) {
                for (int64_t i = 0; i < k; i++) {
                    uint8_t& pair = problem.w.codes[size_t(packed_code_byte(last + 1, n, i))];
                    pair = uint8_t(i % 2 == 0 ? (pair & 0xF0) | 1 : (pair & 0x0F) | 1 << 4);
                }
                for (int64_t block = 0; block <= last; block++)
                    problem.w.block_scales[size_t(packed_scale_byte(last + 1, n, block))] =
                        uint8_t(block == last ? (n % 3 == 0   ? 0x81
                                                 : n % 3 == 1 ? 0x01
                                                              : 0x7F)
                                              : 0x01);
            }
            expect_reference_bits(problem, DType::f32, false);
        }
}

TEST(MatmulW4A16, ARowAloneEqualsTheRowInABatch) {
    const Problem problem(13, 60, 100, 4000);
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix batch(13, 60);
        kernels.matmul_w4a16(pool, problem.args(batch));
        for (int64_t row = 0; row < 13; row++) {
            const OwnedMatrix x = problem.x.row(row);
            OwnedMatrix alone(1, 60);
            MatmulW4A16Args args = problem.args(alone);
            args.x = x.view();
            kernels.matmul_w4a16(pool, args);
            EXPECT_TRUE(same_values(alone.values(), batch.row(row).values(), 60));
        }
    });
}

}  // namespace halfbyte::test
