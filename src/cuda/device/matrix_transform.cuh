// x'_j = fl(c * sum_k x_k T_kj) for every n elements of a row, T any n x n matrix, n = 16, 32, 64 or 128: acc
// = fma(x_k, T_kj, acc) from +0 in order of k. Bound by its n multiply-adds a value.
//
// A lane owns one block of 16 outputs in each of several rows; n / 16 neighbouring lanes have one transform.
// T lies in shared memory as FP32, once for a CTA that stays for the whole matrix, and so do the inputs of a
// warp, as they are in memory: where there is room, those of its next tile are copied while it works on one.
// A value of T that a lane reads serves a multiply-add in each row. Warps do not wait for each other.
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
    int stages;  // 1 or 2 tiles of inputs
};

extern __shared__ float4 matrix_shared[];

// T_kj as [k][j / 4 % 4][j / 16][j % 4], so that lanes with different j / 16 read neighbouring 16 bytes.
template <int n>
__device__ void load_matrix(const void* matrix, bool is_bf16) {
    float* shared = reinterpret_cast<float*>(matrix_shared);
#pragma unroll 1
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

// 8 bytes of neighbouring elements of x, as they lie in shared memory.
template <typename T>
struct Several {
    static constexpr int bytes = 8, count = bytes / int(sizeof(T));
    uint32_t word[2];

    Several() = default;
    __device__ __forceinline__ explicit Several(uint32_t address) {
        const uint2 read = ptx::load_shared_8(address);
        word[0] = read.x, word[1] = read.y;
    }
    __device__ __forceinline__ float operator[](int i) const {
        if constexpr (sizeof(T) == 4) {
            return __uint_as_float(word[i]);
        } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
            return __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xFFFF0000u);
        } else {
            const __half2& pair = reinterpret_cast<const __half2&>(word[i / 2]);
            return i % 2 == 0 ? __low2float(pair) : __high2float(pair);
        }
    }
};

// A thread's first block of a tile; the others are threads / width rows apart.
template <int n>
__device__ __forceinline__ Position matrix_position(const Tiles& tiles, uint32_t tile, uint32_t thread) {
    const uint32_t rows_apart = matrix_threads(n) >> tiles.width_log2;
    return {tile / tiles.across * rows_apart * matrix_rows(n) + (thread >> tiles.width_log2),
            (tile % tiles.across << tiles.width_log2) + (thread & (tiles.width() - 1))};
}

// A warp's inputs of one tile: of each row 32 blocks.
template <int n, typename T>
struct WarpInputs {
    static constexpr int lanes = n / block_elements;  // that share a transform
    static constexpr int rows = matrix_rows(n);
    static constexpr int pitch = int(matrix_pitch(n, sizeof(T)));
    static constexpr int row_bytes = 32 / lanes * pitch;
    uint8_t* data;

    __device__ __forceinline__ const uint8_t* transform() const {  // of this lane, in row 0
        return data + int(threadIdx.x) % 32 / lanes * pitch;
    }
    // Begins to copy the warp's blocks of a tile; a commit and a wait come after it. Neighbouring lanes copy
    // neighbouring 16 bytes, whichever lane's block they belong to: L2 gives out 32 at a time.
    __device__ __forceinline__ void fetch(const MatrixInput<T>& input, const Tiles& tiles,
                                          uint32_t tile) const {
        constexpr int block_bytes = block_elements * int(sizeof(T)), parts = block_bytes / 16;
        const uint32_t thread = ptx::thread_anew(), lane = thread % 32;
        const uint32_t rows_apart = matrix_threads(n) >> tiles.width_log2;
        const auto is_copied = [&](uint32_t row, uint32_t column) {
            return row < input.rows && column < input.x.vector_columns;
        };
#pragma unroll
        for (int i = 0; i < parts; i++) {
            const uint32_t owner = i * (32 / parts) + lane / parts, part = lane % parts;
            const Position first = matrix_position<n>(tiles, tile, thread - lane + owner);
            const T* from = input.x.at(first.row, first.column) + part * (16 / sizeof(T));
            uint8_t* to = block(owner) + part * 16;
#pragma unroll
            for (int r = 0; r < rows; r++, from += rows_apart * input.x.stride, to += row_bytes)
                if (is_copied(first.row + r * rows_apart, first.column)) ptx::copy_async(to, from);
        }
        const Position first = matrix_position<n>(tiles, tile, thread);
        if (is_copied(first.row + (rows - 1) * rows_apart, first.column)) return;
#pragma unroll 1
        for (int r = 0; r < rows; r++) {
            const uint32_t row = first.row + r * rows_apart;
            if (is_copied(row, first.column)) continue;
            Block<T> values = {};
            if (row < input.rows && first.column < input.columns) values = input.x.load(row, first.column);
            uint4* const own = reinterpret_cast<uint4*>(block(lane) + r * row_bytes);
#pragma unroll
            for (int i = 0; i < parts; i++)
                own[i] = make_uint4(values.word[4 * i], values.word[4 * i + 1], values.word[4 * i + 2],
                                    values.word[4 * i + 3]);
        }
    }

  private:
    __device__ __forceinline__ uint8_t* block(uint32_t lane) const {  // in row 0
        return data + lane / lanes * pitch + lane % lanes * (block_elements * int(sizeof(T)));
    }
};

// The sums of this lane's block in every row. What a step of k needs is read during the one before; the last
// one reads on, into the padding of x and of T, and does not use it. The steps are kept apart: where the
// compiler mixes them, it moves the sums between registers, and two operands of a multiply-add that lie in
// one bank of registers cost a cycle more. Every other row goes backwards, so that consecutive multiply-adds
// have an operand in common.
template <int n, typename T>
__device__ __forceinline__ void multiply(const WarpInputs<n, T>& inputs,
                                         float (&sums)[matrix_rows(n)][block_elements]) {
    using Inputs = WarpInputs<n, T>;
    using Factors = Several<T>;
    constexpr int rows = Inputs::rows;
    uint32_t x = uint32_t(__cvta_generic_to_shared(inputs.transform()));
    uint32_t t = uint32_t(__cvta_generic_to_shared(matrix_shared)) + threadIdx.x % Inputs::lanes * 16;
    const auto read_t = [&](int k, float4(&own_t)[4]) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint4 four = ptx::load_shared_16(t + (k * 4 + c) * Inputs::lanes * 16);
            own_t[c] = make_float4(__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z),
                                   __uint_as_float(four.w));
        }
    };
#pragma unroll
    for (int r = 0; r < rows; r++)
#pragma unroll
        for (int j = 0; j < block_elements; j++) sums[r][j] = 0.0f;
    const uint32_t end = x + n * sizeof(T);
    Factors read[rows];
#pragma unroll
    for (int r = 0; r < rows; r++) read[r] = Factors(x + r * Inputs::row_bytes);
    float4 own_t[2][4];
    read_t(0, own_t[0]);
#pragma unroll 1
    do {
        x += Factors::bytes;
#pragma unroll
        for (int i = 0; i < Factors::count; i++) {
            ptx::keep_apart();
            float factors[rows];
#pragma unroll
            for (int r = 0; r < rows; r++) factors[r] = read[r][i];
            read_t(i + 1, own_t[(i + 1) % 2]);
            if (i + 1 == Factors::count) {
#pragma unroll
                for (int r = 0; r < rows; r++) read[r] = Factors(x + r * Inputs::row_bytes);
            }
#pragma unroll
            for (int r = 0; r < rows; r++)
#pragma unroll
                for (int jj = 0; jj < block_elements; jj++) {
                    const int j = r % 2 == 0 ? jj : block_elements - 1 - jj;
                    sums[r][j] = __fmaf_rn(factors[r], element(own_t[i % 2][j / 4], j % 4), sums[r][j]);
                }
        }
        t += Factors::count * 4 * Inputs::lanes * 16;
    } while (x != end);
}

// The same for row r alone, in little code.
template <int n, typename T>
__device__ __forceinline__ void multiply_row(const WarpInputs<n, T>& inputs, int r,
                                             float (&sums)[block_elements]) {
    using Inputs = WarpInputs<n, T>;
    const T* x = reinterpret_cast<const T*>(inputs.transform() + r * Inputs::row_bytes);
    const float4* t = matrix_shared + int(threadIdx.x) % Inputs::lanes;
#pragma unroll
    for (int j = 0; j < block_elements; j++) sums[j] = 0.0f;
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        const float factor = widen(x[k]);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float4 four = t[(k * 4 + c) * Inputs::lanes];
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[c * 4 + i] = __fmaf_rn(factor, element(four, i), sums[c * 4 + i]);
        }
    }
}

// A finish that takes every block the same way: take(row, column, values).
template <typename Take>
struct FinishAlike {
    Take take;

    __device__ __forceinline__ bool allows_quick(uint32_t) const { return true; }
    template <int rows>
    __device__ __forceinline__ uint32_t quick(uint32_t first_row, uint32_t rows_apart, uint32_t column,
                                              float (&sums)[rows][block_elements], float scale) const {
#pragma unroll
        for (int r = 0; r < rows; r++) {
#pragma unroll
            for (int i = 0; i < block_elements; i++) sums[r][i] *= scale;
            take(first_row + r * rows_apart, column, sums[r]);
        }
        return 0;
    }
    __device__ __forceinline__ void any(uint32_t row, uint32_t column,
                                        const float (&values)[block_elements]) const {
        take(row, column, values);
    }
};

// For every block of the tiles, also those without elements: finish.quick(first_row, rows_apart, column,
// sums) for a lane's blocks of all rows, where finish.allows_quick says so of the tile's end column; for
// those of which it gives a bit, or else for all, finish.any(row, column, values). All threads of a warp
// together. load_matrix comes first.
template <int n, typename T, typename Finish>
__device__ void for_each_transformed_block(const MatrixInput<T>& input, const Tiles& tiles,
                                           const Finish& finish) {
    using Inputs = WarpInputs<n, T>;
    constexpr int rows = Inputs::rows, stage_bytes = rows * Inputs::row_bytes;
    const int stages = input.stages;
    uint8_t* const data = reinterpret_cast<uint8_t*>(matrix_shared) + matrix_bytes(n) +
                          int(threadIdx.x) / 32 * (stages * stage_bytes);
    const uint32_t rows_apart = matrix_threads(n) >> tiles.width_log2;
    const uint32_t count = tiles.across * tiles.down;
    const auto fetch = [&](uint32_t tile, int stage) {
        if (tile < count) Inputs{data + stage * stage_bytes}.fetch(input, tiles, tile);
        ptx::commit_copies();
    };

    int stage = 0;
    fetch(blockIdx.x, stage);
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < count; tile += gridDim.x) {
        if (stages == 2) {
            fetch(tile + gridDim.x, stage ^ 1);
            ptx::wait_for_copies<1>();
        } else {
            ptx::wait_for_copies<0>();
        }
        __syncwarp();
        const Inputs inputs{data + stage * stage_bytes};
        const auto [first_row, column] = matrix_position<n>(tiles, tile, threadIdx.x);
        uint32_t remaining = (1u << rows) - 1;  // a bit for every row
        if (finish.allows_quick((tile % tiles.across + 1) << tiles.width_log2) && input.scale > 0.0f) {
            float sums[rows][block_elements];
            multiply(inputs, sums);
            remaining = __reduce_or_sync(
                ~0u, finish.template quick<rows>(first_row, rows_apart, column, sums, input.scale));
        }
#pragma unroll 1
        for (int r = 0; remaining >> r != 0; r++) {
            if ((remaining >> r & 1) == 0) continue;
            float values[block_elements];
            multiply_row(inputs, r, values);
#pragma unroll
            for (int i = 0; i < block_elements; i++) values[i] *= input.scale;
            finish.any(first_row + r * rows_apart, column, values);
        }
        __syncwarp();  // before the next inputs replace these
        if (stages == 1) fetch(tile + gridDim.x, 0);
        stage ^= stages - 1;
    }
}

template <typename T>
MatrixInput<T> matrix_input_of(const ConstMatrix& x, const BlockTransform& transform,
                               const DeviceInfo& device) {
    return {blocks_of<const T>(x),
            uint32_t(x.rows),
            uint32_t(x.cols / block_elements),
            transform.matrix,
            transform.matrix_type == DType::bf16,
            transform.scale,
            matrix_stages(transform.n, x.type, device)};
}

inline Tiles matrix_tiles(int64_t n, int64_t rows, int64_t columns) {
    return make_tiles(rows, columns,
                      {.threads = matrix_threads(n), .rows_per_thread = matrix_rows(n), .widest_log2 = 5});
}

}  // namespace halfbyte::cuda
