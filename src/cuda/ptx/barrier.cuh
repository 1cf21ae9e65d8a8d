// Barriers in shared memory that count arrivals and bytes of asynchronous copies; by their address there
// (shared_address). PTX ISA: mbarrier, cp.async.bulk, sm_90 and later.
#pragma once

#include <cstdint>

namespace halfbyte::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
    return uint32_t(__cvta_generic_to_shared(shared));
}

// A phase ends with `arrivals` arrivals and all bytes that they announced.
__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After init_barrier, before other threads or copies use the barriers.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// Waits for the end of the phase of that parity: 0 for the first, then 1, 0 ...
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// One lane of a warp whose lanes are all here, the same at every call. PTX ISA: elect.sync.
__device__ __forceinline__ bool elect_lane() {
    uint32_t elected;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
    return elected != 0;
}

// `bytes` (a multiple of 16) from global into shared memory, both aligned to 16; they count at the barrier.
__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, uint32_t bytes,
                                          uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared),
        "l"(global), "r"(bytes), "r"(barrier)
        : "memory");
}
// The same for data that is used once: it is the first to leave L2. policy: use_once().
__device__ __forceinline__ uint64_t use_once() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, uint32_t bytes,
                                          uint32_t barrier, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
        "[%3], %4;" ::"r"(shared),
        "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

}  // namespace halfbyte::cuda::ptx
