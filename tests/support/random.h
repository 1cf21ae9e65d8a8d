// Seeded numbers: the same in every run.
#pragma once

#include <bit>
#include <cstdint>
#include <random>

namespace halfbyte::test {

class Random {
  public:
    explicit Random(uint64_t seed) : engine_(seed) {}
    uint32_t bits() { return uint32_t(engine_() >> 32); }
    int64_t below(int64_t limit) { return int64_t(engine_() % uint64_t(limit)); }
    float uniform(float low, float high) { return low + (high - low) * (float(bits() >> 8) * 0x1p-24f); }
    float normal() { return float(normal_(engine_)); }

  private:
    std::mt19937_64 engine_;
    std::normal_distribution<double> normal_;
};

}  // namespace halfbyte::test
