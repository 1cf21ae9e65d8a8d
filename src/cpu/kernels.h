// The CPU kernels of one instruction set level. Every level gives the bits of src/reference. Arguments are
// trusted here: src/backend has checked them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/thread_pool.h"
#include "halfbyte/operations.h"

namespace halfbyte::cpu {

enum class Level { scalar, avx2, avx512, neon, neon_dotprod };
std::string_view name_of(Level level);

// signal[row] = sum of w^2, noise[row] = sum of (w - fl((code * SF) * D))^2, FP64 in order of k.
struct DecodeErrorArgs {
    ConstMatrix w;  // [rows, k]
    NvFp4View a;    // of the same size
    float decode_scale = 1;
    double* signal = nullptr;  // out [rows]
    double* noise = nullptr;   // out [rows]
};

struct Kernels {
    Level level;
    void (*quantize)(ThreadPool&, const QuantizeArgs&);
    // The same in parts: x holds the rows of args.shape from first_row on. Their padding along K is written,
    // that behind the last row by clear_padding_rows.
    void (*quantize_rows)(ThreadPool&, const QuantizeArgs&, int64_t first_row);
    void (*dequantize)(ThreadPool&, const DequantizeArgs&);
    void (*decode_error)(ThreadPool&, const DecodeErrorArgs&);
    // largest[row] = max |x|, in the order of the bits: infinity if there is one, and NaN if there is one.
    void (*largest_magnitudes)(ThreadPool&, const ConstMatrix&, float* largest);
    void (*transform)(ThreadPool&, const TransformArgs&);
    void (*matmul_w4a4)(ThreadPool&, const MatmulW4A4Args&);
    void (*matmul_w4a16)(ThreadPool&, const MatmulW4A16Args&);
    void (*matmul_w8a16)(ThreadPool&, const MatmulW8A16Args&);
    void (*matmul_dense)(ThreadPool&, const MatmulDenseArgs&);
    void (*rms_norm)(ThreadPool&, const RmsNormArgs&);
    void (*silu_mul)(ThreadPool&, const SiluMulArgs&);
    void (*softmax)(ThreadPool&, const SoftmaxArgs&);
    void (*rope)(ThreadPool&, const RopeArgs&);
    void (*attention)(ThreadPool&, const AttentionArgs&);
};

// Zeros for the codes and block scales behind args.shape.rows.
void clear_padding_rows(const QuantizeArgs& args);

// All levels of this build, lowest first.
std::span<const Level> levels();
// Empty if this machine runs the level, else what it lacks: "the processor has no AVX-512 VNNI".
std::string unsupported_reason(Level level);
// The highest level that this machine runs.
Level best_level();
// Throws Error (unsupported) with the reason if the machine lacks the level.
const Kernels& kernels(Level level);

}  // namespace halfbyte::cpu
