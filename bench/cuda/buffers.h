// The memory of one launch: its buffers one behind the other from `base` on. The same calls with other bases
// give the same launch in other memory, on the device or, with fewer rows, on the host.
#pragma once

#include <string>
#include <vector>

#include "device_code.h"
#include "format/scale_layout.h"

namespace halfbyte::bench {

struct Region {
    std::string name;
    Content content;
    bool written;  // by the kernel
    DType type;
    float value;
    int64_t offset, bytes;
    int64_t row_bytes;   // 0: no rows lie in it
    int64_t row_blocks;  // block scales: of a row, tile padding included; then row_bytes is 0
    ScaleLayout layout;
};

class Buffers {
  public:
    explicit Buffers(uint8_t* base = nullptr) : base_(base) {}

    const std::vector<Region>& regions() const { return regions_; }
    int64_t bytes() const { return round_up(size_, 256); }

    ConstMatrix input(int64_t rows, int64_t k, DType type) {
        return {add_rows("x", Content::normal, false, type, rows, k), type, rows, k, k};
    }
    // `updated`: in and out.
    Matrix matrix(int64_t rows, int64_t k, DType type, bool updated = false) {
        return {add_rows(updated ? "residual" : "y", updated ? Content::normal : Content::poison, true, type,
                         rows, k),
                type, rows, k, k};
    }
    uint8_t* codes(int64_t rows, int64_t padded_k, bool written) {
        return add_rows("codes", written ? Content::poison : Content::any_byte, written, DType::u8, rows,
                        padded_k / 2);
    }
    // content: poison for an output.
    uint8_t* scales(ScaleLayout layout, int64_t padded_rows, int64_t blocks, Content content) {
        uint8_t* data = add("block_scales", content, content == Content::poison, DType::u8,
                            scale_buffer_bytes(layout, padded_rows, blocks));
        regions_.back().layout = layout;
        regions_.back().row_blocks = layout == ScaleLayout::linear ? blocks : round_up(blocks, 4);
        return data;
    }
    // The same for every row.
    void* constant(int64_t count, DType type) {
        return add("constant", Content::normal, false, type, count * int64_t(size_of(type)));
    }
    float* value(float value) {
        uint8_t* data = add("scale", Content::value, false, DType::f32, 4);
        regions_.back().value = value;
        return reinterpret_cast<float*>(data);
    }
    float* result() { return reinterpret_cast<float*>(add("result", Content::poison, true, DType::f32, 4)); }

  private:
    uint8_t* add(const char* name, Content content, bool written, DType type, int64_t bytes) {
        const int64_t offset = round_up(size_, 256);
        regions_.push_back({name, content, written, type, 0.0f, offset, bytes, 0, 0, ScaleLayout::linear});
        size_ = offset + bytes;
        return base_ + offset;
    }
    uint8_t* add_rows(const char* name, Content content, bool written, DType type, int64_t rows, int64_t k) {
        const int64_t row_bytes = k * int64_t(size_of(type));
        uint8_t* data = add(name, content, written, type, rows * row_bytes);
        regions_.back().row_bytes = row_bytes;
        return data;
    }

    uint8_t* base_;
    int64_t size_ = 0;
    std::vector<Region> regions_;
};

}  // namespace halfbyte::bench
