// The product with unquantised weights: sum32 over K of x * w.
#include "core/element.h"
#include "reference/reference.h"
#include "reference/sum32.h"

namespace halfbyte::reference {

void matmul_dense(const MatmulDenseArgs& args) {
    for (int64_t m = 0; m < args.d.rows; m++) {
        for (int64_t n = 0; n < args.d.cols; n++) {
            Sum32 sum;
            for (int64_t k = 0; k < args.x.cols; k++)
                sum.add_product(k, load_element(args.x.data, args.x.type, m * args.x.stride + k),
                                load_element(args.w.data, args.w.type, n * args.w.stride + k));
            float d = sum.total();
            if (args.bias != nullptr) d += load_element(args.bias, args.bias_type, n);
            store_element(args.d.data, args.d.type, m * args.d.stride + n, d);
        }
    }
}

}  // namespace halfbyte::reference
