// x' = c x U of FP64 vectors x [n]: what folds a transform into weights. Block-diagonal, for a weight W [N,
// K]:
//   input side   W' = c W U      each block of n columns of a row is an x
//   output side  W' = c U^T W    each block of n rows of a column is an x
#pragma once

#include <cstdint>
#include <vector>

#include "transform/square_matrix.h"

namespace halfbyte::quantizer {

class Fold {
  public:
    // An U that is diag(+-1) (S (x) V), S Sylvester's matrix of as high an order as there is, takes
    // butterflies for S and products for V alone: log2(n) additions per value for Sylvester's own, n products
    // for a matrix of no structure.
    Fold(SquareMatrix U, double scale);

    int64_t n() const { return n_; }
    // `count` vectors in place: x [n, count], each column is one.
    void apply(double* x, int64_t count, std::vector<double>& scratch) const;

  private:
    int64_t n_;
    double scale_;
    std::vector<double> signs_;  // [n]
    SquareMatrix core_;          // V
};

}  // namespace halfbyte::quantizer
