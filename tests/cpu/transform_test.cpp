// Block transforms at every level against the reference, bit for bit, and against the matrix product.
#include <cmath>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "cpu/every_level.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"
#include "transform/hadamard.h"
#include "transform/square_matrix.h"
#include "transform/transform.h"

namespace halfbyte::test {
namespace {

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
constexpr int64_t widths[] = {80, 464, 704, 1856, 2880, 3584};

std::vector<int64_t> divisors(int64_t k) {
    std::vector<int64_t> all;
    for (int64_t n = 1; n <= k; n++)
        if (k % n == 0) all.push_back(n);
    return all;
}

std::vector<float> signs_of(int64_t n, uint64_t seed) {
    const std::vector<double> signs = random_signs(n, seed);
    return {signs.begin(), signs.end()};
}

// Normal numbers in every binade from subnormals to near overflow, and among them zeros, infinities and NaN:
// the first row without infinities and NaN, which would spread over whole blocks.
OwnedMatrix hard_matrix(int64_t rows, int64_t cols, DType type, uint64_t seed) {
    OwnedMatrix x = random_matrix(rows, cols, type, seed, 1.0f, cols + 3);
    constexpr float hard[] = {0.0f,  -0.0f, 1e-42f, -1e-42f,  0x1p-149f, 3e-24f,
                              -6e4f, 1e38f, -3e38f, INFINITY, -INFINITY, NAN};
    Random random(seed + 1);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < cols; k += 1 + random.below(row % 3 == 0 ? 3 : 400)) {
            const float scaled = std::ldexp(x.at(row, k), int(random.below(60)) - 30);
            x.set(row, k,
                  random.below(2) == 0 ? scaled
                                       : hard[random.below(row % 3 == 0   ? 7
                                                           : row % 3 == 1 ? 9
                                                                          : 12)]);
        }
    return x;
}

// All levels and thread counts, out of place into poison and, where the types allow, in place.
void expect_reference_bits(const OwnedMatrix& x, const BlockTransform& t, DType out) {
    SCOPED_TRACE(testing::Message() << x.rows() << " x " << x.cols() << ", n = " << t.n << ", "
                                    << (t.matrix == nullptr ? "Hadamard" : "matrix ")
                                    << name_of(t.matrix_type) << ", " << name_of(x.type()) << " to "
                                    << name_of(out));
    OwnedMatrix expected(x.rows(), x.cols(), out);
    by_reference(reference::transform, {.x = x.input(), .transform = t, .y = expected.view()});
    const std::vector<float> values = expected.values();
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix y(x.rows(), x.cols(), out, x.cols() + 5, 0x7F);
        kernels.transform(pool, {.x = x.input(), .transform = t, .y = y.view()});
        EXPECT_TRUE(same_values(y.values(), values, x.cols()));
        EXPECT_TRUE(y.gaps_intact());
        if (out != x.type()) return;
        OwnedMatrix in_place = x;
        kernels.transform(pool, {.x = in_place.input(), .transform = t, .y = in_place.view()});
        EXPECT_TRUE(same_values(in_place.values(), values, x.cols()));
        EXPECT_TRUE(in_place.gaps_intact());
    });
}

}  // namespace

// Every power of two that divides K; 4096 and 8192 for steps of every kind between vectors.
TEST(Transform, ButterfliesHaveTheReferencesBits) {
    uint64_t seed = 1;
    for (const int64_t k : {80, 464, 704, 1856, 2880, 3584, 12288, 8192}) {
        for (int64_t n = 1; k % n == 0; n *= 2, seed++) {
            const std::vector<float> signs = signs_of(n, seed);
            const float scale = seed % 3 == 0 ? 1.0f : float(1 / std::sqrt(double(n)));
            const int64_t rows = seed % 2 == 0 ? 1 : k < 1000 ? 33 : 4;
            expect_reference_bits(hard_matrix(rows, k, types[seed % 3], seed),
                                  {.n = n, .signs = seed % 4 == 0 ? nullptr : signs.data(), .scale = scale},
                                  types[seed / 3 % 3]);
        }
    }
}

// Every size that divides K; where n is large, few rows.
TEST(Transform, MatricesHaveTheReferencesBits) {
    uint64_t seed = 1;
    for (const int64_t k : widths) {
        for (const int64_t n : divisors(k)) {
            seed++;
            const DType matrix_type = seed % 2 == 0 ? DType::f32 : DType::bf16;
            const OwnedMatrix T = random_matrix(n, n, matrix_type, seed);
            const int64_t rows = k * n > 1 << 19 ? 1 : k * n > 1 << 14 ? 3 : 33;
            expect_reference_bits(hard_matrix(rows, k, types[seed % 3], seed),
                                  {.n = n, .matrix = T.data(), .matrix_type = matrix_type, .scale = 0.3f},
                                  types[seed / 3 % 3]);
        }
    }
}

// Tiles of every number of rows and of vectors, more rows than one thread takes and than one chunk holds.
TEST(Transform, EveryNumberOfRowsHasTheReferencesBits) {
    for (const DType type : types) {
        for (const int64_t n : {16, 20, 36, 80}) {
            const OwnedMatrix T = random_matrix(n, n, DType::f32, uint64_t(n));
            const std::vector<float> signs = signs_of(16, 5);
            for (int64_t rows = 0; rows <= 26; rows++)
                expect_reference_bits(random_matrix(rows, 2 * n, type, uint64_t(rows), 1.0f, 2 * n + 3),
                                      {.n = n, .matrix = T.data(), .scale = 0.25f}, type);
            for (const int64_t rows : {0, 1, 33, 200})
                expect_reference_bits(random_matrix(rows, 80, type, uint64_t(rows), 1.0f, 83),
                                      {.n = 16, .signs = signs.data(), .scale = 0.25f}, type);
        }
    }
    const OwnedMatrix T = random_matrix(20, 20, DType::f32, 1);
    expect_reference_bits(random_matrix(14000, 80, DType::bf16, 2),
                          {.n = 20, .matrix = T.data(), .scale = 0.5f}, DType::bf16);
    expect_reference_bits(random_matrix(3, 0, DType::f32, 2), {.n = 20, .matrix = T.data()}, DType::f32);
    expect_reference_bits(random_matrix(3, 0, DType::f32, 2), {.n = 16}, DType::f32);
}

// A NaN or an infinity reaches its own n elements of its own row.
TEST(Transform, WhatIsNotFiniteStaysInItsBlock) {
    for (const int64_t n : {4, 16, 32, 128}) {
        const OwnedMatrix T = random_matrix(n, n, DType::f32, uint64_t(n));
        for (const BlockTransform& t : {BlockTransform{.n = n}, BlockTransform{.n = n, .matrix = T.data()}}) {
            for (const float bad : {NAN, INFINITY, -INFINITY}) {
                const OwnedMatrix good = random_matrix(3, 384, DType::f32, 1);
                OwnedMatrix spoilt = good;
                spoilt.set(1, 130, bad);
                on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
                    OwnedMatrix a(3, 384), b(3, 384);
                    kernels.transform(pool, {.x = good.view(), .transform = t, .y = a.view()});
                    kernels.transform(pool, {.x = spoilt.input(), .transform = t, .y = b.view()});
                    for (int64_t i = 0; i < 3 * 384; i++) {
                        const bool inside = i / 384 == 1 && i % 384 / n == 130 / n;
                        const float value = b.at(i / 384, i % 384);
                        ASSERT_TRUE(inside ? !std::isfinite(value) : value == a.at(i / 384, i % 384)) << i;
                    }
                });
            }
        }
    }
}

#if defined(__x86_64__)
TEST(Transform, IgnoresTheCallersFlushToZero) {
    OwnedMatrix x = random_matrix(3, 64, DType::f32, 1, 0x1p-140f);
    const OwnedMatrix T = random_matrix(16, 16, DType::f32, 1);
    for (const BlockTransform& t :
         {BlockTransform{.n = 16, .scale = 0.25f}, BlockTransform{.n = 16, .matrix = T.data()}}) {
        OwnedMatrix expected(3, 64);
        by_reference(reference::transform, {.x = x.input(), .transform = t, .y = expected.view()});
        const unsigned before = _mm_getcsr();
        on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
            OwnedMatrix y(3, 64);
            _mm_setcsr(before | 0x8040 | 0x6000);  // flush-to-zero, denormals-are-zero, rounding towards zero
            kernels.transform(pool, {.x = x.input(), .transform = t, .y = y.view()});
            _mm_setcsr(before);
            EXPECT_TRUE(same_values(y.values(), expected.values(), 64));
        });
    }
}
#endif

}  // namespace halfbyte::test
