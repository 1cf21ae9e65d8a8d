#include "bench/operands.h"

#include <algorithm>

#include "core/element.h"
#include "format/scale_layout.h"

namespace halfbyte::bench {
namespace {

// splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t bits() {
        uint64_t z = state_ += 0x9E3779B97F4A7C15;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
        return z ^ (z >> 31);
    }
    // Of four 16-bit numbers the sum, whose deviation is 65536 / sqrt(3).
    float normal() {
        const uint64_t b = bits();
        const auto sum = int64_t((b & 0xFFFF) + (b >> 16 & 0xFFFF) + (b >> 32 & 0xFFFF) + (b >> 48));
        return float(sum - 131070) * float(1.7320508 / 65536);
    }

  private:
    uint64_t state_;
};

}  // namespace

Buffer::Buffer(int64_t size, const uint8_t* from) : bytes_(allocate_aligned(size_t(size), 64)), size_(size) {
    if (from != nullptr)
        std::memcpy(data(), from, size_t(size));
    else
        std::memset(data(), 0, size_t(size));
}

OwnedMatrix::OwnedMatrix(DType t, int64_t r, int64_t c)
    : type(t), rows(r), cols(c), data(r * c * int64_t(size_of(t))) {}

std::span<uint8_t> OwnedMatrix::row(int64_t i) const {
    const int64_t bytes = cols * int64_t(size_of(type));
    return data.bytes().subspan(size_t(i * bytes), size_t(bytes));
}

OwnedMatrix random_matrix(DType type, int64_t rows, int64_t cols, uint64_t seed) {
    OwnedMatrix matrix(type, rows, cols);
    Random random(seed);
    for (int64_t i = 0; i < rows * cols; i++) store_element(matrix.data.data(), type, i, random.normal());
    return matrix;
}

OwnedMatrix rows_of(const OwnedMatrix& matrix, std::span<const int64_t> rows) {
    OwnedMatrix part(matrix.type, int64_t(rows.size()), matrix.cols);
    for (size_t i = 0; i < rows.size(); i++)
        std::ranges::copy(matrix.row(rows[i]), part.row(int64_t(i)).begin());
    return part;
}

OwnedNvFp4::OwnedNvFp4(const NvFp4Shape& s) : shape(s), codes(s.code_bytes()), scales(s.scale_bytes()) {}

OwnedNvFp4 random_nvfp4(int64_t rows, int64_t k, uint64_t seed) {
    OwnedNvFp4 matrix(NvFp4Shape::of(rows, k));
    Random random(seed);
    for (uint8_t& byte : matrix.codes.bytes()) byte = uint8_t(random.bits());
    for (uint8_t& byte : matrix.scales.bytes()) byte = uint8_t(0x28 + random.bits() % 0x21);
    return matrix;
}

OwnedNvFp4 rows_of(const OwnedNvFp4& matrix, std::span<const int64_t> rows) {
    OwnedNvFp4 part(NvFp4Shape::of(int64_t(rows.size()), matrix.shape.k));
    const int64_t codes = matrix.shape.padded_k / 2, blocks = matrix.shape.padded_blocks();
    for (size_t i = 0; i < rows.size(); i++) {
        std::memcpy(part.codes.data() + int64_t(i) * codes, matrix.codes.data() + rows[i] * codes,
                    size_t(codes));
        for (int64_t block = 0; block < blocks; block++)
            part.scales.data()[int64_t(i) * blocks + block] =
                matrix.scales.data()[scale_offset(matrix.shape.layout, rows[i], block, blocks)];
    }
    return part;
}

std::vector<int64_t> sample_of(int64_t count, int64_t wanted) {
    std::vector<int64_t> sample;
    const int64_t size = std::min(count, wanted);
    for (int64_t i = 0; i < size; i++) sample.push_back(size == 1 ? 0 : i * (count - 1) / (size - 1));
    return sample;
}

}  // namespace halfbyte::bench
