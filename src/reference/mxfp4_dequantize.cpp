// y = round_T(code * 2^(byte - 127)); FP32 holds the product, but for the infinity of codes from 2 on at byte
// 254.
#include "core/element.h"
#include "format/e2m1.h"
#include "format/e8m0.h"
#include "format/scale_layout.h"
#include "reference/reference.h"

namespace halfbyte::reference {

void mxfp4_dequantize(const MxFp4DequantizeArgs& args) {
    const MxFp4Shape& shape = args.shape;
    for (int64_t row = 0; row < shape.rows; row++) {
        for (int64_t k = 0; k < shape.k; k++) {
            const uint8_t pair = args.codes[row * (shape.padded_k / 2) + k / 2];
            const float value = decode_e2m1(uint8_t(pair >> (k % 2 * 4)));
            const float scale = decode_e8m0(
                args.block_scales[scale_offset(shape.layout, row, k / 32, shape.padded_blocks())]);
            store_element(args.y.data, args.y.type, row * args.y.stride + k, value * scale);
        }
    }
}

}  // namespace halfbyte::reference
