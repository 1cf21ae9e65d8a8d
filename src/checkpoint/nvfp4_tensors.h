// Tensors of a quantised module, whatever a dialect calls them: each checked against the rules of NVFP4.
// Errors (malformed) name file and tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "checkpoint/safetensors.h"
#include "halfbyte/nvfp4.h"

namespace halfbyte::checkpoint {

// "model.safetensors: tensor \"a.weight\"", for messages.
std::string label(const TensorView& tensor);

// The tensor `name`, which must be there since `beside` is; else the error ends with `cause`.
const TensorView& need(const std::map<std::string, TensorView>& tensors, const TensorView& beside,
                       const std::string& name, const char* cause);

// [N, K] of a module from its codes U8 [N, K/2] and its block scales [N, K/16].
std::pair<int64_t, int64_t> checked_shape(const TensorView& codes, const TensorView& scales,
                                          DType scale_type);
// One number, finite and positive with its reciprocal.
EncodeScale checked_global_scale(const TensorView& tensor);
// 2688 divided by the largest weight: 1/64 would mean a weight of 172,032. The decode scale of a largest
// weight up to 42 lies below it, so one that was stored in its place is seen.
inline constexpr float least_weight_scale = 0x1p-6f;
// The same of a weight, at least that, so that its reciprocal is not stored in its place.
EncodeScale checked_weight_scale(const TensorView& tensor);
// E4M3 bytes: no NaN and none negative.
void check_block_scales(const TensorView& scales);

}  // namespace halfbyte::checkpoint
