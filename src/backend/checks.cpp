#include "backend/checks.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "core/check.h"
#include "format/gpu_weight.h"
#include "format/scale_layout.h"

namespace halfbyte {
namespace {

constexpr auto usage = ErrorKind::usage;

// Sizes up to 2^59 and buffers of fewer than 2^63 bytes: every offset and every rounding up of a size fits 64
// bits.
constexpr int64_t largest_size = int64_t(1) << 59;

void check_size_limit(const char* operation, const char* what, int64_t rows, int64_t columns) {
    check(rows <= largest_size && columns <= largest_size, usage,
          "{}: {} is [{}, {}]; sizes of at most 2^59 can be addressed", operation, what, rows, columns);
}

// rows * row_bytes, neither negative
void check_bytes(const char* operation, const char* what, int64_t rows, int64_t row_bytes) {
    int64_t bytes = 0;
    check(!__builtin_mul_overflow(rows, row_bytes, &bytes), usage,
          "{}: {} has {} rows of {} bytes; fewer than 2^63 bytes in all can be addressed", operation, what,
          rows, row_bytes);
}

// Its sizes and memory, whatever its type.
template <typename M>
void check_place(const char* operation, const char* what, const M& matrix) {
    check(matrix.rows >= 0 && matrix.cols >= 0 && matrix.stride >= matrix.cols, usage,
          "{}: {} is [{}, {}] with a row stride of {}; sizes must not be negative, the stride not below the "
          "columns",
          operation, what, matrix.rows, matrix.cols, matrix.stride);
    check_size_limit(operation, what, matrix.rows, matrix.stride);
    check_bytes(operation, what, matrix.rows, matrix.stride * int64_t(size_of(matrix.type)));
    check(matrix.data != nullptr || matrix.rows == 0 || matrix.cols == 0, usage,
          "{}: {} [{}, {}] has no data", operation, what, matrix.rows, matrix.cols);
}

template <typename M>
void check_matrix(const char* operation, const char* what, const M& matrix) {
    check(matrix.type == DType::f32 || matrix.type == DType::bf16 || matrix.type == DType::f16, usage,
          "{}: {} has type {}; BF16, F16 and F32 are possible", operation, what, name_of(matrix.type));
    check_place(operation, what, matrix);
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

template <typename Shape>
constexpr int64_t block_size = 16;
template <>
constexpr int64_t block_size<MxFp4Shape> = 32;

void check_layout(const char* operation, const char* what, ScaleLayout layout) {
    check(layout == ScaleLayout::linear || layout == ScaleLayout::tiled_128x4 ||
              layout == ScaleLayout::tiled_8x4,
          usage, "{}: {} = {}; linear (0), tiled_128x4 (1) and tiled_8x4 (2) are possible", operation, what,
          int(layout));
}

// An NvFp4Shape or MxFp4Shape.
template <typename Shape>
void check_shape(const char* operation, const Shape& shape) {
    check(shape.rows >= 0 && shape.k >= 0, usage, "{}: shape [{}, {}]; sizes must not be negative", operation,
          shape.rows, shape.k);
    check(shape.padded_rows >= shape.rows, usage, "{}: padded_rows = {} is below rows = {}", operation,
          shape.padded_rows, shape.rows);
    check(shape.padded_k >= shape.k && shape.padded_k % block_size<Shape> == 0, usage,
          "{}: padded_k = {}; a multiple of {} that is at least k = {} is needed", operation, shape.padded_k,
          block_size<Shape>, shape.k);
    check_layout(operation, "layout", shape.layout);
    check_size_limit(operation, "the padded shape", shape.padded_rows, shape.padded_k);
    check_bytes(operation, "the padded shape", round_up(shape.padded_rows, 128), shape.padded_k / 2 + 64);
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

// Rows of `bytes` each, `stride` bytes from one to the next.
struct Memory {
    uintptr_t begin;
    int64_t rows, bytes, stride;

    Memory(const void* data, int64_t size)
        : begin(reinterpret_cast<uintptr_t>(data)), rows(1), bytes(size), stride(size) {}
    template <typename M>
    explicit Memory(const M& matrix)
        : begin(reinterpret_cast<uintptr_t>(matrix.data)),
          rows(matrix.data == nullptr ? 0 : matrix.rows),
          bytes(matrix.cols * int64_t(size_of(matrix.type))),
          stride(matrix.stride * int64_t(size_of(matrix.type))) {}

    bool empty() const { return begin == 0 || rows == 0 || bytes == 0; }
    uint64_t span() const { return uint64_t((rows - 1) * stride + bytes); }
};

// Whether a and b have a byte in common. Rows with one stride may lie between each other, such as the column
// halves of one matrix; of other strides, what is between the rows counts too.
bool overlap(const Memory& a, const Memory& b) {
    if (a.empty() || b.empty()) return false;
    if (a.begin > b.begin) return overlap(b, a);
    const uint64_t distance = b.begin - a.begin;
    if (distance >= a.span()) return false;
    if (a.stride != b.stride) return true;
    // Row j of b begins `column` bytes behind the begin of row j + distance / stride of a.
    const int64_t column = int64_t(distance % uint64_t(a.stride));
    const int64_t row = int64_t(distance / uint64_t(a.stride));
    return column < a.bytes || (column + b.bytes > a.stride && row + 1 < a.rows);
}

void check_apart(const char* operation, const char* result, const Memory& written, const char* other,
                 const Memory& memory) {
    check(!overlap(written, memory), usage,
          "{}: {} at {:#x} overlaps {} at {:#x}; memory of its own is needed", operation, result,
          written.begin, other, memory.begin);
}

// The memory of x may be that of y if both are read and written alike.
void check_in_place(const char* operation, const char* what, const ConstMatrix& x, const Matrix& y) {
    if (!overlap(Memory(x), Memory(y))) return;
    check(y.data != x.data || (y.type == x.type && y.stride == x.stride), usage,
          "{}: y is in the memory of {} with type {} and row stride {}; the same type {} and stride {} are "
          "needed",
          operation, what, name_of(y.type), y.stride, name_of(x.type), x.stride);
    check(y.data == x.data, usage,
          "{}: y at {:#x} overlaps {} at {:#x}; the same address or memory of its own is needed", operation,
          Memory(y).begin, what, Memory(x).begin);
}

// What quantising writes, against what it reads.
template <typename Args>
void check_results_apart(const char* operation, const Args& args, const char* what, const Memory& input) {
    const Memory codes(args.codes, args.shape.code_bytes()),
        scales(args.block_scales, args.shape.scale_bytes());
    check_apart(operation, "codes", codes, what, input);
    check_apart(operation, "block_scales", scales, what, input);
    check_apart(operation, "codes", codes, "block_scales", scales);
}

// What dequantising reads, against y.
void check_result_apart(const char* operation, const Matrix& y, const Memory& codes, const Memory& scales) {
    check_apart(operation, "y", Memory(y), "codes", codes);
    check_apart(operation, "y", Memory(y), "block_scales", scales);
}

// [1, k]
void check_norm_weight(const char* operation, const ConstMatrix& weight, int64_t k) {
    check_matrix(operation, "weight", weight);
    check_size(operation, "weight", weight, 1, k);
}

void check_residual(const char* operation, const Matrix& residual, const ConstMatrix& x) {
    if (residual.data == nullptr) return;
    check_matrix(operation, "residual", residual);
    check_size(operation, "residual", residual, x.rows, x.cols);
    check(residual.type == x.type, usage, "{}: x has type {}, the residual {}; one type is needed", operation,
          name_of(x.type), name_of(residual.type));
}

void check_gate_and_up(const char* operation, const ConstMatrix& gate, const ConstMatrix& up) {
    check_matrix(operation, "gate", gate);
    check_matrix(operation, "up", up);
    check_size(operation, "up", up, gate.rows, gate.cols);
    check(gate.type == up.type, usage, "{}: gate has type {}, up has type {}; one type is needed", operation,
          name_of(gate.type), name_of(up.type));
}

// What quantising needs but its x.
void check_quantized(const char* operation, const QuantizeArgs& args) {
    check_shape(operation, args.shape);
    check(args.encode_scale != nullptr || args.dynamic_encode_scale != nullptr || args.shape.rows == 0, usage,
          "{}: no encode scale: give encode_scale, or memory for the one found as dynamic_encode_scale",
          operation);
    check(args.encode_scale == nullptr ||
              (args.dynamic_encode_scale == nullptr && args.dynamic_decode_scale == nullptr),
          usage, "{}: encode_scale and a dynamic scale are given; give one of the two", operation);
    check(args.dynamic_decode_scale == nullptr || args.dynamic_encode_scale != nullptr, usage,
          "{}: dynamic_decode_scale is given without dynamic_encode_scale; give memory for both", operation);
    check((args.codes != nullptr || args.shape.code_bytes() == 0) &&
              (args.block_scales != nullptr || args.shape.scale_bytes() == 0),
          usage, "{}: no memory for codes or block scales of [{}, {}]", operation, args.shape.rows,
          args.shape.k);
}

// `quantize` of a producer whose result is [rows, k] of a type.
void check_fused(const char* operation, const QuantizeArgs& args, int64_t rows, int64_t k, DType type,
                 const char* why) {
    check(args.x.data == nullptr, usage,
          "{}: quantize.x has data; null is needed, since the x to quantise is made inside", operation);
    check(args.x.type == type, usage, "{}: quantize.x has type {}; {} is needed: {}", operation,
          name_of(args.x.type), name_of(type), why);
    check((args.x.rows == 0 && args.x.cols == 0) || (args.x.rows == rows && args.x.cols == k), usage,
          "{}: quantize.x is [{}, {}]; [{}, {}] or nothing is needed", operation, args.x.rows, args.x.cols,
          rows, k);
    check(args.shape.rows == rows && args.shape.k == k, usage,
          "{}: quantize.shape is [{}, {}]; [{}, {}] is needed", operation, args.shape.rows, args.shape.k,
          rows, k);
    check_quantized(operation, args);
}

// "16, 32, 48, 96" for 96: the sizes of a transform from 16 on that divide k; powers of two only for
// Hadamard. Of a size above 2^16 only k itself is looked at.
std::string dividing_sizes(int64_t k, bool hadamard) {
    std::string sizes;
    const auto add = [&](int64_t n) {
        if (k % n == 0 && (!hadamard || std::has_single_bit(uint64_t(n))))
            sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
    };
    for (int64_t n = 16; n <= std::min<int64_t>(k, 1 << 16); n++) add(n);
    if (k > 1 << 16) add(k);
    return sizes;
}

void check_transform(const char* operation, const ConstMatrix& x, const BlockTransform& transform) {
    check_matrix(operation, "x", x);
    const int64_t n = transform.n;
    const bool hadamard = transform.matrix == nullptr;
    check(n >= 1, usage, "{}: transform.n = {}; at least 1 is needed", operation, n);
    check(!hadamard || std::has_single_bit(uint64_t(n)), usage,
          "{}: transform.n = {} without a matrix; the Hadamard transform by butterflies needs a power of "
          "two: give "
          "the matrix for another size",
          operation, n);
    if (x.cols % n != 0) {
        const std::string sizes = dividing_sizes(x.cols, hadamard);
        fail(usage, "{}: x has K = {}, which transform.n = {} does not divide; {}", operation, x.cols, n,
             sizes.empty() ? fmt::format("no {} from 16 on does: pad x", hadamard ? "power of two" : "size")
                           : fmt::format("of the {} from 16 on, these do: {}",
                                         hadamard ? "powers of two" : "sizes", sizes));
    }
    if (transform.matrix == nullptr) {
        check(transform.accumulation == Accumulation::contract, usage,
              "{}: transform.accumulation is tensor_core without a matrix; the Hadamard transform has the "
              "contract's "
              "arithmetic only: give the matrix, or take contract",
              operation);
        return;
    }
    check(transform.matrix_type == DType::bf16 || transform.matrix_type == DType::f32, usage,
          "{}: transform.matrix_type is {}; BF16 and F32 are possible", operation,
          name_of(transform.matrix_type));
    check(transform.signs == nullptr, usage,
          "{}: transform.signs are given beside a matrix; they belong to the Hadamard transform: multiply "
          "the rows of the "
          "matrix by them",
          operation);
    check(transform.accumulation == Accumulation::contract ||
              (transform.matrix_type == DType::bf16 && x.type == DType::bf16),
          usage, "{}: transform.accumulation is tensor_core with x {} and matrix {}; BF16 for both is needed",
          operation, name_of(x.type), name_of(transform.matrix_type));
}

}  // namespace

void check_view(const char* operation, const char* what, const NvFp4View& view) {
    check_shape(operation, view.shape);
    check(
        (view.codes != nullptr && view.block_scales != nullptr) || view.shape.rows == 0 || view.shape.k == 0,
        usage, "{}: {} [{}, {}] has no codes or no block scales", operation, what, view.shape.rows,
        view.shape.k);
}

void check_arguments(const QuantizeArgs& args) {
    check_matrix("quantize", "x", args.x);
    check_shape("quantize", args.shape);
    check_size("quantize", "x", args.x, args.shape.rows, args.shape.k);
    check_quantized("quantize", args);
    check_results_apart("quantize", args, "x", Memory(args.x));
}

void check_arguments(const DequantizeArgs& args) {
    check_view("dequantize", "a", args.a);
    check_matrix("dequantize", "y", args.y);
    check_size("dequantize", "y", args.y, args.a.shape.rows, args.a.shape.k);
    check(args.decode_scale != nullptr || args.y.rows == 0, usage, "dequantize: no decode scale");
    check_result_apart("dequantize", args.y, {args.a.codes, args.a.shape.code_bytes()},
                       {args.a.block_scales, args.a.shape.scale_bytes()});
}

void check_arguments(const FakeQuantizeArgs& args) {
    check_matrix("fake_quantize", "x", args.x);
    check_matrix("fake_quantize", "y", args.y);
    check_size("fake_quantize", "y", args.y, args.x.rows, args.x.cols);
    check_in_place("fake_quantize", "x", args.x, args.y);
    check(args.encode_scale != nullptr || args.x.rows == 0, usage, "fake_quantize: no encode scale");
}

void check_arguments(const ConvertScalesArgs& args) {
    const char* operation = "convert_scales";
    check_shape(operation, args.shape);
    check_layout(operation, "the target's layout", args.layout);
    const int64_t source = args.shape.scale_bytes(),
                  target =
                      scale_buffer_bytes(args.layout, args.shape.padded_rows, args.shape.padded_blocks());
    check(args.source != nullptr || source == 0, usage,
          "{}: source is null; {} bytes of block scales are needed", operation, source);
    check(args.target != nullptr || target == 0, usage,
          "{}: target is null; memory for {} bytes of block scales is needed", operation, target);
    check(!overlap({args.source, source}, {args.target, target}), usage,
          "{}: the target's {} bytes overlap the source's {} bytes; other memory is needed", operation,
          target, source);
}

void check_arguments(const AmaxArgs& args) {
    check_matrix("amax", "x", args.x);
    check(args.amax != nullptr || args.encode_scale != nullptr || args.decode_scale != nullptr ||
              args.x.rows == 0,
          usage, "amax: amax, encode_scale and decode_scale are all null; memory for one of them is needed");
}

void check_arguments(const MxFp4QuantizeArgs& args) {
    const char* operation = "mxfp4_quantize";
    check_matrix(operation, "x", args.x);
    check_shape(operation, args.shape);
    check_size(operation, "x", args.x, args.shape.rows, args.shape.k);
    check((args.codes != nullptr && args.block_scales != nullptr) || args.shape.code_bytes() == 0, usage,
          "{}: no memory for codes or block scales of [{}, {}]", operation, args.shape.rows, args.shape.k);
    check_results_apart(operation, args, "x", Memory(args.x));
}

void check_arguments(const MxFp4DequantizeArgs& args) {
    const char* operation = "mxfp4_dequantize";
    check_shape(operation, args.shape);
    check(
        (args.codes != nullptr && args.block_scales != nullptr) || args.shape.rows == 0 || args.shape.k == 0,
        usage, "{}: [{}, {}] has no codes or no block scales", operation, args.shape.rows, args.shape.k);
    check_matrix(operation, "y", args.y);
    check_size(operation, "y", args.y, args.shape.rows, args.shape.k);
    check_result_apart(operation, args.y, {args.codes, args.shape.code_bytes()},
                       {args.block_scales, args.shape.scale_bytes()});
}

void check_arguments(const TransformArgs& args) {
    check_transform("transform", args.x, args.transform);
    check_matrix("transform", "y", args.y);
    check_size("transform", "y", args.y, args.x.rows, args.x.cols);
    check_in_place("transform", "x", args.x, args.y);
}

void check_arguments(const TransformQuantizeArgs& args) {
    check_transform("transform_quantize", args.x, args.transform);
    check_fused("transform_quantize", args.quantize, args.x.rows, args.x.cols, DType::f32,
                "the transformed x is not rounded before it is quantised");
    check_results_apart("transform_quantize", args.quantize, "x", Memory(args.x));
}

void check_arguments(const SiluMulQuantizeArgs& args) {
    check_gate_and_up("silu_mul_quantize", args.gate, args.up);
    check_fused("silu_mul_quantize", args.quantize, args.gate.rows, args.gate.cols, args.gate.type,
                "the type of gate and up");
    check_results_apart("silu_mul_quantize", args.quantize, "gate", Memory(args.gate));
    check_results_apart("silu_mul_quantize", args.quantize, "up", Memory(args.up));
}

void check_arguments(const RmsNormQuantizeArgs& args) {
    check_matrix("rms_norm_quantize", "x", args.x);
    check_norm_weight("rms_norm_quantize", args.weight, args.x.cols);
    check_residual("rms_norm_quantize", args.residual, args.x);
    check_fused("rms_norm_quantize", args.quantize, args.x.rows, args.x.cols, args.x.type, "the type of x");
    check_apart("rms_norm_quantize", "residual", Memory(args.residual), "x", Memory(args.x));
    check_results_apart("rms_norm_quantize", args.quantize, "x", Memory(args.x));
    check_results_apart("rms_norm_quantize", args.quantize, "residual", Memory(args.residual));
}

void check_arguments(const MatmulW4A4Args& args) {
    check_view("matmul_w4a4", "a", args.a);
    check_weight("matmul_w4a4", args.w, args.a.shape.k, args.d.cols);
    check_output("matmul_w4a4", args.d, args.a.shape.rows, args.column_decode, args.bias_type);
    check(args.row_decode != nullptr || args.d.rows == 0, usage, "matmul_w4a4: no decode scale for the rows");
}

void check_arguments(const MatmulW4A16Args& args) {
    check_matrix("matmul_w4a16", "x", args.x);
    check_weight("matmul_w4a16", args.w, args.x.cols, args.d.cols);
    check_output("matmul_w4a16", args.d, args.x.rows, args.column_decode, args.bias_type);
}

void check_arguments(const MatmulW8A16Args& args) {
    const char* operation = "matmul_w8a16";
    check_matrix(operation, "x", args.x);
    check(args.w.type == DType::f8_e4m3, usage, "{}: w has type {}; F8_E4M3 is needed", operation,
          name_of(args.w.type));
    check_place(operation, "w", args.w);
    check(args.w.cols == args.x.cols, usage, "{}: activations have K = {}, the weight has K = {}", operation,
          args.x.cols, args.w.cols);
    check(args.w.rows == args.d.cols, usage, "{}: the weight has {} rows, the output has {} columns",
          operation, args.w.rows, args.d.cols);
    check_output(operation, args.d, args.x.rows, args.column_decode, args.bias_type);
}

void check_arguments(const MatmulDenseArgs& args) {
    check_matrix("matmul_dense", "x", args.x);
    check_matrix("matmul_dense", "w", args.w);
    check_matrix("matmul_dense", "d", args.d);
    check(args.w.cols == args.x.cols, usage, "matmul_dense: activations have K = {}, the weight has K = {}",
          args.x.cols, args.w.cols);
    check_size("matmul_dense", "d", args.d, args.x.rows, args.w.rows);
    check(args.bias_type == DType::f32 || args.bias_type == DType::bf16 || args.bias_type == DType::f16,
          usage, "matmul_dense: the bias has type {}; BF16, F16 and F32 are possible",
          name_of(args.bias_type));
}

void check_arguments(const RmsNormArgs& args) {
    check_matrix("rms_norm", "x", args.x);
    check_matrix("rms_norm", "y", args.y);
    check_norm_weight("rms_norm", args.weight, args.x.cols);
    check_size("rms_norm", "y", args.y, args.x.rows, args.x.cols);
    check(args.x.type == args.y.type, usage, "rms_norm: x has type {}, y has type {}; one type is needed",
          name_of(args.x.type), name_of(args.y.type));
    check_residual("rms_norm", args.residual, args.x);
    check_in_place("rms_norm", "x", args.x, args.y);
    check_apart("rms_norm", "y", Memory(args.y), "residual", Memory(args.residual));
}

void check_arguments(const SiluMulArgs& args) {
    check_gate_and_up("silu_mul", args.gate, args.up);
    check_matrix("silu_mul", "y", args.y);
    check_size("silu_mul", "y", args.y, args.gate.rows, args.gate.cols);
    check_in_place("silu_mul", "gate", args.gate, args.y);
    check_in_place("silu_mul", "up", args.up, args.y);
}

void check_arguments(const SoftmaxArgs& args) {
    check_matrix("softmax", "x", args.x);
    check_matrix("softmax", "y", args.y);
    check_f32("softmax", "x", args.x);
    check_f32("softmax", "y", args.y);
    check_size("softmax", "y", args.y, args.x.rows, args.x.cols);
    check_in_place("softmax", "x", args.x, args.y);
}

void check_arguments(const RopeArgs& args) {
    check_matrix("rope", "x", args.x);
    check_f32("rope", "x", args.x);
    check(args.heads >= 0 && args.head_dim >= 2 && args.head_dim % 2 == 0 &&
              args.x.cols == args.heads * args.head_dim,
          usage,
          "rope: x has {} columns, {} heads of {}; heads * head_dim columns and an even head_dim are needed",
          args.x.cols, args.heads, args.head_dim);
    check(args.first_position >= 0 && ((args.cos != nullptr && args.sin != nullptr) || args.x.rows == 0),
          usage, "rope: first_position = {}, or no table", args.first_position);
}

void check_arguments(const AttentionArgs& args) {
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
}

namespace {

void check_aligned(const char* operation, const char* what, const void* data, DType type) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    check(address % size_of(type) == 0, usage,
          "{}: {} is at an address that is {} modulo {}; a multiple of {}, the size of {}, "
          "is needed",
          operation, what, address % size_of(type), size_of(type), size_of(type), name_of(type));
}

template <typename M>
void check_aligned(const char* operation, const char* what, const M& matrix) {
    check_aligned(operation, what, matrix.data, matrix.type);
}

// The kernels count rows and blocks of 16 in 32 bits; offsets have 64.
void check_gpu_size(const char* operation, int64_t rows, int64_t k) {
    constexpr int64_t most_rows = (int64_t(1) << 31) - 256, most_columns = int64_t(1) << 34;
    check(rows <= most_rows && k <= most_columns, ErrorKind::unsupported,
          "{}: [{}, {}], padding included; the GPU's kernels take at most {} rows and {} columns: split the "
          "matrix",
          operation, rows, k, most_rows, most_columns);
}

// Before what every backend checks: the GPU has four sizes.
void check_gpu_transform_size(const char* operation, int64_t k, int64_t n) {
    check(n == 16 || n == 32 || n == 64 || n == 128, usage,
          "{}: transform.n = {}; 16, 32, 64 and 128 are possible on a GPU, any size on the CPU", operation,
          n);
    if (k % n == 0) return;
    std::string sizes;
    for (const int64_t size : {16, 32, 64, 128})
        if (k % size == 0) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    fail(usage, "{}: x has K = {}, which transform.n = {} does not divide; {}", operation, k, n,
         sizes.empty() ? "K must be a multiple of 16, 32, 64 or 128 on a GPU: pad x"
                       : "of the GPU's sizes, these do: " + sizes);
}

void check_gpu_transform(const char* operation, const ConstMatrix& x, const BlockTransform& transform) {
    check_aligned(operation, "x", x);
    check_aligned(operation, "transform.matrix", transform.matrix, transform.matrix_type);
    check_aligned(operation, "transform.signs", transform.signs, DType::f32);
}

void check_gpu_quantized(const char* operation, const QuantizeArgs& args) {
    check(args.stats == nullptr, ErrorKind::unsupported,
          "{}: stats are given; the GPU counts nothing, null is needed: quantise on the CPU to have them",
          operation);
    check(args.rounding == Rounding::contract, ErrorKind::unsupported,
          "{}: rounding is vllm; the GPU rounds as the contract says, contract is needed: the CPU has both",
          operation);
    check_gpu_size(operation, args.shape.padded_rows, args.shape.padded_k);
    check_aligned(operation, "x", args.x);
    check_aligned(operation, "encode_scale", args.encode_scale, DType::f32);
    check_aligned(operation, "dynamic_encode_scale", args.dynamic_encode_scale, DType::f32);
    check_aligned(operation, "dynamic_decode_scale", args.dynamic_decode_scale, DType::f32);
}

}  // namespace

void check_gpu_arguments(const QuantizeArgs& args) {
    check_arguments(args);
    check_gpu_quantized("quantize", args);
}

void check_gpu_arguments(const DequantizeArgs& args) {
    check_arguments(args);
    check_gpu_size("dequantize", args.a.shape.padded_rows, args.a.shape.padded_k);
    check_aligned("dequantize", "decode_scale", args.decode_scale, DType::f32);
    check_aligned("dequantize", "y", args.y);
}

void check_gpu_arguments(const FakeQuantizeArgs& args) {
    check_arguments(args);
    check_gpu_size("fake_quantize", args.x.rows, args.x.cols);
    check_aligned("fake_quantize", "x", args.x);
    check_aligned("fake_quantize", "y", args.y);
    check_aligned("fake_quantize", "encode_scale", args.encode_scale, DType::f32);
}

void check_gpu_arguments(const ConvertScalesArgs& args) {
    check_arguments(args);
    check_gpu_size("convert_scales", args.shape.padded_rows, args.shape.padded_k);
}

void check_gpu_arguments(const AmaxArgs& args) {
    check_arguments(args);
    check_gpu_size("amax", args.x.rows, args.x.cols);
    check_aligned("amax", "x", args.x);
    check_aligned("amax", "amax", args.amax, DType::f32);
    check_aligned("amax", "encode_scale", args.encode_scale, DType::f32);
    check_aligned("amax", "decode_scale", args.decode_scale, DType::f32);
}

void check_gpu_arguments(const MxFp4QuantizeArgs& args) {
    check_arguments(args);
    check_gpu_size("mxfp4_quantize", args.shape.padded_rows, args.shape.padded_k);
    check_aligned("mxfp4_quantize", "x", args.x);
}

void check_gpu_arguments(const MxFp4DequantizeArgs& args) {
    check_arguments(args);
    check_gpu_size("mxfp4_dequantize", args.shape.padded_rows, args.shape.padded_k);
    check_aligned("mxfp4_dequantize", "y", args.y);
}

void check_gpu_arguments(const TransformArgs& args) {
    check_gpu_transform_size("transform", args.x.cols, args.transform.n);
    check_arguments(args);
    check_gpu_size("transform", args.x.rows, args.x.cols);
    check_gpu_transform("transform", args.x, args.transform);
    check_aligned("transform", "y", args.y);
}

void check_gpu_arguments(const TransformQuantizeArgs& args) {
    check_gpu_transform_size("transform_quantize", args.x.cols, args.transform.n);
    check_arguments(args);
    check_gpu_transform("transform_quantize", args.x, args.transform);
    check_gpu_quantized("transform_quantize", args.quantize);
}

void check_gpu_arguments(const SiluMulQuantizeArgs& args) {
    check_arguments(args);
    check_aligned("silu_mul_quantize", "gate", args.gate);
    check_aligned("silu_mul_quantize", "up", args.up);
    check_gpu_quantized("silu_mul_quantize", args.quantize);
}

void check_gpu_arguments(const RmsNormQuantizeArgs& args) {
    check_arguments(args);
    check_aligned("rms_norm_quantize", "x", args.x);
    check_aligned("rms_norm_quantize", "residual", args.residual);
    check_aligned("rms_norm_quantize", "weight", args.weight);
    check_gpu_quantized("rms_norm_quantize", args.quantize);
}

namespace {

// The packed weight and the partial sums of a product fit 63 bits for every n that the kernels count.
constexpr int64_t largest_product_k = int64_t(1) << 24;

void check_product_size(const char* operation, int64_t n, int64_t k) {
    check(n >= 0 && k >= 0, usage, "{}: the weight is [{}, {}]; sizes must not be negative", operation, n, k);
    check_gpu_size(operation, n, k);
    check(k <= largest_product_k, ErrorKind::unsupported, "{}: K = {}; at most {} is possible on a GPU",
          operation, k, largest_product_k);
}

void check_aligned_to_16(const char* operation, const char* what, const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    check(address % 16 == 0, usage,
          "{}: {} is at an address that is {} modulo 16; a multiple of 16 is needed", operation, what,
          address % 16);
}

Memory memory_of(const cuda::PackedWeight& w) {
    return {w.data, gpu_weight_bytes(w.n, w.k)};
}

void check_packed(const char* operation, const cuda::PackedWeight& w) {
    check_product_size(operation, w.n, w.k);
    check(w.data != nullptr || w.n == 0, usage,
          "{}: the packed weight [{}, {}] is null; {} bytes of device memory are needed", operation, w.n, w.k,
          gpu_weight_bytes(w.n, w.k));
    check_aligned_to_16(operation, "the packed weight", w.data);
}

// What a product writes, against all that it reads.
template <typename Args>
void check_apart_from_inputs(const char* operation, const char* what, const Memory& written,
                             const Args& args) {
    const auto check_one = [&](const char* name, const Memory& memory) {
        check_apart(operation, what, written, name, memory);
    };
    check_one("the packed weight", memory_of(args.w));
    check_one("column_decode", {args.column_decode, 4 * args.d.cols});
    check_one("bias", {args.bias, args.d.cols * int64_t(size_of(args.bias_type))});
    if constexpr (std::is_same_v<Args, cuda::MatmulW4A16Args>) {
        check_one("x", Memory(args.x));
    } else {
        check_one("row_decode", {args.row_decode, 4 * (args.row_decode_per_row ? args.d.rows : 1)});
        if (args.encode_scale != nullptr) {
            check_one("x", Memory(args.x));
            check_one("encode_scale", {args.encode_scale, 4 * (args.encode_scale_per_row ? args.d.rows : 1)});
        } else {
            check_one("codes", {args.a.codes, args.a.shape.code_bytes()});
            check_one("block_scales", {args.a.block_scales, args.a.shape.scale_bytes()});
        }
    }
}

template <typename Args>
void check_scratch(const char* operation, const Args& args, const Memory& scratch) {
    check_apart(operation, "the scratch", scratch, "d", Memory(args.d));
    check_apart_from_inputs(operation, "the scratch", scratch, args);
}

// What both products have; k: of the activations.
template <typename Args>
void check_gpu_product(const char* operation, const Args& args, int64_t rows, int64_t k) {
    constexpr int64_t most_rows = 65536;
    check_packed(operation, args.w);
    check(args.w.k == k, usage, "{}: activations have K = {}, the weight has K = {}", operation, k, args.w.k);
    check(args.w.n == args.d.cols, usage, "{}: the output has {} columns, the weight has N = {}", operation,
          args.d.cols, args.w.n);
    check_output(operation, args.d, rows, args.column_decode, args.bias_type);
    check(rows <= most_rows, ErrorKind::unsupported,
          "{}: the activations have {} rows; at most {} are possible: split them", operation, rows,
          most_rows);
    check_aligned(operation, "d", args.d);
    check_aligned(operation, "column_decode", args.column_decode, DType::f32);
    check_aligned(operation, "bias", args.bias, args.bias_type);
    check_apart_from_inputs(operation, "d", Memory(args.d), args);
}

void check_accumulation(const char* operation, Accumulation accumulation) {
    check(accumulation == Accumulation::contract || accumulation == Accumulation::tensor_core ||
              accumulation == Accumulation::library,
          usage, "{}: accumulation = {}; contract (0), tensor_core (1) and library (2) are possible",
          operation, int(accumulation));
}

}  // namespace

void check_gpu_arguments(const cuda::PackWeightArgs& args) {
    const char* operation = "pack_weight";
    check(args.part_count >= 1 && args.part_count <= args.most_parts, usage,
          "{}: part_count = {}; 1 to {} are possible", operation, args.part_count, args.most_parts);
    int64_t n = 0;
    for (int i = 0; i < args.part_count; i++) {
        const NvFp4View& part = args.parts[i];
        check_view(operation, fmt::format("parts[{}]", i).c_str(), part);
        check(part.shape.k == args.parts[0].shape.k, usage,
              "{}: parts[{}] has K = {}, parts[0] has K = {}; one K is needed", operation, i, part.shape.k,
              args.parts[0].shape.k);
        check_gpu_size(operation, part.shape.padded_rows, part.shape.padded_k);
        n += part.shape.rows;
    }
    const cuda::PackedWeight packed = {args.packed, n, args.parts[0].shape.k};
    check_packed(operation, packed);
    for (int i = 0; i < args.part_count; i++) {
        const auto& [codes, block_scales, shape] = args.parts[i];
        check_apart(operation, "packed", memory_of(packed), "codes", {codes, shape.code_bytes()});
        check_apart(operation, "packed", memory_of(packed), "block_scales",
                    {block_scales, shape.scale_bytes()});
    }
}

void check_gpu_arguments(const cuda::UnpackWeightArgs& args) {
    const char* operation = "unpack_weight";
    check_packed(operation, args.w);
    const NvFp4Shape shape = NvFp4Shape::of(args.w.n, args.w.k);
    check((args.codes != nullptr && args.block_scales != nullptr) || shape.code_bytes() == 0, usage,
          "{}: no memory for codes or block scales of [{}, {}]", operation, args.w.n, args.w.k);
    const Memory codes(args.codes, shape.code_bytes()), scales(args.block_scales, shape.scale_bytes());
    check_apart(operation, "codes", codes, "the packed weight", memory_of(args.w));
    check_apart(operation, "block_scales", scales, "the packed weight", memory_of(args.w));
    check_apart(operation, "codes", codes, "block_scales", scales);
}

void check_gpu_arguments(const cuda::MatmulW4A4Args& args) {
    const char* operation = "matmul_w4a4";
    const bool quantises = args.encode_scale != nullptr;
    check(!quantises || args.a.codes == nullptr, usage,
          "{}: a has codes and encode_scale is given; give a, or x with encode_scale", operation);
    check(quantises || args.x.data == nullptr, usage,
          "{}: x has data without encode_scale; give x with encode_scale, or a", operation);
    if (quantises) {
        check_matrix(operation, "x", args.x);
        check_aligned(operation, "x", args.x);
        check_aligned(operation, "encode_scale", args.encode_scale, DType::f32);
    } else {
        check_view(operation, "a", args.a);
        check_gpu_size(operation, args.a.shape.padded_rows, args.a.shape.padded_k);
        check(!args.encode_scale_per_row, usage,
              "{}: encode_scale_per_row is given without encode_scale; it belongs to x", operation);
    }
    const NvFp4Shape& shape = args.a.shape;
    check_gpu_product(operation, args, quantises ? args.x.rows : shape.rows,
                      quantises ? args.x.cols : shape.k);
    check(args.row_decode != nullptr || !args.row_decode_per_row, usage,
          "{}: row_decode_per_row is given without row_decode", operation);
    check_aligned(operation, "row_decode", args.row_decode, DType::f32);
    check_accumulation(operation, args.accumulation);
}

void check_gpu_arguments(const cuda::MatmulW4A16Args& args) {
    const char* operation = "matmul_w4a16";
    check(args.x.type == DType::bf16 || args.x.type == DType::f16, usage,
          "{}: x has type {}; BF16 and F16 are possible on a GPU", operation, name_of(args.x.type));
    check_matrix(operation, "x", args.x);
    check_aligned(operation, "x", args.x);
    check_gpu_product(operation, args, args.x.rows, args.x.cols);
    check_accumulation(operation, args.accumulation);
}

void check_scratch_is_apart(const char* operation, const cuda::MatmulW4A4Args& args, const void* scratch,
                            int64_t bytes) {
    check_scratch(operation, args, {scratch, bytes});
}
void check_scratch_is_apart(const char* operation, const cuda::MatmulW4A16Args& args, const void* scratch,
                            int64_t bytes) {
    check_scratch(operation, args, {scratch, bytes});
}

}  // namespace halfbyte
