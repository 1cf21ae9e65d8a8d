// The W4A4 product in contract arithmetic: exact block sums, chains of 64 blocks, chains in order.
#include "core/element.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/packed_weight.h"
#include "format/scale_layout.h"
#include "reference/reference.h"

namespace halfbyte::reference {

static constexpr int64_t chain_blocks = 64;

// p = (sum of a * w) * SFa * SFw over one block. Every intermediate value has at most 20 significant bits:
// exact.
static float block_product(const MatmulW4A4Args& args, int64_t m, int64_t n, int64_t block) {
    const NvFp4Shape& shape = args.a.shape;
    float sum = 0;
    for (int64_t k = block * 16; k < std::min(block * 16 + 16, shape.k); k++) {
        const uint8_t pair = args.a.codes[m * (shape.padded_k / 2) + k / 2];
        sum += decode_e2m1(uint8_t(pair >> (k % 2 * 4))) * decode_e2m1(packed_code(*args.w, n, k));
    }
    const float SFa =
        decode_e4m3(args.a.block_scales[scale_offset(shape.layout, m, block, shape.padded_blocks())]);
    return sum * (SFa * decode_e4m3(packed_scale(*args.w, n, block)));
}

void matmul_w4a4(const MatmulW4A4Args& args) {
    const int64_t blocks = args.a.shape.blocks();
    for (int64_t m = 0; m < args.d.rows; m++) {
        for (int64_t n = 0; n < args.d.cols; n++) {
            float accumulator = 0;
            for (int64_t first = 0; first < blocks; first += chain_blocks) {
                float chain = 0;
                for (int64_t block = first; block < std::min(first + chain_blocks, blocks); block++)
                    chain += block_product(args, m, n, block);
                accumulator += chain;
            }
            const float alpha = args.row_decode[args.row_decode_per_row ? m : 0] * args.column_decode[n];
            float d = accumulator * alpha;
            if (args.bias != nullptr) d += load_element(args.bias, args.bias_type, n);
            store_element(args.d.data, args.d.type, m * args.d.stride + n, d);
        }
    }
}

}  // namespace halfbyte::reference
