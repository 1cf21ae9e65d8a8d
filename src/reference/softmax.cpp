#include <limits>

#include "core/element.h"
#include "reference/exp.h"
#include "reference/reference.h"
#include "reference/sum32.h"

namespace halfbyte::reference {

void softmax(const SoftmaxArgs& args) {
    for (int64_t row = 0; row < args.x.rows; row++) {
        const float* x = static_cast<const float*>(args.x.data) + row * args.x.stride;
        float* y = static_cast<float*>(args.y.data) + row * args.y.stride;
        float largest = -std::numeric_limits<float>::infinity();  // a NaN is never the largest
        for (int64_t k = 0; k < args.x.cols; k++)
            if (x[k] > largest) largest = x[k];
        Sum32 sum;
        for (int64_t k = 0; k < args.x.cols; k++) {
            y[k] = exp(x[k] - largest);
            sum.add(k, y[k]);
        }
        const float total = sum.total();
        for (int64_t k = 0; k < args.x.cols; k++) y[k] /= total;
    }
}

}  // namespace halfbyte::reference
