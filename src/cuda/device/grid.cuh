// Dynamic scales in one launch: every CTA finds the amax of its share, all meet at a barrier in the
// workspace, then every CTA quantises with the scale that follows. The grid is launched cooperatively, so
// that all CTAs run at once; the last one to leave sets the workspace back to zero.
#pragma once

#include <cfloat>
#include <cstdint>

#include "cuda/workspace.h"
#include "format/dynamic_scale.h"

namespace halfbyte::cuda {

struct DynamicScales {
    Workspace* workspace = nullptr;
    float* encode = nullptr;
    float* decode = nullptr;  // may be null
    int64_t count = 1;        // rows if per row
    bool per_row = false;
};

// The magnitude if it is finite, else 0: infinities and NaN add nothing to a dynamic amax.
__device__ __forceinline__ float finite_magnitude(float value) {
    const float magnitude = fabsf(value);
    return magnitude <= FLT_MAX ? magnitude : 0.0f;
}

// Adds one value per thread, all threads of a warp together. Non-negative FP32 numbers are ordered as
// integers.
__device__ __forceinline__ void add_amax(const DynamicScales& dynamic, uint32_t row, bool valid, float amax) {
    uint32_t bits = valid ? __float_as_uint(amax) : 0;
    const uint32_t entry = dynamic.per_row && valid ? row : 0;
    const uint32_t first = __shfl_sync(~0u, entry, 0);
    if (__all_sync(~0u, entry == first)) {
        bits = __reduce_max_sync(~0u, bits);
        if (threadIdx.x % 32 == 0 && bits != 0) atomicMax(dynamic.workspace->amax + first, bits);
    } else if (bits != 0) {
        atomicMax(dynamic.workspace->amax + entry, bits);
    }
}

// All CTAs arrive before any leaves; what was written before is visible after.
__device__ __forceinline__ void meet_all_blocks(Workspace* workspace) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&workspace->arrived, 1u);
        while (*static_cast<volatile uint32_t*>(&workspace->arrived) < gridDim.x * gridDim.y) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
}

__device__ __forceinline__ float found_encode_scale(const DynamicScales& dynamic, uint32_t row) {
    return dynamic_encode_scale(
        __uint_as_float(__ldcg(dynamic.workspace->amax + (dynamic.per_row ? row : 0))));
}

// After the last use of the workspace: writes the scales out and, in the last CTA, zeroes the workspace.
__device__ __forceinline__ void finish_dynamic(const DynamicScales& dynamic) {
    const int64_t threads = int64_t(gridDim.x) * gridDim.y * blockDim.x;
    const int64_t first = (int64_t(blockIdx.y) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < dynamic.count; i += threads) {
        const float G = found_encode_scale(dynamic, i);
        dynamic.encode[i] = G;
        if (dynamic.decode != nullptr) dynamic.decode[i] = __fdiv_rn(1.0f, G);
    }
    __shared__ bool last;
    __threadfence();  // the amaxes have been read before another CTA may zero them
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&dynamic.workspace->left, 1u) == gridDim.x * gridDim.y - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int64_t i = threadIdx.x; i < dynamic.count; i += blockDim.x) dynamic.workspace->amax[i] = 0;
    if (threadIdx.x == 0) dynamic.workspace->arrived = dynamic.workspace->left = 0;
}

}  // namespace halfbyte::cuda
