#include "model/evaluation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "fake_decoder.h"
#include "support/throws.h"

namespace halfbyte::model {
namespace {

namespace fs = std::filesystem;
using test::FakeDecoder;

// Logit 1 for the token that follows (id + 1 mod 4), 0 for the other three.
void cycle(int64_t, int32_t token, std::span<float> row) {
    std::fill(row.begin(), row.end(), 0.0f);
    row[size_t((token + 1) % 4)] = 1.0f;
}

std::vector<int32_t> cycling(int count) {
    std::vector<int32_t> ids;
    for (int i = 0; i < count; i++) ids.push_back(i % 4);
    return ids;
}

const double cycle_nll = std::log(std::exp(1.0) + 3) - 1;

TEST(Perplexity, IsTheExponentialOfTheMeanOverAllButTheLastPosition) {
    const Context context(2);
    const FakeDecoder decoder(4, 64, cycle);
    const auto result =
        perplexity(context, {{&decoder}}, cycling(40), {.windows = 4, .window_size = 8, .chunk = 3})[0];
    EXPECT_EQ(result.tokens, 4 * 7);
    EXPECT_EQ(result.tokens_run, 4 * 8);
    EXPECT_NEAR(result.nll, cycle_nll, 1e-12);
    EXPECT_NEAR(result.perplexity.value, std::exp(cycle_nll), 1e-12);
    EXPECT_NEAR(result.perplexity.standard_error, 0, 1e-12);  // every token has the same loss
    EXPECT_FALSE(result.kl_to_base);
}

// Two kinds of losses, a and b, half each: s^2 = n/(n-1) ((a-b)/2)^2.
TEST(Perplexity, StandardErrorIsThatOfTheMeanTimesThePerplexity) {
    const Context context(1);
    const FakeDecoder decoder(4, 64, [](int64_t position, int32_t token, std::span<float> row) {
        cycle(position, token, row);
        if (position % 2 == 1) row[size_t((token + 1) % 4)] = 3.0f;
    });
    const auto result = perplexity(context, {{&decoder}}, cycling(18), {.windows = 2, .window_size = 9})[0];
    const double a = cycle_nll, b = std::log(std::exp(3.0) + 3) - 3, n = 16;
    EXPECT_EQ(result.tokens, 16);
    EXPECT_NEAR(result.nll, (a + b) / 2, 1e-7);
    EXPECT_NEAR(result.perplexity.standard_error,
                std::exp((a + b) / 2) * std::sqrt(n / (n - 1) * (a - b) * (a - b) / 4 / n), 1e-7);
}

TEST(Perplexity, SecondHalfScoresThePositionsFromHalfOn) {
    const Context context(1);
    const FakeDecoder decoder(4, 512, [](int64_t position, int32_t token, std::span<float> row) {
        cycle(position, token, row);
        if (position < 4) row[0] = 50.0f;  // wrong, and must not count
        if (position < 4 && token == 3) row[0] = 0.0f;
    });
    const auto result = perplexity(context, {{&decoder}}, cycling(32),
                                   {.windows = 4, .window_size = 8, .second_half = true, .chunk = 3})[0];
    EXPECT_EQ(result.tokens, 4 * 3);
    EXPECT_NEAR(result.nll, cycle_nll, 1e-12);
    const FakeDecoder plain(4, 512, cycle);
    EXPECT_EQ(
        perplexity(context, {{&plain}}, cycling(20 * 512), {.windows = 20, .second_half = true})[0].tokens,
        5100);
}

TEST(Perplexity, AWindowWhoseSecondHalfPredictsNothingIsRefused) {
    const Context context(1);
    const FakeDecoder decoder(4, 64, cycle);
    EXPECT_TRUE(test::throws(ErrorKind::usage, {"window of 2", "3 or more"}, [&] {
        perplexity(context, {{&decoder}}, cycling(8), {.windows = 2, .window_size = 2, .second_half = true});
    }));
}

TEST(Perplexity, BosReplacesTheFirstTokenOfEachWindow) {
    const Context context(1);
    std::vector<int32_t> first_tokens;
    const FakeDecoder decoder(4, 64, [&](int64_t position, int32_t token, std::span<float> row) {
        cycle(position, token, row);
        if (position == 0) first_tokens.push_back(token);
    });
    PerplexityOptions options = {.windows = 3, .window_size = 5};
    options.bos = 2;
    perplexity(context, {{&decoder}}, cycling(15), options);
    EXPECT_EQ(first_tokens, std::vector<int32_t>(3, 2));
}

TEST(Perplexity, KlOfAModelWithItselfIsExactlyZeroAndItsRatioOne) {
    const fs::path folder = fs::path(HALFBYTE_TEST_DATA) / "llmc-nvfp4-2layer";
    const auto file = checkpoint::open_checkpoint(folder);
    const Context context(2);
    const auto decoder = load_decoder(context, *file, Arithmetic::kernel);
    std::vector<int32_t> ids;
    for (int i = 0; i < 64; i++) ids.push_back((i * 389 + 17) % 1024);
    const auto results = perplexity(context, {{decoder.get(), true}, {decoder.get()}}, ids,
                                    {.windows = 2, .window_size = 32, .chunk = 10});
    EXPECT_FALSE(results[0].kl_to_base);
    EXPECT_EQ(results[1].kl_to_base->value, 0.0);
    EXPECT_EQ(results[1].kl_to_base->standard_error, 0.0);
    EXPECT_EQ(results[1].ratio_to_base->value, 1.0);
    EXPECT_EQ(results[1].ratio_to_base->standard_error, 0.0);
    EXPECT_EQ(results[1].difference_to_base->value, 0.0);
    EXPECT_EQ(results[1].difference_to_base->standard_error, 0.0);
    EXPECT_EQ(results[0].logits_hash, results[1].logits_hash);
}

TEST(Perplexity, KlIsTheSumOverTheVocabulary) {
    const Context context(1);
    const FakeDecoder source(2, 64, [](int64_t, int32_t, std::span<float> row) { row[0] = 0, row[1] = 0; });
    const FakeDecoder other(2, 64, [](int64_t, int32_t, std::span<float> row) { row[0] = 2, row[1] = 0; });
    const std::vector<int32_t> ids = {0, 0, 0, 0};
    const auto results =
        perplexity(context, {{&source, true}, {&other}}, ids, {.windows = 1, .window_size = 4});
    const double norm = std::log(std::exp(2.0) + 1);
    const double expected = 0.5 * (std::log(0.5) - (2 - norm)) + 0.5 * (std::log(0.5) - (0 - norm));
    EXPECT_NEAR(results[1].kl_to_base->value, expected, 1e-12);
    EXPECT_NEAR(results[1].ratio_to_base->value, std::exp((norm - 2) - std::log(2.0)), 1e-12);
}

// The base has one loss c; the other has a and b, half each. So per token, P nll - Q c has the deviation of P
// nll.
TEST(Perplexity, TheErrorOfTheDifferenceIsThatOfPairs) {
    const Context context(1);
    const FakeDecoder base(4, 64, cycle),
        other(4, 64, [](int64_t position, int32_t token, std::span<float> row) {
            cycle(position, token, row);
            if (position % 2 == 1) row[size_t((token + 1) % 4)] = 3.0f;
        });
    const auto results =
        perplexity(context, {{&base, true}, {&other}}, cycling(18), {.windows = 2, .window_size = 9});
    const double a = cycle_nll, b = std::log(std::exp(3.0) + 3) - 3, n = 16, own = std::exp((a + b) / 2);
    EXPECT_FALSE(results[0].difference_to_base);
    EXPECT_NEAR(results[1].difference_to_base->value, own - std::exp(a), 1e-7);
    EXPECT_NEAR(results[1].difference_to_base->standard_error,
                own * std::sqrt(n / (n - 1) * (a - b) * (a - b) / 4 / n), 1e-7);
    EXPECT_NEAR(results[1].ratio_to_base->standard_error,
                results[1].difference_to_base->standard_error / std::exp(a), 1e-7);
}

TEST(Perplexity, ATextWithTooFewWindowsIsAnErrorWithBothNumbers) {
    const Context context(1);
    const FakeDecoder decoder(4, 64, cycle);
    EXPECT_TRUE(test::throws(ErrorKind::usage, {"39", "4 windows", "--windows is 5"}, [&] {
        perplexity(context, {{&decoder}}, cycling(39), {.windows = 5, .window_size = 8});
    }));
}

TEST(Perplexity, NanLogitsAreAnErrorWithTheirPlace) {
    const Context context(2);
    const FakeDecoder decoder(4, 64, [](int64_t position, int32_t token, std::span<float> row) {
        cycle(position, token, row);
        if (position == 5) row[1] = NAN;
    });
    EXPECT_TRUE(test::throws(ErrorKind::failure, {"NaN", "window 0", "position 5"}, [&] {
        perplexity(context, {{&decoder}}, cycling(16), {.windows = 2, .window_size = 8});
    }));
}

TEST(Perplexity, ModelsOfDifferentVocabulariesCannotBeCompared) {
    const Context context(1);
    const FakeDecoder a(4, 64, cycle), b(8, 64, cycle);
    EXPECT_TRUE(test::throws(ErrorKind::usage, {"4", "8"}, [&] {
        perplexity(context, {{&a, true}, {&b}}, cycling(16), {.windows = 1, .window_size = 8});
    }));
}

}  // namespace
}  // namespace halfbyte::model
