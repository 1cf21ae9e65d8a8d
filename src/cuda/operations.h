// The kernels that the files of this folder define; library.cpp puts them into the lists of the operations.
#pragma once

#include "cuda/kernels.h"

namespace halfbyte::cuda {
namespace kernel {

extern const Kernel<QuantizeArgs> quantize, quantize_dynamic;
extern const Kernel<SiluMulQuantizeArgs> silu_mul_quantize, silu_mul_quantize_dynamic;
extern const Kernel<RmsNormQuantizeArgs> rms_norm_quantize, rms_norm_quantize_dynamic;
extern const Kernel<TransformQuantizeArgs> hadamard_quantize, hadamard_quantize_dynamic, matrix_quantize,
    matrix_quantize_dynamic, matrix_quantize_tensor_core, matrix_quantize_tensor_core_dynamic;
extern const Kernel<TransformArgs> hadamard, matrix, matrix_tensor_core;
extern const Kernel<FakeQuantizeArgs> fake_quantize;
extern const Kernel<DequantizeArgs> dequantize;
extern const Kernel<ConvertScalesArgs> convert_scales;
extern const Kernel<AmaxArgs> amax;
extern const Kernel<MxFp4QuantizeArgs> mxfp4_quantize;
extern const Kernel<MxFp4DequantizeArgs> mxfp4_dequantize;
extern const Kernel<PackWeightArgs> pack_weight;
extern const Kernel<UnpackWeightArgs> unpack_weight;
extern const Kernel<MatmulW4A4Args> matmul_w4a4_decode, matmul_w4a4_prefill, matmul_w4a4_prefill_expanded,
    matmul_w4a4_prefill_tensor_core, cublaslt_nvfp4;
extern const Kernel<MatmulW4A16Args> matmul_w4a16_decode, matmul_w4a16_prefill, cublaslt_dequantised;

}  // namespace kernel

// unpack_weight with the scales in any layout; bytes of tile padding are left.
void launch_unpack_weight(const UnpackWeightArgs& args, ScaleLayout layout, const Launch& launch);
void launch_count_bad_scales(Stream stream, const float* scales, int64_t count, int32_t* bad);

}  // namespace halfbyte::cuda
