// Repacking a quantised matrix into the tiles of PackedWeight, and the exact inverse.
#pragma once

#include <span>

#include "core/thread_pool.h"
#include "halfbyte/operations.h"

namespace halfbyte::cpu {

// The rows of all parts, one below the other; k is that of each. Elements beyond k in the last block are
// packed as zero, whatever the codes hold.
PackedWeight pack_weight(ThreadPool& pool, std::span<const NvFp4View> parts,
                         std::pmr::memory_resource* memory = std::pmr::get_default_resource());
inline PackedWeight pack_weight(const NvFp4View& w) {
    ThreadPool alone(1);
    return pack_weight(alone, {&w, 1});
}

// Writes codes [n, Kp/2] and linear block scales [n, Kp/16], Kp = k rounded up to 16.
void unpack_weight(const PackedWeight& w, uint8_t* codes, uint8_t* block_scales);

}  // namespace halfbyte::cpu
