// The packed form of a weight for the GPU's products, bit by bit as format/gpu_weight.h says, and its
// inverse.
#include <cstring>

#include "format/gpu_weight.h"
#include "reference/reference.h"

namespace halfbyte::reference {
namespace {

constexpr uint8_t scale_of_one = 0x38;

// Where (row, k) of the weight lies: its strip's and group's first byte.
int64_t group_of(int64_t row, int64_t k, int64_t groups) {
    return (row / gpu_strip_rows * groups + k / gpu_group_k) * gpu_group_bytes;
}

// The bit of a code, counted from the first byte of its strip and group.
int64_t bit_of(int64_t row, int64_t k, int bit) {
    const int r = int(row % gpu_strip_rows), i = int(k % gpu_group_k);
    return gpu_word_byte(r, i) * 8 + gpu_code_bit(r, i, bit);
}

int64_t scale_byte_of(int64_t row, int64_t block, int64_t groups) {
    return group_of(row, block * 16, groups) +
           gpu_scale_byte(int(row % gpu_strip_rows), int(block % gpu_group_blocks));
}

}  // namespace

void pack_weight(const cuda::PackWeightArgs& args) {
    const int64_t k = args.parts[0].shape.k, groups = gpu_groups(k);
    int64_t n = 0;
    for (int i = 0; i < args.part_count; i++) n += args.parts[i].shape.rows;
    std::memset(args.packed, 0, size_t(gpu_weight_bytes(n, k)));
    for (int64_t row = 0; row < gpu_strips(n) * gpu_strip_rows; row++)
        for (int64_t block = 0; block < groups * gpu_group_blocks; block++)
            args.packed[scale_byte_of(row, block, groups)] = scale_of_one;
    int64_t first = 0;
    for (int i = 0; i < args.part_count; i++) {
        const auto& [codes, block_scales, shape] = args.parts[i];
        for (int64_t own = 0; own < shape.rows; own++) {
            const int64_t row = first + own;
            for (int64_t e = 0; e < k; e++) {
                const int code = codes[own * (shape.padded_k / 2) + e / 2] >> (e % 2 * 4) & 15;
                for (int bit = 0; bit < 4; bit++) {
                    const int64_t at = bit_of(row, e, bit);
                    args.packed[group_of(row, e, groups) + at / 8] |= uint8_t((code >> bit & 1) << at % 8);
                }
            }
            for (int64_t block = 0; block < shape.blocks(); block++) {
                const uint8_t scale =
                    block_scales[scale_offset(shape.layout, own, block, shape.padded_blocks())];
                args.packed[scale_byte_of(row, block, groups)] = scale;
                if (gpu_scale_is_special(scale))
                    args.packed[gpu_weight_flags(n, k) + row / gpu_strip_rows] = 1;
            }
        }
        first += shape.rows;
    }
}

void unpack_weight(const cuda::UnpackWeightArgs& args) {
    const auto& [data, n, k] = args.w;
    const NvFp4Shape shape = NvFp4Shape::of(n, k);
    const int64_t groups = gpu_groups(k);
    std::memset(args.codes, 0, size_t(shape.code_bytes()));
    for (int64_t row = 0; row < n; row++) {
        for (int64_t e = 0; e < k; e++)
            for (int bit = 0; bit < 4; bit++) {
                const int64_t at = bit_of(row, e, bit);
                const int value = data[group_of(row, e, groups) + at / 8] >> at % 8 & 1;
                args.codes[row * (shape.padded_k / 2) + e / 2] |= uint8_t(value << bit << e % 2 * 4);
            }
        for (int64_t block = 0; block < shape.blocks(); block++)
            args.block_scales[row * shape.blocks() + block] = data[scale_byte_of(row, block, groups)];
    }
}

}  // namespace halfbyte::reference
