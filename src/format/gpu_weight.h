// Where the codes and block scales of a weight lie in cuda::PackedWeight, the form that the GPU's products
// read: the one description of its tiles, for the kernels that pack, unpack and multiply.
//
// Strips of 16 rows; along K groups of 64 elements (4 blocks). Group j of strip s begins at byte
// (s * groups + j) * 576:
//   512 bytes of codes: word b (0..3) of lane l (0..31) at l * 16 + b * 4 holds what lane l of a warp needs
//   of
//     block b for the operand A of mma.sync.m16n8k16 and wgmma.m64nNk16: with g = l / 4 and q = l % 4 the
//     rows g and g + 8, the elements 2q, 2q + 1, 2q + 8, 2q + 9.
//   64 bytes of E4M3 scales: those of rows g and g + 8 of the strip at 512 + g * 8: bytes 0..7 are block 0 of
//     g, block 1 of g, block 0 of g + 8, block 1 of g + 8, then the same of blocks 2 and 3.
// Each 16-bit half h of a word has one code of each of four kinds, h choosing between two neighbours in k:
//   A (g, 2q + h)   B (g + 8, 2q + h)   C (g, 2q + 8 + h)   D (g + 8, 2q + 8 + h)
// A code has a sign and three bits of magnitude. As BF16 its sign belongs at bit 15 and its magnitude at bits
// 8:6 of a half; then it is the code's value times 2^-126. The bits lie so that A needs a mask, B a shift
// left by 4 and a mask, C a rotation left by 10 and a mask, D a shift left by 6 and one right by 2 with two
// masks. (All choices were searched: there is none with a mask and one shift for each of the four.) Behind
// the groups: one byte for each strip, 1 if a scale of the strip is not a positive normal number (0,
// subnormal, negative or NaN): such strips take a slower way.
// Rows from n on and blocks beyond k are codes 0 with scale 1.
#pragma once

#include <cstdint>

#include "format/scale_layout.h"

namespace halfbyte {

inline constexpr int64_t gpu_strip_rows = 16, gpu_group_k = 64, gpu_group_blocks = 4;
inline constexpr int64_t gpu_group_code_bytes = 512, gpu_group_bytes = 576;

constexpr int64_t gpu_strips(int64_t n) {
    return (n + gpu_strip_rows - 1) / gpu_strip_rows;
}
constexpr int64_t gpu_groups(int64_t k) {
    return (k + gpu_group_k - 1) / gpu_group_k;
}
constexpr int64_t gpu_weight_flags(int64_t n, int64_t k) {  // the offset of the strips' bytes
    return gpu_strips(n) * gpu_groups(k) * gpu_group_bytes;
}
constexpr int64_t gpu_weight_bytes(int64_t n, int64_t k) {
    return round_up(gpu_weight_flags(n, k) + gpu_strips(n), 16);
}

// The byte offset of the word that holds the code of (row, k) of one strip and group.
constexpr int gpu_word_byte(int row, int k) {
    const int lane = row % 8 * 4 + k % 8 / 2;
    return lane * 16 + k / 16 * 4;
}
// Where in that word bit `bit` (0..2 magnitude, 3 sign) of the code lies.
constexpr int gpu_code_bit(int row, int k, int bit) {
    const int half = k % 2, target = bit == 3 ? 15 : 6 + bit;
    const int kind = k % 16 / 8 * 2 + row / 8;  // A, B, C, D
    const int rotation = kind == 0 ? 0 : kind == 1 ? 4 : kind == 2 ? 10 : bit == 2 ? 30 : 6;
    return (half * 16 + target + 32 - rotation) % 32;
}
constexpr int gpu_scale_byte(int row, int block) {
    return int(gpu_group_code_bytes) + row % 8 * 8 + block / 2 * 4 + row / 8 * 2 + block % 2;
}
// What the strip's byte tells of: the product's fast way takes any other scale.
constexpr bool gpu_scale_is_special(uint8_t scale) {
    return scale < 8 || scale > 126;
}

}  // namespace halfbyte
