// One problem of an operation: its memory, and its arguments for wherever that memory has been copied to.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "cuda/cases.h"
#include "cuda/image.h"
#include "cuda/kernels.h"

namespace halfbyte::conformance {

template <typename Args>
struct Problem {
    Image image;
    std::function<Args(uint8_t* image)> args;
    int64_t workspace_bytes = 0, scratch_bytes = 0;
};

Problem<QuantizeArgs> make_quantize(const Case& c);
Problem<SiluMulQuantizeArgs> make_silu_mul_quantize(const Case& c);
Problem<RmsNormQuantizeArgs> make_rms_norm_quantize(const Case& c);
Problem<TransformQuantizeArgs> make_transform_quantize(const Case& c);
Problem<TransformArgs> make_transform(const Case& c);
Problem<FakeQuantizeArgs> make_fake_quantize(const Case& c);
Problem<DequantizeArgs> make_dequantize(const Case& c);
Problem<ConvertScalesArgs> make_convert_scales(const Case& c);
Problem<AmaxArgs> make_amax(const Case& c);
Problem<MxFp4QuantizeArgs> make_mxfp4_quantize(const Case& c);
Problem<MxFp4DequantizeArgs> make_mxfp4_dequantize(const Case& c);
Problem<cuda::PackWeightArgs> make_pack_weight(const Case& c);
Problem<cuda::UnpackWeightArgs> make_unpack_weight(const Case& c);
// c.type is that of x, c.other_type that of d; c.layout and the padding are those of a.
Problem<cuda::MatmulW4A4Args> make_matmul_w4a4(const Case& c);
Problem<cuda::MatmulW4A16Args> make_matmul_w4a16(const Case& c);

template <typename Args>
struct Operation {
    std::string_view name;
    cuda::KernelList<Args> kernels;
    void (*reference)(const Args&);
    Problem<Args> (*make)(const Case&);
};

}  // namespace halfbyte::conformance
