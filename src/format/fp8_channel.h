// E4M3 weights with one scale s for each output channel, a row of W [N, K]: w = E4M3(fl(v / s)), decoded s *
// w.
#pragma once

#include <algorithm>

#include "core/float16.h"
#include "format/e4m3.h"

namespace halfbyte {

// s puts the row's amax on 448, the largest E4M3 value, within BF16's rounding. BF16 since readers keep
// scales in the type of the model; at least its smallest normal number, since a subnormal one may be flushed
// to zero.
inline float fp8_channel_scale(float amax) {
    if (amax == 0) return 1.0f;
    return std::max(to_float(round_to<BFloat16>(amax / 448.0f)), 0x1p-126f);
}

inline uint8_t encode_fp8(float value, float scale) {
    return encode_e4m3(value / scale);
}

}  // namespace halfbyte
