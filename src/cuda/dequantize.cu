// y [rows, k] = round_T(fl((code * SF) * D)) from NVFP4 codes and block scales in any layout. 2.5625 bytes a
// BF16 value.
#include "cuda/device/code_source.cuh"
#include "cuda/operations.h"

namespace halfbyte::cuda {
namespace {

void launch_dequantize(const DequantizeArgs& args, const Launch& launch, const DeviceInfo&) {
    launch_elements(code_source_of(args.a, EncodeScales{args.decode_scale, args.scale_per_row}), args.y,
                    launch);
}

}  // namespace

const Kernel<DequantizeArgs> kernel::dequantize = {"dequantize", no_reason<DequantizeArgs>,
                                                   launch_dequantize};

}  // namespace halfbyte::cuda
