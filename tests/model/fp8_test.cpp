// Models with FP8 layers, the head among them: kernels and simulation, and what the bytes mean.
#include <gtest/gtest.h>

#include "checkpoint/tiny_model.h"
#include "core/element.h"
#include "format/e4m3.h"
#include "model/decoder.h"
#include "quantizer/random_model.h"
#include "support/random.h"

namespace halfbyte::model {
namespace {

using checkpoint::Scheme;
using test::TemporaryFolder;
using test::TinyModel;

// Every layer and an untied head in FP8, and the same in FP32 with a scale of 1. The head has a bias.
struct Pair {
    TinyModel fp8, dense;

    explicit Pair(bool with_scales) {
        fp8 = dense = test::random_model(DType::f32, 5);
        test::Random random(6);
        std::map<std::string, std::vector<int64_t>> modules = {
            {"lm_head", {TinyModel::vocab, TinyModel::hidden}}};
        for (const auto& [name, shape] : TinyModel::linears()) modules["model.layers.0." + name] = shape;
        for (const auto& [module, shape] : modules) {
            const int64_t count = shape[0] * shape[1];
            std::string bytes(size_t(count), '\0'), values(size_t(count) * 4, '\0'), scales;
            for (int64_t i = 0; i < count; i++) {
                const float value = 0.3f * random.normal();
                bytes[size_t(i)] = char(encode_e4m3(value));
                store_element(values.data(), DType::f32, i, decode_e4m3(encode_e4m3(value)));
            }
            for (int64_t row = 0; row < shape[0]; row++)
                scales += test::bytes_of(with_scales ? random.uniform(0.5f, 2.0f) : 1.0f);
            fp8.tensors[module + ".weight"] = {DType::f8_e4m3, shape, bytes};
            fp8.tensors[module + ".weight_scale"] = {DType::f32, {shape[0], 1}, scales};
            dense.tensors[module + ".weight"] = {DType::f32, shape, values};
        }
        for (TinyModel* model : {&fp8, &dense}) model->config["tie_word_embeddings"] = false;
        auto& q = fp8.config["quantization_config"] =
            checkpoint::quantization_config(Scheme::nvfp4a16, {}, Scheme::fp8a16);
        q["config_groups"]["group_0"]["targets"] = {"Linear"};
        q["config_groups"].erase("group_1");
    }
};

std::vector<float> logits_of(const Context& context, const TinyModel& model, Arithmetic arithmetic,
                             int64_t chunk) {
    const TemporaryFolder folder;
    const auto file = test::open(model, folder / "model");
    const auto decoder = load_decoder(context, *file, arithmetic);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 20; i++) tokens.push_back(i * 7 % int32_t(TinyModel::vocab));
    std::vector<float> logits(tokens.size() * size_t(TinyModel::vocab));
    KvCache cache = decoder->make_cache(int64_t(tokens.size()));
    for (int64_t begin = 0; begin < int64_t(tokens.size()); begin += chunk) {
        const int64_t rows = std::min(chunk, int64_t(tokens.size()) - begin);
        decoder->forward(context, cache, std::span(tokens).subspan(size_t(begin), size_t(rows)), rows,
                         logits.data() + begin * TinyModel::vocab);
    }
    return logits;
}

TEST(Fp8Model, WithScalesOf1IsTheDenseModelOfItsBytes) {
    const Pair pair(false);
    const Context context(2);
    EXPECT_EQ(logits_of(context, pair.fp8, Arithmetic::kernel, 20),
              logits_of(context, pair.dense, Arithmetic::kernel, 20));
}

TEST(Fp8Model, HasTheSameBitsInEveryArithmeticLevelAndChunk) {
    const Pair pair(true);
    const std::vector<float> expected = logits_of(Context(1), pair.fp8, Arithmetic::simulated, 20);
    EXPECT_NE(expected, logits_of(Context(1), pair.dense, Arithmetic::kernel, 20));  // scales do something
    for (const CpuLevelStatus& status : cpu_levels()) {
        if (!status.unsupported_reason.empty()) continue;
        const Context context(2, status.level);
        for (const Arithmetic arithmetic : {Arithmetic::kernel, Arithmetic::simulated, Arithmetic::w4a16})
            for (const int64_t chunk : {1, 7, 20})
                EXPECT_EQ(logits_of(context, pair.fp8, arithmetic, chunk), expected)
                    << name_of(status.level) << ", chunk " << chunk;
    }
}

}  // namespace
}  // namespace halfbyte::model
