// Programmatic dependent launch: a kernel's CTAs may start while the kernel before it still runs, and wait
// here before they touch what it may write. PTX: griddepcontrol, sm_90 and later; before that a kernel starts
// after the other.
#pragma once

#include <cstdint>

namespace halfbyte::cuda::ptx {

// Returns when all the grids that this one depends on are done and their writes visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel of the stream may start now, as far as it has room; it waits before it touches what this
// one writes.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// No instruction is moved across this one, which does nothing else. PTX: pmevent, a mark for profilers.
__device__ __forceinline__ void keep_apart() {
    asm volatile("pmevent 0;" ::: "memory");
}

// threadIdx.x, read here: what is computed from it is not kept in registers from one use to the next.
__device__ __forceinline__ uint32_t thread_anew() {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

}  // namespace halfbyte::cuda::ptx
