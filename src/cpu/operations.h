// The tables of kernels that the files of this folder define and kernels.cpp collects.
#pragma once

#include "core/float16.h"
#include "core/thread_pool.h"
#include "cpu/kernels.h"
#include "cpu/targets.h"
#include "halfbyte/operations.h"

namespace halfbyte::cpu {

template <typename Args>
using Kernel = void(ThreadPool&, const Args&);

// x holds the rows of the shape from first_row on.
template <typename Args>
using RowsKernel = void(ThreadPool&, const Args&, int64_t first_row);

extern const PerLevel<Kernel<QuantizeArgs>> quantize_levels;
extern const PerLevel<RowsKernel<QuantizeArgs>> quantize_rows_levels;
extern const PerLevel<Kernel<DequantizeArgs>> dequantize_levels;
extern const PerLevel<Kernel<DecodeErrorArgs>> decode_error_levels;
extern const PerLevel<void(ThreadPool&, const ConstMatrix&, float*)> largest_magnitudes_levels;
extern const PerLevel<Kernel<TransformArgs>> transform_levels;
extern const PerLevel<Kernel<MatmulW4A4Args>> matmul_w4a4_levels;
// Without the extensions (AVX-VNNI, VBMI) that matmul_w4a4_levels uses where the processor has them.
extern const PerLevel<Kernel<MatmulW4A4Args>> matmul_w4a4_plain_levels;
extern const PerLevel<Kernel<MatmulW4A16Args>> matmul_w4a16_levels;
extern const PerLevel<Kernel<MatmulW8A16Args>> matmul_w8a16_levels;
extern const PerLevel<Kernel<MatmulDenseArgs>> matmul_dense_levels;
extern const PerLevel<Kernel<RmsNormArgs>> rms_norm_levels;
extern const PerLevel<Kernel<SiluMulArgs>> silu_mul_levels;
extern const PerLevel<Kernel<SoftmaxArgs>> softmax_levels;
extern const PerLevel<Kernel<RopeArgs>> rope_levels;
extern const PerLevel<Kernel<AttentionArgs>> attention_levels;

// Zeros for the codes and block scales of a row from a block on, up to the end of the padding; in a tiled
// layout from the next multiple of four blocks on, and for rows that fill the last tile (quantize.cpp).
void clear_row(const QuantizeArgs& args, int64_t row, int64_t first_block);

// Calls body(pointer) with the pointer cast to the element type.
template <typename Body>
void with_type(const void* data, DType type, const Body& body) {
    if (type == DType::f32) return body(static_cast<const float*>(data));
    if (type == DType::bf16) return body(static_cast<const BFloat16*>(data));
    body(static_cast<const Float16*>(data));
}
template <typename Body>
void with_type(void* data, DType type, const Body& body) {
    if (type == DType::f32) return body(static_cast<float*>(data));
    if (type == DType::bf16) return body(static_cast<BFloat16*>(data));
    body(static_cast<Float16*>(data));
}

// Pieces for parallel_for: small enough to share out evenly, but each with so many operations that handing it
// to a waiting thread (about 1 us) pays; below that everything runs in the calling thread. A pool of one
// thread has no one to share with: one piece.
inline int64_t grain_for(const ThreadPool& pool, int64_t count, int64_t operations_per_item,
                         int64_t least = 1 << 17) {
    if (pool.threads() == 1) return count;
    const int64_t worthwhile = least / (operations_per_item < 1 ? 1 : operations_per_item) + 1;
    const int64_t even = count / (4 * pool.threads()) + 1;
    return worthwhile > even ? worthwhile : even;
}

}  // namespace halfbyte::cpu
