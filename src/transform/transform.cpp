#include "transform/transform.h"

#include <algorithm>
#include <cassert>

#include "transform/hadamard.h"

namespace halfbyte {

BlockTransform Transform::view() const {
    return {.n = n,
            .matrix = matrix.empty() ? nullptr : matrix.data(),
            .matrix_type = DType::f32,
            .signs = signs.empty() ? nullptr : signs.data(),
            .scale = scale};
}

Transform make_transform(std::span<const double> T, int64_t n, double scale) {
    assert(n >= 1 && int64_t(T.size()) == n * n);
    Transform transform{.n = n, .matrix = {}, .signs = {}, .scale = float(scale)};
    transform.matrix.assign(T.size(), 0.0f);
    std::transform(T.begin(), T.end(), transform.matrix.begin(), [](double value) { return float(value); });
    if (auto signs = sylvester_signs(transform.matrix.data(), n)) {
        transform.matrix = {};
        if (std::find(signs->begin(), signs->end(), -1.0f) != signs->end())
            transform.signs = std::move(*signs);
    }
    return transform;
}

}  // namespace halfbyte
