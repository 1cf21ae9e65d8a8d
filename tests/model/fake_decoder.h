// A decoder whose logits are a function of the position and the token, for tests of what is built on
// decoders.
#pragma once

#include <functional>

#include "model/decoder.h"

namespace halfbyte::test {

class FakeDecoder : public model::Decoder {
  public:
    // logits(position, token, row): fills the row of `vocab` logits after that token.
    using Logits = std::function<void(int64_t position, int32_t token, std::span<float> row)>;
    FakeDecoder(int64_t vocab, int64_t max_positions, Logits logits) : logits_(std::move(logits)) {
        config_.vocab_size = vocab;
        config_.max_positions = max_positions;
    }
    const checkpoint::ModelConfig& config() const override { return config_; }
    const std::filesystem::path& path() const override { return path_; }
    model::KvCache make_cache(int64_t capacity) const override { return model::KvCache(1, 1, capacity); }
    void forward(const Context&, model::KvCache& cache, std::span<const int32_t> tokens, int64_t wanted,
                 float* logits, const model::InputObserver&) const override {
        const int64_t count = int64_t(tokens.size());
        for (int64_t i = count - wanted; i < count; i++)
            logits_(cache.length() + i, tokens[size_t(i)],
                    {logits + (i - (count - wanted)) * config_.vocab_size, size_t(config_.vocab_size)});
        cache.append(count);
    }

  private:
    const std::filesystem::path path_ = "fake";
    checkpoint::ModelConfig config_;
    Logits logits_;
};

}  // namespace halfbyte::test
