#include "model/generation.h"

#include <algorithm>
#include <chrono>

#include "core/check.h"

namespace halfbyte::model {

void check_prompt(const std::filesystem::path& model, const checkpoint::ModelConfig& config,
                  int64_t prompt_tokens, int64_t max_tokens) {
    const int64_t positions = config.max_positions;
    check(prompt_tokens > 0, ErrorKind::usage, "generate: the prompt has no tokens; give some text");
    check(positions == 0 || (max_tokens >= 0 && prompt_tokens + max_tokens <= positions), ErrorKind::usage,
          "{}: {} prompt tokens and {} new ones do not fit the model's context of {}; shorten the prompt or "
          "-n",
          model.string(), prompt_tokens, max_tokens, positions);
}

GenerateResult generate(const Context& context, const Decoder& decoder, std::span<const int32_t> prompt,
                        const GenerateOptions& options, const std::function<void(int32_t)>& token) {
    const int64_t length = int64_t(prompt.size());
    check_prompt(decoder.path(), decoder.config(), length, options.max_tokens);
    const auto seconds_since = [](auto start) {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };

    GenerateResult result;
    KvCache cache = decoder.make_cache(length + options.max_tokens);
    std::vector<float> logits(size_t(decoder.config().vocab_size));
    Sampler sampler(options.sampler);
    const auto chosen = [&] {
        try {
            return sampler.next(logits);
        } catch (const Error& error) {
            fail(error.kind(), "{}: {}", decoder.path().string(), error.what());
        }
    };
    const auto start = std::chrono::steady_clock::now();
    for (int64_t begin = 0; begin < length; begin += options.chunk) {
        const int64_t count = std::min(options.chunk, length - begin);
        const bool last = begin + count == length;
        decoder.forward(context, cache, prompt.subspan(size_t(begin), size_t(count)), last ? 1 : 0,
                        logits.data());
    }
    result.prompt_seconds = seconds_since(start);

    const auto decode_start = std::chrono::steady_clock::now();
    while (int64_t(result.tokens.size()) < options.max_tokens) {
        const int32_t next = chosen();
        if (std::find(options.stop.begin(), options.stop.end(), next) != options.stop.end()) break;
        result.tokens.push_back(next);
        if (token) token(next);
        if (int64_t(result.tokens.size()) < options.max_tokens)
            decoder.forward(context, cache, std::span(&next, 1), 1, logits.data());
    }
    result.seconds = seconds_since(decode_start);
    return result;
}

}  // namespace halfbyte::model
