// E2M1: sign, 2 exponent bits, 1 mantissa bit. Codes 0..7 are 0, .5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace halfbyte {

inline constexpr float e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

constexpr float decode_e2m1(uint8_t code) {
    return e2m1_values[code & 15];
}

// Nearest even, saturating at +-6, sign of zero kept; NaN of either sign becomes code 7.
constexpr uint8_t encode_e2m1(float value) {
    if (value != value) return 7;
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFF);
    // The midpoints of neighbours; a tie goes to the even code, so the comparison alternates.
    const int code = (magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f) + (magnitude >= 1.75f) +
                     (magnitude > 2.5f) + (magnitude >= 3.5f) + (magnitude > 5.0f);
    return uint8_t(code | (bits >> 31) << 3);
}

}  // namespace halfbyte
