// The Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU; Llama 3, SmolLM and others of
// that form.
#pragma once

#include "model/decoder.h"

namespace halfbyte::model {

std::unique_ptr<Decoder> load_llama(const Context& context, const checkpoint::Checkpoint& source,
                                    Arithmetic arithmetic, const Progress& progress);
std::vector<std::vector<std::string>> llama_linear_groups(const checkpoint::ModelConfig& config);

}  // namespace halfbyte::model
