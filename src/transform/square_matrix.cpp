#include "transform/square_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
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

// A holds what is left of M and, in the columns that are done, the inverse. Step k makes row k the pivot row
// and takes it from every other one:
//   a_k = a_k / p,  a_i = a_i - f_i a_k  with p = a_kk, f_i = a_ik, and 1 and 0 put in their places first
// `panel` steps at a time: at once in the panel's own columns, which finds the pivots; then in all others,
// 4 x 4 values at a time, which makes vectors of them. Each value sees the steps in their order: the bits are
// those of one step after the other.
std::optional<SquareMatrix> inverse(const SquareMatrix& M) {
    constexpr int64_t panel = 32, tile = 4;
    const int64_t n = M.n, N = (n + panel - 1) / panel * panel;  // zeros beyond n stay zeros
    double largest = 0;
    for (const double value : M.values) {
        if (!std::isfinite(value)) return {};
        largest = std::max(largest, std::fabs(value));
    }
    const double least = double(n) * 0x1p-52 * largest;
    std::vector<double> A(size_t(N * N)), factors(size_t(N * panel)), rows(size_t(N * panel));
    const auto row = [&](int64_t i) { return A.data() + i * N; };
    const auto factor = [&](int64_t i) { return factors.data() + i * panel; };  // f_i of the panel's steps
    for (int64_t i = 0; i < n; i++) std::copy_n(M.values.data() + i * n, n, row(i));
    std::vector<int64_t> pivots;

    for (int64_t first = 0; first < n; first += panel) {
        const int64_t last = first + panel;
        double p[panel];
        std::fill_n(p, panel, 1.0);
        std::fill(factors.begin(), factors.end(), 0.0);
        for (int64_t k = first; k < std::min(last, n); k++) {
            int64_t pivot = k;
            for (int64_t i = k + 1; i < n; i++)
                if (std::fabs(row(i)[k]) > std::fabs(row(pivot)[k])) pivot = i;
            const double value = p[k - first] = row(pivot)[k];
            if (!std::isfinite(value) || std::fabs(value) <= least) return {};
            pivots.push_back(pivot);
            if (pivot != k) {
                std::swap_ranges(row(k), row(k) + N, row(pivot));
                std::swap_ranges(factor(k), factor(k) + panel, factor(pivot));
            }
            row(k)[k] = 1;
            for (int64_t j = first; j < last; j++) row(k)[j] /= value;
            for (int64_t i = 0; i < n; i++) {
                if (i == k) continue;
                const double f = factor(i)[k - first] = std::exchange(row(i)[k], 0.0);
                for (int64_t j = first; j < last; j++) row(i)[j] -= f * row(k)[j];
            }
        }
        // The other columns of the panel's rows, and of each pivot row as it is at its step: [N/4, panel, 4].
        for (int64_t j = 0; j < N; j += tile) {
            if (j == first) j = last;
            if (j == N) break;
            double* const pivot_rows = rows.data() + j * panel;
            for (int64_t k = 0; k < panel; k++) {
                double* const a_k = row(first + k) + j;
                for (int64_t c = 0; c < tile; c++) pivot_rows[k * tile + c] = a_k[c] /= p[k];
                for (int64_t i = 0; i < panel; i++) {
                    if (i == k) continue;
                    const double f = factor(first + i)[k];
                    for (int64_t c = 0; c < tile; c++) row(first + i)[j + c] -= f * a_k[c];
                }
            }
        }
        for (int64_t i = 0; i < N; i += tile) {
            if (i == first) i = last;
            if (i == N) break;
            for (int64_t j = 0; j < N; j += tile) {
                if (j == first) j = last;
                if (j == N) break;
                const double* const pivot_rows = rows.data() + j * panel;
                double values[tile][tile];
                for (int64_t r = 0; r < tile; r++)
                    for (int64_t c = 0; c < tile; c++) values[r][c] = row(i + r)[j + c];
                for (int64_t k = 0; k < panel; k++)
                    for (int64_t r = 0; r < tile; r++)
                        for (int64_t c = 0; c < tile; c++)
                            values[r][c] -= factor(i + r)[k] * pivot_rows[k * tile + c];
                for (int64_t r = 0; r < tile; r++)
                    for (int64_t c = 0; c < tile; c++) row(i + r)[j + c] = values[r][c];
            }
        }
    }

    SquareMatrix result{n, std::vector<double>(size_t(n * n))};
    for (int64_t i = 0; i < n; i++) {  // rows were exchanged on the way: columns are, in reverse
        for (int64_t k = n; k-- > 0;) std::swap(row(i)[k], row(i)[pivots[size_t(k)]]);
        std::copy_n(row(i), n, result.values.data() + i * n);
    }
    return result;
}

double frobenius_norm(const SquareMatrix& M) {
    double sum = 0;
    for (const double value : M.values) sum += value * value;
    return std::sqrt(sum);
}

Inversion invert(const SquareMatrix& M) {
    Inversion result{inverse(M), std::numeric_limits<double>::infinity()};
    if (!result.inverse) return result;
    const double condition = frobenius_norm(M) * frobenius_norm(*result.inverse) / double(M.n);
    if (!std::isnan(condition)) result.condition = condition;  // 0 times infinity: beyond the range of FP64
    return result;
}

std::string Inversion::fault() const {
    if (condition <= max_condition) return {};
    return fmt::format("{}; a condition |T| |T^-1| / n of at most {} is needed (1 for an orthogonal matrix)",
                       std::isfinite(condition) ? fmt::format("has the condition {:.4g}", condition)
                                                : "is singular (condition infinite)",
                       max_condition);
}

namespace {

// The errors of pairs of rows: the largest, in which a NaN stays, and their sum for each row.
class Errors {
  public:
    explicit Errors(int64_t n) : sums_(size_t(n)) {}
    void add(int64_t i, int64_t j, double error) {
        if (!(error <= largest_) && !std::isnan(largest_)) largest_ = error;
        sums_[size_t(i)] += error;
        if (i != j) sums_[size_t(j)] += error;
    }
    double largest() const { return largest_; }
    int64_t worst_row() const { return std::max_element(sums_.begin(), sums_.end()) - sums_.begin(); }

  private:
    double largest_ = 0;
    std::vector<double> sums_;
};

// Entries of +-1 as bits: the product of two rows is n - 2 popcount(a ^ b).
void add_errors_of_signs(const SquareMatrix& M, double c, Errors& errors) {
    const int64_t n = M.n, words = (n + 63) / 64;
    std::vector<uint64_t> bits(size_t(n * words));
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            bits[size_t(i * words + k / 64)] |= uint64_t(M.at(i, k) < 0) << k % 64;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            int64_t differing = 0;
            for (int64_t w = 0; w < words; w++)
                differing += std::popcount(bits[size_t(i * words + w)] ^ bits[size_t(j * words + w)]);
            errors.add(i, j, std::fabs(c * c * double(n - 2 * differing) - (i == j ? 1.0 : 0.0)));
        }
    }
}

void add_errors(const SquareMatrix& M, double c, Errors& errors) {
    const int64_t n = M.n;
    // 4 x 4 results at a time from 4 rows of M and 4 of its rows side by side, which makes vectors of them.
    constexpr int64_t tile = 4;
    std::vector<double> panel(size_t(n * tile));
    const std::vector<double> zeros(static_cast<size_t>(n));
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
                    if (top + i <= first + j)  // a tile on the diagonal has its pairs twice
                        errors.add(top + i, first + j,
                                   std::fabs(c * c * sums[i][j] - (top + i == first + j ? 1.0 : 0.0)));
        }
    }
}

}  // namespace

double orthogonality_error(const SquareMatrix& M, double c, int64_t* worst_row) {
    Errors errors(M.n);
    if (std::all_of(M.values.begin(), M.values.end(), [](double value) { return std::fabs(value) == 1; }))
        add_errors_of_signs(M, c, errors);
    else
        add_errors(M, c, errors);
    if (worst_row != nullptr) *worst_row = errors.worst_row();
    return errors.largest();
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
