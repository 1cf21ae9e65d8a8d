// NVFP4 codes to FP32: code * SF, exact and with the sign of zero.
#if defined(HALFBYTE_CPU_DECODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFBYTE_CPU_DECODE_INL_H
#undef HALFBYTE_CPU_DECODE_INL_H
#else
#define HALFBYTE_CPU_DECODE_INL_H
#endif

#include "cpu/scale_table.h"
#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {

using Bytes16 = hn::Full128<uint8_t>;

// E2M1 as the upper byte of FP16: sign, five exponent bits, two mantissa bits.
alignas(16) inline constexpr uint8_t e2m1_as_fp16[16] = {0x00, 0x38, 0x3C, 0x3E, 0x40, 0x42, 0x44, 0x46,
                                                         0x80, 0xB8, 0xBC, 0xBE, 0xC0, 0xC2, 0xC4, 0xC6};

// code * SF of 16 codes (values 0..15) in bytes, the vectors of N `stride` elements apart. `scale` is SF *
// 2^112 (scale_times_2_112): moving the byte to bits 21..27 of an FP32 gives the code times 2^-112, FP16's
// exponent bias being 15 and FP32's 127.
HWY_INLINE void decode_16(hn::Vec<Bytes16> codes, float scale, float* out, [[maybe_unused]] int64_t stride) {
    const Bytes16 d8;
    const auto upper = hn::TableLookupBytes(hn::Load(d8, e2m1_as_fp16), codes);
    const auto bytes = hn::BitCast(hn::Full128<int8_t>(), upper);
    const auto finish = [=](hn::Vec<hn::Rebind<int8_t, F32>> part, float* p) HWY_ATTR {
        const auto bits = hn::ShiftLeft<21>(hn::PromoteTo(I32(), part));
        const auto sign_and_value = hn::And(bits, hn::Set(I32(), int32_t(0x8FFFFFFF)));
        store(hn::Mul(hn::BitCast(F32(), sign_and_value), set(scale)), p);
    };
#if HWY_TARGET == HWY_AVX3
    finish(bytes, out);
#elif HWY_TARGET == HWY_AVX2
    finish(hn::LowerHalf(bytes), out);
    finish(hn::UpperHalf(hn::Half<hn::Full128<int8_t>>(), bytes), out + stride);
#else
    int8_t parts[16];
    hn::StoreU(bytes, hn::Full128<int8_t>(), parts);
    for (int i = 0; i < 16; i += N)
        finish(hn::LoadU(hn::Rebind<int8_t, F32>(), parts + i), out + i / N * stride);
#endif
}

// Whether an E4M3 byte is NaN, 0x7F or 0xFF.
inline bool any_nan(const uint8_t* bytes, int64_t count) {
    const hn::ScalableTag<uint8_t> d8;
    constexpr int64_t lanes = 4 * N;
    const auto magnitude = hn::Set(d8, 0x7F);
    auto largest = hn::Zero(d8);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes)
        largest = hn::Max(largest, hn::And(hn::LoadU(d8, bytes + i), magnitude));
    bool found = !hn::AllFalse(d8, hn::Eq(largest, magnitude));
    for (; i < count; i++) found |= (bytes[i] & 0x7F) == 0x7F;
    return found;
}

#if HWY_TARGET != HWY_EMU128
// SF * 2^-8 of N bytes. An E4M3 byte's exponent and mantissa, read as FP16, are the value times 2^-8 (biases
// 7 and 15); 0x7F is NaN in one and 1.875 in the other. Without may_be_nan there must be none.
template <bool may_be_nan = true>
HWY_INLINE V decode_scales(const uint8_t* bytes) {
    const hn::Rebind<int16_t, F32> d16;
    const hn::Rebind<int8_t, F32> d8;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(bytes)));
    auto bits = hn::And(hn::ShiftLeft<7>(wide), hn::Set(d16, int16_t(0xBF80)));
    if constexpr (may_be_nan) {
        const auto all = hn::Set(d16, 0x3F80);
        bits = hn::Or(bits, hn::VecFromMask(d16, hn::Eq(hn::And(bits, all), all)));
    }
    const hn::Rebind<hwy::float16_t, F32> f16;
    return hn::PromoteTo(F32(), hn::BitCast(f16, bits));
}
#endif

// The same from 8 packed bytes and an E4M3 byte.
HWY_INLINE void decode_block(const uint8_t* packed, uint8_t scale, float* out) {
    const Bytes16 d8;
    uint8_t bytes[16] = {};
    std::memcpy(bytes, packed, 8);
    const auto pairs = hn::LoadU(d8, bytes), nibble = hn::Set(d8, 15);
    const auto codes = hn::InterleaveLower(d8, hn::And(pairs, nibble), hn::ShiftRight<4>(pairs));
    decode_16(codes, scale_times_2_112[scale], out, N);
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
