#include <cmath>

#include "reference/reference.h"

namespace halfbyte::reference {

void rope_table(double theta, int64_t head_dim, int64_t positions, float* cos, float* sin) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const float frequency = float(std::pow(theta, -2.0 * double(i) / double(head_dim)));
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
