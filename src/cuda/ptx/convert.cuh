// Conversions between FP32 and the small formats: one instruction where the architecture has it, else the
// software form that gives the same bits (checked over all FP32 values).
#pragma once

#include <cstdint>

#include "format/e2m1_rounding.h"
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

// 8 E2M1 codes of q >= 0 as nibbles, q[0] lowest: nearest even, saturating at 6; NaN gives 7. Without
// `saturate` all q are below 7.
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
        : "f"(q[0]), "f"(q[1]), "f"(q[2]), "f"(q[3]), "f"(q[4]), "f"(q[5]), "f"(q[6]), "f"(q[7]));
    return codes;
#else
    uint32_t codes = 0;
#pragma unroll
    for (int i = 7; i >= 0; i--) {
        const int32_t code = e2m1_code_from_base(q[i]);
        codes = codes * 16 + uint32_t(saturate ? min(code, e2m1_rounding_base + 7) : code);
    }
    return codes - uint32_t(e2m1_rounding_base) * 0x11111111u;  // what the base adds to every nibble, at once
#endif
}

// 1 / x within one unit in the last place, for normal x.
__device__ __forceinline__ float reciprocal_approximate(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

}  // namespace halfbyte::cuda::ptx
