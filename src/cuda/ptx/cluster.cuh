// Clusters of CTAs that run at the same time. PTX ISA: barrier.cluster, %cluster_ctarank; sm_90 and later.
// Before that a cluster is one CTA.
#pragma once

#include <cstdint>

namespace halfbyte::cuda::ptx {

__device__ __forceinline__ uint32_t cluster_size() {
    uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
#endif
    return size;
}
// Of this CTA in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}
// Of this cluster in a grid of one dimension.
__device__ __forceinline__ uint32_t cluster_index() {
    uint32_t index = blockIdx.x;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
#endif
    return index;
}
// All threads of the cluster arrive before any leaves; what they wrote before is visible to all after.
__device__ __forceinline__ void meet_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#else
    __syncthreads();
#endif
}

}  // namespace halfbyte::cuda::ptx
