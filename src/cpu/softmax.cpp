// y_i = fl(e_i / sum32(e)), e_i = exp(fl(x_i - max x)), row by row.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/softmax.cpp"
#include <hwy/foreach_target.h>

#include "cpu/operations.h"
#include "cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

void softmax_row(const float* x, float* y, int64_t n) {
    const V total = set(exponentials(x, y, n));
    int64_t i = 0;
    for (; i + N <= n; i += N) store(hn::Div(load(y + i), total), y + i);
    if (i < n) store_first(hn::Div(load_first(y + i, n - i), total), y + i, n - i);
}

}  // namespace

void softmax(ThreadPool& pool, const SoftmaxArgs& args) {
    const int64_t rows = args.x.rows, n = args.x.cols;
    pool.parallel_for(rows, grain_for(pool, rows, 32 * n), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++)
            softmax_row(static_cast<const float*>(args.x.data) + row * args.x.stride,
                        static_cast<float*>(args.y.data) + row * args.y.stride, n);
    });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<SoftmaxArgs>> softmax_levels = HALFBYTE_PER_LEVEL(softmax);
}  // namespace halfbyte::cpu
#endif
