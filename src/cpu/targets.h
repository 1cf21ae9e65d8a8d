// Which of Highway's targets are built. Included by every kernel file before anything of Highway:
// scalar = EMU128 (plain C++ loops), avx2 = AVX2, avx512 = AVX3 (a file that uses VNNI adds it to the target
// string). On other processors only EMU128 is built; NEON will be taken off the list of disabled targets
// here.
#pragma once

#define HWY_BASELINE_TARGETS HWY_EMU128
#define HWY_DISABLED_TARGETS (~(HWY_EMU128 | HWY_AVX2 | HWY_AVX3))
// Highway avoids EMU128 below g++ 12.3 because of a wrong vectorisation of a high product (PR 106322); none
// is used.
#define HWY_BROKEN_EMU128 0
#include <hwy/detect_targets.h>

#include <array>

namespace halfbyte::cpu {

// One kernel at every level, in the order of Level; null where the level is not built.
template <typename Function>
using PerLevel = std::array<Function*, 3>;

#if HWY_ARCH_X86_64
#define HALFBYTE_PER_LEVEL(f) {&N_EMU128::f, &N_AVX2::f, &N_AVX3::f}
#else
#define HALFBYTE_PER_LEVEL(f) {&N_EMU128::f, nullptr, nullptr}
#endif

}  // namespace halfbyte::cpu
