// The checks of the operations' arguments, the same for every backend. Each throws Error (usage) that says
// which argument of which operation, what was given and what is needed. Values behind pointers are not read.
#pragma once

#include "halfbyte/cuda.h"
#include "halfbyte/operations.h"

namespace halfbyte {

void check_arguments(const QuantizeArgs& args);
void check_arguments(const DequantizeArgs& args);
void check_arguments(const FakeQuantizeArgs& args);
void check_arguments(const ConvertScalesArgs& args);
void check_arguments(const AmaxArgs& args);
void check_arguments(const MxFp4QuantizeArgs& args);
void check_arguments(const MxFp4DequantizeArgs& args);
void check_arguments(const TransformArgs& args);
void check_arguments(const TransformQuantizeArgs& args);
void check_arguments(const SiluMulQuantizeArgs& args);
void check_arguments(const RmsNormQuantizeArgs& args);
void check_arguments(const MatmulW4A4Args& args);
void check_arguments(const MatmulW4A16Args& args);
void check_arguments(const MatmulW8A16Args& args);
void check_arguments(const MatmulDenseArgs& args);
void check_arguments(const RmsNormArgs& args);
void check_arguments(const SiluMulArgs& args);
void check_arguments(const SoftmaxArgs& args);
void check_arguments(const RopeArgs& args);
void check_arguments(const AttentionArgs& args);
void check_view(const char* operation, const char* what, const NvFp4View& view);

// The same and what the GPU's kernels need besides: pointers aligned to their element; no counting and the
// contract's rounding only, else Error (unsupported); transforms of 16, 32, 64 or 128.
void check_gpu_arguments(const QuantizeArgs& args);
void check_gpu_arguments(const DequantizeArgs& args);
void check_gpu_arguments(const FakeQuantizeArgs& args);
void check_gpu_arguments(const ConvertScalesArgs& args);
void check_gpu_arguments(const AmaxArgs& args);
void check_gpu_arguments(const MxFp4QuantizeArgs& args);
void check_gpu_arguments(const MxFp4DequantizeArgs& args);
void check_gpu_arguments(const TransformArgs& args);
void check_gpu_arguments(const TransformQuantizeArgs& args);
void check_gpu_arguments(const SiluMulQuantizeArgs& args);
void check_gpu_arguments(const RmsNormQuantizeArgs& args);
void check_gpu_arguments(const cuda::PackWeightArgs& args);
void check_gpu_arguments(const cuda::UnpackWeightArgs& args);
void check_gpu_arguments(const cuda::MatmulW4A4Args& args);
void check_gpu_arguments(const cuda::MatmulW4A16Args& args);
// Launch::scratch against all that a product reads and writes.
void check_scratch_is_apart(const char* operation, const cuda::MatmulW4A4Args& args, const void* scratch,
                            int64_t bytes);
void check_scratch_is_apart(const char* operation, const cuda::MatmulW4A16Args& args, const void* scratch,
                            int64_t bytes);

}  // namespace halfbyte
