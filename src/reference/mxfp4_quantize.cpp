// codes, block_scales = MXFP4(x): blocks of 32 along K, padding written as zero.
#include <algorithm>
#include <cstring>

#include "core/element.h"
#include "format/mxfp4_block.h"
#include "format/scale_layout.h"
#include "reference/reference.h"

namespace halfbyte::reference {

void mxfp4_quantize(const MxFp4QuantizeArgs& args) {
    const MxFp4Shape& shape = args.shape;
    if (shape.code_bytes() > 0) std::memset(args.codes, 0, size_t(shape.code_bytes()));
    if (shape.scale_bytes() > 0) std::memset(args.block_scales, 0, size_t(shape.scale_bytes()));
    for (int64_t row = 0; row < shape.rows; row++) {
        for (int64_t block = 0; block < shape.blocks(); block++) {
            const int64_t present = std::min<int64_t>(32, shape.k - block * 32);
            float values[32] = {};
            for (int64_t i = 0; i < present; i++)
                values[i] = load_element(args.x.data, args.x.type, row * args.x.stride + block * 32 + i);
            uint8_t codes[32];
            args.block_scales[scale_offset(shape.layout, row, block, shape.padded_blocks())] =
                quantize_mxfp4_block(values, codes);
            for (int64_t i = 0; i < present; i++)
                args.codes[row * (shape.padded_k / 2) + (block * 32 + i) / 2] |=
                    uint8_t(codes[i] << (i % 2 * 4));
        }
    }
}

}  // namespace halfbyte::reference
