// The rule of one MXFP4 block: 32 values give one E8M0 byte and 32 codes.
#pragma once

#include <cmath>
#include <cstdint>

#include "format/e2m1.h"
#include "format/e8m0.h"

namespace halfbyte {

inline constexpr int mxfp4_block = 32;

// A NaN adds nothing to amax and gets code 7; an infinity counts as amax, makes the byte 253, the largest
// there is for an amax, and gets +-6.
inline uint8_t quantize_mxfp4_block(const float values[mxfp4_block], uint8_t codes[mxfp4_block]) {
    float amax = 0.0f;
    for (int i = 0; i < mxfp4_block; i++)
        if (std::fabs(values[i]) > amax) amax = std::fabs(values[i]);
    const uint8_t byte = encode_e8m0_for_amax(amax);
    // 2^(127 - byte): FP32 holds it for every byte but 255, and |v| times it is below 8. The product is
    // exact, or so small that it becomes 0 with or without its rounding.
    const float reciprocal = decode_e8m0(uint8_t(254 - byte));
    for (int i = 0; i < mxfp4_block; i++) codes[i] = encode_e2m1(values[i] * reciprocal);
    return byte;
}

}  // namespace halfbyte
