// Every E4M3 byte decoded, with a power of two that a kernel wants multiplied in.
#pragma once

#include <array>
#include <cstddef>

#include "format/e4m3.h"

namespace halfbyte::cpu {

constexpr std::array<float, 256> scale_table(float factor) {
    std::array<float, 256> table{};
    for (int byte = 0; byte < 256; byte++) {
        const float value = decode_e4m3(uint8_t(byte));
        table[std::size_t(byte)] = value != value ? value : value * factor;
    }
    return table;
}

inline constexpr std::array<float, 256> scale_times_2_112 = scale_table(0x1p112f);

}  // namespace halfbyte::cpu
