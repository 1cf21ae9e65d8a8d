// Element types of tensors, in memory and in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace halfbyte {

enum class DType : uint8_t {
    f64,
    f32,
    f16,
    bf16,
    i64,
    i32,
    i16,
    i8,
    u64,
    u32,
    u16,
    u8,
    boolean,
    f8_e4m3,
    f8_e5m2
};

constexpr size_t size_of(DType type) {
    switch (type) {
        case DType::f64:
        case DType::i64:
        case DType::u64:
            return 8;
        case DType::f32:
        case DType::i32:
        case DType::u32:
            return 4;
        case DType::f16:
        case DType::bf16:
        case DType::i16:
        case DType::u16:
            return 2;
        default:
            return 1;
    }
}

// The spelling of safetensors: "BF16", "F8_E4M3", "U8", ...
std::string_view name_of(DType type);

}  // namespace halfbyte
