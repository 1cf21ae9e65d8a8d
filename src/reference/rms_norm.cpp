#include <cmath>

#include "core/element.h"
#include "reference/reference.h"
#include "reference/sum32.h"

namespace halfbyte::reference {

void rms_norm(const RmsNormArgs& args) {
    const int64_t K = args.x.cols;
    for (int64_t row = 0; row < args.x.rows; row++) {
        const auto input = [&](int64_t k) {
            return args.residual.data != nullptr
                       ? load_element(args.residual.data, args.residual.type, row * args.residual.stride + k)
                       : load_element(args.x.data, args.x.type, row * args.x.stride + k);
        };
        if (args.residual.data != nullptr)
            for (int64_t k = 0; k < K; k++)
                store_element(args.residual.data, args.residual.type, row * args.residual.stride + k,
                              load_element(args.x.data, args.x.type, row * args.x.stride + k) + input(k));
        Sum32 squares;
        for (int64_t k = 0; k < K; k++) squares.add_product(k, input(k), input(k));
        const float inverse = 1.0f / std::sqrt(squares.total() / float(K) + args.epsilon);
        for (int64_t k = 0; k < K; k++)
            store_element(args.y.data, args.y.type, row * args.y.stride + k,
                          input(k) * inverse * load_element(args.weight.data, args.weight.type, k));
    }
}

}  // namespace halfbyte::reference
