// A machine whose limits are round numbers.
#pragma once

#include "bench/limits.h"

namespace halfbyte::bench {

inline const Limits round_limits = {.threads = 1,
                                    .memory_read = {10, 0},
                                    .memory_copy = {5, 0},
                                    .l2_read = {100, 0},
                                    .l2_copy = {50, 0},
                                    .int8 = Limit{200, 0},
                                    .fp32 = Limit{20, 0}};

}  // namespace halfbyte::bench
