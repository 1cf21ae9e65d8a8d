// y = round_T(fl((code * SF) * fl(1 / G))): the quantiser, then the dequantiser.
#include <vector>

#include "reference/reference.h"

namespace halfbyte::reference {

void fake_quantize(const FakeQuantizeArgs& args) {
    const NvFp4Shape shape = NvFp4Shape::of(args.x.rows, args.x.cols);
    std::vector<uint8_t> codes(size_t(shape.code_bytes())), block_scales(size_t(shape.scale_bytes()));
    quantize({.x = args.x,
              .encode_scale = args.encode_scale,
              .scale_per_row = args.scale_per_row,
              .shape = shape,
              .codes = codes.data(),
              .block_scales = block_scales.data()});
    std::vector<float> D;
    for (int64_t row = 0; row < shape.rows; row++)
        D.push_back(1.0f / args.encode_scale[args.scale_per_row ? row : 0]);
    dequantize({.a = {codes.data(), block_scales.data(), shape},
                .decode_scale = D.data(),
                .scale_per_row = true,
                .y = args.y});
}

}  // namespace halfbyte::reference
