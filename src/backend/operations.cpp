// The door: every operation's arguments are checked here, once, and handed to the kernels of the context's
// level.
#include <algorithm>
#include <memory>
#include <vector>

#include "backend/checks.h"
#include "backend/context_state.h"
#include "core/check.h"
#include "core/float_environment.h"
#include "cpu/fused_quantize.h"
#include "cpu/kernels.h"
#include "cpu/packed_weight.h"
#include "halfbyte/context.h"
#include "reference/reference.h"

namespace halfbyte {
namespace {

// amax of each row, the rows shared out.
void find_row_amax(ThreadPool& pool, const ConstMatrix& x, float* row_amax) {
    pool.parallel_for(x.rows, 16, [&](int64_t begin, int64_t end) {
        ConstMatrix rows = x;
        rows.rows = end - begin;
        rows.data = static_cast<const char*>(rows.data) + begin * rows.stride * int64_t(size_of(rows.type));
        reference::amax({.x = rows, .per_row = true, .amax = row_amax + begin});
    });
}

// Quantising's dynamic scales; the amax of all is that of the rows' own.
void write_dynamic_scales(const std::vector<float>& row_amax, const QuantizeArgs& args) {
    const FloatEnvironment environment;
    const ConstMatrix all = {row_amax.data(), DType::f32, int64_t(row_amax.size()), 1, 1};
    reference::amax({.x = all,
                     .per_row = args.scale_per_row,
                     .encode_scale = args.dynamic_encode_scale,
                     .decode_scale = args.dynamic_decode_scale});
}

void check_contract_arithmetic(const char* operation, const BlockTransform& transform) {
    check(transform.accumulation == Accumulation::contract, ErrorKind::unsupported,
          "{}: transform.accumulation is tensor_core, the arithmetic of a GPU's matrix unit; on the CPU "
          "contract is "
          "needed",
          operation);
}

const cpu::Kernels& kernels(const Context& context) {
    return *context.state().kernels;
}

}  // namespace

void quantize(const Context& context, const QuantizeArgs& args) {
    check_arguments(args);
    QuantizeArgs with_scale = args;
    if (args.dynamic_encode_scale != nullptr) {
        std::vector<float> row_amax(size_t(args.x.rows));
        find_row_amax(pool_of(context), args.x, row_amax.data());
        write_dynamic_scales(row_amax, args);
        with_scale.encode_scale = args.dynamic_encode_scale;
    }
    kernels(context).quantize(pool_of(context), with_scale);
}

void dequantize(const Context& context, const DequantizeArgs& args) {
    check_arguments(args);
    kernels(context).dequantize(pool_of(context), args);
}

void transform(const Context& context, const TransformArgs& args) {
    check_arguments(args);
    check_contract_arithmetic("transform", args.transform);
    kernels(context).transform(pool_of(context), args);
}

// x' in parts of some rows, 4 MiB of FP32. A dynamic scale needs all of x' first: unless one part is all, x'
// is made twice.
void transform_quantize(const Context& context, const TransformQuantizeArgs& args) {
    check_arguments(args);
    check_contract_arithmetic("transform_quantize", args.transform);
    ThreadPool& pool = pool_of(context);
    const int64_t rows = args.x.rows, k = args.x.cols;
    const int64_t part =
        std::clamp<int64_t>((1 << 20) / std::max<int64_t>(1, k), 1, std::max<int64_t>(1, rows));
    const auto buffer = std::make_unique_for_overwrite<float[]>(size_t(part * k));
    const auto transformed = [&](int64_t first) {
        ConstMatrix x = args.x;
        x.rows = std::min(part, rows - first);
        x.data = static_cast<const char*>(x.data) + first * x.stride * int64_t(size_of(x.type));
        const Matrix y = {buffer.get(), DType::f32, x.rows, k, k};
        kernels(context).transform(pool, {.x = x, .transform = args.transform, .y = y});
        return ConstMatrix{y.data, y.type, y.rows, y.cols, y.stride};
    };

    QuantizeArgs with_scale = args.quantize;
    if (with_scale.dynamic_encode_scale != nullptr) {
        std::vector<float> row_amax(static_cast<size_t>(rows));
        for (int64_t first = 0; first < rows; first += part)
            find_row_amax(pool, transformed(first), row_amax.data() + first);
        write_dynamic_scales(row_amax, args.quantize);
        with_scale.encode_scale = with_scale.dynamic_encode_scale;
    }
    cpu::clear_padding_rows(with_scale);
    for (int64_t first = 0; first < rows; first += part) {
        const bool made = part == rows && args.quantize.dynamic_encode_scale != nullptr;
        with_scale.x = made ? ConstMatrix{buffer.get(), DType::f32, rows, k, k} : transformed(first);
        kernels(context).quantize_rows(pool, with_scale, first);
    }
}

void silu_mul_quantize(const Context& context, const SiluMulQuantizeArgs& args) {
    check_arguments(args);
    cpu::silu_mul_quantize(kernels(context), pool_of(context), args);
}

void rms_norm_quantize(const Context& context, const RmsNormQuantizeArgs& args) {
    check_arguments(args);
    cpu::rms_norm_quantize(kernels(context), pool_of(context), args);
}

PackedWeight pack_weight(const Context& context, const NvFp4View& w) {
    return pack_weight(context, {&w, 1});
}

PackedWeight pack_weight(const Context& context, std::span<const NvFp4View> parts) {
    for (const NvFp4View& part : parts) {
        check_view("pack_weight", "w", part);
        check(
            part.shape.k == parts[0].shape.k, ErrorKind::usage,
            "pack_weight: part {} has K = {}, the first one has K = {}; parts that share an input are needed",
            &part - parts.data(), part.shape.k, parts[0].shape.k);
    }
    return cpu::pack_weight(pool_of(context), parts);
}

void matmul_w4a4(const Context& context, const MatmulW4A4Args& args) {
    check_arguments(args);
    kernels(context).matmul_w4a4(pool_of(context), args);
}

void matmul_w4a16(const Context& context, const MatmulW4A16Args& args) {
    check_arguments(args);
    kernels(context).matmul_w4a16(pool_of(context), args);
}

void matmul_w8a16(const Context& context, const MatmulW8A16Args& args) {
    check_arguments(args);
    kernels(context).matmul_w8a16(pool_of(context), args);
}

void matmul_dense(const Context& context, const MatmulDenseArgs& args) {
    check_arguments(args);
    kernels(context).matmul_dense(pool_of(context), args);
}

void rms_norm(const Context& context, const RmsNormArgs& args) {
    check_arguments(args);
    kernels(context).rms_norm(pool_of(context), args);
}

void silu_mul(const Context& context, const SiluMulArgs& args) {
    check_arguments(args);
    kernels(context).silu_mul(pool_of(context), args);
}

void softmax(const Context& context, const SoftmaxArgs& args) {
    check_arguments(args);
    kernels(context).softmax(pool_of(context), args);
}

void rope(const Context& context, const RopeArgs& args) {
    check_arguments(args);
    kernels(context).rope(pool_of(context), args);
}

void attention(const Context& context, const AttentionArgs& args) {
    check_arguments(args);
    kernels(context).attention(pool_of(context), args);
}

}  // namespace halfbyte
