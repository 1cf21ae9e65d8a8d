// x'_j = fl(c * sum_k x_k T_kj) for every n elements of a row, T any n x n matrix, n = 16, 32, 64 or 128: acc
// = fma(x_k, T_kj, acc) from +0 in order of k. Bound by its n multiply-adds a value.
//
// A lane owns one block of 16 outputs in each of several rows; n / 16 neighbouring lanes have one transform.
// The warp's inputs lie in shared memory as FP32, and so does T, once for a CTA that stays for the whole
// matrix. A value of T that a lane reads serves a multiply-add in each row. Warps do not wait for each other,
// so that some load while others compute.
#pragma once

#include "cuda/device/elements_kernel.cuh"
#include "cuda/transforms.h"

namespace halfbyte::cuda {

template <typename T>
struct MatrixInput {
    BlockMatrix<const T> x;
    uint32_t rows, columns;  // of whole blocks
    const void* matrix;      // [n, n]
    bool matrix_is_bf16;
    float scale;
};

extern __shared__ float4 matrix_shared[];

// T_kj as [k][j / 4 % 4][j / 16][j % 4], so that lanes with different j / 16 read neighbouring 16 bytes.
template <int n>
__device__ void load_matrix(const void* matrix, bool is_bf16) {
    float* shared = reinterpret_cast<float*>(matrix_shared);
    for (int i = int(threadIdx.x); i < n * n; i += matrix_threads(n)) {
        const int k = i / n, j = i % n;
        const float value = is_bf16 ? widen(static_cast<const __nv_bfloat16*>(matrix)[i])
                                    : static_cast<const float*>(matrix)[i];
        shared[((k * 4 + j / 4 % 4) * (n / 16) + j / 16) * 4 + j % 4] = value;
    }
    __syncthreads();
}

__device__ __forceinline__ float element(const float4& four, int i) {
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// body(row, column, values) for every block of the tiles, also those without elements, whose values are zero;
// all threads of a warp together. load_matrix comes first.
template <int n, typename T, typename Body>
__device__ void for_each_transformed_block(const MatrixInput<T>& input, const Tiles& tiles,
                                           const Body& body) {
    constexpr int lanes = n / block_elements;  // that share a transform
    constexpr int rows = matrix_rows(n);
    constexpr int pitch = int(matrix_pitch(n)) / 4, warp_floats = int(matrix_warp_floats(n)) / 4;
    constexpr int row_pitch = warp_floats / rows;  // all in float4
    const int lane = int(threadIdx.x) % 32, part = lane % lanes;
    const float4* matrix = matrix_shared + part;
    float4* staged = matrix_shared + n * n / 4 + int(threadIdx.x) / 32 * warp_floats;
    float4* own = staged + lane / lanes * pitch + part * 4;
    const float4* transform = staged + lane / lanes * pitch;
    const uint32_t rows_apart = matrix_threads(n) >> tiles.width_log2;
    const uint32_t inside = threadIdx.x & (tiles.width() - 1), below = threadIdx.x >> tiles.width_log2;

    for (uint64_t tile = blockIdx.x; tile < uint64_t(tiles.across) * tiles.down; tile += gridDim.x) {
        const uint32_t column = (uint32_t(tile % tiles.across) << tiles.width_log2) + inside;
        const uint32_t first_row = uint32_t(tile / tiles.across) * rows_apart * rows + below;
#pragma unroll
        for (int r = 0; r < rows; r++) {
            const uint32_t row = first_row + r * rows_apart;
            Block<T> block = {};
            if (row < input.rows && column < input.columns) block = input.x.load(row, column);
            float values[block_elements];
            widen(block, values);
#pragma unroll
            for (int i = 0; i < 4; i++)
                own[r * row_pitch + i] =
                    make_float4(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]);
        }
        __syncwarp();
        // What the next step needs is read before this one's multiply-adds.
        float sums[rows][block_elements] = {};
        float4 x[rows], t[4];
#pragma unroll
        for (int r = 0; r < rows; r++) x[r] = transform[r * row_pitch];
#pragma unroll
        for (int c = 0; c < 4; c++) t[c] = matrix[c * lanes];
#pragma unroll 1
        for (int k = 0; k < n; k += 4) {
            float4 next_x[rows];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float4 next_t[4];
                const int next_k = (k + i + 1) % n;
#pragma unroll
                for (int c = 0; c < 4; c++) next_t[c] = matrix[(next_k * 4 + c) * lanes];
                if (i == 3) {
#pragma unroll
                    for (int r = 0; r < rows; r++)
                        next_x[r] = transform[r * row_pitch + (k / 4 + 1) % (n / 4)];
                }
#pragma unroll
                for (int r = 0; r < rows; r++) {
                    const float factor = element(x[r], i);
#pragma unroll
                    for (int j = 0; j < block_elements; j++)
                        sums[r][j] = __fmaf_rn(factor, element(t[j / 4], j % 4), sums[r][j]);
                }
#pragma unroll
                for (int c = 0; c < 4; c++) t[c] = next_t[c];
            }
#pragma unroll
            for (int r = 0; r < rows; r++) x[r] = next_x[r];
        }
        __syncwarp();
#pragma unroll
        for (int r = 0; r < rows; r++) {
#pragma unroll
            for (int i = 0; i < block_elements; i++) sums[r][i] *= input.scale;
            body(first_row + r * rows_apart, column, sums[r]);
        }
    }
}

template <typename T>
MatrixInput<T> matrix_input_of(const ConstMatrix& x, const BlockTransform& transform) {
    return {blocks_of<const T>(x),
            uint32_t(x.rows),
            uint32_t(x.cols / block_elements),
            transform.matrix,
            transform.matrix_type == DType::bf16,
            transform.scale};
}

inline Tiles matrix_tiles(int64_t n, int64_t rows, int64_t columns) {
    return make_tiles(rows, columns, {.threads = matrix_threads(n), .rows_per_thread = matrix_rows(n)});
}

}  // namespace halfbyte::cuda
