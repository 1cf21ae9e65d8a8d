// Square matrices in FP64, as transforms are stored, made, checked and folded into weights: M [n, n], M_ij at
// i * n + j.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace halfbyte {

struct SquareMatrix {
    int64_t n = 0;
    std::vector<double> values;  // [n, n]
    double at(int64_t i, int64_t j) const { return values[size_t(i * n + j)]; }
};

SquareMatrix transpose(const SquareMatrix& M);

// Gauss-Jordan with partial pivoting, n^3 steps: of an orthogonal matrix take the transpose. Nothing for an M
// that is singular in FP64 (a pivot of at most n 2^-52 times the largest entry) or not finite.
std::optional<SquareMatrix> inverse(const SquareMatrix& M);

double frobenius_norm(const SquareMatrix& M);

// The inverse of a transform goes into the weights. |M| |M^-1| / n is how much larger rounding errors of x M,
// independent of each other, are in y than in x: 1 for an orthogonal M, infinite without an inverse. Beyond
// max_condition those of FP32, 2^-24, would come near half a unit of BF16, 2^-9.
constexpr double max_condition = 4096;
struct Inversion {
    std::optional<SquareMatrix> inverse;
    double condition = 0;
    // For messages: "is singular (condition infinite); a condition ... is needed"; empty if M can be used.
    std::string fault() const;
};
Inversion invert(const SquareMatrix& M);

// max |c^2 (M M^T)_ij - (i == j)|: 0 for an orthogonal c M; NaN if an entry is. Exact before c for entries of
// +-1, and quick; else n^3 / 2 products in FP64 in order of k. To worst_row the row i with the largest sum of
// these over j.
double orthogonality_error(const SquareMatrix& M, double c, int64_t* worst_row = nullptr);

// A Hadamard matrix of order n: entries +-1, H H^T = n I, not normalised. One rule for every n:
//   a power of two is Sylvester's, (-1)^popcount(i & j);
//   else n = 2^a b_1 b_2 ... b_m with Paley's orders b, each the smallest that leaves a rest which has a
//   matrix again, and H = S_(2^a) (x) P_(b_1) (x) ... (x) P_(b_m), (x) the Kronecker product, the last index
//   the fastest: 576 = 4 x 12 x 12, 1536 = 128 x 12, 2880 = 12 x 12 x 20, 3584 = 128 x 28, 10944 = 12 x 12
//   x 76.
// Paley's orders: q + 1 for primes q = 3 mod 4 (I), else 2 (q + 1) for primes q = 1 mod 4 (II); no power of
// two. With Q_ij = the Legendre symbol of i - j modulo q, e a column of q ones, and (x) again:
//   I   P = 1 + [0 e^T; -e Q]
//   II  P = C (x) [1 1; 1 -1] + 1 (x) [1 -1; -1 -1], C = [0 e^T; e Q]
// Nothing if no such product has the order (92, 100). Source: Paley 1933.
std::optional<SquareMatrix> hadamard_matrix(int64_t n);
bool has_hadamard_matrix(int64_t n);  // without making it

// n signs, +1 or -1, the same on every machine: bit 63 of the first n numbers of SplitMix64 from the seed,
// set: -1. Source: Steele, Lea and Flood, OOPSLA 2014.
std::vector<double> random_signs(int64_t n, uint64_t seed);

// For messages: "2, 4, 8, 16", the n >= 2 that divide `width`, for a Hadamard transform those that have a
// matrix; the first and the last of more than 24 of them; "none" if there is none.
std::string possible_block_sizes(int64_t width, bool hadamard);

}  // namespace halfbyte
