// Quantising with scales found from the values, and producers that quantise their result y without writing
// it: a thread makes a tile of y that stays in its caches and quantises it at once. The bits are those of the
// two operations one after the other.
#pragma once

#include "cpu/kernels.h"

namespace halfbyte::cpu {

void quantize(const Kernels& kernels, ThreadPool& pool, const QuantizeArgs& args);
void transform_quantize(const Kernels& kernels, ThreadPool& pool, const TransformQuantizeArgs& args);
void silu_mul_quantize(const Kernels& kernels, ThreadPool& pool, const SiluMulQuantizeArgs& args);
void rms_norm_quantize(const Kernels& kernels, ThreadPool& pool, const RmsNormQuantizeArgs& args);

}  // namespace halfbyte::cpu
