// What operations are timed on: matrices and quantised matrices that own their memory, filled with seeded
// numbers, and the few rows of them on which the reference is asked.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "core/aligned_memory.h"
#include "halfbyte/operations.h"

namespace halfbyte::bench {

// Bytes aligned as a vector or a cache line wants them.
class Buffer {
  public:
    explicit Buffer(int64_t size, const uint8_t* from = nullptr);  // zeros, or a copy
    Buffer(const Buffer& other) : Buffer(other.size_, other.data()) {}
    Buffer(Buffer&&) = default;
    Buffer& operator=(Buffer&&) = default;

    uint8_t* data() const { return reinterpret_cast<uint8_t*>(bytes_.get()); }
    std::span<uint8_t> bytes() const { return {data(), size_t(size_)}; }

  private:
    Memory bytes_;
    int64_t size_ = 0;
};

struct OwnedMatrix {
    DType type;
    int64_t rows, cols;
    Buffer data;

    OwnedMatrix(DType t, int64_t r, int64_t c);  // zeros
    Matrix view() const { return {data.data(), type, rows, cols, cols}; }
    ConstMatrix input() const { return {data.data(), type, rows, cols, cols}; }
    std::span<uint8_t> row(int64_t i) const;
};
// Numbers with mean 0 and deviation 1, nearly normal.
OwnedMatrix random_matrix(DType type, int64_t rows, int64_t cols, uint64_t seed);
OwnedMatrix rows_of(const OwnedMatrix& matrix, std::span<const int64_t> rows);

struct OwnedNvFp4 {
    NvFp4Shape shape;
    Buffer codes, scales;

    explicit OwnedNvFp4(const NvFp4Shape& s);  // zeros
    NvFp4View view() const { return {codes.data(), scales.data(), shape}; }
};
// Any code, and block scales from 2^-2 to 2^2. Linear, K a multiple of 16.
OwnedNvFp4 random_nvfp4(int64_t rows, int64_t k, uint64_t seed);
OwnedNvFp4 rows_of(const OwnedNvFp4& matrix, std::span<const int64_t> rows);

// At most `wanted` of `count`, evenly apart, the first and the last among them.
std::vector<int64_t> sample_of(int64_t count, int64_t wanted);

}  // namespace halfbyte::bench
