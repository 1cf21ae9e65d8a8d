// E4M3 (float8_e4m3fn): bias 7, largest value 448 = 0x7E, subnormal step 2^-9, NaN 0x7F and 0xFF, no
// infinities.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "core/float16.h"

namespace halfbyte {

struct E4M3 {
    uint8_t bits;
};

inline constexpr uint8_t e4m3_max = 0x7E;  // 448

constexpr float decode_e4m3(uint8_t byte) {
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    const float sign = byte & 0x80 ? -1.0f : 1.0f;
    if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
    if (exponent == 0) return sign * float(mantissa) * 0x1p-9f;
    return sign * std::bit_cast<float>(uint32_t(exponent + 120) << 23 | uint32_t(mantissa) << 20);
}

// Nearest even, saturating at +-448, sign kept; NaN becomes 0x7F.
constexpr uint8_t encode_e4m3(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFF;
    const uint8_t sign = uint8_t(bits >> 24 & 0x80);
    if (magnitude > 0x7F800000) return uint8_t(sign | 0x7F);
    if (magnitude >= 0x43E00000) return uint8_t(sign | e4m3_max);  // 448 and above
    if (magnitude < 0x3C800000) {  // below 2^-6: adding 2^14 makes the FP32 unit 2^-9, the subnormal step
        const float shifted = std::bit_cast<float>(magnitude) + 16384.0f;
        return uint8_t(sign | (std::bit_cast<uint32_t>(shifted) & 15));
    }
    const uint32_t rebiased = magnitude - (120u << 23);
    const uint32_t code = (rebiased + 0x7FFFF + (rebiased >> 20 & 1)) >> 20;
    return uint8_t(sign | (code < e4m3_max ? code : e4m3_max));
}

constexpr float to_float(E4M3 value) {
    return decode_e4m3(value.bits);
}
template <>
constexpr E4M3 round_to<E4M3>(float value) {
    return {encode_e4m3(value)};
}

}  // namespace halfbyte
