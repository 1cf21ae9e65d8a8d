// Choosing the next token from logits.
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
    // The same options, seed and logits give the same tokens on every machine. NaN logits are an Error (failure).
    int32_t next(std::span<const float> logits);

  private:
    SamplerOptions options_;
    std::mt19937_64 random_;
    std::vector<int32_t> order_;
};

}  // namespace halfbyte::model
