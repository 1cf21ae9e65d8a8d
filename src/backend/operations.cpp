// The door: every operation's arguments are checked here, once, and handed to the kernels of the context's
// level.
#include "backend/context_state.h"
#include "core/check.h"
#include "core/float_environment.h"
#include "cpu/kernels.h"
#include "cpu/packed_weight.h"
#include "format/scale_layout.h"
#include "halfbyte/context.h"

namespace halfbyte {
namespace {

constexpr auto usage = ErrorKind::usage;

template <typename M>
void check_matrix(const char* operation, const char* what, const M& matrix) {
    check(matrix.type == DType::f32 || matrix.type == DType::bf16 || matrix.type == DType::f16, usage,
          "{}: {} has type {}; BF16, F16 and F32 are possible", operation, what, name_of(matrix.type));
    check(matrix.rows >= 0 && matrix.cols >= 0 && matrix.stride >= matrix.cols, usage,
          "{}: {} is [{}, {}] with a row stride of {}; sizes must not be negative, the stride not below the "
          "columns",
          operation, what, matrix.rows, matrix.cols, matrix.stride);
    check(matrix.data != nullptr || matrix.rows == 0 || matrix.cols == 0, usage,
          "{}: {} [{}, {}] has no data", operation, what, matrix.rows, matrix.cols);
}

template <typename M>
void check_size(const char* operation, const char* what, const M& matrix, int64_t rows, int64_t cols) {
    check(matrix.rows == rows && matrix.cols == cols, usage, "{}: {} is [{}, {}]; [{}, {}] is needed",
          operation, what, matrix.rows, matrix.cols, rows, cols);
}

template <typename M>
void check_f32(const char* operation, const char* what, const M& matrix) {
    check(matrix.type == DType::f32, usage, "{}: {} has type {}; F32 is needed", operation, what,
          name_of(matrix.type));
}

void check_shape(const char* operation, const NvFp4Shape& shape) {
    check(shape.rows >= 0 && shape.k >= 0, usage, "{}: shape [{}, {}]; sizes must not be negative", operation,
          shape.rows, shape.k);
    check(shape.padded_rows >= shape.rows, usage, "{}: padded_rows = {} is below rows = {}", operation,
          shape.padded_rows, shape.rows);
    check(shape.padded_k >= shape.k && shape.padded_k % 16 == 0, usage,
          "{}: padded_k = {}; a multiple of 16 that is at least k = {} is needed", operation, shape.padded_k,
          shape.k);
}

void check_view(const char* operation, const char* what, const NvFp4View& view) {
    check_shape(operation, view.shape);
    check(
        (view.codes != nullptr && view.block_scales != nullptr) || view.shape.rows == 0 || view.shape.k == 0,
        usage, "{}: {} [{}, {}] has no codes or no block scales", operation, what, view.shape.rows,
        view.shape.k);
}

void check_weight(const char* operation, const PackedWeight* w, int64_t k, int64_t n) {
    check(w != nullptr, usage, "{}: no weight", operation);
    check(w->k == k, usage, "{}: activations have K = {}, the weight has K = {}", operation, k, w->k);
    check(w->n == n, usage, "{}: the output has {} columns, the weight has N = {}", operation, n, w->n);
    check(int64_t(w->codes.size()) >= w->tiles() * w->blocks() * 128 &&
              int64_t(w->block_scales.size()) >= w->tiles() * w->blocks() * 16,
          usage, "{}: the packed weight [{}, {}] is incomplete", operation, w->n, w->k);
}

void check_output(const char* operation, const Matrix& d, int64_t rows, const float* column_decode,
                  DType bias_type) {
    check_matrix(operation, "d", d);
    check(d.rows == rows, usage, "{}: the activations have {} rows, the output has {}", operation, rows,
          d.rows);
    check(column_decode != nullptr || d.cols == 0, usage, "{}: no decode scale for the {} columns", operation,
          d.cols);
    check(bias_type == DType::f32 || bias_type == DType::bf16 || bias_type == DType::f16, usage,
          "{}: the bias has type {}; BF16, F16 and F32 are possible", operation, name_of(bias_type));
}

const cpu::Kernels& kernels(const Context& context) {
    return *context.state().kernels;
}

}  // namespace

void quantize(const Context& context, const QuantizeArgs& args) {
    check_matrix("quantize", "x", args.x);
    check_shape("quantize", args.shape);
    check_size("quantize", "x", args.x, args.shape.rows, args.shape.k);
    check(args.encode_scale != nullptr || args.shape.rows == 0, usage, "quantize: no encode scale");
    check((args.codes != nullptr || args.shape.code_bytes() == 0) &&
              (args.block_scales != nullptr || args.shape.scale_bytes() == 0),
          usage, "quantize: no memory for codes or block scales of [{}, {}]", args.shape.rows, args.shape.k);
    kernels(context).quantize(pool_of(context), args);
}

void dequantize(const Context& context, const DequantizeArgs& args) {
    check_view("dequantize", "a", args.a);
    check_matrix("dequantize", "y", args.y);
    check_size("dequantize", "y", args.y, args.a.shape.rows, args.a.shape.k);
    kernels(context).dequantize(pool_of(context), args);
}

PackedWeight pack_weight(const Context&, const NvFp4View& w) {
    check_view("pack_weight", "w", w);
    return cpu::pack_weight(w);
}

void matmul_w4a4(const Context& context, const MatmulW4A4Args& args) {
    check_view("matmul_w4a4", "a", args.a);
    check_weight("matmul_w4a4", args.w, args.a.shape.k, args.d.cols);
    check_output("matmul_w4a4", args.d, args.a.shape.rows, args.column_decode, args.bias_type);
    check(args.row_decode != nullptr || args.d.rows == 0, usage, "matmul_w4a4: no decode scale for the rows");
    kernels(context).matmul_w4a4(pool_of(context), args);
}

void matmul_w4a16(const Context& context, const MatmulW4A16Args& args) {
    check_matrix("matmul_w4a16", "x", args.x);
    check_weight("matmul_w4a16", args.w, args.x.cols, args.d.cols);
    check_output("matmul_w4a16", args.d, args.x.rows, args.column_decode, args.bias_type);
    kernels(context).matmul_w4a16(pool_of(context), args);
}

void matmul_dense(const Context& context, const MatmulDenseArgs& args) {
    check_matrix("matmul_dense", "x", args.x);
    check_matrix("matmul_dense", "w", args.w);
    check_matrix("matmul_dense", "d", args.d);
    check(args.w.cols == args.x.cols, usage, "matmul_dense: activations have K = {}, the weight has K = {}",
          args.x.cols, args.w.cols);
    check_size("matmul_dense", "d", args.d, args.x.rows, args.w.rows);
    check(args.bias_type == DType::f32 || args.bias_type == DType::bf16 || args.bias_type == DType::f16,
          usage, "matmul_dense: the bias has type {}; BF16, F16 and F32 are possible",
          name_of(args.bias_type));
    kernels(context).matmul_dense(pool_of(context), args);
}

void rms_norm(const Context& context, const RmsNormArgs& args) {
    check_matrix("rms_norm", "x", args.x);
    check_matrix("rms_norm", "weight", args.weight);
    check_matrix("rms_norm", "y", args.y);
    check_size("rms_norm", "weight", args.weight, 1, args.x.cols);
    check_size("rms_norm", "y", args.y, args.x.rows, args.x.cols);
    check(args.x.type == args.y.type, usage, "rms_norm: x has type {}, y has type {}; one type is needed",
          name_of(args.x.type), name_of(args.y.type));
    if (args.residual.data != nullptr) {
        check_matrix("rms_norm", "residual", args.residual);
        check_size("rms_norm", "residual", args.residual, args.x.rows, args.x.cols);
        check(args.residual.type == args.x.type, usage,
              "rms_norm: x has type {}, the residual {}; one type is needed", name_of(args.x.type),
              name_of(args.residual.type));
    }
    kernels(context).rms_norm(pool_of(context), args);
}

void silu_mul(const Context& context, const SiluMulArgs& args) {
    check_matrix("silu_mul", "gate", args.gate);
    check_matrix("silu_mul", "up", args.up);
    check_matrix("silu_mul", "y", args.y);
    check_size("silu_mul", "up", args.up, args.gate.rows, args.gate.cols);
    check_size("silu_mul", "y", args.y, args.gate.rows, args.gate.cols);
    check(args.gate.type == args.up.type, usage,
          "silu_mul: gate has type {}, up has type {}; one type is needed", name_of(args.gate.type),
          name_of(args.up.type));
    kernels(context).silu_mul(pool_of(context), args);
}

void softmax(const Context& context, const SoftmaxArgs& args) {
    check_matrix("softmax", "x", args.x);
    check_matrix("softmax", "y", args.y);
    check_f32("softmax", "x", args.x);
    check_f32("softmax", "y", args.y);
    check_size("softmax", "y", args.y, args.x.rows, args.x.cols);
    kernels(context).softmax(pool_of(context), args);
}

void rope(const Context& context, const RopeArgs& args) {
    check_matrix("rope", "x", args.x);
    check_f32("rope", "x", args.x);
    check(args.heads >= 0 && args.head_dim >= 2 && args.head_dim % 2 == 0 &&
              args.x.cols == args.heads * args.head_dim,
          usage,
          "rope: x has {} columns, {} heads of {}; heads * head_dim columns and an even head_dim are needed",
          args.x.cols, args.heads, args.head_dim);
    check(args.first_position >= 0 && ((args.cos != nullptr && args.sin != nullptr) || args.x.rows == 0),
          usage, "rope: first_position = {}, or no table", args.first_position);
    kernels(context).rope(pool_of(context), args);
}

void attention(const Context& context, const AttentionArgs& args) {
    check_matrix("attention", "q", args.q);
    check_matrix("attention", "o", args.o);
    check_f32("attention", "q", args.q);
    check_f32("attention", "o", args.o);
    check(args.kv_heads > 0 && args.heads > 0 && args.heads % args.kv_heads == 0 && args.head_dim > 0, usage,
          "attention: {} heads over {} key-value heads of {}; a multiple is needed", args.heads,
          args.kv_heads, args.head_dim);
    check_size("attention", "q", args.q, args.q.rows, args.heads * args.head_dim);
    check_size("attention", "o", args.o, args.q.rows, args.heads * args.head_dim);
    check(args.first_position >= 0 && args.cache_stride >= args.kv_heads * args.head_dim, usage,
          "attention: first_position = {}, cache stride {}; a stride of at least {} is needed",
          args.first_position, args.cache_stride, args.kv_heads * args.head_dim);
    check((args.keys != nullptr && args.values != nullptr) || args.q.rows == 0, usage,
          "attention: no keys or no values");
    kernels(context).attention(pool_of(context), args);
}

}  // namespace halfbyte
