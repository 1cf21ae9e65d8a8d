// Which of Highway's targets are built. Included before anything else of Highway by every file that is
// compiled once per target: EMU128 (plain C++ loops) everywhere, AVX2 and AVX3 (AVX-512) on x86, NEON on
// AArch64.
#pragma once

#include <hwy/detect_targets.h>

#undef HWY_BASELINE_TARGETS
#define HWY_BASELINE_TARGETS HWY_EMU128
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (~(HWY_EMU128 | HWY_AVX2 | HWY_AVX3 | HWY_NEON))
