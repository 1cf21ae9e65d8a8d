// sum32 written the other way round than in src/reference/sum32.h: each lane on its own, then the tree by
// recursion.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace halfbyte::test {

// The sum of a[i] * b[i] over the lanes first, first + step, ... ; lanes are 32 apart. b = 1 makes a fma an
// addition.
inline float sum32_of(const std::vector<float>& a, const std::vector<float>& b, size_t first = 0,
                      size_t step = 1) {
    if (step < 32) return sum32_of(a, b, first, step * 2) + sum32_of(a, b, first + step, step * 2);
    float lane = 0;
    for (size_t i = first; i < a.size(); i += 32) lane = std::fma(a[i], b[i], lane);
    return lane;
}

inline float sum32_of(const std::vector<float>& a) {
    return sum32_of(a, std::vector<float>(a.size(), 1.0f));
}

}  // namespace halfbyte::test
