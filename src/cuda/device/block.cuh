// The rule of one NVFP4 block on the device: the bits of format/nvfp4_block.h without a division.
//
// The quotient y/SF is fma(y, high, y * low), high + low = 1/SF to about 46 bits: exact where y/SF is a
// midpoint between two codes, and on the right side of it elsewhere, because 24-bit neighbours of a midpoint
// times SF (4 bits) are more than the sum's error away from it. Where y overflows, or is infinite, the sum is
// NaN or infinite and saturates. The sign of a code is that of y = fl(v*G): a NaN made by a multiplication is
// 0x7FFFFFFF (PTX ISA, "Floating point instructions"), so that the code of a NaN is 7. Tests try every y with
// every SF.
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

// 1/SF in two parts, both 0 for SF = 0.
struct Reciprocal {
    float high, low;
};
__device__ __forceinline__ Reciprocal reciprocal_of_scale(float SF) {
    const float high = ptx::reciprocal_approximate(SF);
    const float low = __fmaf_rn(-SF, high, 1.0f) * high;
    return SF == 0.0f ? Reciprocal{0.0f, 0.0f} : Reciprocal{high, low};
}

template <bool saturate>
__device__ __forceinline__ uint32_t encode_8(const float* v, float G, Reciprocal reciprocal) {
    float q[8];
    uint32_t signs = 0;
#pragma unroll
    for (int i = 7; i >= 0; i--) {
        const float y = v[i] * G;
        q[i] = __fmaf_rn(y, reciprocal.high, y * reciprocal.low);
        signs = __funnelshift_l(__float_as_uint(y), signs, 4);
    }
    return ptx::encode_e2m1_magnitudes<saturate>(q) | (signs & 0x88888888u);
}

template <bool saturate>
__device__ __forceinline__ QuantizedBlock encode_block(const float (&values)[block_elements], float G,
                                                       uint32_t scale, Reciprocal reciprocal) {
    return {{encode_8<saturate>(values, G, reciprocal), encode_8<saturate>(values + 8, G, reciprocal)},
            scale};
}

// A scale outside (0, inf) may give NaN or a negative byte, but never leaves here as one.
__device__ __forceinline__ uint32_t block_scale(float amax, float G) {
    return min(ptx::encode_e4m3(G * (amax * one_sixth)), uint32_t(e4m3_max));
}

// Nearly every block has no NaN and no quotient that saturates: those are ordinary, and their encoding looks
// for neither. amax: the values' largest magnitude, NaN if there is one among them. If the block is not
// ordinary the result is nothing.
__device__ __forceinline__ QuantizedBlock quantize_ordinary_block(const float (&values)[block_elements],
                                                                  float amax, float G, bool& ordinary) {
    const uint32_t scale = block_scale(amax, G);
    const Reciprocal reciprocal = reciprocal_of_scale(ptx::decode_e4m3(scale));
    ordinary = amax * G * reciprocal.high <= 6.75f;
    return encode_block<false>(values, G, scale, reciprocal);
}

// Any block.
__device__ __forceinline__ QuantizedBlock quantize_block(const float (&values)[block_elements], float G) {
    const uint32_t scale = block_scale(largest_magnitude(values), G);
    return encode_block<true>(values, G, scale, reciprocal_of_scale(ptx::decode_e4m3(scale)));
}

// The magnitude of one code, for tests of the conversion by itself.
__device__ __forceinline__ uint32_t encode_e2m1_magnitude(float magnitude) {
    const float q[8] = {magnitude};
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
