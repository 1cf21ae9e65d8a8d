// The activations of a product of many tokens as tensor copies can read them: a matrix [M, K] of 16-bit
// elements whose rows begin at multiples of 16 bytes. Quantised ones become BF16, code * SF, which is exact;
// a matrix that is quantised on the way becomes the same. Written to Launch::scratch by a kernel of its own.
#pragma once

#include "cuda/device/code_source.cuh"
#include "cuda/matmul_scratch.h"

namespace halfbyte::cuda {

// The decode scale of code * SF as it is.
struct NoScale {
    __device__ __forceinline__ float operator()(uint32_t) const { return 1.0f; }
};

template <typename T, bool quantises>
struct MatrixValues {
    static constexpr int blocks = 1;
    using Cursor = Position;
    struct Raw {
        Block<T> block;
        float G;
    };
    BlockMatrix<const T> x;
    EncodeScales scales;

    __device__ __forceinline__ Cursor at(uint32_t row, uint32_t column) const { return {row, column}; }
    __device__ __forceinline__ Raw fetch(Cursor at, uint32_t) const {
        return {x.load(at.row, at.column), quantises ? scales(at.row) : 1.0f};
    }
    __device__ __forceinline__ void make(const Raw& raw, uint32_t, Values (&values)[blocks]) const {
        widen(raw.block, values[0].value);
        if constexpr (quantises) decode_block(quantize_block(values[0].value, raw.G), 1.0f, values[0].value);
    }
};

// Launch::scratch as [rows, k].
inline Matrix scratch_matrix(const Launch& launch, DType type, int64_t rows, int64_t k) {
    return {launch.scratch, type, rows, k, round_up(k, gpu_group_k)};
}

inline ConstMatrix prepare_activations(const MatmulW4A4Args& args, const Launch& launch) {
    const Matrix y = scratch_matrix(launch, DType::bf16, args.d.rows, args.w.k);
    if (args.encode_scale == nullptr) {
        launch_elements(code_source_of(args.a, NoScale()), y, launch);
    } else {
        with_type(args.x.type, [&](auto element) {
            using T = decltype(element);
            launch_elements(MatrixValues<T, true>{blocks_of<const T>(args.x),
                                                  {args.encode_scale, args.encode_scale_per_row}},
                            y, launch);
        });
    }
    return {y.data, y.type, y.rows, y.cols, y.stride};
}

inline ConstMatrix prepare_activations(const MatmulW4A16Args& args, const Launch& launch) {
    if (rows_aligned(args.x)) {
        ConstMatrix x = args.x;
        if (x.rows <= 1) x.stride = round_up(x.cols, 8);  // of one row any stride does
        return x;
    }
    const Matrix y = scratch_matrix(launch, args.x.type, args.d.rows, args.w.k);
    const auto copy = [&](auto element) {
        using T = decltype(element);
        launch_elements(MatrixValues<T, false>{blocks_of<const T>(args.x), {}}, y, launch);
    };
    if (args.x.type == DType::f16)
        copy(__half());
    else
        copy(__nv_bfloat16());
    return {y.data, y.type, y.rows, y.cols, y.stride};
}

}  // namespace halfbyte::cuda
