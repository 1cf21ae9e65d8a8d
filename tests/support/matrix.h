// Matrices and quantised matrices that own their memory. Everything not yet written holds a poison byte: 0x7F
// is the NaN of E4M3, 0xFF the NaN of every type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/element.h"
#include "format/packed_weight.h"
#include "format/scale_layout.h"
#include "halfbyte/operations.h"
#include "support/random.h"

namespace halfbyte::test {

// Bytes between two guards of 64 bytes, everything poisoned.
class PoisonedBuffer {
  public:
    PoisonedBuffer(int64_t size, uint8_t poison)
        : poison_(poison), bytes_(size_t(size) + 2 * guard, poison) {}
    uint8_t* data() { return bytes_.data() + guard; }
    const uint8_t* data() const { return bytes_.data() + guard; }
    std::span<const uint8_t> bytes() const { return {data(), bytes_.size() - 2 * guard}; }
    uint8_t& operator[](int64_t i) { return bytes_[guard + size_t(i)]; }
    uint8_t operator[](int64_t i) const { return bytes_[guard + size_t(i)]; }
    bool guards_intact() const {
        const auto poisoned = [&](uint8_t byte) { return byte == poison_; };
        return std::all_of(bytes_.begin(), bytes_.begin() + guard, poisoned) &&
               std::all_of(bytes_.end() - guard, bytes_.end(), poisoned);
    }

  private:
    static constexpr size_t guard = 64;
    uint8_t poison_;
    std::vector<uint8_t> bytes_;
};

class OwnedMatrix {
  public:
    OwnedMatrix(int64_t rows, int64_t cols, DType type = DType::f32, int64_t stride = -1,
                uint8_t poison = 0xFF)
        : type_(type),
          rows_(rows),
          cols_(cols),
          stride_(stride < 0 ? cols : stride),
          poison_(poison),
          buffer_(rows * stride_ * int64_t(size_of(type)), poison) {}

    int64_t rows() const { return rows_; }
    int64_t cols() const { return cols_; }
    DType type() const { return type_; }
    float at(int64_t row, int64_t col) const {
        return load_element(buffer_.data(), type_, row * stride_ + col);
    }
    void set(int64_t row, int64_t col, float value) {
        store_element(buffer_.data(), type_, row * stride_ + col, value);
    }
    Matrix view() { return {buffer_.data(), type_, rows_, cols_, stride_}; }
    ConstMatrix view() const { return {buffer_.data(), type_, rows_, cols_, stride_}; }
    ConstMatrix input() const { return view(); }
    void* data() { return buffer_.data(); }
    const void* data() const { return buffer_.data(); }

    std::vector<float> values() const {
        std::vector<float> all;
        for (int64_t row = 0; row < rows_; row++)
            for (int64_t col = 0; col < cols_; col++) all.push_back(at(row, col));
        return all;
    }
    OwnedMatrix row(int64_t index) const {
        OwnedMatrix one(1, cols_, type_);
        for (int64_t col = 0; col < cols_; col++) one.set(0, col, at(index, col));
        return one;
    }
    // The bytes between the end of a row and its stride, and around the matrix, are as they were.
    bool gaps_intact() const {
        const int64_t size = int64_t(size_of(type_));
        for (int64_t row = 0; row < rows_; row++)
            for (int64_t i = cols_ * size; i < stride_ * size; i++)
                if (buffer_[row * stride_ * size + i] != poison_) return false;
        return buffer_.guards_intact();
    }

  private:
    DType type_;
    int64_t rows_, cols_, stride_;
    uint8_t poison_;
    PoisonedBuffer buffer_;
};

inline OwnedMatrix random_matrix(int64_t rows, int64_t cols, DType type, uint64_t seed, float scale = 1.0f,
                                 int64_t stride = -1) {
    OwnedMatrix matrix(rows, cols, type, stride);
    Random random(seed);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < cols; col++) matrix.set(row, col, scale * random.normal());
    return matrix;
}

inline OwnedMatrix matrix_of(const std::vector<float>& values, int64_t rows, int64_t cols,
                             DType type = DType::f32) {
    OwnedMatrix matrix(rows, cols, type);
    for (int64_t i = 0; i < rows * cols; i++) matrix.set(i / cols, i % cols, values[size_t(i)]);
    return matrix;
}

struct Quantized {
    NvFp4Shape shape;
    PoisonedBuffer codes, scales;

    explicit Quantized(const NvFp4Shape& s, uint8_t poison = 0xFF)
        : shape(s), codes(s.code_bytes(), poison), scales(s.scale_bytes(), poison) {}
    NvFp4View view() const { return {codes.data(), scales.data(), shape}; }
    int64_t code_place(int64_t row, int64_t k) const { return row * (shape.padded_k / 2) + k / 2; }
    int64_t scale_place(int64_t row, int64_t block) const {
        return scale_offset(shape.layout, row, block, shape.padded_blocks());
    }
    uint8_t code(int64_t row, int64_t k) const { return codes[code_place(row, k)] >> (k % 2 * 4) & 15; }
    uint8_t scale(int64_t row, int64_t block) const { return scales[scale_place(row, block)]; }
    void set_code(int64_t row, int64_t k, uint8_t code) {
        uint8_t& pair = codes[code_place(row, k)];
        pair = uint8_t(k % 2 == 0 ? (pair & 0xF0) | code : (pair & 0x0F) | code << 4);
    }
};

// Random codes and block scales (0 to 448), padding zero.
inline Quantized random_quantized(const NvFp4Shape& shape, uint64_t seed) {
    Quantized q(shape, 0);
    Random random(seed);
    for (int64_t row = 0; row < shape.rows; row++) {
        for (int64_t k = 0; k < shape.k; k++) q.set_code(row, k, uint8_t(random.below(16)));
        for (int64_t block = 0; block < shape.blocks(); block++)
            q.scales[q.scale_place(row, block)] = uint8_t(random.below(0x7F));
    }
    return q;
}

// The tiles of halfbyte/operations.h, written from the maps alone.
inline PackedWeight pack(const Quantized& q) {
    PackedWeight w{.n = q.shape.rows, .k = q.shape.k, .codes = {}, .block_scales = {}};
    w.codes.resize(size_t(w.tiles() * w.blocks() * 128));
    w.block_scales.resize(size_t(w.tiles() * w.blocks() * 16));
    for (int64_t n = 0; n < w.n; n++) {
        for (int64_t k = 0; k < w.k; k++)
            w.codes[size_t(packed_code_byte(w.blocks(), n, k))] |= uint8_t(q.code(n, k) << (k % 2 * 4));
        for (int64_t block = 0; block < w.blocks(); block++)
            w.block_scales[size_t(packed_scale_byte(w.blocks(), n, block))] = q.scale(n, block);
    }
    return w;
}

}  // namespace halfbyte::test
