// Loads and stores of data that is used once: they leave the caches to others.
#pragma once

#include <cstdint>

namespace halfbyte::cuda::ptx {

__device__ __forceinline__ uint4 load_streaming(const uint4* address) {
    return __ldcs(address);
}
__device__ __forceinline__ void store_streaming(uint2* address, uint2 value) {
    __stcs(address, value);
}
__device__ __forceinline__ void store_streaming(uint4* address, uint4 value) {
    __stcs(address, value);
}

}  // namespace halfbyte::cuda::ptx
