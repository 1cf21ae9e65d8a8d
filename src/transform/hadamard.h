// Sylvester's Hadamard matrices S of order n = 1, 2, 4, 8, ..., S_ij = (-1)^popcount(i & j), and the block
// transform x' = x T of T = diag(signs) S: the signs first, then the butterfly, then the scale.
// Source: Sylvester 1867.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/host_device.h"

namespace halfbyte {

HALFBYTE_HOST_DEVICE constexpr float sylvester(int i, int j) {
    int odd = 0;  // the parity of popcount(i & j)
    for (unsigned common = unsigned(i & j); common != 0; common &= common - 1) odd ^= 1;
    return odd ? -1.0f : 1.0f;
}

// values S in place, n log2(n) additions: the pair (a, b) at (i, i + h) becomes (fl(a + b), fl(a - b)).
HALFBYTE_HOST_DEVICE constexpr void hadamard_butterfly(float* values, int n) {
    for (int h = 1; h < n; h *= 2) {
        for (int i = 0; i < n; i++) {
            if (i & h) continue;
            const float a = values[i], b = values[i + h];
            values[i] = a + b;
            values[i + h] = a - b;
        }
    }
}

// fl(1 / sqrt(n)), n a power of two: a power of two, times fl(1 / sqrt(2)) if n is not one of 4.
HALFBYTE_HOST_DEVICE constexpr float hadamard_scale(int n) {
    float scale = 1.0f;
    for (; n >= 4; n /= 4) scale *= 0.5f;
    return n == 2 ? scale * 0x1.6a09e6p-1f : scale;
}

// The signs if T [n, n], T_kj at k * n + j, is diag(signs) S with signs of +-1; nothing if it is any other
// matrix. Then the butterfly computes x T; else every product is formed (halfbyte/operations.h).
std::optional<std::vector<float>> sylvester_signs(const float* T, int64_t n);

}  // namespace halfbyte
