// Square matrices in FP64, as transforms are stored, made, checked and folded into weights: M [n, n], M_ij at i * n + j.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace halfbyte {

struct SquareMatrix {
    int64_t n = 0;
    std::vector<double> values;  // [n, n]
    double at(int64_t i, int64_t j) const { return values[size_t(i * n + j)]; }
};

SquareMatrix transpose(const SquareMatrix& M);
// Gauss with partial pivoting; nothing for a singular M.
std::optional<SquareMatrix> inverse(const SquareMatrix& M);

// max |c^2 (M M^T)_ij - (i == j)|: 0 for an orthogonal c M. n^3 / 2 products.
double orthogonality_error(const SquareMatrix& M, double c);

// A Hadamard matrix of order n, entries +-1, not normalised: Sylvester's for a power of two, else Kronecker products
// of it with Paley's (12, 20, 28, ...). Nothing if no such product has the order.
std::optional<SquareMatrix> hadamard_matrix(int64_t n);
bool has_hadamard_matrix(int64_t n);

// n signs, +1 or -1, from the seed: the same on every machine.
std::vector<double> random_signs(int64_t n, uint64_t seed);

// "16, 32, 64": the n >= 16 that divide `width` and that a Hadamard matrix exists for, for messages.
std::string possible_block_sizes(int64_t width);

}  // namespace halfbyte
