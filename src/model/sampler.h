// Choosing the next token from logits, in FP64.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace halfbyte::model {

struct SamplerOptions {
    float temperature = 0.0f;  // 0: the largest logit, the lowest id among equals
    int top_k = 0;             // 0: all
    float top_p = 1.0f;        // in (0, 1]
    uint64_t seed = 0;
};

class Sampler {
  public:
    // Error (usage) for a negative or non-finite temperature, a negative top_k, top_p outside (0, 1].
    explicit Sampler(const SamplerOptions& options);
    // Greedy at temperature 0. Else the logits are divided by the temperature, the top_k largest kept, of
    // those the shortest list whose probability reaches top_p, and one is drawn; equal logits are ordered by
    // id. A logit of -inf is never chosen. The same options, seed and logits give the same tokens on every
    // machine. NaN, +inf, or nothing but -inf is an Error (failure).
    int32_t next(std::span<const float> logits);

  private:
    SamplerOptions options_;
    std::mt19937_64 random_;
    // The candidates, most likely first: the order of the logits in the upper half, the id in the lower one.
    std::vector<uint64_t> order_, scratch_;
    std::vector<double> weight_;  // of each, relative to the most likely one
};

}  // namespace halfbyte::model
