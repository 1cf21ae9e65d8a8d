// The proofs that are more than equal bytes for one problem.
#pragma once

#include "cuda/run.h"

namespace halfbyte::conformance {

// A graph captured for 64 rows and replayed with 5 live rows and 59 of NaN gives the live rows' bytes of 5
// rows.
template <typename Args>
void check_graph(const Operation<Args>& operation, Device& device, Report& report, uint64_t seed, bool quick);

// Sums as the device's matrix unit makes them: every byte within the bound of exact sums, and NaN stays in
// its block.
void check_tensor_core(const Operation<TransformArgs>& operation, Device& device, Report& report,
                       uint64_t seed, bool quick);
void check_tensor_core(const Operation<TransformQuantizeArgs>& operation, Device& device, Report& report,
                       uint64_t seed, bool quick);

// A global scale outside (0, inf) leaves the codes open, but no block scale is NaN.
void check_bad_scales(const Operation<QuantizeArgs>& operation, Device& device, Report& report,
                      uint64_t seed);

void check_count_bad_scales(void (*count_bad_scales)(cuda::Stream, const float*, int64_t, int32_t*),
                            Device& device, Report& report);

// One tensor of more than 2^31 elements: sampled rows in full, and its amax.
void check_large(const cuda::Kernels& kernels, Report& report, uint64_t seed, unsigned threads);

// The device's own encoders and decoders over all bit patterns (device_code.cu).
void check_device_code(Report& report);

}  // namespace halfbyte::conformance
