// The numerators of a softmax, shared by softmax and attention: e_i = exp(fl(x_i - max x)) and sum32(e).
#if defined(HALFBYTE_CPU_SOFTMAX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFBYTE_CPU_SOFTMAX_INL_H
#undef HALFBYTE_CPU_SOFTMAX_INL_H
#else
#define HALFBYTE_CPU_SOFTMAX_INL_H
#endif

#include <limits>

#include "cpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {

// y may be x. Returns sum32(y). A NaN is never the largest.
inline float exponentials(const float* x, float* y, int64_t n) {
    const float lowest = -std::numeric_limits<float>::infinity();
    V largest = set(lowest);
    const auto larger = [](V old, V v) HWY_ATTR { return hn::IfThenElse(hn::Gt(v, old), v, old); };
    int64_t i = 0;
    for (; i + N <= n; i += N) largest = larger(largest, load(x + i));
    if (i < n) largest = larger(largest, load_first(x + i, n - i, lowest));
    const V m = set(hn::GetLane(hn::MaxOfLanes(F32(), largest)));
    return sum32(n, [&](V sum, int64_t first, int64_t count) HWY_ATTR {
        if (count == N) {
            const V e = exp(hn::Sub(load(x + first), m));
            store(e, y + first);
            return hn::Add(sum, e);
        }
        store_first(exp(hn::Sub(load_first(x + first, count), m)), y + first, count);
        return hn::Add(sum, load_first(y + first, count));  // adds +0 to sums that are never -0
    });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
