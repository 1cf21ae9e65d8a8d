// The memory of one problem as one image: every input and output between guards, misaligned as asked. The
// reference runs on one copy of it and the kernel on another; then all bytes must be equal. So one comparison
// covers the results, padding, the gaps between a row's end and its stride, the guards and the inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/scale_layout.h"
#include "halfbyte/operations.h"

namespace halfbyte::conformance {

enum class Role {
    input,    // guards and gaps are 0xFF, NaN in every type: reading them changes the result
    output,   // everything is 0xA5
    in_place  // content of an input, result of an output
};

// A matrix of elements, of pairs of codes or of block scales, somewhere in the image.
struct Region {
    std::string name;
    Role role = Role::input;
    DType type = DType::u8;
    int64_t rows = 0, cols = 0, stride = 0;  // in elements; of block scales stride is the blocks of a row
    int64_t k_per_element = 1;               // 2 for codes, 16 or 32 for block scales
    std::optional<ScaleLayout> layout = {};  // of block scales
    int64_t offset = 0, bytes = 0;           // in the image

    uint8_t fill() const { return role == Role::output ? 0xA5 : 0xFF; }
    ConstMatrix input(const uint8_t* image) const { return {image + offset, type, rows, cols, stride}; }
    Matrix matrix(uint8_t* image) const { return {image + offset, type, rows, cols, stride}; }
    template <typename T>
    T* at(uint8_t* image) const {
        return reinterpret_cast<T*>(image + offset);
    }
    // Row and k of a byte of the region.
    ScalePosition position(int64_t byte) const;
};

class Image {
  public:
    std::vector<uint8_t> bytes;
    std::vector<Region> regions;

    Region matrix(const std::string& name, Role role, DType type, int64_t rows, int64_t cols, int64_t stride,
                  int64_t misaligned_elements = 0);
    Region floats(const std::string& name, Role role, int64_t count, int64_t misaligned_elements);
    Region codes(Role role, int64_t padded_rows, int64_t padded_k, int64_t misaligned_bytes);
    Region block_scales(Role role, ScaleLayout layout, int64_t padded_rows, int64_t padded_blocks,
                        int64_t block, int64_t misaligned_bytes);

    int64_t output_bytes() const;
    // Empty if all bytes are equal (in results of a float type a NaN equals any NaN); else where the first
    // difference lies, what was expected and what was given.
    std::string first_difference(const std::vector<uint8_t>& expected,
                                 const std::vector<uint8_t>& given) const;

  private:
    Region add(Region region, int64_t misaligned_bytes);
    const Region* nearest(int64_t byte) const;
};

}  // namespace halfbyte::conformance
