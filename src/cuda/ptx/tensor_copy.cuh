// Copies of boxes of a tensor, and what CTAs of a cluster that share them need. PTX ISA:
// cp.async.bulk.tensor, mapa, barrier.cluster, sm_90 and later.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"

namespace halfbyte::cuda::ptx {

// All threads of all CTAs of the cluster meet; what they wrote before need not be visible after.
__device__ __forceinline__ void meet_cluster_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
// Arrives at the barrier at the same place in another CTA of the cluster. It orders reads of shared memory,
// no writes: a release at the scope of the cluster is a fence of the whole GPU (measured: three times
// slower).
__device__ __forceinline__ void arrive_at(uint32_t barrier, uint32_t rank) {
    asm volatile(
        "{.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

// The address in the shared memory of another CTA of the cluster. PTX ISA: mapa.
__device__ __forceinline__ uint32_t in_cluster(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
// 16 bytes to there; they count at the barrier, which lies in the same CTA (both by in_cluster). PTX ISA:
// st.async.
__device__ __forceinline__ void store_in_cluster(uint32_t address, uint4 value, uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            address),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
        : "memory");
}

// The box of the map at (column, row); what lies outside of the matrix arrives as zeros and counts too.
__device__ __forceinline__ void copy_box(uint32_t shared, const CUtensorMap& map, uint32_t column,
                                         uint32_t row, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(shared),
        "l"(&map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}
// The same into the same place of every CTA of the cluster whose bit is in `ranks`; the bytes count at their
// barriers at this place.
__device__ __forceinline__ void copy_box_to_cluster(uint32_t shared, const CUtensorMap& map, uint32_t column,
                                                    uint32_t row, uint32_t barrier, uint32_t ranks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
        "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(uint16_t(ranks))
        : "memory");
}
// The box at (0, middle, outer) of a tensor of three dimensions.
__device__ __forceinline__ void copy_box_3d(uint32_t shared, const CUtensorMap& map, uint32_t middle,
                                            uint32_t outer, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
        "%4}], "
        "[%5];" ::"r"(shared),
        "l"(&map), "r"(0), "r"(middle), "r"(outer), "r"(barrier)
        : "memory");
}

}  // namespace halfbyte::cuda::ptx
