#include <cmath>
#include <limits>
#include <vector>

#include "reference/exp.h"
#include "reference/reference.h"
#include "reference/sum32.h"

namespace halfbyte::reference {

float attention_scale(int64_t head_dim) {
    return float(1.0 / std::sqrt(double(head_dim)));
}

void attention(const AttentionArgs& args) {
    const float scale = attention_scale(args.head_dim);
    for (int64_t t = 0; t < args.q.rows; t++) {
        const int64_t positions = args.first_position + t + 1;
        for (int64_t head = 0; head < args.heads; head++) {
            const int64_t kv_column = head / (args.heads / args.kv_heads) * args.head_dim;
            const float* q =
                static_cast<const float*>(args.q.data) + t * args.q.stride + head * args.head_dim;
            float* o = static_cast<float*>(args.o.data) + t * args.o.stride + head * args.head_dim;

            std::vector<float> e(static_cast<size_t>(positions));
            float largest = -std::numeric_limits<float>::infinity();  // a NaN is never the largest
            for (int64_t i = 0; i < positions; i++) {
                Sum32 dot;
                for (int64_t k = 0; k < args.head_dim; k++)
                    dot.add_product(k, q[k], args.keys[i * args.cache_stride + kv_column + k]);
                e[size_t(i)] = dot.total() * scale;
                if (e[size_t(i)] > largest) largest = e[size_t(i)];
            }
            Sum32 sum;
            for (int64_t i = 0; i < positions; i++) {
                e[size_t(i)] = exp(e[size_t(i)] - largest);
                sum.add(i, e[size_t(i)]);
            }
            const float total = sum.total();
            for (int64_t k = 0; k < args.head_dim; k++) {
                Sum32 weighted;
                for (int64_t i = 0; i < positions; i++)
                    weighted.add_product(i, e[size_t(i)], args.values[i * args.cache_stride + kv_column + k]);
                o[k] = weighted.total() / total;
            }
        }
    }
}

}  // namespace halfbyte::reference
