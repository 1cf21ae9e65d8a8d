// Dense weights of a checkpoint: in the mapped file where they lie there as they are, else in memory of their
// own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "halfbyte/operations.h"

namespace halfbyte::model {

class DenseWeight {
  public:
    // The whole tensor; a vector is a matrix of one row. The checkpoint must outlive the weight.
    DenseWeight(const checkpoint::Checkpoint& source, const std::string& name);

    ConstMatrix matrix() const { return {data(), type_, rows_, cols_, cols_}; }
    void row_to_float(int64_t row, float* out) const;

  private:
    const uint8_t* data() const { return owned_.empty() ? mapped_ : owned_.data(); }

    DType type_ = DType::bf16;
    int64_t rows_ = 0, cols_ = 0;
    const uint8_t* mapped_ = nullptr;
    std::vector<uint8_t> owned_;
};

}  // namespace halfbyte::model
