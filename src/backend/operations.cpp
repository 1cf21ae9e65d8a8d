// The door: every operation's arguments are checked here, once, and handed to the kernels of the context's
// level.
#include "backend/checks.h"
#include "backend/context_state.h"
#include "core/float_environment.h"
#include "cpu/kernels.h"
#include "cpu/packed_weight.h"
#include "halfbyte/context.h"
#include "reference/reference.h"

namespace halfbyte {
namespace {

// Quantising's dynamic scales, the rows shared out; the amax of all is that of the rows' own.
void find_dynamic_scales(ThreadPool& pool, const QuantizeArgs& args) {
    std::vector<float> row_amax(size_t(args.x.rows));
    pool.parallel_for(args.x.rows, 16, [&](int64_t begin, int64_t end) {
        ConstMatrix rows = args.x;
        rows.rows = end - begin;
        rows.data = static_cast<const char*>(rows.data) + begin * rows.stride * int64_t(size_of(rows.type));
        reference::amax({.x = rows, .per_row = true, .amax = row_amax.data() + begin});
    });
    const FloatEnvironment environment;
    const ConstMatrix all = {row_amax.data(), DType::f32, args.x.rows, 1, 1};
    reference::amax({.x = all,
                     .per_row = args.scale_per_row,
                     .encode_scale = args.dynamic_encode_scale,
                     .decode_scale = args.dynamic_decode_scale});
}

const cpu::Kernels& kernels(const Context& context) {
    return *context.state().kernels;
}

}  // namespace

void quantize(const Context& context, const QuantizeArgs& args) {
    check_arguments(args);
    QuantizeArgs with_scale = args;
    if (args.dynamic_encode_scale != nullptr) {
        find_dynamic_scales(pool_of(context), args);
        with_scale.encode_scale = args.dynamic_encode_scale;
    }
    kernels(context).quantize(pool_of(context), with_scale);
}

void dequantize(const Context& context, const DequantizeArgs& args) {
    check_arguments(args);
    kernels(context).dequantize(pool_of(context), args);
}

PackedWeight pack_weight(const Context&, const NvFp4View& w) {
    check_view("pack_weight", "w", w);
    return cpu::pack_weight(w);
}

void matmul_w4a4(const Context& context, const MatmulW4A4Args& args) {
    check_arguments(args);
    kernels(context).matmul_w4a4(pool_of(context), args);
}

void matmul_w4a16(const Context& context, const MatmulW4A16Args& args) {
    check_arguments(args);
    kernels(context).matmul_w4a16(pool_of(context), args);
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
