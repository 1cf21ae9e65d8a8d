// The door: every operation's arguments are checked here, once, and handed to the kernels of the context's
// level.
#include "backend/checks.h"
#include "backend/context_state.h"
#include "core/check.h"
#include "cpu/fused_quantize.h"
#include "cpu/kernels.h"
#include "cpu/packed_weight.h"
#include "halfbyte/context.h"

namespace halfbyte {
namespace {

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
    cpu::quantize(kernels(context), pool_of(context), args);
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

void transform_quantize(const Context& context, const TransformQuantizeArgs& args) {
    check_arguments(args);
    check_contract_arithmetic("transform_quantize", args.transform);
    cpu::transform_quantize(kernels(context), pool_of(context), args);
}

void silu_mul_quantize(const Context& context, const SiluMulQuantizeArgs& args) {
    check_arguments(args);
    cpu::silu_mul_quantize(kernels(context), pool_of(context), args);
}

void rms_norm_quantize(const Context& context, const RmsNormQuantizeArgs& args) {
    check_arguments(args);
    cpu::rms_norm_quantize(kernels(context), pool_of(context), args);
}

PackedWeight pack_weight(const Context& context, const NvFp4View& w, std::pmr::memory_resource* memory) {
    return pack_weight(context, {&w, 1}, memory);
}

PackedWeight pack_weight(const Context& context, std::span<const NvFp4View> parts,
                         std::pmr::memory_resource* memory) {
    for (const NvFp4View& part : parts) {
        check_view("pack_weight", "w", part);
        check(
            part.shape.k == parts[0].shape.k, ErrorKind::usage,
            "pack_weight: part {} has K = {}, the first one has K = {}; parts that share an input are needed",
            &part - parts.data(), part.shape.k, parts[0].shape.k);
    }
    return cpu::pack_weight(pool_of(context), parts, memory);
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
