// Conversions between FP32 and the small formats: one instruction where the architecture has it, else the
// software form that gives the same bits (checked over all FP32 values).
#pragma once

#include <cstdint>

#include "format/e4m3.h"

namespace halfbyte::cuda::ptx {

// E4M3 of s >= 0: nearest even, saturating at 448; NaN gives 0x7F. PTX: cvt.satfinite, sm_89 and later.
__device__ __forceinline__ uint32_t encode_e4m3(float s) {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(s));  // the second goes low
    return pair;
#else
    return halfbyte::encode_e4m3(s);
#endif
}

__device__ __forceinline__ float decode_e4m3(uint32_t byte) {
#if __CUDA_ARCH__ >= 890
    uint32_t halves;
    float value;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(byte)));
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(value) : "r"(halves));
    return value;
#else
    return halfbyte::decode_e4m3(uint8_t(byte));
#endif
}

// 8 E2M1 magnitudes of |q| as nibbles, q[0] lowest: nearest even, saturating at 6; NaN gives 7. Without
// `saturate` all |q| are below 7.
template <bool saturate>
__device__ __forceinline__ uint32_t encode_e2m1_magnitudes(const float (&q)[8]) {
#if __CUDA_ARCH__ >= 1000
    uint32_t codes;
    asm("{.reg .b8 a, b, c, d;\n"
        "cvt.rn.satfinite.e2m1x2.f32 a, %2, %1;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b, %4, %3;\n"
        "cvt.rn.satfinite.e2m1x2.f32 c, %6, %5;\n"
        "cvt.rn.satfinite.e2m1x2.f32 d, %8, %7;\n"
        "mov.b32 %0, {a, b, c, d};}"
        : "=r"(codes)
        : "f"(fabsf(q[0])), "f"(fabsf(q[1])), "f"(fabsf(q[2])), "f"(fabsf(q[3])), "f"(fabsf(q[4])),
          "f"(fabsf(q[5])), "f"(fabsf(q[6])), "f"(fabsf(q[7])));
    return codes;
#else
    // Adding 2^22, 2^23 or 2^24 rounds to steps of .5, 1 or 2 and leaves the multiple in the low bits; the
    // right step is the one that gives the smallest code. All three are compared as multiples of .5 above
    // 2^22; what that adds to every nibble is taken off once. NaN and values beyond 2^22 are integers above
    // any code.
    constexpr int base = 0x4A800000;  // 2^22
    uint32_t codes = 0;
#pragma unroll
    for (int i = 7; i >= 0; i--) {
        const float magnitude = fabsf(q[i]);
        const int halves = __float_as_int(magnitude + 0x1p22f);
        const int ones = __float_as_int(magnitude + 0x1p23f), twos = __float_as_int(magnitude + 0x1p24f);
        int code = __viaddmin_s32(ones, base + 2 - 0x4B000000, halves);
        code = __viaddmin_s32(twos, base + 4 - 0x4B800000, code);
        codes = codes * 16 + uint32_t(saturate ? min(code, base + 7) : code);
    }
    return codes - uint32_t(base) * 0x11111111u;
#endif
}

// 1 / x within one unit in the last place, for normal x.
__device__ __forceinline__ float reciprocal_approximate(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

}  // namespace halfbyte::cuda::ptx
