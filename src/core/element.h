// One element of a matrix of BF16, FP16 or FP32, read and written by its index.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/float16.h"
#include "halfbyte/dtype.h"

namespace halfbyte {

inline float load_element(const void* data, DType type, int64_t index) {
    if (type == DType::f32) {
        float value;
        std::memcpy(&value, static_cast<const char*>(data) + index * 4, 4);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, static_cast<const char*>(data) + index * 2, 2);
    return type == DType::bf16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
}

inline void store_element(void* data, DType type, int64_t index, float value) {
    if (type == DType::f32) {
        std::memcpy(static_cast<char*>(data) + index * 4, &value, 4);
        return;
    }
    const uint16_t bits =
        type == DType::bf16 ? round_to<BFloat16>(value).bits : round_to<Float16>(value).bits;
    std::memcpy(static_cast<char*>(data) + index * 2, &bits, 2);
}

// round_T as a float: what reading back a stored value gives.
inline float round_to_type(float value, DType type) {
    if (type == DType::bf16) return to_float(round_to<BFloat16>(value));
    if (type == DType::f16) return to_float(round_to<Float16>(value));
    return value;
}

}  // namespace halfbyte
