#include "transform/square_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "transform/hadamard.h"

namespace halfbyte {

SquareMatrix transpose(const SquareMatrix& M) {
    constexpr int64_t tile = 16;  // of lines of the cache
    SquareMatrix result{M.n, std::vector<double>(M.values.size())};
    for (int64_t first = 0; first < M.n; first += tile)
        for (int64_t i = 0; i < M.n; i++)
            for (int64_t j = first; j < std::min(first + tile, M.n); j++)
                result.values[size_t(i * M.n + j)] = M.at(j, i);
    return result;
}

std::optional<SquareMatrix> inverse(const SquareMatrix& M) {
    const int64_t n = M.n;
    double largest = 0;
    for (const double value : M.values) {
        if (!std::isfinite(value)) return {};
        largest = std::max(largest, std::fabs(value));
    }
    const double least = double(n) * 0x1p-52 * largest;
    SquareMatrix left = M, right{n, std::vector<double>(size_t(n * n))};
    for (int64_t i = 0; i < n; i++) right.values[size_t(i * n + i)] = 1;
    const auto row = [n](SquareMatrix& matrix, int64_t i) { return matrix.values.data() + i * n; };

    for (int64_t k = 0; k < n; k++) {
        int64_t pivot = k;
        for (int64_t i = k + 1; i < n; i++)
            if (std::fabs(left.at(i, k)) > std::fabs(left.at(pivot, k))) pivot = i;
        const double value = left.at(pivot, k);
        if (!std::isfinite(value) || std::fabs(value) <= least) return {};
        if (pivot != k) {
            std::swap_ranges(row(left, k), row(left, k) + n, row(left, pivot));
            std::swap_ranges(row(right, k), row(right, k) + n, row(right, pivot));
        }
        double *left_k = row(left, k), *right_k = row(right, k);
        for (int64_t j = k; j < n; j++) left_k[j] /= value;
        for (int64_t j = 0; j < n; j++) right_k[j] /= value;
        for (int64_t i = 0; i < n; i++) {
            const double factor = left.at(i, k);
            if (i == k || factor == 0) continue;
            double *left_i = row(left, i), *right_i = row(right, i);
            for (int64_t j = k; j < n; j++) left_i[j] -= factor * left_k[j];
            for (int64_t j = 0; j < n; j++) right_i[j] -= factor * right_k[j];
        }
    }
    return right;
}

namespace {

// The largest of the numbers given; a NaN stays.
struct Worst {
    double value = 0;
    void add(double error) {
        if (!(error <= value) && !std::isnan(value)) value = error;
    }
};

// Entries of +-1 as bits: the product of two rows is n - 2 popcount(a ^ b).
double error_of_signs(const SquareMatrix& M, double c) {
    const int64_t n = M.n, words = (n + 63) / 64;
    std::vector<uint64_t> bits(size_t(n * words));
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            bits[size_t(i * words + k / 64)] |= uint64_t(M.at(i, k) < 0) << k % 64;
    Worst worst;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            int64_t differing = 0;
            for (int64_t w = 0; w < words; w++)
                differing += std::popcount(bits[size_t(i * words + w)] ^ bits[size_t(j * words + w)]);
            worst.add(std::fabs(c * c * double(n - 2 * differing) - (i == j ? 1.0 : 0.0)));
        }
    }
    return worst.value;
}

}  // namespace

double orthogonality_error(const SquareMatrix& M, double c) {
    const int64_t n = M.n;
    if (std::all_of(M.values.begin(), M.values.end(), [](double value) { return std::fabs(value) == 1; }))
        return error_of_signs(M, c);

    // 4 x 4 results at a time from 4 rows of M and 4 of its rows side by side, which makes vectors of them.
    constexpr int64_t tile = 4;
    std::vector<double> panel(size_t(n * tile));
    const std::vector<double> zeros(static_cast<size_t>(n));
    Worst worst;
    for (int64_t first = 0; first < n; first += tile) {
        for (int64_t k = 0; k < n; k++)
            for (int64_t j = 0; j < tile; j++)
                panel[size_t(k * tile + j)] = first + j < n ? M.at(first + j, k) : 0.0;
        for (int64_t top = 0; top <= first; top += tile) {
            const double* rows[tile];
            for (int64_t i = 0; i < tile; i++)
                rows[i] = top + i < n ? M.values.data() + (top + i) * n : zeros.data();
            double sums[tile][tile] = {};
            for (int64_t k = 0; k < n; k++)
                for (int64_t i = 0; i < tile; i++)
                    for (int64_t j = 0; j < tile; j++) sums[i][j] += rows[i][k] * panel[size_t(k * tile + j)];
            for (int64_t i = 0; i < std::min(tile, n - top); i++)
                for (int64_t j = 0; j < std::min(tile, n - first); j++)
                    worst.add(std::fabs(c * c * sums[i][j] - (top + i == first + j ? 1.0 : 0.0)));
        }
    }
    return worst.value;
}

namespace {

bool is_prime(int64_t q) {
    if (q < 2) return false;
    for (int64_t d = 2; d * d <= q; d++)
        if (q % d == 0) return false;
    return true;
}

enum class Paley { none, first, second };
Paley paley_of(int64_t order) {
    if (order % 4 != 0 || std::has_single_bit(uint64_t(order))) return Paley::none;
    if (is_prime(order - 1)) return Paley::first;  // 3 mod 4, since 4 divides the order
    return (order / 2 - 1) % 4 == 1 && is_prime(order / 2 - 1) ? Paley::second : Paley::none;
}

std::vector<int64_t> divisors(int64_t n) {
    std::vector<int64_t> found;
    for (int64_t d = 1; d * d <= n; d++) {
        if (n % d != 0) continue;
        found.push_back(d);
        if (d * d != n) found.push_back(n / d);
    }
    std::sort(found.begin(), found.end());
    return found;
}

// n = 2^a b_1 ... b_m, to `factors` the b, ascending: what a smaller one than b_1 could not divide up, no
// rest of it can.
bool split(int64_t n, int64_t least, std::vector<int64_t>& factors) {
    if (std::has_single_bit(uint64_t(n))) return true;
    for (const int64_t b : divisors(n)) {
        if (b < least || paley_of(b) == Paley::none) continue;
        factors.push_back(b);
        if (split(n / b, b, factors)) return true;
        factors.pop_back();
    }
    return false;
}

SquareMatrix paley_matrix(int64_t order) {
    const bool first = paley_of(order) == Paley::first;
    const int64_t q = first ? order - 1 : order / 2 - 1;
    std::vector<double> legendre(size_t(q), -1.0);
    legendre[0] = 0;
    for (int64_t i = 1; i < q; i++) legendre[size_t(i * i % q)] = 1;
    // The bordered matrix [0 e^T; +-e Q].
    const auto bordered = [&](int64_t i, int64_t j) {
        if (i == 0) return j == 0 ? 0.0 : 1.0;
        if (j == 0) return first ? -1.0 : 1.0;
        return legendre[size_t((i - j + q) % q)];
    };
    constexpr double of_c[2][2] = {{1, 1}, {1, -1}}, of_one[2][2] = {{1, -1}, {-1, -1}};
    SquareMatrix P{order, {}};
    for (int64_t i = 0; i < order; i++) {
        for (int64_t j = 0; j < order; j++) {
            const bool diagonal = first ? i == j : i / 2 == j / 2;
            if (first) {
                P.values.push_back(bordered(i, j) + (diagonal ? 1 : 0));
            } else {
                P.values.push_back(bordered(i / 2, j / 2) * of_c[i % 2][j % 2] +
                                   (diagonal ? of_one[i % 2][j % 2] : 0.0));
            }
        }
    }
    return P;
}

SquareMatrix kronecker(const SquareMatrix& A, const SquareMatrix& B) {
    SquareMatrix result{A.n * B.n, {}};
    result.values.reserve(size_t(result.n * result.n));
    for (int64_t i = 0; i < result.n; i++)
        for (int64_t j = 0; j < A.n; j++)
            for (int64_t k = 0; k < B.n; k++) result.values.push_back(A.at(i / B.n, j) * B.at(i % B.n, k));
    return result;
}

}  // namespace

bool has_hadamard_matrix(int64_t n) {
    std::vector<int64_t> factors;
    return n >= 1 && split(n, 1, factors);
}

std::optional<SquareMatrix> hadamard_matrix(int64_t n) {
    std::vector<int64_t> factors;
    if (n < 1 || !split(n, 1, factors)) return {};
    int64_t power = n;
    for (const int64_t b : factors) power /= b;
    SquareMatrix H{power, {}};
    for (int64_t i = 0; i < power; i++)
        for (int64_t j = 0; j < power; j++) H.values.push_back(double(sylvester(int(i), int(j))));
    for (const int64_t b : factors) H = kronecker(H, paley_matrix(b));
    return H;
}

std::vector<double> random_signs(int64_t n, uint64_t seed) {
    std::vector<double> signs;
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = seed += 0x9E3779B97F4A7C15;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
        z = (z ^ z >> 27) * 0x94D049BB133111EB;
        z ^= z >> 31;
        signs.push_back(z >> 63 ? -1.0 : 1.0);
    }
    return signs;
}

std::string possible_block_sizes(int64_t width, bool hadamard) {
    constexpr size_t most = 24, last = 8;
    std::vector<int64_t> sizes = divisors(width);
    std::erase_if(sizes, [&](int64_t n) { return n < 2 || (hadamard && !has_hadamard_matrix(n)); });
    std::string text;
    for (size_t i = 0; i < sizes.size(); i++) {
        const bool left_out = sizes.size() > most && i >= most - last && i < sizes.size() - last;
        if (left_out && i > most - last) continue;
        text += (i == 0 ? "" : ", ") + (left_out ? "..." : std::to_string(sizes[i]));
    }
    return sizes.empty() ? "none" : text;
}

}  // namespace halfbyte
