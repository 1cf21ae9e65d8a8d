// Rotates the pairs (i, i + d/2) of each head in place:
//   x_i' = fl(fl(x_i * cos) - fl(x_j * sin)), x_j' = fl(fl(x_j * cos) + fl(x_i * sin)), j = i + d/2
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rope.cpp"
#include <hwy/foreach_target.h>

#include "cpu/operations.h"
#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

void rotate_head(float* x, const float* cos, const float* sin, int64_t half) {
    int64_t i = 0;
    for (; i + N <= half; i += N) {
        const V a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), x + i);
        store(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), x + half + i);
    }
    for (; i < half; i++) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cos[i] - b * sin[i];
        x[half + i] = b * cos[i] + a * sin[i];
    }
}

}  // namespace

void rope(ThreadPool& pool, const RopeArgs& args) {
    const int64_t half = args.head_dim / 2;
    const int64_t grain = grain_for(pool, args.x.rows, 4 * args.heads * args.head_dim);
    pool.parallel_for(args.x.rows, grain, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++)
            for (int64_t head = 0; head < args.heads; head++)
                rotate_head(static_cast<float*>(args.x.data) + t * args.x.stride + head * args.head_dim,
                            args.cos + (args.first_position + t) * half,
                            args.sin + (args.first_position + t) * half, half);
    });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<RopeArgs>> rope_levels = HALFBYTE_PER_LEVEL(rope);
}  // namespace halfbyte::cpu
#endif
