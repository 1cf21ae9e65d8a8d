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

// Four 8 x 8 matrices of 16-bit elements, transposed: lane l holds of each the elements (l / 4, 2 (l % 4))
// and the next one, and gives the address of row l % 8 of the transpose of matrix l / 8, 16 bytes. PTX:
// stmatrix.trans, sm_90 and later.
__device__ __forceinline__ void store_transposed(uint32_t row, const uint32_t (&matrices)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
                 : "memory");
#endif
}

// The same without transposition: lane l gives the address of row l % 8 of matrix l / 8. PTX: stmatrix,
// sm_90 and later.
__device__ __forceinline__ void store_matrices(uint32_t row, const uint32_t (&matrices)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
                 : "memory");
#endif
}

// Shared memory by its address there, which, unlike a pointer, is not computed anew wherever it is used.
__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}
__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
    uint2 value;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address) : "memory");
    return value;
}
__device__ __forceinline__ void store_shared_16(uint32_t address, uint4 value) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}

// Past L1, where the bytes of an earlier kernel may still stand.
__device__ __forceinline__ uint8_t load_from_l2(const uint8_t* address) {
    return __ldcg(address);
}

// The line of an address is brought to L2; nothing else depends on it. PTX ISA: prefetch.
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace halfbyte::cuda::ptx
