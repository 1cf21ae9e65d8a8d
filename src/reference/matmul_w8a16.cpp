// The product with E4M3 weights: sum32 over K of x * w, then the decode scale of the column.
#include "core/element.h"
#include "format/e4m3.h"
#include "reference/reference.h"
#include "reference/sum32.h"

namespace halfbyte::reference {

void matmul_w8a16(const MatmulW8A16Args& args) {
    const uint8_t* w = static_cast<const uint8_t*>(args.w.data);
    for (int64_t m = 0; m < args.d.rows; m++) {
        for (int64_t n = 0; n < args.d.cols; n++) {
            Sum32 sum;
            for (int64_t k = 0; k < args.x.cols; k++)
                sum.add_product(k, load_element(args.x.data, args.x.type, m * args.x.stride + k),
                                decode_e4m3(w[n * args.w.stride + k]));
            float d = sum.total() * args.column_decode[n];
            if (args.bias != nullptr) d += load_element(args.bias, args.bias_type, n);
            store_element(args.d.data, args.d.type, m * args.d.stride + n, d);
        }
    }
}

}  // namespace halfbyte::reference
