// E8M0: a power of two, 2^(byte - 127); 255 is NaN. Byte 0 is 2^-127, a subnormal of FP32.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace halfbyte {

constexpr float decode_e8m0(uint8_t byte) {
    if (byte == 255) return std::numeric_limits<float>::quiet_NaN();
    return std::bit_cast<float>(byte == 0 ? 0x00400000u : uint32_t(byte) << 23);
}

// The scale of an MXFP4 block of largest magnitude amax (vLLM's rule): amax is rounded up to the next power
// of two from 1.75 times one on, and the largest code 6 sits two binades above the scale.
constexpr uint8_t encode_e8m0_for_amax(float amax) {
    const int byte = int((std::bit_cast<uint32_t>(amax) + 0x00200000u) >> 23) - 2;
    return uint8_t(byte < 0 ? 0 : byte > 254 ? 254 : byte);
}

}  // namespace halfbyte
