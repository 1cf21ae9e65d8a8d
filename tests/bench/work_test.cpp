// What a model's tests move and compute, on a file small enough to count by hand.
#include <gtest/gtest.h>

#include "bench/model.h"
#include "checkpoint/checkpoint.h"
#include "halfbyte/error.h"
#include "round_limits.h"

namespace halfbyte::bench {
namespace {

const std::filesystem::path file = std::filesystem::path(HALFBYTE_TEST_DATA) / "llmc-nvfp4-2layer";

// Of the linear layers: weights in NVFP4, and those of the dense lm_head.
struct Weights {
    double nvfp4 = 0, head = 0;
};
Weights weights_of(const checkpoint::Checkpoint& source) {
    Weights weights;
    for (const auto& [name, layer] : source.nvfp4()) weights.nvfp4 += double(layer.n * layer.k);
    weights.head = double(source.config().vocab_size * source.config().hidden_size);
    return weights;
}

TEST(ModelWork, CountsWhatIsWalkedThrough) {
    const auto source = checkpoint::open_checkpoint(file);
    const auto& config = source->config();
    const Weights weights = weights_of(*source);
    const double attention = double(config.layers * config.heads * config.head_dim * 2);  // of one pair
    const double bytes = weights.nvfp4 * 0.5625 + weights.head * 2;

    const Work prompt = prompt_work(*source, model::Arithmetic::kernel, 10);
    EXPECT_EQ(prompt.bytes_read, bytes);
    EXPECT_EQ(prompt.int8, 10 * weights.nvfp4);
    EXPECT_EQ(prompt.fp32, weights.head + 55 * attention);  // logits of the last position alone

    const Work generate = generate_work(*source, model::Arithmetic::kernel, 10);
    EXPECT_EQ(generate.bytes_read, 10 * bytes);
    EXPECT_EQ(generate.int8, 10 * weights.nvfp4);
    EXPECT_EQ(generate.fp32, 10 * weights.head + 55 * attention);

    const Work w4a16 = generate_work(*source, model::Arithmetic::w4a16, 10);
    EXPECT_EQ(w4a16.int8, 0);
    EXPECT_EQ(w4a16.fp32, generate.fp32 + generate.int8);
}

TEST(ModelBench, RunsEachTest) {
    const Context context(1);
    const ModelResult result =
        measure_model(context, file, round_limits, {.prompt = 20, .generated = 3, .repeats = 2}, {});
    ASSERT_EQ(result.rows.size(), 2u);
    EXPECT_EQ(result.rows[0].test, "pp20");
    EXPECT_EQ(result.rows[1].test, "tg3");
    EXPECT_GT(result.load_seconds, 0);
    EXPECT_GT(result.first_token_seconds, result.load_seconds);
    for (const ModelRow& row : result.rows) {
        ASSERT_EQ(row.samples.size(), 2u);
        EXPECT_GT(row.mean, 0);
        EXPECT_DOUBLE_EQ(row.share, row.mean / row.limit);
    }
    const auto source = checkpoint::open_checkpoint(file);
    const Bound bound = bound_of(generate_work(*source, model::Arithmetic::kernel, 3), round_limits);
    EXPECT_DOUBLE_EQ(result.rows[1].limit, 3 / bound.seconds);
    EXPECT_EQ(result.rows[1].bound, name_of(bound.kind));

    EXPECT_EQ(measure_model(context, file, round_limits, {.prompt = 0, .generated = 3, .repeats = 1}, {})
                  .rows.size(),
              1u);
    EXPECT_THROW(measure_model(context, file, round_limits, {.prompt = 1 << 30}, {}), Error);
}

}  // namespace
}  // namespace halfbyte::bench
