// E2M1 without divisions and comparisons, for machines that have no instruction for it.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace halfbyte {

// The bits of 2^22, where neighbouring FP32 numbers are .5 apart.
inline constexpr int32_t e2m1_rounding_base = 0x4A800000;

// e2m1_rounding_base + the code of q >= 0; at least base + 7 for q > 5 that rounds beyond 6, infinity and NaN
// among them.
//
// Adding 2^22 rounds q to steps of .5, to nearest even, and leaves the multiple in the low bits; so do q/2
// and q/4 for steps of 1 and 2. The multiples are the codes of q up to 2, and less 2 and 4 those of q from 2
// to 4 and from 4 on, which is why 1 and 2 are added, an even number of steps. Where the step is the wrong
// one the multiple is too large: the smallest is right.
HALFBYTE_HOST_DEVICE inline int32_t e2m1_code_from_base(float q) {
    const float halves = q + 0x1p22f, ones = fmaf(q, 0.5f, 0x1p22f + 1), twos = fmaf(q, 0.25f, 0x1p22f + 2);
#ifdef __CUDA_ARCH__
    return __vimin3_s32(__float_as_int(halves), __float_as_int(ones), __float_as_int(twos));
#else
    return std::min(
        {std::bit_cast<int32_t>(halves), std::bit_cast<int32_t>(ones), std::bit_cast<int32_t>(twos)});
#endif
}

// y / SF for the E2M1 code of the quotient: r = fl(1 / SF), and one correction.
// tests/format/quotient_test.cpp goes over every pair of significands near the midpoints, where the code
// could be another one.
inline float quotient_by_reciprocal(float y, float SF, float r) {
    const float q = y * r;
    return std::fma(std::fma(-SF, q, y), r, q);
}

}  // namespace halfbyte
