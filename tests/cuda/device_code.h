// What the conformance program runs on the GPU itself: counts of differences over all bit patterns, and an
// input that is too large to be made on the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/host_device.h"

namespace halfbyte::conformance {

struct Count {
    const char* name;
    uint64_t patterns, differing, first;  // first: the smallest input that differs
};
inline constexpr int code_counts = 7;

// Throws nothing: the error of the launches.
cudaError_t count_code_differences(Count (&counts)[code_counts]);

// The bits of BF16 element i: magnitudes from 2^-7 to 2.
HALFBYTE_HOST_DEVICE constexpr uint16_t hashed_bf16(int64_t i, uint64_t seed) {
    uint64_t z = (uint64_t(i) + seed * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 31) * 0x94D049BB133111EB;
    z ^= z >> 29;
    return uint16_t((z & 0x8000) | (120 + (z >> 16 & 7)) << 7 | (z & 0x7F));
}

cudaError_t fill_hashed(uint16_t* data, int64_t count, uint64_t seed);

}  // namespace halfbyte::conformance
