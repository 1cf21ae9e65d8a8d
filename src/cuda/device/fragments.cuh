// A word of a packed weight (format/gpu_weight.h) as the operand A of a 16 x 8 x 16 product: code * SF times
// a power of two, exact in BF16 and in FP16.
//
// BF16: a code's bits, placed as gpu_weight.h says, are its value * 2^-126, a block scale's bits SF * 2^104,
// and so the product is code * SF * 2^-22. FP16: value * 2^-14, SF * 2^7, code * SF * 2^-7.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/mma.cuh"

namespace halfbyte::cuda {

template <typename T>
struct Fragments;

template <>
struct Fragments<__nv_bfloat16> {
    static constexpr float unscale = 0x1p22f;  // takes the power of two out again

    static __device__ __forceinline__ void codes(uint32_t word, uint32_t (&a)[4]) {
        constexpr uint32_t code = 0x81C081C0u;
        a[0] = word & code;
        a[1] = (word << 4) & code;
        a[2] = __funnelshift_l(word, word, 10) & code;
        a[3] = ((word << 6) & 0x80C080C0u) | ((word >> 2) & 0x01000100u);
    }
    // The scales of a block in the halves, row g low and row g + 8 high, from the word of a pair of blocks;
    // normal positive ones only. exponent: scale_exponent.
    static constexpr uint32_t scale_exponent = 0x70007000u;
    static __device__ __forceinline__ uint32_t normal_scales(uint32_t word, int block, uint32_t exponent) {
        return ((block % 2 == 0 ? word << 4 : word >> 4) & 0x0FF00FF0u) | exponent;
    }
    static __device__ __forceinline__ uint32_t scale(uint32_t byte) {  // any
        return __float_as_uint(ptx::decode_e4m3(byte) * 0x1p104f) >> 16;
    }
    static __device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {
        return ptx::multiply_bf16x2(a, b);
    }
    // Eight codes in the order of an unpacked row: those of byte i, the low nibble in the low half.
    static __device__ __forceinline__ void pairs(uint32_t word, uint32_t (&pairs)[4]) {
        // The two bytes of each value, of even and of odd codes, then brought together.
        const uint32_t even_low = (word << 6) & 0xC0C0C0C0u, odd_low = (word << 2) & 0xC0C0C0C0u,
                       even_high = ((word << 4) & 0x80808080u) | ((word >> 2) & 0x01010101u),
                       odd_high = (word & 0x80808080u) | ((word >> 6) & 0x01010101u);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t order = half == 0 ? 0x5140 : 0x7362,
                           even = __byte_perm(even_low, even_high, order),
                           odd = __byte_perm(odd_low, odd_high, order);
            pairs[2 * half] = __byte_perm(even, odd, 0x5410);
            pairs[2 * half + 1] = __byte_perm(even, odd, 0x7632);
        }
    }
};

template <>
struct Fragments<__half> {
    static constexpr float unscale = 0x1p7f;

    static __device__ __forceinline__ void codes(uint32_t word, uint32_t (&a)[4]) {
        constexpr uint32_t sign = 0x80008000u, magnitude = 0x0E000E00u;
        a[0] = (word & sign) | ((word << 3) & magnitude);
        a[1] = ((word << 4) & sign) | ((word << 7) & magnitude);
        a[2] = (__funnelshift_l(word, word, 10) & sign) | (__funnelshift_l(word, word, 13) & magnitude);
        a[3] = ((word << 6) & sign) | ((word << 9) & 0x06000600u) | ((word << 1) & 0x08000800u);
    }
    static constexpr uint32_t scale_exponent = 0x3C003C00u;
    static __device__ __forceinline__ uint32_t normal_scales(uint32_t word, int block, uint32_t exponent) {
        const uint32_t bytes = block % 2 == 0 ? word & 0x00FF00FFu : (word >> 8) & 0x00FF00FFu;
        return bytes * 128 + exponent;
    }
    static __device__ __forceinline__ uint32_t scale(uint32_t byte) {
        return __half_as_ushort(__float2half_rn(ptx::decode_e4m3(byte) * 0x1p7f));
    }
    static __device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {
        return ptx::multiply_f16x2(a, b);
    }
};

// a: operand A of one block; scales: of rows g (low) and g + 8 (high).
template <typename T>
__device__ __forceinline__ void dequantize(uint32_t word, uint32_t scales, uint32_t (&a)[4]) {
    Fragments<T>::codes(word, a);
    const uint32_t low = ptx::low_half_twice(scales), high = ptx::high_half_twice(scales);
    a[0] = Fragments<T>::multiply(a[0], low);
    a[1] = Fragments<T>::multiply(a[1], high);
    a[2] = Fragments<T>::multiply(a[2], low);
    a[3] = Fragments<T>::multiply(a[3], high);
}

// The scales of one block of a group, from its two words. exponent: Fragments<T>::scale_exponent by way of a
// parameter of the kernel: an instruction has room for one constant, and ptxas would spend another
// instruction on a second one.
template <typename T, bool special>
__device__ __forceinline__ uint32_t scales_of(uint2 words, int block, uint32_t exponent) {
    const uint32_t word = block < 2 ? words.x : words.y;
    if (!special) return Fragments<T>::normal_scales(word, block, exponent);
    return Fragments<T>::scale(word >> block % 2 * 8 & 0xFF) |
           Fragments<T>::scale(word >> (16 + block % 2 * 8) & 0xFF) << 16;
}

}  // namespace halfbyte::cuda
