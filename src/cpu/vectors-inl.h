// What every kernel needs of its level: fma, loads of BF16, FP16, FP32 and E4M3, stores, and the tree of
// sum32.
#if defined(HALFBYTE_CPU_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFBYTE_CPU_VECTORS_INL_H
#undef HALFBYTE_CPU_VECTORS_INL_H
#else
#define HALFBYTE_CPU_VECTORS_INL_H
#endif

#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "core/float16.h"
#include "format/e4m3.h"
#include "halfbyte/operations.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::ScalableTag<int32_t>;
using U32 = hn::ScalableTag<uint32_t>;
using V = hn::Vec<F32>;
inline constexpr int N = HWY_LANES(float);
inline constexpr int sum32_vectors = 32 / N;  // that hold the 32 partial sums

// fl(a * b + c), rounded once at every level.
HWY_INLINE V fma(V a, V b, V c) {
#if HWY_NATIVE_FMA
    return hn::MulAdd(a, b, c);
#else
    // The product is exact in FP64. The sum is rounded there and again to FP32, which is wrong only if the
    // first rounding lands on the middle of two FP32 numbers, or if the result is subnormal, where the
    // middles lie elsewhere.
    V result;
    uint32_t doubtful = 0;
    for (int i = 0; i < N; i++) {
        const double sum = double(a.raw[i]) * double(b.raw[i]) + double(c.raw[i]);
        result.raw[i] = float(sum);
        const uint64_t bits = std::bit_cast<uint64_t>(sum);
        const uint32_t high = uint32_t(bits >> 32) & 0x7FFFFFFF;
        doubtful |=
            uint32_t((uint32_t(bits) & 0x1FFFFFFF) == 0x10000000) | uint32_t(high - 1 < 0x38100000 - 1);
    }
    if (doubtful != 0) [[unlikely]]
        for (int i = 0; i < N; i++) result.raw[i] = std::fma(a.raw[i], b.raw[i], c.raw[i]);
    return result;
#endif
}

HWY_INLINE V set(float value) {
    return hn::Set(F32(), value);
}
HWY_INLINE V set_bits(uint32_t bits) {
    return hn::Set(F32(), std::bit_cast<float>(bits));
}

HWY_INLINE V load(const float* p) {
    return hn::LoadU(F32(), p);
}
HWY_INLINE V load(const BFloat16* p) {
    const hn::Rebind<uint16_t, F32> d16;
    return hn::BitCast(
        F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)))));
}
HWY_INLINE V load(const Float16* p) {
#if HWY_TARGET == HWY_EMU128
    float values[N];
    for (int i = 0; i < N; i++) values[i] = to_float(p[i]);
    return load(values);
#else
    const hn::Rebind<hwy::float16_t, F32> d16;
    return hn::PromoteTo(F32(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#endif
}
// Exact but for the NaN bytes, which come out as +-480. The byte, sign extended and moved to bits 20..27, has
// its exponent and mantissa where FP32 has them, for subnormals too; 2^120 is between the biases, 127 - 7.
HWY_INLINE V load(const E4M3* p) {
    const hn::Rebind<int8_t, F32> d8;
    const auto bits =
        hn::ShiftLeft<20>(hn::PromoteTo(I32(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
    const auto number = hn::And(bits, hn::Set(I32(), int32_t(0x87F00000)));
    return hn::Mul(hn::BitCast(F32(), number), set(0x1p120f));
}

HWY_INLINE void store(V v, float* p) {
    hn::StoreU(v, F32(), p);
}
HWY_INLINE void store(V v, BFloat16* p) {
    const U32 d;
    const auto bits = hn::BitCast(d, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7FFF)), odd));
    const auto quiet_nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d, 0x40));
    const auto result = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), quiet_nan, rounded);
    const hn::Rebind<uint16_t, F32> d16;
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(I32(), result)), d16, reinterpret_cast<uint16_t*>(p));
}
HWY_INLINE void store(V v, Float16* p) {
#if HWY_TARGET == HWY_EMU128
    float values[N];
    store(v, values);
    for (int i = 0; i < N; i++) p[i] = round_to<Float16>(values[i]);
#else
    const hn::Rebind<hwy::float16_t, F32> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
#endif
}

// The first n < N elements; the others are read as `fill` and not written.
template <typename T>
HWY_INLINE V load_first(const T* p, int64_t n, float fill = 0.0f) {
    T buffer[N];
    for (int i = 0; i < N; i++) buffer[i] = round_to<T>(fill);
    std::memcpy(buffer, p, size_t(n) * sizeof(T));
    return load(buffer);
}
template <typename T>
HWY_INLINE void store_first(V v, T* p, int64_t n) {
    T buffer[N];
    store(v, buffer);
    std::memcpy(p, buffer, size_t(n) * sizeof(T));
}

// out[0..n) = x widened to FP32, out[n..padded) = fill.
template <typename T>
void widen(const T* x, int64_t n, float* out, int64_t padded, float fill) {
    int64_t i = 0;
    for (; i + N <= n; i += N) store(load(x + i), out + i);
    if (i < n) store_first(load_first(x + i, n - i), out + i, n - i);
    for (i = n; i < padded; i++) out[i] = fill;
}

// The 32 partial sums, lane 32 / N vectors wide, added down to one vector: distances 16 to N.
HWY_INLINE V add_vectors(V (&sums)[sum32_vectors]) {
    for (int half = sum32_vectors / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) sums[i] = hn::Add(sums[i], sums[i + half]);
    return sums[0];
}

// The lanes of one vector added pairwise at distances N/2 to 1.
HWY_INLINE float add_lanes(V v) {
    float lanes[N];
    store(v, lanes);
    for (int half = N / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

struct Add {
    static HWY_INLINE V of(V a, V b) { return hn::Add(a, b); }
};
struct Max {  // of numbers that are not NaN
    static HWY_INLINE V of(V a, V b) { return hn::Max(a, b); }
};

// Inside each 128-bit part: part j of the result holds the four lanes of part j of a, b, c and d combined.
template <class Operation>
HWY_INLINE V combine_parts(V a, V b, V c, V d) {
    const F32 df;
    const hn::Repartition<double, F32> d64;
    const V ab = Operation::of(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
    const V cd = Operation::of(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
    const auto ab64 = hn::BitCast(d64, ab), cd64 = hn::BitCast(d64, cd);
    return Operation::of(hn::BitCast(df, hn::InterleaveLower(d64, ab64, cd64)),
                         hn::BitCast(df, hn::InterleaveUpper(d64, ab64, cd64)));
}

// Lane j of the result is v[j] with its lanes combined at distances N/2 to 1: N trees at once, by
// transposing.
template <class Operation>
HWY_INLINE V combine_lanes_of_each(const V (&v)[N]) {
    const auto halves = [](V low, V high) HWY_ATTR {
        return Operation::of(hn::ConcatLowerLower(F32(), high, low), hn::ConcatUpperUpper(F32(), high, low));
    };
    V parts[4];
#if HWY_TARGET == HWY_AVX3
    for (int j = 0; j < 4; j++) {
        const V p = halves(v[j], v[4 + j]), q = halves(v[8 + j], v[12 + j]);
        parts[j] = Operation::of(V{_mm512_shuffle_f32x4(p.raw, q.raw, 0x88)},
                                 V{_mm512_shuffle_f32x4(p.raw, q.raw, 0xDD)});
    }
#elif HWY_TARGET == HWY_AVX2
    for (int j = 0; j < 4; j++) parts[j] = halves(v[j], v[4 + j]);
#else
    for (int j = 0; j < 4; j++) parts[j] = v[j];
    (void)halves;
#endif
    return combine_parts<Operation>(parts[0], parts[1], parts[2], parts[3]);
}

// Lane j of the result is add_lanes(v[j]).
HWY_INLINE V add_lanes_of_each(const V (&v)[N]) {
    return combine_lanes_of_each<Add>(v);
}

// sum32 of f(first index, elements present) over n elements: f gives the vector that is added to the partial
// sums. `add(sum, i, count)` adds the elements i..i+count-1 (count = N but at the end) to `sum` and returns
// it; lanes beyond count must come back unchanged.
template <typename AddElements>
HWY_INLINE float sum32(int64_t n, const AddElements& add) {
    V sums[sum32_vectors];
    for (int j = 0; j < sum32_vectors; j++) sums[j] = hn::Zero(F32());
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < sum32_vectors; j++) sums[j] = add(sums[j], i + j * N, int64_t(N));
    for (int j = 0; j < sum32_vectors && i + j * N < n; j++)
        sums[j] = add(sums[j], i + j * N, n - i - j * N < N ? n - i - j * N : int64_t(N));
    return add_lanes(add_vectors(sums));
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
