// Producers that quantise their result y without writing it: a thread makes a tile of y that stays in its
// caches and quantises it at once. The bits are those of the two operations one after the other.
#pragma once

#include "cpu/kernels.h"

namespace halfbyte::cpu {

void silu_mul_quantize(const Kernels& kernels, ThreadPool& pool, const SiluMulQuantizeArgs& args);
void rms_norm_quantize(const Kernels& kernels, ThreadPool& pool, const RmsNormQuantizeArgs& args);

}  // namespace halfbyte::cpu
