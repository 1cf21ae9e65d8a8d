// The global scale that is found while running, from amax over the finite values of a tensor or of a row.
// Unlike EncodeScale::from_amax it has a value for every amax: a device cannot throw.
#pragma once

#include <cfloat>

#include "core/host_device.h"

namespace halfbyte {

// G = min(fl(2688 / amax), FLT_MAX), 1 for amax = 0; 2688 = 6 * 448, the largest E2M1 times the largest E4M3
// value. D = fl(1 / G) is finite and positive too: 2^-128, a subnormal, for G = FLT_MAX.
HALFBYTE_HOST_DEVICE constexpr float dynamic_encode_scale(float amax) {
    if (amax == 0.0f) return 1.0f;
    const float G = 2688.0f / amax;
    return G < FLT_MAX ? G : FLT_MAX;
}

}  // namespace halfbyte
