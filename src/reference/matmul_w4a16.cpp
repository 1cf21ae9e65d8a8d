// The W4A16 product: sum32 over K of x * (code * SF), then the weight's decode scale of the column.
#include "core/element.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/packed_weight.h"
#include "reference/reference.h"
#include "reference/sum32.h"

namespace halfbyte::reference {

void matmul_w4a16(const MatmulW4A16Args& args) {
    for (int64_t m = 0; m < args.d.rows; m++) {
        for (int64_t n = 0; n < args.d.cols; n++) {
            Sum32 sum;
            for (int64_t k = 0; k < args.x.cols; k++) {
                const float SF = decode_e4m3(packed_scale(*args.w, n, k / 16));
                sum.add_product(k, load_element(args.x.data, args.x.type, m * args.x.stride + k),
                                decode_e2m1(packed_code(*args.w, n, k)) * SF);
            }
            float d = sum.total() * args.column_decode[n];
            if (args.bias != nullptr) d += load_element(args.bias, args.bias_type, n);
            store_element(args.d.data, args.d.type, m * args.d.stride + n, d);
        }
    }
}

}  // namespace halfbyte::reference
