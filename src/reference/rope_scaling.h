// How the frequencies of RoPE, theta^(-2i/d), are changed so that a model reaches a longer context.
#pragma once

#include <cstdint>
#include <vector>

namespace halfbyte::reference {

struct RopeScaling {
    enum class Kind {
        none,
        linear,  // f / factor
        // f for the short waves, f / factor for the long ones, and between them a straight line over the
        // number of turns that `original_positions` make: Llama 3.1.
        llama3,
        divisors  // f_i / divisors[i]
    };
    Kind kind = Kind::none;
    double factor = 1;                                 // linear, llama3
    double low_freq_factor = 1, high_freq_factor = 4;  // llama3: turns where the line begins and ends
    double original_positions = 8192;                  // llama3
    std::vector<float> divisors = {};                  // [head_dim / 2]

    bool operator==(const RopeScaling&) const = default;
};

// f_i in FP64, i < head_dim / 2.
std::vector<double> rope_frequencies(double theta, const RopeScaling& scaling, int64_t head_dim);

// cos, sin: out [positions, head_dim / 2]: f rounded once to FP32; angle fl(position * f); its cosine and
// sine in FP64, rounded once to FP32.
void rope_table(double theta, const RopeScaling& scaling, int64_t head_dim, int64_t positions, float* cos,
                float* sin);

}  // namespace halfbyte::reference
