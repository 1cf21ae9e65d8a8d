// Values of a block after a Hadamard transform of n = 16, 32, 64 or 128 elements: the contract's butterfly, h
// = 1, 2, 4 .. n/2. A thread has 16 neighbouring elements, or 32 if n has as many; the partners further away
// are in other lanes.
#pragma once

#include "cuda/device/block_kernel.cuh"

namespace halfbyte::cuda {

// The steps h = first .. end / 2 of a lane's own elements.
template <int first, int end, int count>
__device__ __forceinline__ void hadamard_steps(float (&v)[count]) {
#pragma unroll
    for (int h = first; h < end; h *= 2)
#pragma unroll
        for (int i = 0; i < count; i++) {
            if (i & h) continue;
            const float a = v[i], b = v[i + h];
            v[i] = a + b;
            v[i + h] = a - b;
        }
}

// Of n elements, `count` in every lane.
template <int n, int count>
__device__ __forceinline__ void hadamard_butterfly(float (&v)[count]) {
    hadamard_steps < 1, n<count ? n : count>(v);
#pragma unroll
    for (int distance = 1; distance < n / count; distance *= 2) {
        const float sign =
            threadIdx.x & distance ? -1.0f : 1.0f;  // the upper of the pair takes the difference
#pragma unroll
        for (int i = 0; i < count; i++) v[i] = __fmaf_rn(v[i], sign, __shfl_xor_sync(~0u, v[i], distance));
    }
}

template <typename T, int n, int blocks_at_a_time>
struct HadamardSource {
    static constexpr int blocks = blocks_at_a_time, count = blocks * block_elements;
    static constexpr int ctas = sizeof(T) == 2 ? 3 : 1;
    static constexpr int unrolled = 2;
    using Cursor = const T*;
    struct Raw {
        Block<T> block[blocks];
    };
    BlockMatrix<const T> x;
    const float* signs;  // [n], or null
    float scale;

    uint32_t vector_columns() const { return x.vector_columns; }
    __device__ __forceinline__ Cursor at(uint32_t row, uint32_t column) const { return x.at(row, column); }
    __device__ __forceinline__ void step(Cursor& cursor, uint32_t rows) const { cursor += rows * x.stride; }
    __device__ __forceinline__ Raw fetch_vector(Cursor cursor) const {
        Raw raw;
#pragma unroll
        for (int i = 0; i < blocks; i++)
            raw.block[i] = load_vector<Reuse::none, T>(cursor + i * block_elements);
        return raw;
    }
    __device__ __forceinline__ Raw fetch(Cursor cursor, uint32_t column) const {
        Raw raw;
#pragma unroll
        for (int i = 0; i < blocks; i++) raw.block[i] = x.load_at(cursor + i * block_elements, column + i);
        return raw;
    }
    // Where 1/sqrt(n) is a power of two, c usually is one. Then fl(c * v) * G = v * (c * G), but for results
    // so small that they have no influence on a code, as long as G is far from the ends of the range.
    static constexpr bool exact_scale = n == 16 || n == 64;
    __device__ __forceinline__ bool allows(float G) const {
        const bool power_of_two = (__float_as_uint(scale) & 0x007FFFFF) == 0;
        if (exact_scale)
            return power_of_two && scale >= 0x1p-20f && scale <= 1.0f && G >= 0x1p-90f && G <= 0x1p90f;
        return scale > 0.0f;
    }

    __device__ __forceinline__ void make_ordinary(const Raw& raw, uint32_t column,
                                                  OrdinaryValues (&values)[blocks]) const {
        float v[count], amax[blocks];
        widen_signed(raw, column, v);
        if (n == block_elements) {  // of the last pairs (a + b, a - b) the larger magnitude is |a| + |b|
            hadamard_steps<1, n / 2>(v);
#pragma unroll
            for (int i = 0; i < blocks; i++) {
                float largest[block_elements] = {};
#pragma unroll
                for (int j = 0; j < n / 2; j++)
                    largest[j] = fabsf(v[i * n + j]) + fabsf(v[i * n + j + n / 2]);
                amax[i] = largest_or_nan(largest);
            }
            hadamard_steps<n / 2, n>(v);
        } else {
            hadamard_butterfly<n>(v);
        }
#pragma unroll
        for (int i = 0; i < blocks; i++) {
            float own[block_elements];
#pragma unroll
            for (int j = 0; j < block_elements; j++) own[j] = v[i * block_elements + j];
            if (exact_scale) {
                if (n != block_elements) amax[i] = largest_magnitude_or_nan(own);
                values[i] = ordinary_values(own, amax[i] * scale);
                values[i].factor = scale;
            } else {
                values[i] = scaled_ordinary(own, scale);
            }
        }
    }
    __device__ __forceinline__ void make(const Raw& raw, uint32_t column, Values (&values)[blocks]) const {
        float v[count];
        widen_signed(raw, column, v);
        hadamard_butterfly<n>(v);
#pragma unroll
        for (int i = 0; i < blocks; i++) {
#pragma unroll
            for (int j = 0; j < block_elements; j++) values[i].value[j] = v[i * block_elements + j] * scale;
            values[i].amax = largest_magnitude_or_nan(values[i].value);
        }
    }

  private:
    __device__ __forceinline__ void widen_signed(const Raw& raw, uint32_t column, float (&v)[count]) const {
#pragma unroll
        for (int i = 0; i < blocks; i++) {
            float values[block_elements];
            widen(raw.block[i], values);
#pragma unroll
            for (int j = 0; j < block_elements; j++) v[i * block_elements + j] = values[j];
        }
        if (signs != nullptr) {
#pragma unroll
            for (int i = 0; i < count; i++)
                v[i] *= __ldg(signs + column % (n / block_elements) * block_elements + i % n);
        }
    }
};

template <typename T, int n, int blocks>
HadamardSource<T, n, blocks> hadamard_source_of(const ConstMatrix& x, const BlockTransform& transform) {
    return {blocks_of<const T>(x), transform.signs, transform.scale};
}

}  // namespace halfbyte::cuda
