// What a producer hands to the quantiser: a matrix of the type that the quantiser's x has.
#pragma once

#include <vector>

#include "halfbyte/operations.h"

namespace halfbyte::reference {

class Temporary {
  public:
    Temporary(DType type, int64_t rows, int64_t cols)
        : bytes_(size_t(rows * cols) * size_of(type)), matrix_{bytes_.data(), type, rows, cols, cols} {}
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;

    const Matrix& matrix() const { return matrix_; }
    // `args` with this matrix as x.
    QuantizeArgs quantize_args(QuantizeArgs args) const {
        args.x = {matrix_.data, matrix_.type, matrix_.rows, matrix_.cols, matrix_.stride};
        return args;
    }

  private:
    std::vector<uint8_t> bytes_;
    Matrix matrix_;
};

}  // namespace halfbyte::reference
