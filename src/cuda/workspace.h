// The device memory that a kernel needs between its CTAs (Launch::workspace). Zero before and after every
// launch.
#pragma once

#include "format/scale_layout.h"
#include "halfbyte/operations.h"

namespace halfbyte::cuda {

struct Workspace {
    uint32_t arrived, left;  // CTAs
    uint32_t unused[2];
    uint32_t amax[1];  // the bits of one FP32 number, or of [rows]
};

// For dynamic scales.
constexpr int64_t dynamic_workspace_bytes(bool scale_per_row, int64_t rows) {
    return round_up(16 + 4 * (scale_per_row ? rows : 1), 16);
}

// For an amax of all of x; one per row needs none.
constexpr int64_t amax_workspace_bytes(bool per_row) {
    return per_row ? 0 : dynamic_workspace_bytes(false, 1);
}

}  // namespace halfbyte::cuda
