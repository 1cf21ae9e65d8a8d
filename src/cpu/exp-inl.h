// exp of N values: the steps and constants of reference/exp.h.
#if defined(HALFBYTE_CPU_EXP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFBYTE_CPU_EXP_INL_H
#undef HALFBYTE_CPU_EXP_INL_H
#else
#define HALFBYTE_CPU_EXP_INL_H
#endif

#include <limits>

#include "cpu/vectors-inl.h"
#include "reference/exp.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {

HWY_INLINE V exp(V x) {
    const V k =
        hn::Sub(fma(x, set_bits(reference::exp_log2e), set(reference::exp_round)), set(reference::exp_round));
    V r = fma(k, set_bits(reference::exp_minus_ln2_high), x);
    r = fma(k, set_bits(reference::exp_minus_ln2_low), r);
    V p = set_bits(reference::exp_polynomial[0]);
    for (int i = 1; i < 6; i++) p = fma(p, r, set_bits(reference::exp_polynomial[i]));
    const V y = hn::Add(set(1.0f), fma(p, hn::Mul(r, r), r));

    const I32 d;
    const auto exponent = hn::ConvertTo(d, k), half = hn::ShiftRight<1>(exponent);
    const auto power = [](hn::Vec<I32> e) HWY_ATTR {
        return hn::BitCast(F32(), hn::ShiftLeft<23>(hn::Add(e, hn::Set(I32(), 127))));
    };
    V result = hn::Mul(hn::Mul(y, power(half)), power(hn::Sub(exponent, half)));
    result = hn::IfThenElse(hn::Gt(x, set(reference::exp_overflow)),
                            set(std::numeric_limits<float>::infinity()), result);
    result = hn::IfThenElse(hn::Lt(x, set(reference::exp_underflow)), hn::Zero(F32()), result);
    return hn::IfThenElse(hn::IsNaN(x), x, result);
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
