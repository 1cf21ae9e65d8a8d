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

// 16 bytes from global into shared memory, both aligned to 16, without waiting. PTX: cp.async, sm_80 and
// later.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(shared))),
        "l"(global)
        : "memory");
}
// The copies begun since the last commit become a group.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all of this thread's groups but the latest `pending` are there.
template <int pending>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace halfbyte::cuda::ptx
