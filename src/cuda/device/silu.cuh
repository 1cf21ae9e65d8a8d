// silu(g) = fl(g / fl(1 + exp(-g))) with the bits of src/reference.
//
// For g in [-87, 87] exp(-g) is normal, so that its power of two is added to the exponent, and d = 1 +
// exp(-g) and 1/d are normal. With r the correctly rounded 1/d, q0 = g*r corrected by its remainder times r
// is the correctly rounded g/d (Markstein 1990); r comes from the approximate reciprocal by one Newton step.
// The conformance program compares both forms with the reference.
#pragma once

#include <cstdint>

#include "cuda/ptx/convert.cuh"
#include "reference/exp.h"

namespace halfbyte::cuda {

inline constexpr float silu_plain_limit = 87.0f;

// fl(1 + exp(-g)) for g in [-88.7228, 87]
__device__ __forceinline__ float silu_divisor(float g) {
    const auto constant = [](uint32_t bits) { return __uint_as_float(bits); };
    const float rounded = __fmaf_rn(-g, constant(reference::exp_log2e), reference::exp_round);
    const float k = rounded - reference::exp_round;
    float x = __fmaf_rn(k, constant(reference::exp_minus_ln2_high), -g);
    x = __fmaf_rn(k, constant(reference::exp_minus_ln2_low), x);
    float p = reference::exp_coefficient(0);
    p = __fmaf_rn(p, x, reference::exp_coefficient(1));
    p = __fmaf_rn(p, x, reference::exp_coefficient(2));
    p = __fmaf_rn(p, x, reference::exp_coefficient(3));
    p = __fmaf_rn(p, x, reference::exp_coefficient(4));
    p = __fmaf_rn(p, x, reference::exp_coefficient(5));
    const float y = 1.0f + __fmaf_rn(p, x * x, x);
    return 1.0f +
           __uint_as_float(__float_as_uint(y) + (__float_as_uint(rounded) << 23));  // the low bits hold k
}

// fl(a / d), |a| and d normal and not near the ends of their range, or a = +-0: the remainder is subtracted,
// so that a zero keeps its sign. Without the Newton step 1/d is wrong by up to one unit in the last place,
// and the quotient is still right for every g of a 16-bit type.
template <bool newton>
__device__ __forceinline__ float silu_quotient(float a, float d) {
    float r = ptx::reciprocal_approximate(d);
    if (newton) r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
    const float q0 = a * r;
    return __fmaf_rn(-__fmaf_rn(d, q0, -a), r, q0);
}

// |g| <= 87, a value of T
template <typename T>
__device__ __forceinline__ float silu_plain(float g) {
    constexpr bool newton = sizeof(T) == 4;
    return silu_quotient<newton>(g, silu_divisor(g));
}

// Any g.
__device__ __forceinline__ float silu(float g) {
    const float inside = fminf(fmaxf(g, -reference::exp_overflow), silu_plain_limit);
    // Below -87 the divisor comes near 2^128: both sides are taken 2^-32 times as large.
    const bool large = inside < -silu_plain_limit;
    const float scale = large ? 0x1p-32f : 1.0f;
    const float value = silu_quotient<true>(inside * scale, silu_divisor(inside) * scale);
    if (g > silu_plain_limit) return g;                 // exp(-g) adds nothing to 1
    if (g < -reference::exp_overflow) return g * 0.0f;  // exp(-g) is infinite: -0, or NaN for -inf
    return isnan(g) ? g : value;
}

}  // namespace halfbyte::cuda
