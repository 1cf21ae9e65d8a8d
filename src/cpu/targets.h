// The levels as Highway's targets: scalar = EMU128, avx2 = AVX2, avx512 = AVX3 (a file that uses VNNI adds it
// to the target string). On other processors only EMU128 is built.
#pragma once

#include <array>

#include "core/highway_targets.h"

namespace halfbyte::cpu {

// One kernel at every level, in the order of Level; null where the level is not built.
template <typename Function>
using PerLevel = std::array<Function*, 5>;

#if HWY_ARCH_X86_64
#define HALFBYTE_PER_LEVEL(f) {&N_EMU128::f, &N_AVX2::f, &N_AVX3::f, nullptr, nullptr}
#elif HWY_ARCH_ARM_A64
#define HALFBYTE_PER_LEVEL(f) {&N_EMU128::f, nullptr, nullptr, &N_NEON::f, &N_NEON::f}
#else
#define HALFBYTE_PER_LEVEL(f) {&N_EMU128::f, nullptr, nullptr, nullptr, nullptr}
#endif

}  // namespace halfbyte::cpu
