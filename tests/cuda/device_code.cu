// The device's encoders and decoders against slow forms, over all bit patterns: each kernel counts the
// patterns whose results differ.
//   E2M1           32-bit pattern -> code of its magnitude; slow: comparison with the seven midpoints
//   quotient       (y, SF), all 2^32 y and the 126 scales but 0 -> code; slow: IEEE division, then E2M1
//   E4M3 encode    the 2^31 patterns of s >= 0; slow: format/e4m3.h
//   E4M3 decode    256 bytes; slow: format/e4m3.h
//   SiLU           all values of FP32, BF16 and FP16; slow: IEEE division by 1 + reference::exp
#include "cuda/device/block.cuh"
#include "cuda/device/elements.cuh"
#include "cuda/device/silu.cuh"
#include "cuda/device_code.h"

namespace halfbyte::conformance {
namespace {

constexpr int threads = 256, grid = 132 * 16;

struct Found {
    unsigned long long differing, first;
};

__device__ void record(Found* found, uint64_t input) {
    atomicAdd(&found->differing, 1ull);
    atomicMin(&found->first, static_cast<unsigned long long>(input));
}

// A NaN is any NaN.
__device__ bool same_float(float a, float b) {
    return __float_as_uint(a) == __float_as_uint(b) || (isnan(a) && isnan(b));
}

__device__ uint32_t slow_e2m1_magnitude(float magnitude) {
    if (isnan(magnitude)) return 7;
    const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    uint32_t code = 0;
#pragma unroll
    for (uint32_t next = 1; next < 8; next++) {
        const float midpoint = (values[next - 1] + values[next]) / 2;
        if (magnitude > midpoint || (magnitude == midpoint && next % 2 == 0))
            code = next;  // a tie to the even code
    }
    return code;
}

template <typename Differs>
__device__ void over_patterns(uint64_t patterns, Found* found, Differs differs) {
    for (uint64_t i = uint64_t(blockIdx.x) * threads + threadIdx.x; i < patterns;
         i += uint64_t(gridDim.x) * threads)
        if (differs(i)) record(found, i);
}

__global__ void __launch_bounds__(threads) count_e2m1(uint64_t patterns, Found* found) {
    over_patterns(patterns, found, [](uint64_t i) {
        const float value = __uint_as_float(uint32_t(i));
        return cuda::encode_e2m1_magnitude(value) != slow_e2m1_magnitude(fabsf(value));
    });
}

// Pattern i is eight neighbouring y at a time, as the kernels encode them: from 8 (i mod 2^29) on, of scale 1
// + i / 2^29; G = 1 is a parameter, so that it is multiplied by.
__global__ void __launch_bounds__(threads) count_quotient(uint64_t patterns, float G, Found* found) {
    over_patterns(patterns / 8, found, [=](uint64_t i) {
        const float SF = decode_e4m3(uint8_t(1 + i / (1u << 29)));
        const float reciprocal = cuda::reciprocal_of_scale(SF);
        const uint32_t first = uint32_t(i % (1u << 29) * 8);
        float y[8];
        uint32_t slow = 0;
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
            const float pattern = __uint_as_float(first + j);
            const uint32_t sign = isnan(pattern) ? 0 : (first + j) >> 31;
            slow |= (slow_e2m1_magnitude(fabsf(pattern) / SF) | sign << 3) << 4 * j;
            y[j] = pattern * G;
        }
        return cuda::encode_8<true>(y, y, 1.0f, reciprocal) != slow;
    });
}

__global__ void __launch_bounds__(threads) count_e4m3_encode(uint64_t patterns, Found* found) {
    over_patterns(patterns, found, [](uint64_t i) {
        const float s = __uint_as_float(uint32_t(i));
        return (cuda::ptx::encode_e4m3(s) & 0xFF) != encode_e4m3(s);
    });
}

__global__ void __launch_bounds__(threads) count_e4m3_decode(uint64_t patterns, Found* found) {
    over_patterns(patterns, found, [](uint64_t i) {
        const float fast = cuda::ptx::decode_e4m3(uint32_t(i)), slow = decode_e4m3(uint8_t(i));
        return !same_float(fast, slow);
    });
}

// Both forms, the plain one of T where it holds.
template <typename T>
__device__ bool silu_differs(float g) {
    const float slow = __fdiv_rn(g, 1.0f + reference::exp(-g));
    return !same_float(cuda::silu(g), slow) ||
           (fabsf(g) <= cuda::silu_plain_limit && !same_float(cuda::silu_plain<T>(g), slow));
}

__global__ void __launch_bounds__(threads) count_silu_f32(uint64_t patterns, Found* found) {
    over_patterns(patterns, found,
                  [](uint64_t i) { return silu_differs<float>(__uint_as_float(uint32_t(i))); });
}

__global__ void __launch_bounds__(threads) count_silu_bf16(uint64_t patterns, Found* found) {
    over_patterns(patterns, found,
                  [](uint64_t i) { return silu_differs<__nv_bfloat16>(__uint_as_float(uint32_t(i) << 16)); });
}

__global__ void __launch_bounds__(threads) count_silu_f16(uint64_t patterns, Found* found) {
    over_patterns(patterns, found, [](uint64_t i) {
        return silu_differs<__half>(__half2float(__ushort_as_half(static_cast<unsigned short>(i))));
    });
}

__global__ void __launch_bounds__(threads) fill_hashed_kernel(uint16_t* data, int64_t count, uint64_t seed) {
    for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * threads)
        data[i] = hashed_bf16(i, seed);
}

}  // namespace

cudaError_t count_code_differences(Count (&counts)[code_counts]) {
    counts[0] = {"E2M1 of a magnitude", 1ull << 32, 0, 0};
    counts[1] = {"E2M1 of a quotient", 126ull << 32, 0, 0};  // in eights
    counts[2] = {"E4M3 encode", 1ull << 31, 0, 0};
    counts[3] = {"E4M3 decode", 256, 0, 0};
    counts[4] = {"SiLU of FP32", 1ull << 32, 0, 0};
    counts[5] = {"SiLU of BF16", 1 << 16, 0, 0};
    counts[6] = {"SiLU of FP16", 1 << 16, 0, 0};
    Found host[code_counts], *found = nullptr;
    for (Found& f : host) f = {0, ~0ull};
    cudaError_t error = cudaMalloc(&found, sizeof host);
    if (error != cudaSuccess) return error;
    error = cudaMemcpy(found, host, sizeof host, cudaMemcpyHostToDevice);
    if (error == cudaSuccess) {
        count_e2m1<<<grid, threads>>>(counts[0].patterns, found);
        count_quotient<<<grid, threads>>>(counts[1].patterns, 1.0f, found + 1);
        count_e4m3_encode<<<grid, threads>>>(counts[2].patterns, found + 2);
        count_e4m3_decode<<<1, threads>>>(counts[3].patterns, found + 3);
        count_silu_f32<<<grid, threads>>>(counts[4].patterns, found + 4);
        count_silu_bf16<<<grid, threads>>>(counts[5].patterns, found + 5);
        count_silu_f16<<<grid, threads>>>(counts[6].patterns, found + 6);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess) error = cudaMemcpy(host, found, sizeof host, cudaMemcpyDeviceToHost);
    for (int i = 0; i < code_counts; i++) {
        counts[i].differing = host[i].differing;
        counts[i].first = host[i].first;
    }
    cudaFree(found);
    return error;
}

cudaError_t fill_hashed(uint16_t* data, int64_t count, uint64_t seed) {
    fill_hashed_kernel<<<grid, threads>>>(data, count, seed);
    return cudaGetLastError();
}

}  // namespace halfbyte::conformance
