// exp in FP32, at most 1 ulp off, the same bits everywhere: argument reduction by ln 2 in two parts, a
// polynomial of degree 7 by fma, and the power of two in two factors so that subnormal results round once.
// One header for the CPU and the GPU (nvcc: --expt-relaxed-constexpr, for std::bit_cast).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/host_device.h"

namespace halfbyte::reference {

// Hexadecimal bits of the constants; the vector forms read the same table.
inline constexpr uint32_t exp_log2e = 0x3FB8AA3B;           // 1 / ln 2
inline constexpr uint32_t exp_minus_ln2_high = 0xBF317200;  // -(ln 2, upper bits)
inline constexpr uint32_t exp_minus_ln2_low = 0xB5BFBE8E;   // -(ln 2, the rest)
inline constexpr float exp_round = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to an integer
inline constexpr uint32_t exp_polynomial[6] = {0x39502BDA, 0x3AB696C9, 0x3C0888A6,
                                               0x3D2AAA7A, 0x3E2AAAAB, 0x3F000000};
inline constexpr float exp_overflow = 88.7228f;  // above: infinity
inline constexpr float exp_underflow = -104.0f;  // below: 0

// Evaluated by the compiler, so that device code needs no table.
consteval float exp_coefficient(int i) {
    return std::bit_cast<float>(exp_polynomial[i]);
}

HALFBYTE_HOST_DEVICE inline float exp(float x) {
    if (std::isnan(x)) return x;
    if (x > exp_overflow) return std::numeric_limits<float>::infinity();
    if (x < exp_underflow) return 0.0f;
    const float k = std::fma(x, std::bit_cast<float>(exp_log2e), exp_round) - exp_round;
    float r = std::fma(k, std::bit_cast<float>(exp_minus_ln2_high), x);
    r = std::fma(k, std::bit_cast<float>(exp_minus_ln2_low), r);
    float p = exp_coefficient(0);
    p = std::fma(p, r, exp_coefficient(1));
    p = std::fma(p, r, exp_coefficient(2));
    p = std::fma(p, r, exp_coefficient(3));
    p = std::fma(p, r, exp_coefficient(4));
    p = std::fma(p, r, exp_coefficient(5));
    const float y = 1.0f + std::fma(p, r * r, r);
    const int exponent = int(k), half = exponent >> 1;
    const auto power = [](int e) { return std::bit_cast<float>(uint32_t(e + 127) << 23); };
    return y * power(half) * power(exponent - half);
}

}  // namespace halfbyte::reference
