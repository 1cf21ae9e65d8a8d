// Token by token: prompt in chunks, then one token at a time.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/decoder.h"
#include "model/sampler.h"

namespace halfbyte::model {

struct GenerateOptions {
    int64_t max_tokens = 128;
    std::vector<int32_t> stop;  // ends before one of these is given out; empty: never
    int64_t chunk = 512;        // prompt positions run at a time
    SamplerOptions sampler;
};

struct GenerateResult {
    std::vector<int32_t> tokens;  // without the stop token
    double prompt_seconds = 0, seconds = 0;
};

// Error (usage): an empty prompt, or prompt and max_tokens beyond the model's context, with the numbers. An
// architecture that is known by name only is not asked for its context.
void check_prompt(const std::filesystem::path& model, const checkpoint::ModelConfig& config,
                  int64_t prompt_tokens, int64_t max_tokens);

// Error (usage): that of check_prompt.
// token() sees each token as it is chosen and may throw to stop.
GenerateResult generate(const Context& context, const Decoder& decoder, std::span<const int32_t> prompt,
                        const GenerateOptions& options, const std::function<void(int32_t)>& token = {});

}  // namespace halfbyte::model
