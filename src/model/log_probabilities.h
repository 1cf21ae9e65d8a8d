// FP64 sums over the logits of one position. Eight interleaved partial sums, as sum32 has 32, and plain
// multiplications and additions: the same bits at every level.
#pragma once

#include <cstdint>

#include "halfbyte/context.h"

namespace halfbyte::model {

// log(sum exp(x_i)). NaN if an x is NaN or +inf, or none is above -inf.
double log_sum_exp(CpuLevel level, const float* x, int64_t count);

// sum p (log p - log q), log p = p_i - p_norm and so on: exactly 0 for equal logits, since then every
// difference is.
double kl_divergence(CpuLevel level, const float* p, double p_norm, const float* q, double q_norm,
                     int64_t count);

}  // namespace halfbyte::model
