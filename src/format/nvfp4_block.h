// The rule of one NVFP4 block: 16 values and the encode scale G give one E4M3 byte and 16 codes.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "format/e2m1.h"
#include "format/e4m3.h"
#include "halfbyte/nvfp4.h"

namespace halfbyte {

inline constexpr int nvfp4_block = 16;
inline constexpr float one_sixth = std::bit_cast<float>(0x3E2AAAABu);

// A NaN adds nothing to amax and gets code 7, also in a block whose scale is 0; an infinity makes the scale
// 448 and gets +-6. A scale of 0 is kept, and the codes are then zeros with the signs of the values.
inline uint8_t quantize_nvfp4_block(const float values[nvfp4_block], float G, Rounding rounding,
                                    uint8_t codes[nvfp4_block], QuantizeStats* stats = nullptr) {
    float amax = 0.0f;
    for (int i = 0; i < nvfp4_block; i++)
        if (std::fabs(values[i]) > amax) amax = std::fabs(values[i]);
    const float s = G * (amax * one_sixth);
    const uint8_t byte = encode_e4m3(s);
    const float SF = decode_e4m3(byte);
    for (int i = 0; i < nvfp4_block; i++) {
        const float v = values[i];
        if (std::isnan(v)) {
            codes[i] = 7;
        } else if (SF == 0.0f) {
            codes[i] = std::signbit(v) ? 8 : 0;
        } else if (rounding == Rounding::vllm) {
            codes[i] = encode_e2m1(v * (1.0f / (SF * (1.0f / G))));
        } else {
            codes[i] = encode_e2m1((v * G) / SF);  // rounding the quotient to FP32 never crosses a midpoint
        }
        if (stats != nullptr) {
            stats->non_finite += !std::isfinite(v);
            stats->clipped += s > 448.0f && std::fabs(v * G) > 6.0f * SF;
        }
    }
    if (stats != nullptr) {
        stats->blocks++;
        stats->flushed += amax > 0.0f && byte == 0;
    }
    return byte;
}

}  // namespace halfbyte
