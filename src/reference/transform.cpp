// y = round_T(fl(c * x T)), block after block of n elements: Hadamard by butterflies, any other T by fma in
// order of k. Accumulation::tensor_core has no bits of its own here: the result is the contract's for it too.
#include <cmath>
#include <vector>

#include "core/element.h"
#include "reference/reference.h"
#include "transform/hadamard.h"

namespace halfbyte::reference {

// x' before the scale, n values.
static std::vector<float> times_matrix(const BlockTransform& t, std::vector<float> x) {
    if (t.matrix == nullptr) {
        for (int64_t k = 0; t.signs != nullptr && k < t.n; k++) x[size_t(k)] *= t.signs[k];
        hadamard_butterfly(x.data(), int(t.n));
        return x;
    }
    std::vector<float> sums(size_t(t.n), 0.0f);
    for (int64_t j = 0; j < t.n; j++)
        for (int64_t k = 0; k < t.n; k++)
            sums[size_t(j)] =
                std::fma(x[size_t(k)], load_element(t.matrix, t.matrix_type, k * t.n + j), sums[size_t(j)]);
    return sums;
}

void transform(const TransformArgs& args) {
    const int64_t n = args.transform.n;
    for (int64_t row = 0; row < args.x.rows; row++) {
        for (int64_t first = 0; first < args.x.cols; first += n) {
            std::vector<float> x;
            for (int64_t k = first; k < first + n; k++)
                x.push_back(load_element(args.x.data, args.x.type, row * args.x.stride + k));
            x = times_matrix(args.transform, x);
            for (int64_t j = 0; j < n; j++)
                store_element(args.y.data, args.y.type, row * args.y.stride + first + j,
                              args.transform.scale * x[size_t(j)]);
        }
    }
}

}  // namespace halfbyte::reference
