// sum32: the one order in which long sums are added. Element i, an absolute index, goes to lane i mod 32; the
// lanes start at +0 and are added pairwise at distances 16, 8, 4, 2, 1.
#pragma once

#include <cmath>
#include <cstdint>

namespace halfbyte::reference {

class Sum32 {
  public:
    void add(int64_t index, float value) { lanes_[index % 32] += value; }
    void add_product(int64_t index, float a, float b) {
        lanes_[index % 32] = std::fma(a, b, lanes_[index % 32]);
    }

    float total() const {
        float lanes[32];
        for (int i = 0; i < 32; i++) lanes[i] = lanes_[i];
        for (int distance = 16; distance > 0; distance /= 2)
            for (int i = 0; i < distance; i++) lanes[i] += lanes[i + distance];
        return lanes[0];
    }

  private:
    float lanes_[32] = {};
};

}  // namespace halfbyte::reference
