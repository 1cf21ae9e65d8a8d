// Repacking a quantised matrix into the tiles of PackedWeight, and the exact inverse.
#pragma once

#include "halfbyte/operations.h"

namespace halfbyte::cpu {

// Elements beyond k in the last block are packed as zero, whatever the codes hold.
PackedWeight pack_weight(const NvFp4View& w);

// Writes codes [n, Kp/2] and linear block scales [n, Kp/16], Kp = k rounded up to 16.
void unpack_weight(const PackedWeight& w, uint8_t* codes, uint8_t* block_scales);

}  // namespace halfbyte::cpu
