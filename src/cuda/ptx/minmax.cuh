// The larger of two numbers, NaN if one of them is. PTX: max.NaN, sm_80 and later.
#pragma once

namespace halfbyte::cuda::ptx {

__device__ __forceinline__ float max_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

}  // namespace halfbyte::cuda::ptx
