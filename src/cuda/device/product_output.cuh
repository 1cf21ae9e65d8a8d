// The end of a product: d[m,n] = round_T(fl(fl(acc * alpha) + bias[n])), alpha = fl(row_decode *
// column_decode).
#pragma once

#include <cstdint>

#include "cuda/device/elements.cuh"
#include "halfbyte/dtype.h"

namespace halfbyte::cuda {

// One element of a type known at run time, widened.
__device__ __forceinline__ float load_widened(const void* data, DType type, uint64_t index) {
    if (type == DType::f32) return static_cast<const float*>(data)[index];
    if (type == DType::bf16) return widen(static_cast<const __nv_bfloat16*>(data)[index]);
    return widen(static_cast<const __half*>(data)[index]);
}

struct ProductOutput {
    uint32_t rows = 0, columns = 0;     // M, N
    const float* row_decode = nullptr;  // one number, or [M]; null: 1
    bool row_decode_per_row = false;
    const float* column_decode = nullptr;  // [N]
    const void* bias = nullptr;            // [N] of bias_type, or null
    DType bias_type = DType::f32;
    void* d = nullptr;
    DType type = DType::bf16;
    int64_t stride = 0;

    // What a column brings to its elements; without a bias -0, which changes nothing.
    struct Column {
        float decode, bias;
        // The element before it is rounded to the type; sum in its true size.
        __device__ __forceinline__ float value(float sum, float row_decode) const {
            return sum * (row_decode * decode) + bias;
        }
    };
    // Of a place outside of d: those of the last one inside.
    __device__ __forceinline__ Column column_of(uint32_t n) const {
        n = min(n, columns - 1);
        return {column_decode[n], bias == nullptr ? -0.0f : load_widened(bias, bias_type, n)};
    }
    __device__ __forceinline__ float row_decode_of(uint32_t m) const {
        return row_decode == nullptr ? 1.0f : row_decode[row_decode_per_row ? min(m, rows - 1) : 0];
    }
    // m and n inside of d.
    __device__ __forceinline__ void store(uint32_t m, uint32_t n, float value) const {
        const uint64_t index = uint64_t(m) * uint64_t(stride) + n;
        if (type == DType::f32)
            static_cast<float*>(d)[index] = value;
        else if (type == DType::bf16)
            static_cast<__nv_bfloat16*>(d)[index] = __float2bfloat16_rn(value);
        else
            static_cast<__half*>(d)[index] = __float2half_rn(value);
    }
};

}  // namespace halfbyte::cuda
