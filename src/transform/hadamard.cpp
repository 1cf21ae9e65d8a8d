#include "transform/hadamard.h"

namespace halfbyte {

std::optional<std::vector<float>> sylvester_signs(const float* T, int64_t n) {
    if (n < 1 || !std::has_single_bit(uint64_t(n))) return {};
    std::vector<float> signs;
    for (int64_t k = 0; k < n; k++) {
        const float sign = T[k * n];  // S_k0 = 1
        if (sign != 1.0f && sign != -1.0f) return {};
        for (int64_t j = 0; j < n; j++)
            if (T[k * n + j] != sign * sylvester(int(k), int(j))) return {};
        signs.push_back(sign);
    }
    return signs;
}

}  // namespace halfbyte
