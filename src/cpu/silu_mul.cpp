// y = round_T(fl(fl(gate / fl(1 + exp(-gate))) * up)), element by element.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/silu_mul.cpp"
#include <hwy/foreach_target.h>

#include "cpu/exp-inl.h"
#include "cpu/operations.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE V silu_times(V gate, V up) {
    return hn::Mul(hn::Div(gate, hn::Add(set(1.0f), exp(hn::Neg(gate)))), up);
}

template <typename T, typename Y>
void silu_mul_row(const T* gate, const T* up, Y* y, int64_t n) {
    int64_t i = 0;
    for (; i + N <= n; i += N) store(silu_times(load(gate + i), load(up + i)), y + i);
    if (i < n) store_first(silu_times(load_first(gate + i, n - i), load_first(up + i, n - i)), y + i, n - i);
}

}  // namespace

void silu_mul(ThreadPool& pool, const SiluMulArgs& args) {
    const int64_t rows = args.gate.rows, n = args.gate.cols;
    pool.parallel_for(rows, grain_for(pool, rows, 32 * n), [&](int64_t begin, int64_t end) {
        with_type(args.gate.data, args.gate.type, [&](const auto* gate) {
            const auto* up = static_cast<decltype(gate)>(args.up.data);
            with_type(args.y.data, args.y.type, [&](auto* y) {
                for (int64_t row = begin; row < end; row++)
                    silu_mul_row(gate + row * args.gate.stride, up + row * args.up.stride,
                                 y + row * args.y.stride, n);
            });
        });
    });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<SiluMulArgs>> silu_mul_levels = HALFBYTE_PER_LEVEL(silu_mul);
}  // namespace halfbyte::cpu
#endif
