// BF16 and FP16 as bit patterns. Widening is exact, narrowing rounds to nearest even; a NaN stays a NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace halfbyte {

struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

constexpr float to_float(float value) {
    return value;
}

constexpr float to_float(BFloat16 value) {
    return std::bit_cast<float>(uint32_t(value.bits) << 16);
}

constexpr float to_float(Float16 value) {
    const uint32_t sign = uint32_t(value.bits & 0x8000) << 16;
    const uint32_t exponent = (value.bits >> 10) & 31, mantissa = value.bits & 1023;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
    if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
    const float magnitude = float(mantissa) * 0x1p-24f;  // subnormal or zero
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

template <typename T>
constexpr T round_to(float value);

template <>
constexpr float round_to<float>(float value) {
    return value;
}

template <>
constexpr BFloat16 round_to<BFloat16>(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return {uint16_t(bits >> 16 | 0x40)};
    return {uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

template <>
constexpr Float16 round_to<Float16>(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFF;
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    if (magnitude > 0x7F800000) return {uint16_t(sign | 0x7E00)};
    if (magnitude >= 0x477FF000) return {uint16_t(sign | 0x7C00)};  // 65520 and above become infinity
    if (magnitude <
        0x38800000) {  // below 2^-14: adding 1/2 makes the FP32 unit 2^-24, the FP16 subnormal unit
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return {uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000))};
    }
    const uint32_t rebiased = magnitude - (112u << 23);
    return {uint16_t(sign | (rebiased + 0xFFF + (rebiased >> 13 & 1)) >> 13)};
}

}  // namespace halfbyte
