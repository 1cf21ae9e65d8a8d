// The product with unquantised weights at every level against the reference.
#include "cpu/every_level.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte::test {
namespace {

struct Problem {
    OwnedMatrix x, w, bias;

    Problem(int64_t m, int64_t n, int64_t k, uint64_t seed, DType x_type = DType::f32,
            DType w_type = DType::bf16, DType bias_type = DType::f32)
        : x(random_matrix(m, k, x_type, seed, 1.0f, k + 5)),
          w(random_matrix(n, k, w_type, seed + 1, 0.1f, k + 3)),
          bias(random_matrix(1, n, bias_type, seed + 2)) {}

    MatmulDenseArgs args(OwnedMatrix& d, bool with_bias = true) const {
        return {.x = x.view(),
                .w = w.view(),
                .bias = with_bias ? bias.data() : nullptr,
                .bias_type = bias.type(),
                .d = d.view()};
    }
};

void expect_reference_bits(const Problem& problem, DType type, bool with_bias = true) {
    const int64_t m = problem.x.rows(), n = problem.w.rows();
    OwnedMatrix expected(m, n, type);
    by_reference(reference::matmul_dense, problem.args(expected, with_bias));
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix d(m, n, type, n + 3, 0x7F);
        kernels.matmul_dense(pool, problem.args(d, with_bias));
        EXPECT_TRUE(same_values(d.values(), expected.values(), std::max<int64_t>(1, n)));
        EXPECT_TRUE(d.gaps_intact());
    });
}

}  // namespace

TEST(MatmulDense, HasTheReferencesBitsForEverySize) {
    const int64_t sizes[][3] = {
        {0, 16, 16},   {3, 0, 16},    {2, 5, 0},     {1, 1, 1},     {1, 15, 15},     {15, 16, 16},
        {16, 17, 17},  {17, 33, 33},  {1, 63, 65},   {33, 15, 63},  {63, 1, 65},     {65, 17, 1000},
        {5, 33, 1024}, {9, 16, 1040}, {2, 65, 1040}, {1, 1000, 33}, {1, 1024, 64},   {3, 1040, 16},
        {8, 49, 96},   {13, 100, 32}, {1000, 2, 15}, {1040, 1, 1},  {40, 1000, 200}, {1, 21, 31},
        {2, 21, 1600}, {3, 21, 70},   {4, 21, 70},   {6, 21, 70},   {27, 21, 3200},  {125, 19, 1600}};
    uint64_t seed = 1;
    for (const DType w_type : {DType::bf16, DType::f32, DType::f16})
        for (const auto& [m, n, k] : sizes) {
            SCOPED_TRACE(testing::Message()
                         << "M " << m << " N " << n << " K " << k << " w " << name_of(w_type));
            expect_reference_bits(Problem(m, n, k, seed += 10, DType::f32, w_type), DType::f32);
        }
}

TEST(MatmulDense, TakesEveryCombinationOfTypes) {
    constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
    uint64_t seed = 1000;
    for (const DType x_type : types)
        for (const DType w_type : types)
            for (const DType type : types) {
                const DType bias_type = types[seed / 10 % 3];
                expect_reference_bits(Problem(8, 21, 70, seed, x_type, w_type, bias_type), type,
                                      seed % 20 == 0);
                seed += 10;
            }
}

// -0 is kept by lanes whose every product rounds to -0, and lanes that no element reaches are +0.
TEST(MatmulDense, KeepsSignsOfZeroLikeTheReference) {
    for (const int64_t k : {5, 31, 32, 33, 64, 70}) {
        for (const int64_t m : {1, 8}) {
            Problem problem(m, 4, k, 7);
            for (int64_t row = 0; row < m; row++)
                for (int64_t i = 0; i < k; i++) problem.x.set(row, i, -0x1p-120f);
            for (int64_t n = 0; n < 4; n++)
                for (int64_t i = 0; i < k; i++)
                    problem.w.set(n, i, n == 0 ? 0x1p-120f : n == 1 ? 0.0f : n == 2 ? -0.0f : 0x1p-20f);
            expect_reference_bits(problem, DType::f32, false);
        }
    }
}

TEST(MatmulDense, KeepsNonFiniteValuesInTheirRowsAndColumns) {
    Problem problem(9, 9, 100, 8);
    problem.x.set(2, 99, INFINITY);
    problem.x.set(3, 5, NAN);
    problem.w.set(4, 97, -INFINITY);
    problem.w.set(5, 0, NAN);
    expect_reference_bits(problem, DType::f32);
    expect_reference_bits(problem, DType::f16);
}

TEST(MatmulDense, ReadsUnalignedMemory) {
    std::vector<float> memory(4096);
    Random random(9);
    for (float& value : memory) value = random.normal();
    for (int shift = 0; shift < 4; shift++) {
        const ConstMatrix x{memory.data() + shift, DType::f32, 7, 64, 67},
            w{memory.data() + 1000 + shift, DType::f32, 20, 64, 65};
        OwnedMatrix expected(7, 20), d(7, 20);
        by_reference(reference::matmul_dense, {.x = x, .w = w, .d = expected.view()});
        on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
            kernels.matmul_dense(pool, {.x = x, .w = w, .d = d.view()});
            EXPECT_TRUE(same_values(d.values(), expected.values(), 20));
        });
    }
}

TEST(MatmulDense, ARowAloneEqualsTheRowInABatch) {
    const Problem problem(19, 60, 100, 10);
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix batch(19, 60);
        kernels.matmul_dense(pool, problem.args(batch));
        for (int64_t row = 0; row < 19; row++) {
            const OwnedMatrix x = problem.x.row(row);
            OwnedMatrix alone(1, 60);
            MatmulDenseArgs args = problem.args(alone);
            args.x = x.view();
            kernels.matmul_dense(pool, args);
            EXPECT_TRUE(same_values(alone.values(), batch.row(row).values(), 60));
        }
    });
}

}  // namespace halfbyte::test
