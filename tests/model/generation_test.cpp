#include "model/generation.h"

#include <gtest/gtest.h>

#include "fake_decoder.h"
#include "support/throws.h"

namespace halfbyte::model {
namespace {

using test::FakeDecoder;

void next_of_ten(int64_t, int32_t token, std::span<float> row) {
    std::fill(row.begin(), row.end(), 0.0f);
    row[size_t((token + 1) % 10)] = 1.0f;
}

TEST(Generation, GoesOnFromThePromptUntilTheLimit) {
    const Context context(1);
    const FakeDecoder decoder(10, 64, next_of_ten);
    const std::vector<int32_t> prompt = {7, 3};
    std::vector<int32_t> seen;
    const GenerateResult result = generate(context, decoder, prompt, {.max_tokens = 4, .chunk = 1},
                                           [&](int32_t token) { seen.push_back(token); });
    EXPECT_EQ(result.tokens, (std::vector<int32_t>{4, 5, 6, 7}));
    EXPECT_EQ(seen, result.tokens);
}

TEST(Generation, EndsBeforeAnyStopToken) {
    const Context context(1);
    const FakeDecoder decoder(10, 64, next_of_ten);
    const std::vector<int32_t> prompt = {3};
    EXPECT_EQ(generate(context, decoder, prompt, {.max_tokens = 20, .stop = {9, 6}}).tokens,
              (std::vector<int32_t>{4, 5}));
    EXPECT_EQ(generate(context, decoder, prompt, {.max_tokens = 20, .stop = {4}}).tokens,
              std::vector<int32_t>{});
}

TEST(Generation, RefusesWhatDoesNotFitTheContextAndAnEmptyPrompt) {
    const Context context(1);
    const FakeDecoder decoder(10, 8, next_of_ten);
    const std::vector<int32_t> prompt(5, 1);
    EXPECT_EQ(generate(context, decoder, prompt, {.max_tokens = 3}).tokens.size(), 3u);
    EXPECT_TRUE(test::throws(ErrorKind::usage, {"5 prompt tokens", "4 new", "8"},
                             [&] { generate(context, decoder, prompt, {.max_tokens = 4}); }));
    EXPECT_TRUE(test::throws(ErrorKind::usage, {"no tokens"}, [&] { generate(context, decoder, {}, {}); }));
}

TEST(Generation, SamplingRepeatsWithItsSeed) {
    const Context context(1);
    const FakeDecoder decoder(10, 256, [](int64_t, int32_t, std::span<float> row) {
        for (size_t i = 0; i < row.size(); i++) row[i] = 0.1f * float(i);
    });
    const std::vector<int32_t> prompt = {1};
    const auto tokens = [&](uint64_t seed) {
        GenerateOptions options = {.max_tokens = 100};
        options.sampler.temperature = 1.0f;
        options.sampler.seed = seed;
        return generate(context, decoder, prompt, options).tokens;
    };
    EXPECT_EQ(tokens(1), tokens(1));
    EXPECT_NE(tokens(1), tokens(2));
}

}  // namespace
}  // namespace halfbyte::model
