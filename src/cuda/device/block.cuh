// The rule of one NVFP4 block on the device: the bits of format/nvfp4_block.h without a division.
//
// The quotient |y|/SF is one product: |y| * r rounded up, with r = 1/SF rounded down, 0 <= 1 - r * SF <=
// 2^-24. For a midpoint m between codes m * SF is an FP32 number of 7 bits. There the product is m (or, for m
// = 1/4, m or the number before it, which has the same code 0); for a larger y it is above m, since the
// neighbours of m * SF are more than 2^-24 of it apart; for a smaller y, where a tie at m would go up, it is
// below. Where y overflows or is infinite the product saturates. The sign of a code is that of y = fl(v*G): a
// NaN made by a multiplication is 0x7FFFFFFF (PTX ISA, "Floating point instructions"), so that the code of a
// NaN is 7. Tests try every y with every SF.
#pragma once

#include <cstdint>

#include "cuda/device/elements.cuh"
#include "cuda/ptx/convert.cuh"
#include "format/nvfp4_block.h"

namespace halfbyte::cuda {

struct QuantizedBlock {
    uint2 codes = {0, 0};  // element 0 in the lowest nibble
    uint32_t scale = 0;    // E4M3
};

// 1/SF rounded down; 0 for SF = 0. The approximation is one of 1/SF's two neighbours.
__device__ __forceinline__ float reciprocal_of_scale(float SF) {
    const float near = ptx::reciprocal_approximate(SF);
    const int above = __float_as_int(__fmaf_rn(-SF, near, 1.0f)) >> 31;  // -1 if it is the upper one
    return SF == 0.0f ? 0.0f : __int_as_float(__float_as_int(near) + above);
}

// Codes of y = magnitudes * G with the signs of `signs`; the reciprocal of the first four and of the others.
template <bool saturate>
__device__ __forceinline__ uint32_t encode_8(const float* magnitudes, const float* signs, float G,
                                             float reciprocal, float second_reciprocal) {
    float q[8];
    uint32_t sign_bits = 0;
#pragma unroll
    for (int i = 7; i >= 0; i--) {
        q[i] = __fmul_ru(fabsf(magnitudes[i] * G), i < 4 ? reciprocal : second_reciprocal);
        sign_bits = __funnelshift_l(__float_as_uint(signs[i]), sign_bits, 4);
    }
    return ptx::encode_e2m1_magnitudes<saturate>(q) | (sign_bits & 0x88888888u);
}
template <bool saturate>
__device__ __forceinline__ uint32_t encode_8(const float* magnitudes, const float* signs, float G,
                                             float reciprocal) {
    return encode_8<saturate>(magnitudes, signs, G, reciprocal, reciprocal);
}

// A scale outside (0, inf) may give NaN or a negative byte, but never leaves here as one.
__device__ __forceinline__ uint32_t block_scale(float amax, float G) {
    return min(ptx::encode_e4m3(G * (amax * one_sixth)), uint32_t(e4m3_max));
}

// A block's values v, as far as their codes need them: |v| is |magnitude * factor|, exactly, and the sign is
// that of `sign`.
struct OrdinaryValues {
    float magnitude[block_elements], sign[block_elements];
    float factor;
    float amax;  // the largest |v|, NaN if one of them is
};

// Nearly every block has no NaN and no quotient that saturates: those are ordinary, and their encoding looks
// for neither. If the block is not ordinary the result is nothing.
__device__ __forceinline__ QuantizedBlock quantize_ordinary_block(const OrdinaryValues& v, float G,
                                                                  bool& ordinary) {
    const uint32_t scale = block_scale(v.amax, G);
    const float reciprocal = reciprocal_of_scale(ptx::decode_e4m3(scale));
    ordinary = v.amax * G * reciprocal <= 6.75f;
    const float factor = v.factor * G;
    return {{encode_8<false>(v.magnitude, v.sign, factor, reciprocal),
             encode_8<false>(v.magnitude + 8, v.sign + 8, factor, reciprocal)},
            scale};
}

// Any block.
__device__ __forceinline__ QuantizedBlock quantize_block(const float (&values)[block_elements], float G) {
    const uint32_t scale = block_scale(largest_magnitude(values), G);
    const float reciprocal = reciprocal_of_scale(ptx::decode_e4m3(scale));
    float y[block_elements];
#pragma unroll
    for (int i = 0; i < block_elements; i++) y[i] = values[i] * G;
    return {{encode_8<true>(y, y, 1.0f, reciprocal), encode_8<true>(y + 8, y + 8, 1.0f, reciprocal)}, scale};
}

// The magnitude of one code, for tests of the conversion by itself.
__device__ __forceinline__ uint32_t encode_e2m1_magnitude(float magnitude) {
    const float q[8] = {fabsf(magnitude)};
    return ptx::encode_e2m1_magnitudes<true>(q) & 15;
}

// The exponent and mantissa bits of a code, placed in an FP32 number 2^126 times smaller than its value.
__device__ __forceinline__ float decode_e2m1(uint32_t code) {
    const float magnitude = __uint_as_float((code & 7) << 22) * 0x1p126f;
    return __uint_as_float(__float_as_uint(magnitude) | (code & 8) << 28);
}

// fl((code * SF) * D); code * SF is exact.
__device__ __forceinline__ void decode_block(const QuantizedBlock& block, float D,
                                             float (&values)[block_elements]) {
    const float SF = ptx::decode_e4m3(block.scale);
#pragma unroll
    for (int i = 0; i < block_elements; i++)
        values[i] = decode_e2m1((i < 8 ? block.codes.x : block.codes.y) >> (i % 8 * 4)) * SF * D;
}

__device__ __forceinline__ uint2 load_codes(const uint8_t* address, bool aligned) {
    if (aligned) return *reinterpret_cast<const uint2*>(address);
    uint2 codes = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        codes.x |= uint32_t(address[i]) << (8 * i);
        codes.y |= uint32_t(address[i + 4]) << (8 * i);
    }
    return codes;
}

__device__ __forceinline__ void store_codes(uint8_t* address, uint2 codes, bool aligned) {
    if (aligned) return ptx::store_streaming(reinterpret_cast<uint2*>(address), codes);
#pragma unroll
    for (int i = 0; i < 8; i++) address[i] = uint8_t((i < 4 ? codes.x : codes.y) >> (i % 4 * 8));
}

}  // namespace halfbyte::cuda
