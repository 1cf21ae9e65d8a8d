// Block transforms as what they mean: y = c x T with the explicit matrix in FP64, and what folding the
// inverse into weights does to a product. Every matrix here but Sylvester's is far from symmetric, and every
// comparison is made a second time with T transposed, where it must fail.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "cpu/every_level.h"
#include "support/compare.h"
#include "support/matrix.h"
#include "transform/hadamard.h"
#include "transform/square_matrix.h"
#include "transform/transform.h"

namespace halfbyte::test {
namespace {

constexpr int64_t widths[] = {80, 464, 704, 1856, 2880, 3584};

// From 2 on: 1 x 1 matrices are symmetric.
std::vector<int64_t> divisors(int64_t k) {
    std::vector<int64_t> all;
    for (int64_t n = 2; n <= k; n++)
        if (k % n == 0) all.push_back(n);
    return all;
}

// A random permutation of rows times two reflections: orthogonal, no entry 0, not symmetric for n > 3.
SquareMatrix random_orthogonal(int64_t n, uint64_t seed) {
    Random random(seed);
    SquareMatrix Q{n, std::vector<double>(size_t(n * n))};
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = n - 1; i > 0; i--) std::swap(order[size_t(i)], order[size_t(random.below(i + 1))]);
    for (int64_t i = 0; i < n; i++) Q.values[size_t(i * n + order[size_t(i)])] = 1;
    for (int reflection = 0; reflection < 2; reflection++) {
        std::vector<double> v;
        double length = 0;
        for (int64_t i = 0; i < n; i++) v.push_back(random.normal()), length += v.back() * v.back();
        for (int64_t i = 0; i < n; i++) {  // Q (1 - 2 v v^T / |v|^2)
            double dot = 0;
            for (int64_t j = 0; j < n; j++) dot += Q.at(i, j) * v[size_t(j)];
            for (int64_t j = 0; j < n; j++) Q.values[size_t(i * n + j)] -= 2 * dot / length * v[size_t(j)];
        }
    }
    return Q;
}

SquareMatrix random_normal(int64_t n, uint64_t seed) {
    Random random(seed);
    SquareMatrix M{n, {}};
    for (int64_t i = 0; i < n * n; i++) M.values.push_back(random.normal());
    return M;
}

SquareMatrix random_integers(int64_t n, uint64_t seed) {
    Random random(seed);
    SquareMatrix M{n, {}};
    for (int64_t i = 0; i < n * n; i++) M.values.push_back(double(random.below(15) - 7));
    return M;
}

SquareMatrix sylvester_with_signs(int64_t n, uint64_t seed) {
    SquareMatrix M = *hadamard_matrix(n);
    std::vector<double> signs = random_signs(n, seed);
    signs[size_t(n - 1)] = -1;  // and another one of the first row: T is not symmetric
    signs[0] = 1;
    for (int64_t i = 0; i < n * n; i++) M.values[size_t(i)] *= signs[size_t(i / n)];
    return M;
}

OwnedMatrix integers(int64_t rows, int64_t cols, uint64_t seed) {
    Random random(seed);
    OwnedMatrix x(rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) x.set(i / cols, i % cols, float(random.below(127) - 63));
    return x;
}

// c x T for every block in FP64, and the same with magnitudes.
struct Product {
    std::vector<double> values, magnitudes;

    Product(const OwnedMatrix& x, const SquareMatrix& T, double c) {
        const int64_t n = T.n;
        for (int64_t row = 0; row < x.rows(); row++) {
            for (int64_t first = 0; first < x.cols(); first += n) {
                std::vector<double> sums(static_cast<size_t>(n)), sizes(sums);
                for (int64_t k = 0; k < n; k++) {
                    const double value = c * double(x.at(row, first + k));
                    for (int64_t j = 0; j < n; j++) {
                        sums[size_t(j)] += value * T.at(k, j);
                        sizes[size_t(j)] += std::fabs(value * T.at(k, j));
                    }
                }
                values.insert(values.end(), sums.begin(), sums.end());
                magnitudes.insert(magnitudes.end(), sizes.begin(), sizes.end());
            }
        }
    }
    std::vector<double> times(double factor) const {
        std::vector<double> result = magnitudes;
        for (double& value : result) value *= factor;
        return result;
    }
};

// The rounded T is what is computed with.
SquareMatrix rounded(SquareMatrix T) {
    for (double& value : T.values) value = double(float(value));
    return T;
}

OwnedMatrix transformed(const cpu::Kernels& kernels, ThreadPool& pool, const OwnedMatrix& x,
                        const Transform& t) {
    OwnedMatrix y(x.rows(), x.cols());
    kernels.transform(pool, {.x = x.view(), .transform = t.view(), .y = y.view()});
    return y;
}

void expect_within(const OwnedMatrix& x, const Transform& t, const SquareMatrix& T, double factor) {
    const Product right(x, T, double(t.scale)), wrong(x, transpose(T), double(t.scale));
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        if (&pool != &pool_of(2)) return;
        const std::vector<float> y = transformed(kernels, pool, x, t).values();
        EXPECT_TRUE(within(y, right.values, right.times(factor), x.cols()));
        EXPECT_FALSE(within(y, wrong.values, right.times(factor), x.cols()));
    });
}

}  // namespace

// |x| < 64, |T| < 8: every sum is an integer below 3584 * 63 * 7 < 2^24, and c a power of two, so nothing
// rounds.
TEST(TransformProduct, IsExactForIntegers) {
    for (const int64_t k : widths) {
        for (const int64_t n : divisors(k)) {
            SCOPED_TRACE(testing::Message() << "K = " << k << ", n = " << n);
            const OwnedMatrix x = integers(2, k, uint64_t(n));
            const SquareMatrix T = random_integers(n, uint64_t(n));
            const Transform general = make_transform(T.values, n, 0.5);
            ASSERT_FALSE(general.matrix.empty());
            expect_within(x, general, T, 0);
            if (!has_hadamard_matrix(n) || n == 2) continue;
            const SquareMatrix H =
                std::has_single_bit(uint64_t(n)) ? sylvester_with_signs(n, 1) : *hadamard_matrix(n);
            const Transform hadamard = make_transform(H.values, n, 0.25);
            EXPECT_EQ(hadamard.matrix.empty(), std::has_single_bit(uint64_t(n)));
            if (transpose(H).values != H.values) expect_within(x, hadamard, H, 0);
        }
    }
}

// A given T rounds each of n fma (the first, from +0, is exact next to its product) and the scale; the
// butterfly log2(n) additions and the scale: gamma(n + 1) and gamma(log2(n) + 1) of |c| sum |x_k T_kj|. The
// FP64 product is off by n 2^-52 of the same at most.
TEST(TransformProduct, StaysWithinItsBound) {
    for (const int64_t k : widths) {
        for (const int64_t n : divisors(k)) {
            if (n < 4) continue;
            SCOPED_TRACE(testing::Message() << "K = " << k << ", n = " << n);
            const OwnedMatrix x = random_matrix(2, k, DType::f32, uint64_t(n));
            const double factor = gamma(double(n) + 1) + double(n) * 0x1p-52;
            const SquareMatrix Q = rounded(random_orthogonal(n, uint64_t(n)));
            expect_within(x, make_transform(Q.values, n, 1), Q, factor);
            if (n <= 512) {  // the larger ones take long
                EXPECT_LE(orthogonality_error(Q, 1), double(n) * 0x1p-23);
                const SquareMatrix M = rounded(random_normal(n, uint64_t(n)));
                expect_within(x, make_transform(M.values, n, 0.3), M, factor);
            }
            if (!std::has_single_bit(uint64_t(n))) continue;
            const SquareMatrix H = sylvester_with_signs(n, uint64_t(n));
            const Transform hadamard = make_transform(H.values, n, 1 / std::sqrt(double(n)));
            ASSERT_TRUE(hadamard.matrix.empty());
            expect_within(x, hadamard, H, gamma(std::log2(double(n)) + 1) + double(n) * 0x1p-52);
        }
    }
}

namespace {

// W T^-T for every block, in FP64, rounded once to FP32.
OwnedMatrix folded(const OwnedMatrix& W, const SquareMatrix& T_inverse) {
    const int64_t n = T_inverse.n;
    OwnedMatrix result(W.rows(), W.cols());
    for (int64_t row = 0; row < W.rows(); row++)
        for (int64_t first = 0; first < W.cols(); first += n)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t k = 0; k < n; k++) sum += double(W.at(row, first + k)) * T_inverse.at(j, k);
                result.set(row, first + j, float(sum));
            }
    return result;
}

struct Comparison {
    std::vector<float> before, after;
    std::vector<double> tolerance;
};

// x W^T and x' W'^T in FP32 (matmul_dense), x' = c x T, W' = W (c T)^-T. What may lie between them, with S =
// sum over j of (|c| sum_k |x_k T_kj|) |W'_j| (no less than sum |x'_j W'_j|):
//   x'          gamma(n + 1) S         as above; the bound of the butterfly is smaller
//   W'          u S                    rounded to FP32 once
//   products    gamma(K / 32 + 5) (S (1 + gamma(n + 1)) + sum |x W|)    sum32: K / 32 fma and 5 additions
//   T^-1        n E sum over blocks of |x|_1 |W|_inf, E the largest entry of T T^-1 - 1, and FP64 beside it
Comparison compare_folding(const cpu::Kernels& kernels, ThreadPool& pool, const OwnedMatrix& x,
                           const OwnedMatrix& W, const SquareMatrix& T, double c,
                           const SquareMatrix& T_inverse_of_c) {
    const int64_t n = T.n, K = x.cols();
    const OwnedMatrix x_prime = transformed(kernels, pool, x, make_transform(T.values, n, c));
    const OwnedMatrix W_prime = folded(W, T_inverse_of_c);
    OwnedMatrix before(x.rows(), W.rows()), after(x.rows(), W.rows());
    kernels.matmul_dense(
        pool, {.x = x.view(), .w = W.view(), .bias = nullptr, .bias_type = DType::f32, .d = before.view()});
    kernels.matmul_dense(pool, {.x = x_prime.view(),
                                .w = W_prime.view(),
                                .bias = nullptr,
                                .bias_type = DType::f32,
                                .d = after.view()});

    double E = 0;  // of c T (c T)^-1
    for (int64_t i = 0; i < n; i++) {
        std::vector<double> row(static_cast<size_t>(n));
        for (int64_t k = 0; k < n; k++)
            for (int64_t j = 0; j < n; j++) row[size_t(j)] += c * T.at(i, k) * T_inverse_of_c.at(k, j);
        for (int64_t j = 0; j < n; j++) E = std::max(E, std::fabs(row[size_t(j)] - (i == j)));
    }
    const Product product(x, T, c);
    const double sum = gamma(double(K) / 32 + 5);
    Comparison result{before.values(), after.values(), {}};
    for (int64_t m = 0; m < x.rows(); m++) {
        for (int64_t o = 0; o < W.rows(); o++) {
            double S = 0, plain = 0, inverse_error = 0;
            for (int64_t j = 0; j < K; j++) {
                S += product.magnitudes[size_t(m * K + j)] * std::fabs(double(W_prime.at(o, j)));
                plain += std::fabs(double(x.at(m, j)) * double(W.at(o, j)));
            }
            for (int64_t first = 0; first < K; first += n) {
                double x_sum = 0, W_most = 0;
                for (int64_t j = first; j < first + n; j++) {
                    x_sum += std::fabs(double(x.at(m, j)));
                    W_most = std::max(W_most, std::fabs(double(W.at(o, j))));
                }
                inverse_error += double(n) * (E + 0x1p-50) * x_sum * W_most;
            }
            const double one = gamma(double(n) + 1);
            result.tolerance.push_back(S * (one + u * (1 + one)) + sum * (S * (1 + u) * (1 + one) + plain) +
                                       inverse_error + double(n) * 0x1p-52 * S);
        }
    }
    return result;
}

void expect_unchanged(int64_t K, const SquareMatrix& T, double c) {
    SCOPED_TRACE(testing::Message() << "K = " << K << ", n = " << T.n);
    const OwnedMatrix x = random_matrix(3, K, DType::f32, 1), W = random_matrix(9, K, DType::f32, 2);
    SquareMatrix scaled = T;
    for (double& value : scaled.values) value *= double(float(c));
    const auto inverted = inverse(scaled);
    ASSERT_TRUE(inverted.has_value());
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        if (&pool != &pool_of(2)) return;
        const Comparison now = compare_folding(kernels, pool, x, W, T, double(float(c)), *inverted);
        EXPECT_TRUE(within(now.after, std::vector<double>(now.before.begin(), now.before.end()),
                           now.tolerance, W.rows()));
    });
}

}  // namespace

TEST(TransformProduct, FoldingTheInverseIntoTheWeightsLeavesTheProduct) {
    for (const auto& [K, n] : {std::pair<int64_t, int64_t>(80, 16),
                               {80, 20},
                               {80, 80},
                               {464, 464},
                               {704, 44},
                               {704, 64},
                               {1856, 32},
                               {1856, 464},
                               {2880, 36},
                               {3584, 128}}) {
        expect_unchanged(K, rounded(random_orthogonal(n, uint64_t(n))), 1);
        if (n <= 80) expect_unchanged(K, rounded(random_normal(n, uint64_t(n))), 0.3);
        const double c = 1 / std::sqrt(double(n));
        expect_unchanged(
            K, std::has_single_bit(uint64_t(n)) ? sylvester_with_signs(n, 1) : *hadamard_matrix(n), c);
    }
}

// compressed-tensors' way for the Hadamard types: x M / sqrt(n), and W M / sqrt(n) for weight_input, inverse;
// the same matrix on the right of both. Its transpose there is wrong.
TEST(TransformProduct, FoldingByTheTransposeIsFoldingByTheInverse) {
    for (const int64_t n : {16, 20, 44, 64}) {  // Paley's second, 28, is symmetric
        const SquareMatrix H =
            std::has_single_bit(uint64_t(n)) ? sylvester_with_signs(n, 3) : *hadamard_matrix(n);
        const double c = double(float(1 / std::sqrt(double(n))));
        SquareMatrix scaled = H;
        for (double& value : scaled.values) value *= c;
        const SquareMatrix exact = *inverse(scaled);
        SquareMatrix by_transpose = transpose(H);
        for (double& value : by_transpose.values) value /= c * double(n);
        for (size_t i = 0; i < exact.values.size(); i++)
            ASSERT_NEAR(by_transpose.values[i], exact.values[i], double(n) * 0x1p-50) << n;
        const OwnedMatrix x = random_matrix(3, 2 * n, DType::f32, 1),
                          W = random_matrix(9, 2 * n, DType::f32, 2);
        on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
            for (const bool right : {true, false}) {
                const Comparison now = compare_folding(kernels, pool, x, W, H, c,
                                                       right ? by_transpose : transpose(by_transpose));
                double worst = 0;  // in the tolerance of the right matrix the wrong one is far off
                for (size_t i = 0; i < now.after.size(); i++)
                    worst = std::max(worst, std::fabs(double(now.after[i]) - double(now.before[i])));
                if (right) {
                    const std::vector<double> before(now.before.begin(), now.before.end());
                    EXPECT_TRUE(within(now.after, before, now.tolerance, W.rows()));
                } else {
                    EXPECT_GT(worst, 1.0) << n;
                }
            }
        });
    }
}

}  // namespace halfbyte::test
