// The definition of right: one scalar file per operation, slow and obvious. Every fast path is compared with
// these byte by byte. Arguments are described in halfbyte/operations.h and are trusted here. Call inside a
// FloatEnvironment.
#pragma once

#include <cstdint>

#include "halfbyte/cuda.h"
#include "halfbyte/operations.h"

namespace halfbyte::reference {

void quantize(const QuantizeArgs& args);
void dequantize(const DequantizeArgs& args);
void fake_quantize(const FakeQuantizeArgs& args);
void convert_scales(const ConvertScalesArgs& args);
void amax(const AmaxArgs& args);
void mxfp4_quantize(const MxFp4QuantizeArgs& args);
void mxfp4_dequantize(const MxFp4DequantizeArgs& args);
void transform(const TransformArgs& args);  // Accumulation::contract, whatever args say: the order of sums
void transform_quantize(const TransformQuantizeArgs& args);
void silu_mul_quantize(const SiluMulQuantizeArgs& args);
void rms_norm_quantize(const RmsNormQuantizeArgs& args);
void matmul_w4a4(const MatmulW4A4Args& args);
void matmul_w4a16(const MatmulW4A16Args& args);
void matmul_w8a16(const MatmulW8A16Args& args);
void matmul_dense(const MatmulDenseArgs& args);
void rms_norm(const RmsNormArgs& args);
void silu_mul(const SiluMulArgs& args);
void softmax(const SoftmaxArgs& args);
void rope(const RopeArgs& args);
void attention(const AttentionArgs& args);

// The forms of weights and the products that GPUs have, on memory of the host.
void pack_weight(const cuda::PackWeightArgs& args);
void unpack_weight(const cuda::UnpackWeightArgs& args);
void matmul_w4a4_packed(const cuda::MatmulW4A4Args& args);  // contract

// The sum over K of the products of both operands' code * SF, in units of 2^-20: exact, in any order, for K
// up to 2^20. sums: out [M, N]; magnitudes (may be null): out [M, N], the sum of the magnitudes of the block
// sums.
void exact_product(const NvFp4View& a, const PackedWeight& w, int64_t* sums, int64_t* magnitudes);

// The bound of a W4A4 accumulator against the exact sum: gamma(62 + ceil(K/1024)) times the sum of |block
// sums|, gamma(n) = n u / (1 - n u), u = 2^-24. A chain of 64 additions from +0 rounds 63 times (its first
// addition is exact), joining the chains rounds once less than there are chains.
double accumulator_bound(int64_t k, double magnitudes);

// 1/sqrt(head_dim), rounded once to FP32.
float attention_scale(int64_t head_dim);

}  // namespace halfbyte::reference
