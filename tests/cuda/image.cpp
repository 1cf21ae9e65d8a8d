#include "cuda/image.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/element.h"

namespace halfbyte::conformance {

static constexpr int64_t guard = 128;

static bool is_float(DType type) {
    return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

ScalePosition Region::position(int64_t byte) const {
    const int64_t element = byte / int64_t(size_of(type));
    if (stride == 0) return {0, 0};
    ScalePosition place =
        layout ? scale_position(*layout, element, stride) : ScalePosition{element / stride, element % stride};
    place.block *= k_per_element;
    return place;
}

Region Image::add(Region region, int64_t misaligned_bytes) {
    region.offset = round_up(int64_t(bytes.size()) + guard, 256) + misaligned_bytes;
    bytes.resize(size_t(region.offset + region.bytes + guard), region.fill());
    regions.push_back(region);
    return region;
}

Region Image::matrix(const std::string& name, Role role, DType type, int64_t rows, int64_t cols,
                     int64_t stride, int64_t misaligned_elements) {
    const int64_t size = int64_t(size_of(type));
    // The last row ends where its elements end: the gap behind it belongs to nobody.
    const int64_t elements = rows == 0 || cols == 0 ? 0 : (rows - 1) * stride + cols;
    return add({name, role, type, rows, cols, stride, 1, {}, 0, elements * size}, misaligned_elements * size);
}

Region Image::floats(const std::string& name, Role role, int64_t count, int64_t misaligned_elements) {
    return matrix(name, role, DType::f32, count, 1, 1, misaligned_elements);
}

Region Image::codes(Role role, int64_t padded_rows, int64_t padded_k, int64_t misaligned_bytes) {
    const int64_t width = padded_k / 2;
    return add({"codes", role, DType::u8, padded_rows, width, width, 2, {}, 0, padded_rows * width},
               misaligned_bytes);
}

Region Image::block_scales(Role role, ScaleLayout layout, int64_t padded_rows, int64_t padded_blocks,
                           int64_t block, int64_t misaligned_bytes) {
    return add({"block_scales", role, DType::u8, padded_rows, padded_blocks, padded_blocks, block, layout, 0,
                scale_buffer_bytes(layout, padded_rows, padded_blocks)},
               misaligned_bytes);
}

int64_t Image::output_bytes() const {
    int64_t sum = 0;
    for (const Region& region : regions) sum += region.role == Role::input ? 0 : region.bytes;
    return sum;
}

// The region that holds the byte or, if it lies in a guard, the one before it.
const Region* Image::nearest(int64_t byte) const {
    const Region* found = &regions.front();
    for (const Region& region : regions)
        if (region.offset <= byte) found = &region;
    return found;
}

std::string Image::first_difference(const std::vector<uint8_t>& expected,
                                    const std::vector<uint8_t>& given) const {
    if (expected.size() != given.size())
        return fmt::format("{} bytes given, {} expected", given.size(), expected.size());
    for (size_t i = 0;; i++) {
        i = size_t(
            std::mismatch(expected.begin() + int64_t(i), expected.end(), given.begin() + int64_t(i)).first -
            expected.begin());
        if (i == expected.size()) return {};
        const Region& region = *nearest(int64_t(i));
        const int64_t byte = int64_t(i) - region.offset;
        if (byte < 0 || byte >= region.bytes)
            return fmt::format("the guard {} {} was written: byte {}, expected 0x{:02X}, given 0x{:02X}",
                               byte < 0 ? "before" : "behind", region.name, byte, expected[i], given[i]);
        const ScalePosition place = region.position(byte);
        const bool gap = !region.layout && place.block / region.k_per_element >= region.cols;
        const std::string where = fmt::format("{}{} byte {} (row {}, k {})", region.name,
                                              gap                          ? ", the gap behind a row:"
                                              : region.role == Role::input ? ", an input:"
                                                                           : "",
                                              byte, place.row, place.block);
        if (!is_float(region.type) || gap || region.role == Role::input)
            return fmt::format("{}: expected 0x{:02X}, given 0x{:02X}", where, expected[i], given[i]);
        const int64_t size = int64_t(size_of(region.type)), element = byte / size;
        const float right = load_element(expected.data() + region.offset, region.type, element);
        const float wrong = load_element(given.data() + region.offset, region.type, element);
        if (!std::isnan(right) || !std::isnan(wrong))
            return fmt::format("{}: expected {:a} ({}), given {:a} ({})", where, right, right, wrong, wrong);
        i = size_t(region.offset + (element + 1) * size - 1);
    }
}

}  // namespace halfbyte::conformance
