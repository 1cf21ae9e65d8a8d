// y = round_T(fl((code * SF) * D)); code * SF is exact.
#include "core/element.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/scale_layout.h"
#include "reference/reference.h"

namespace halfbyte::reference {

void dequantize(const DequantizeArgs& args) {
    const NvFp4Shape& shape = args.a.shape;
    for (int64_t row = 0; row < shape.rows; row++) {
        const float D = args.decode_scale[args.scale_per_row ? row : 0];
        for (int64_t k = 0; k < shape.k; k++) {
            const uint8_t pair = args.a.codes[row * (shape.padded_k / 2) + k / 2];
            const float value = decode_e2m1(uint8_t(pair >> (k % 2 * 4)));
            const float SF = decode_e4m3(
                args.a.block_scales[scale_offset(shape.layout, row, k / 16, shape.padded_blocks())]);
            store_element(args.y.data, args.y.type, row * args.y.stride + k, value * SF * D);
        }
    }
}

}  // namespace halfbyte::reference
