// y [rows, k] = round_T(fl((code * SF) * D)) from NVFP4 codes and block scales in any layout. 2.5625 bytes a
// BF16 value.
#include "cuda/device/elements_kernel.cuh"
#include "cuda/operations.h"

namespace halfbyte::cuda {
namespace {

struct CodeSource {
    static constexpr int blocks = 1;
    using Cursor = Position;
    struct Raw {
        QuantizedBlock block;
        float D;
    };
    const uint8_t* codes;
    const uint8_t* scales;
    uint32_t padded_columns;
    ScaleLayout layout;
    bool aligned;         // codes to 8 bytes
    EncodeScales decode;  // D

    __device__ __forceinline__ Cursor at(uint32_t row, uint32_t column) const { return {row, column}; }
    __device__ __forceinline__ Raw fetch(Cursor at, uint32_t) const {
        return {{load_codes(codes + (uint64_t(at.row) * padded_columns + at.column) * 8, aligned),
                 scales[scale_offset(layout, at.row, at.column, padded_columns)]},
                decode(at.row)};
    }
    __device__ __forceinline__ void make(const Raw& raw, uint32_t, Values (&values)[blocks]) const {
        decode_block(raw.block, raw.D, values[0].value);
    }
};

void launch_dequantize(const DequantizeArgs& args, const Launch& launch, const DeviceInfo&) {
    const NvFp4Shape& shape = args.a.shape;
    launch_elements(CodeSource{args.a.codes,
                               args.a.block_scales,
                               uint32_t(shape.padded_blocks()),
                               shape.layout,
                               is_aligned(args.a.codes, 8),
                               {args.decode_scale, args.scale_per_row}},
                    args.y, launch);
}

}  // namespace

const Kernel<DequantizeArgs> kernel::dequantize = {"dequantize", no_reason<DequantizeArgs>,
                                                   launch_dequantize};

}  // namespace halfbyte::cuda
