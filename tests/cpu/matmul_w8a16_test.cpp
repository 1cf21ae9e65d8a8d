// The product with E4M3 weights at every level against the reference.
#include "cpu/every_level.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte::test {
namespace {

// Rows of w lie k + 3 bytes apart, so most are unaligned.
struct Problem {
    OwnedMatrix x;
    int64_t n, k;
    std::vector<uint8_t> w;
    std::vector<float> column_decode;
    OwnedMatrix bias;

    Problem(int64_t m, int64_t n_, int64_t k_, uint64_t seed, DType x_type = DType::f32,
            DType bias_type = DType::f32)
        : x(random_matrix(m, k_, x_type, seed, 1.0f, k_ + 5)),
          n(n_),
          k(k_),
          w(size_t(n_ * (k_ + 3)), 0x7F),
          bias(random_matrix(1, n_, bias_type, seed + 1)) {
        Random random(seed + 2);
        for (int64_t row = 0; row < n; row++)
            for (int64_t i = 0; i < k; i++) {
                uint8_t& byte = at(row, i);
                byte = uint8_t(random.bits());
                if ((byte & 0x7F) == 0x7F) byte = uint8_t(byte ^ 0x41);
            }
        for (int64_t i = 0; i < n; i++) column_decode.push_back(random.uniform(1e-4f, 1e-3f));
    }
    uint8_t& at(int64_t row, int64_t i) { return w[size_t(row * (k + 3) + i)]; }

    MatmulW8A16Args args(OwnedMatrix& d, bool with_bias = true) const {
        return {.x = x.view(),
                .w = {w.data(), DType::f8_e4m3, n, k, k + 3},
                .column_decode = column_decode.data(),
                .bias = with_bias ? bias.data() : nullptr,
                .bias_type = bias.type(),
                .d = d.view()};
    }
};

void expect_reference_bits(const Problem& problem, DType type, bool with_bias = true) {
    const int64_t m = problem.x.rows(), n = problem.n;
    OwnedMatrix expected(m, n, type);
    by_reference(reference::matmul_w8a16, problem.args(expected, with_bias));
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix d(m, n, type, n + 3, 0x7F);
        kernels.matmul_w8a16(pool, problem.args(d, with_bias));
        EXPECT_TRUE(same_values(d.values(), expected.values(), std::max<int64_t>(1, n)));
        EXPECT_TRUE(d.gaps_intact());
    });
}

}  // namespace

TEST(MatmulW8A16, HasTheReferencesBitsForEverySize) {
    const int64_t sizes[][3] = {{0, 16, 16},   {3, 0, 16},     {2, 5, 0},      {1, 1, 1},     {1, 15, 15},
                                {15, 16, 16},  {16, 17, 17},   {17, 33, 33},   {1, 63, 65},   {33, 15, 63},
                                {63, 1, 65},   {65, 17, 1000}, {5, 33, 1024},  {9, 16, 1040}, {2, 65, 1056},
                                {1, 1000, 33}, {1, 1024, 64},  {3, 1040, 32},  {8, 49, 96},   {13, 100, 32},
                                {1, 100, 576}, {4, 48, 160},   {40, 1000, 200}};
    uint64_t seed = 1;
    for (const auto& [m, n, k] : sizes) {
        SCOPED_TRACE(testing::Message() << "M " << m << " N " << n << " K " << k);
        expect_reference_bits(Problem(m, n, k, seed += 10), DType::f32);
    }
}

TEST(MatmulW8A16, TakesEveryTypeOfInputBiasAndOutput) {
    uint64_t seed = 1000;
    constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
    for (const DType x_type : types)
        for (const DType type : types)
            for (const DType bias_type : types) {
                seed += 10;
                expect_reference_bits(Problem(5, 50, 96, seed, x_type, bias_type), type, seed % 20 == 0);
            }
}

// Each byte, also the NaNs, alone in a row of +0 and among all others, read in place (K = 64) and decoded (K
// = 63, 9 rows of x).
TEST(MatmulW8A16, DecodesEveryByte) {
    for (const int64_t k : {64, 63})
        for (const int64_t m : {1, 9}) {
            Problem problem(m, 512, k, 2000);
            for (int64_t n = 0; n < 512; n++) {
                if (n < 256)
                    for (int64_t i = 0; i < k; i++) problem.at(n, i) = 0;
                problem.at(n, n % k) = uint8_t(n);
            }
            expect_reference_bits(problem, DType::f32);
        }
}

// Values of x below 256 and those beyond are taken in different ways.
TEST(MatmulW8A16, TakesXOfEverySize) {
    for (const float value : {255.99998f, 256.0f, 0x1p127f, 0x1p-149f, 0x1p-120f, INFINITY, NAN})
        for (const int64_t m : {1, 3, 4, 9}) {
            Problem problem(m, 40, 70, 5000);
            for (int64_t i = 0; i < 70; i++) problem.x.set(m - 1, i, i % 3 == 0 ? value : -value);
            expect_reference_bits(problem, DType::f32);
        }
}

TEST(MatmulW8A16, KeepsSignsOfZeroLikeTheReference) {
    Problem problem(2, 64, 64, 3000);
    for (int64_t row = 0; row < 2; row++)
        for (int64_t i = 0; i < 64; i++) problem.x.set(row, i, i < 32 ? -0x1p-149f : row == 0 ? 1.0f : -1.0f);
    // 2^-9 * 2^-149 rounds to 0
    for (int64_t n = 0; n < 64; n++)
        for (int64_t i = 0; i < 64; i++) problem.at(n, i) = uint8_t(i < 32 ? 1 : n % 2 * 0x80);
    expect_reference_bits(problem, DType::f32, false);
}

TEST(MatmulW8A16, ARowAloneEqualsTheRowInABatch) {
    const Problem problem(13, 60, 96, 4000);
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix batch(13, 60);
        kernels.matmul_w8a16(pool, problem.args(batch));
        for (int64_t row = 0; row < 13; row++) {
            const OwnedMatrix x = problem.x.row(row);
            OwnedMatrix alone(1, 60);
            MatmulW8A16Args args = problem.args(alone);
            args.x = x.view();
            kernels.matmul_w8a16(pool, args);
            EXPECT_TRUE(same_values(alone.values(), batch.row(row).values(), 60));
        }
    });
}

}  // namespace halfbyte::test
