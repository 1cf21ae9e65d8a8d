#include "model/log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/log_probabilities.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace halfbyte::model::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F64 = hn::CappedTag<double, 8>;
using F32 = hn::Rebind<float, F64>;
using V = hn::Vec<F64>;

inline constexpr int64_t partial_sums = 8, step = int64_t(hn::MaxLanes(F64())), vectors = partial_sums / step;

// exp(x) to about an ulp; 0 for x < -708, where the result would be subnormal. 2^k times a Taylor series over
// |r| <= ln(2)/2, whose first term left out is below 2^-57. NaN stays NaN.
HWY_INLINE V exponential(V x) {
    const F64 d;
    const hn::RebindToSigned<F64> di;
    // Added to a number below 2^51 it leaves the nearest integer in the low bits of the sum.
    const V to_integer = hn::Set(d, 0x1.8p52);
    const V raised = hn::Add(hn::Mul(x, hn::Set(d, 1.4426950408889634)), to_integer);
    const V k = hn::Sub(raised, to_integer);
    const V r = hn::Sub(hn::Sub(x, hn::Mul(k, hn::Set(d, 0x1.62e42fee00000p-1))),
                        hn::Mul(k, hn::Set(d, 0x1.a39ef35793c76p-33)));  // ln(2) in two parts
    constexpr double inverse_factorial[] = {1.0,
                                            1.0,
                                            1.0 / 2,
                                            1.0 / 6,
                                            1.0 / 24,
                                            1.0 / 120,
                                            1.0 / 720,
                                            1.0 / 5040,
                                            1.0 / 40320,
                                            1.0 / 362880,
                                            1.0 / 3628800,
                                            1.0 / 39916800,
                                            1.0 / 479001600,
                                            1.0 / 6227020800};
    V sum = hn::Set(d, inverse_factorial[13]);
#pragma GCC unroll 13
    for (int n = 12; n >= 0; n--) sum = hn::Add(hn::Mul(sum, r), hn::Set(d, inverse_factorial[n]));
    const auto exponent = hn::ShiftLeft<52>(hn::Add(hn::BitCast(di, raised), hn::Set(di, 1023)));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -708.0)), hn::Mul(sum, hn::BitCast(d, exponent)));
}

HWY_INLINE V load(const float* x) {
    return hn::PromoteTo(F64(), hn::LoadU(F32(), x));
}

// The sum of term(i) for i in steps of eight; `count` is a multiple of eight.
template <typename Term>
HWY_INLINE void add_terms(int64_t count, V (&sums)[vectors], const Term& term) {
    for (int64_t i = 0; i < count; i += partial_sums)
        for (int64_t v = 0; v < vectors; v++) sums[v] = hn::Add(sums[v], term(i + v * step));
}

HWY_INLINE double total(const V (&sums)[vectors]) {
    alignas(64) double all[partial_sums];
    for (int64_t v = 0; v < vectors; v++) hn::Store(sums[v], F64(), all + v * step);
    for (int64_t distance = partial_sums / 2; distance > 0; distance /= 2)
        for (int64_t i = 0; i < distance; i++) all[i] += all[i + distance];
    return all[0];
}

// The last count % 8 values, filled up with -inf, whose terms are 0.
struct Rest {
    float values[partial_sums];
    Rest(const float* x, int64_t count) {
        std::fill_n(values, partial_sums, -std::numeric_limits<float>::infinity());
        std::copy_n(x + count / partial_sums * partial_sums, count % partial_sums, values);
    }
};

double sum_exponentials(const float* x, int64_t count, double largest) {
    V sums[vectors];
    for (V& sum : sums) sum = hn::Zero(F64());
    const V shift = hn::Set(F64(), largest);
    const auto terms = [&](const float* values) {
        return [=](int64_t i) HWY_ATTR { return exponential(hn::Sub(load(values + i), shift)); };
    };
    add_terms(count / partial_sums * partial_sums, sums, terms(x));
    const Rest rest(x, count);
    if (count % partial_sums != 0) add_terms(partial_sums, sums, terms(rest.values));
    return total(sums);
}

double sum_divergence(const float* p, double p_norm, const float* q, double q_norm, int64_t count) {
    V sums[vectors];
    for (V& sum : sums) sum = hn::Zero(F64());
    const V shift_p = hn::Set(F64(), p_norm), shift_q = hn::Set(F64(), q_norm);
    const auto terms = [&](const float* a, const float* b) {
        return [=](int64_t i) HWY_ATTR {
            const V log_p = hn::Sub(load(a + i), shift_p), log_q = hn::Sub(load(b + i), shift_q);
            const V term = hn::Mul(exponential(log_p), hn::Sub(log_p, log_q));
            return hn::IfThenElseZero(hn::Ge(log_p, hn::Set(F64(), -708.0)), term);  // below, p is 0
        };
    };
    add_terms(count / partial_sums * partial_sums, sums, terms(p, q));
    const Rest rest_p(p, count), rest_q(q, count);
    if (count % partial_sums != 0) add_terms(partial_sums, sums, terms(rest_p.values, rest_q.values));
    return total(sums);
}

}  // namespace halfbyte::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::model {
namespace {

struct Level {
    double (*sum_exponentials)(const float*, int64_t, double);
    double (*sum_divergence)(const float*, double, const float*, double, int64_t);
};

Level level_of([[maybe_unused]] CpuLevel level) {
#if HWY_ARCH_X86
    if (level == CpuLevel::avx512) return {N_AVX3::sum_exponentials, N_AVX3::sum_divergence};
    if (level == CpuLevel::avx2) return {N_AVX2::sum_exponentials, N_AVX2::sum_divergence};
#endif
    return {N_EMU128::sum_exponentials, N_EMU128::sum_divergence};
}

}  // namespace

double log_sum_exp(CpuLevel level, const float* x, int64_t count) {
    const double largest = *std::max_element(x, x + count);
    return largest + std::log(level_of(level).sum_exponentials(x, count, largest));
}

double kl_divergence(CpuLevel level, const float* p, double p_norm, const float* q, double q_norm,
                     int64_t count) {
    return level_of(level).sum_divergence(p, p_norm, q, q_norm, count);
}

}  // namespace halfbyte::model
#endif  // HWY_ONCE
