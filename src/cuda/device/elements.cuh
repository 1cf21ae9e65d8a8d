// 16 consecutive elements of a row, BF16, FP16 or FP32: loaded as they lie, widened, rounded, stored.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/minmax.cuh"

namespace halfbyte::cuda {

inline constexpr int block_elements = 16;

template <typename T>
struct Block {
    static constexpr int words = block_elements * int(sizeof(T)) / 4;
    uint32_t word[words];  // element 0 lowest
};

__device__ __forceinline__ float widen(float value) {
    return value;
}
__device__ __forceinline__ float widen(__nv_bfloat16 value) {
    return __bfloat162float(value);
}
__device__ __forceinline__ float widen(__half value) {
    return __half2float(value);
}

__device__ __forceinline__ void widen(const Block<float>& block, float (&values)[block_elements]) {
#pragma unroll
    for (int i = 0; i < block_elements; i++) values[i] = __uint_as_float(block.word[i]);
}
__device__ __forceinline__ void widen(const Block<__nv_bfloat16>& block, float (&values)[block_elements]) {
#pragma unroll
    for (int i = 0; i < block_elements / 2; i++) {
        values[2 * i] = __uint_as_float(block.word[i] << 16);
        values[2 * i + 1] = __uint_as_float(block.word[i] & 0xFFFF0000u);
    }
}
__device__ __forceinline__ void widen(const Block<__half>& block, float (&values)[block_elements]) {
#pragma unroll
    for (int i = 0; i < block_elements / 2; i++) {
        const float2 pair = __half22float2(reinterpret_cast<const __half2&>(block.word[i]));
        values[2 * i] = pair.x;
        values[2 * i + 1] = pair.y;
    }
}

// round_T
__device__ __forceinline__ void narrow(const float (&values)[block_elements], Block<float>& block) {
#pragma unroll
    for (int i = 0; i < block_elements; i++) block.word[i] = __float_as_uint(values[i]);
}
__device__ __forceinline__ void narrow(const float (&values)[block_elements], Block<__nv_bfloat16>& block) {
#pragma unroll
    for (int i = 0; i < block_elements / 2; i++) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
        block.word[i] = reinterpret_cast<const uint32_t&>(pair);
    }
}
__device__ __forceinline__ void narrow(const float (&values)[block_elements], Block<__half>& block) {
#pragma unroll
    for (int i = 0; i < block_elements / 2; i++) {
        const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
        block.word[i] = reinterpret_cast<const uint32_t&>(pair);
    }
}

// The largest magnitude; a NaN adds nothing.
__device__ __forceinline__ float largest_magnitude(const float (&values)[block_elements]) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < block_elements; i++) largest = fmaxf(largest, fabsf(values[i]));
    return largest;
}
__device__ __forceinline__ float largest_magnitude(const Block<float>& block) {
    float values[block_elements];
    widen(block, values);
    return largest_magnitude(values);
}
template <typename Pair, typename T>
__device__ __forceinline__ float largest_magnitude_of_pairs(const Block<T>& block) {
    Pair largest = __habs2(reinterpret_cast<const Pair&>(block.word[0]));
#pragma unroll
    for (int i = 1; i < Block<T>::words; i++)
        largest = __hmax2(largest, __habs2(reinterpret_cast<const Pair&>(block.word[i])));
    return fmaxf(fmaxf(widen(largest.x), widen(largest.y)), 0.0f);  // 0: both halves may be NaN
}
__device__ __forceinline__ float largest_magnitude(const Block<__nv_bfloat16>& block) {
    return largest_magnitude_of_pairs<__nv_bfloat162>(block);
}
__device__ __forceinline__ float largest_magnitude(const Block<__half>& block) {
    return largest_magnitude_of_pairs<__half2>(block);
}

// The same, but NaN if there is one.
__device__ __forceinline__ float largest_magnitude_or_nan(const float (&values)[block_elements]) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < block_elements; i++) largest = ptx::max_or_nan(largest, fabsf(values[i]));
    return largest;
}
__device__ __forceinline__ float largest_magnitude_or_nan(const Block<float>& block) {
    float values[block_elements];
    widen(block, values);
    return largest_magnitude_or_nan(values);
}
// The same of values without signs, whose order is that of their bits.
__device__ __forceinline__ float largest_or_nan(const float (&magnitudes)[block_elements]) {
    const auto bits = [&](int i) { return __float_as_uint(magnitudes[i]); };
    uint32_t largest[3];
#pragma unroll
    for (int i = 0; i < 3; i++) largest[i] = __vimax3_u32(bits(3 * i), bits(3 * i + 1), bits(3 * i + 2));
#pragma unroll
    for (int i = 0; i < 3; i++) largest[i] = __vimax3_u32(largest[i], bits(9 + 2 * i), bits(10 + 2 * i));
    return __uint_as_float(max(__vimax3_u32(largest[0], largest[1], largest[2]), bits(15)));
}
template <typename Pair, typename T>
__device__ __forceinline__ float largest_magnitude_or_nan_of_pairs(const Block<T>& block) {
    Pair largest = __habs2(reinterpret_cast<const Pair&>(block.word[0]));
#pragma unroll
    for (int i = 1; i < Block<T>::words; i++)
        largest = __hmax2_nan(largest, __habs2(reinterpret_cast<const Pair&>(block.word[i])));
    return widen(__hmax_nan(largest.x, largest.y));
}
__device__ __forceinline__ float largest_magnitude_or_nan(const Block<__nv_bfloat16>& block) {
    return largest_magnitude_or_nan_of_pairs<__nv_bfloat162>(block);
}
__device__ __forceinline__ float largest_magnitude_or_nan(const Block<__half>& block) {
    return largest_magnitude_or_nan_of_pairs<__half2>(block);
}

// How a load uses the caches.
enum class Reuse { none, soon };

// 16 elements at a 16-byte aligned address, which may be in shared memory if they are reused.
template <Reuse reuse, typename T>
__device__ __forceinline__ Block<T> load_vector(const T* address) {
    Block<T> block;
#pragma unroll
    for (int i = 0; i < Block<T>::words / 4; i++) {
        const uint4* source = reinterpret_cast<const uint4*>(address) + i;
        const uint4 part = reuse == Reuse::none ? ptx::load_streaming(source) : *source;
        block.word[4 * i] = part.x, block.word[4 * i + 1] = part.y;
        block.word[4 * i + 2] = part.z, block.word[4 * i + 3] = part.w;
    }
    return block;
}
template <typename T>
__device__ __forceinline__ void store_vector(T* address, const Block<T>& block) {
#pragma unroll
    for (int i = 0; i < Block<T>::words / 4; i++)
        ptx::store_streaming(reinterpret_cast<uint4*>(address) + i,
                             make_uint4(block.word[4 * i], block.word[4 * i + 1], block.word[4 * i + 2],
                                        block.word[4 * i + 3]));
}

// The first `count` of 16 elements, +0 beyond; aligned to the element only.
template <typename T>
__device__ __forceinline__ Block<T> load_elements(const T* address, int64_t count) {
    Block<T> block = {};
#pragma unroll
    for (int i = 0; i < block_elements; i++) {
        if (i >= count) continue;
        if constexpr (sizeof(T) == 4)
            block.word[i] = reinterpret_cast<const uint32_t*>(address)[i];
        else
            block.word[i / 2] |= uint32_t(reinterpret_cast<const uint16_t*>(address)[i]) << (i % 2 * 16);
    }
    return block;
}
template <typename T>
__device__ __forceinline__ void store_elements(T* address, const Block<T>& block, int64_t count) {
#pragma unroll
    for (int i = 0; i < block_elements; i++) {
        if (i >= count) continue;
        if constexpr (sizeof(T) == 4)
            reinterpret_cast<uint32_t*>(address)[i] = block.word[i];
        else
            reinterpret_cast<uint16_t*>(address)[i] = uint16_t(block.word[i / 2] >> (i % 2 * 16));
    }
}

// A row-major matrix of k columns as blocks of 16. Blocks below vector_columns are whole and every one of
// them begins at a multiple of 16 bytes.
template <typename T>
struct BlockMatrix {
    T* data = nullptr;
    int64_t stride = 0, k = 0;
    uint32_t vector_columns = 0;

    __device__ __forceinline__ T* at(uint32_t row, uint32_t column) const {
        return data + row * stride + uint64_t(column) * block_elements;
    }
    // address: at(row, column)
    template <Reuse reuse = Reuse::none>
    __device__ __forceinline__ Block<std::remove_const_t<T>> load_at(const T* address,
                                                                     uint32_t column) const {
        if (column < vector_columns) return load_vector<reuse, std::remove_const_t<T>>(address);
        return load_elements<std::remove_const_t<T>>(address, k - int64_t(column) * block_elements);
    }
    template <Reuse reuse = Reuse::none>
    __device__ __forceinline__ Block<std::remove_const_t<T>> load(uint32_t row, uint32_t column) const {
        return load_at<reuse>(at(row, column), column);
    }
    __device__ __forceinline__ void store(uint32_t row, uint32_t column, const Block<T>& block) const {
        if (column < vector_columns) return store_vector(at(row, column), block);
        store_elements(at(row, column), block, k - int64_t(column) * block_elements);
    }
};

}  // namespace halfbyte::cuda
