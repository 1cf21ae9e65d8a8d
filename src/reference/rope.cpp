#include <algorithm>
#include <cmath>
#include <numbers>

#include "reference/reference.h"
#include "reference/rope_scaling.h"

namespace halfbyte::reference {

std::vector<double> rope_frequencies(double theta, const RopeScaling& scaling, int64_t head_dim) {
    using Kind = RopeScaling::Kind;
    std::vector<double> frequencies;
    for (int64_t i = 0; i < head_dim / 2; i++) {
        const double f = std::pow(theta, -2.0 * double(i) / double(head_dim));
        double scaled = f;
        if (scaling.kind == Kind::linear) scaled = f / scaling.factor;
        if (scaling.kind == Kind::divisors) scaled = f / double(scaling.divisors[size_t(i)]);
        if (scaling.kind == Kind::llama3) {
            const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
            const double turns = scaling.original_positions * f / (2 * std::numbers::pi);
            const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
            scaled = (1 - kept) * f / scaling.factor + kept * f;
        }
        frequencies.push_back(scaled);
    }
    return frequencies;
}

void rope_table(double theta, const RopeScaling& scaling, int64_t head_dim, int64_t positions, float* cos,
                float* sin) {
    const int64_t half = head_dim / 2;
    const std::vector<double> frequencies = rope_frequencies(theta, scaling, head_dim);
    for (int64_t i = 0; i < half; i++) {
        const auto frequency = float(frequencies[size_t(i)]);
        for (int64_t position = 0; position < positions; position++) {
            const float angle = float(position) * frequency;
            cos[position * half + i] = float(std::cos(double(angle)));
            sin[position * half + i] = float(std::sin(double(angle)));
        }
    }
}

void rope(const RopeArgs& args) {
    const int64_t half = args.head_dim / 2;
    for (int64_t t = 0; t < args.x.rows; t++) {
        const float* cos = args.cos + (args.first_position + t) * half;
        const float* sin = args.sin + (args.first_position + t) * half;
        for (int64_t head = 0; head < args.heads; head++) {
            float* x = static_cast<float*>(args.x.data) + t * args.x.stride + head * args.head_dim;
            for (int64_t i = 0; i < half; i++) {
                const float a = x[i], b = x[i + half];
                x[i] = a * cos[i] - b * sin[i];
                x[i + half] = b * cos[i] + a * sin[i];
            }
        }
    }
}

}  // namespace halfbyte::reference
