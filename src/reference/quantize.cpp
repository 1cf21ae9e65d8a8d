// codes, block_scales = NVFP4(x): blocks of 16 along K, padding written as zero. Dynamic scales are found
// first and then used like given ones.
#include <cmath>
#include <cstring>

#include "core/element.h"
#include "format/nvfp4_block.h"
#include "format/scale_layout.h"
#include "reference/reference.h"

namespace halfbyte::reference {

void quantize(const QuantizeArgs& args) {
    const NvFp4Shape& shape = args.shape;
    const float* encode_scale = args.encode_scale;
    if (encode_scale == nullptr) {
        amax({.x = args.x,
              .per_row = args.scale_per_row,
              .encode_scale = args.dynamic_encode_scale,
              .decode_scale = args.dynamic_decode_scale});
        encode_scale = args.dynamic_encode_scale;
    }
    if (shape.code_bytes() > 0) std::memset(args.codes, 0, size_t(shape.code_bytes()));
    if (shape.scale_bytes() > 0) std::memset(args.block_scales, 0, size_t(shape.scale_bytes()));
    for (int64_t row = 0; row < shape.rows; row++) {
        const float G = encode_scale[args.scale_per_row ? row : 0];
        for (int64_t block = 0; block < shape.blocks(); block++) {
            const int64_t present = std::min<int64_t>(16, shape.k - block * 16);
            float values[16] = {};
            for (int64_t i = 0; i < present; i++)
                values[i] = load_element(args.x.data, args.x.type, row * args.x.stride + block * 16 + i);
            uint8_t codes[16];
            const uint8_t scale = quantize_nvfp4_block(values, G, args.rounding, codes, args.stats);
            args.block_scales[scale_offset(shape.layout, row, block, shape.padded_blocks())] = scale;
            for (int64_t i = 0; i < present; i++)
                args.codes[row * (shape.padded_k / 2) + (block * 16 + i) / 2] |=
                    uint8_t(codes[i] << (i % 2 * 4));
        }
    }
    if (args.stats != nullptr) args.stats->values += shape.rows * shape.k;
}

}  // namespace halfbyte::reference
