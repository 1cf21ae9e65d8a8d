#include "quantizer/quantize_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "core/float_environment.h"
#include "format/e4m3.h"
#include "quantizer/ignore_patterns.h"
#include "quantizer/random_model.h"
#include "reference/reference.h"

namespace halfbyte::quantizer {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::NvFp4Linear;
using checkpoint::Scheme;
using test::open;
using test::random_model;
using test::TemporaryFolder;
using test::TinyModel;

std::set<std::string> names_in(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
    return names;
}

Calibration some_calibration() {
    Calibration calibration{10, {{"lm_head", 3.0f}}};
    float amax = 0.75f;
    for (const auto& [name, shape] : TinyModel::linears())
        calibration.input_amax["model.layers.0." + name] = amax += 0.5f;
    return calibration;
}

// What the reference makes of one weight, and its counts.
struct Expected {
    EncodeScale scale{1.0f};
    std::vector<uint8_t> codes, block_scales;
    QuantizeStats stats;
    double snr_db = 0;
};

float amax_of(const TinyModel::Tensor& tensor) {
    float amax = 0;
    for (int64_t i = 0; i < tensor.shape[0] * tensor.shape[1]; i++)
        amax = std::max(amax, std::fabs(load_element(tensor.bytes.data(), tensor.dtype, i)));
    return amax;
}

Expected by_reference(const TinyModel::Tensor& tensor, float amax) {
    const FloatEnvironment environment;
    const int64_t n = tensor.shape[0], k = tensor.shape[1];
    Expected expected{EncodeScale::from_amax(amax), {}, {}, {}, 0};
    const float G = expected.scale.encode(), D = expected.scale.decode();
    const NvFp4Shape shape = NvFp4Shape::of(n, k);
    expected.codes.resize(size_t(shape.code_bytes()));
    expected.block_scales.resize(size_t(shape.scale_bytes()));
    reference::quantize({.x = {tensor.bytes.data(), tensor.dtype, n, k, k},
                         .encode_scale = &G,
                         .shape = shape,
                         .codes = expected.codes.data(),
                         .block_scales = expected.block_scales.data(),
                         .stats = &expected.stats});
    std::vector<float> decoded(size_t(n * k));
    reference::dequantize({.a = {expected.codes.data(), expected.block_scales.data(), shape},
                           .decode_scale = &D,
                           .y = {decoded.data(), DType::f32, n, k, k}});
    double signal = 0, noise = 0;
    for (int64_t i = 0; i < n * k; i++) {
        const double value = load_element(tensor.bytes.data(), tensor.dtype, i);
        signal += value * value;
        noise += (value - double(decoded[size_t(i)])) * (value - double(decoded[size_t(i)]));
    }
    expected.snr_db = 10 * std::log10(signal / noise);
    return expected;
}

// Modules that run fused.
std::vector<std::vector<std::string>> groups(bool separate) {
    if (!separate)
        return {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                {"self_attn.o_proj"},
                {"mlp.gate_proj", "mlp.up_proj"},
                {"mlp.down_proj"}};
    std::vector<std::vector<std::string>> alone;
    for (const auto& [name, shape] : TinyModel::linears()) alone.push_back({name});
    return alone;
}

void expect_reference_bytes(const TinyModel& model, const Checkpoint& made, const QuantizeReport& report,
                            bool separate) {
    ASSERT_EQ(made.nvfp4().size(), TinyModel::linears().size());
    ASSERT_EQ(report.layers.size(), TinyModel::linears().size());
    QuantizeStats total;
    for (const auto& group : groups(separate)) {
        float amax = 0;
        for (const std::string& name : group)
            amax = std::max(amax, amax_of(model.tensors.at("model.layers.0." + name + ".weight")));
        for (const std::string& name : group) {
            SCOPED_TRACE(name);
            const std::string module = "model.layers.0." + name;
            const Expected expected = by_reference(model.tensors.at(module + ".weight"), amax);
            const NvFp4Linear& linear = made.nvfp4().at(module);
            EXPECT_EQ(linear.weight_scale.word(), expected.scale.word());
            EXPECT_TRUE(std::equal(expected.codes.begin(), expected.codes.end(), linear.codes));
            EXPECT_TRUE(
                std::equal(expected.block_scales.begin(), expected.block_scales.end(), linear.block_scales));
            const auto layer = std::find_if(report.layers.begin(), report.layers.end(),
                                            [&](const LayerReport& row) { return row.module == module; });
            ASSERT_NE(layer, report.layers.end());
            EXPECT_EQ(layer->stats, expected.stats);
            EXPECT_NEAR(layer->snr_db, expected.snr_db, 1e-9);  // the same FP64 terms in another order
            total.values += expected.stats.values;
            total.blocks += expected.stats.blocks;
            total.clipped += expected.stats.clipped;
            total.flushed += expected.stats.flushed;
        }
    }
    EXPECT_EQ(report.stats, total);
}

TEST(QuantizeCheckpoint, WritesTheBytesOfTheReference) {
    const TemporaryFolder folder;
    int number = 0;
    for (const DType type : {DType::bf16, DType::f16, DType::f32})
        for (const bool separate : {false, true}) {
            SCOPED_TRACE(testing::Message() << name_of(type) << (separate ? ", separate scales" : ""));
            const std::string name = std::to_string(number++);
            const TinyModel model = random_model(type, unsigned(number));
            const auto source = open(model, folder / name);
            const fs::path out = folder / (name + "-out");
            const QuantizeReport report = quantize_checkpoint(
                Context(2), *source, {}, out, {.scheme = Scheme::nvfp4a16, .separate_scales = separate});
            const auto made = checkpoint::open_checkpoint(out);
            EXPECT_EQ(made->scheme(), Scheme::nvfp4a16);
            expect_reference_bytes(model, *made, report, separate);
            for (const auto& [dense, tensor] : made->dense()) {
                std::vector<uint8_t> buffer;
                const auto& original = model.tensors.at(dense);
                const int64_t rows = original.shape.size() < 2 ? 1 : original.shape[0];
                EXPECT_EQ(tensor.dtype, type);
                EXPECT_TRUE(std::equal(original.bytes.begin(), original.bytes.end(),
                                       reinterpret_cast<const char*>(made->read(dense, 0, rows, buffer))))
                    << dense;
            }
        }
}

TEST(QuantizeCheckpoint, TensorsLargerThanAPieceAreWhole) {
    const TemporaryFolder folder;
    const TinyModel model =
        random_model(DType::bf16, 3, 3 * 32768 + 16);  // three million weights: two pieces each
    const auto source = open(model, folder / "model");
    int64_t last = 0, total = 0;
    std::string stage;
    const QuantizeReport report =
        quantize_checkpoint(Context(2), *source, {}, folder / "out", {.scheme = Scheme::nvfp4a16},
                            [&](std::string_view what, int64_t done, int64_t all) {
                                if (stage == what) {
                                    EXPECT_GT(done, last);
                                    EXPECT_EQ(all, total);
                                }
                                stage = what;
                                last = done;
                                total = all;
                            });
    EXPECT_EQ(stage, "finish");
    EXPECT_EQ(last, total);
    expect_reference_bytes(model, *checkpoint::open_checkpoint(folder / "out"), report, false);
}

TEST(QuantizeCheckpoint, InputScalesAreThoseOfTheCalibration) {
    const TemporaryFolder folder;
    const auto source = open(random_model(DType::bf16), folder / "model");
    const Calibration calibration = some_calibration();
    const QuantizeReport report = quantize_checkpoint(Context(1), *source, calibration, folder / "out", {});
    const auto made = checkpoint::open_checkpoint(folder / "out");
    EXPECT_EQ(made->scheme(), Scheme::nvfp4);
    for (const auto& [module, linear] : made->nvfp4())
        EXPECT_EQ(linear.input_scale->word(), 2688.0f / calibration.input_amax.at(module)) << module;
    checkpoint::Json json = source->config().json;
    for (const char* key : {"dtype", "torch_dtype"}) json[key] = "bfloat16";
    EXPECT_EQ(made->config().json, json);
    EXPECT_EQ(report.output_bytes, made->weight_bytes());
    EXPECT_EQ(report.source_bytes, source->weight_bytes());
}

TEST(QuantizeCheckpoint, TheConfigNamesBf16WhateverTheTensorsAreAndTellsTheChange) {
    const TemporaryFolder folder;
    int number = 0;
    for (const DType type : {DType::bf16, DType::f16, DType::f32})
        for (const char* said : {"", "bfloat16", "float16", "float32"}) {
            TinyModel model = random_model(type);
            if (*said) model.config["torch_dtype"] = said;
            const std::string name = std::to_string(number++);
            const QuantizeReport report =
                quantize_checkpoint(Context(1), *open(model, folder / name), {}, folder / (name + "-out"),
                                    {.scheme = Scheme::nvfp4a16});
            const auto json = checkpoint::open_checkpoint(folder / (name + "-out"))->config().json;
            for (const char* key : {"dtype", "torch_dtype"}) EXPECT_EQ(json[key], "bfloat16");
            const auto told = std::count_if(
                report.warnings.begin(), report.warnings.end(), [&](const std::string& warning) {
                    return warning.starts_with("torch_dtype was \"" + std::string(said) + "\"");
                });
            EXPECT_EQ(told, *said && std::string_view(said) != "bfloat16" ? 1 : 0);
        }
}

TEST(QuantizeCheckpoint, NamesALayerThatTheCalibrationHasNotSeen) {
    const TemporaryFolder folder;
    const auto source = open(random_model(DType::bf16), folder / "model");
    Calibration calibration = some_calibration();
    calibration.input_amax.erase("model.layers.0.mlp.up_proj");
    test::expect_error(ErrorKind::failure, "has not seen the input of model.layers.0.mlp.up_proj",
                       [&] { quantize_checkpoint(Context(1), *source, calibration, folder / "out", {}); });
    test::expect_error(ErrorKind::usage, "calibration",
                       [&] { quantize_checkpoint(Context(1), *source, {}, folder / "out", {}); });
    EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"model"});
}

TEST(QuantizeCheckpoint, StoppedAnywhereItLeavesNothing) {
    const TemporaryFolder folder;
    const auto source = open(random_model(DType::bf16), folder / "model");
    for (int stop = 0;; stop++) {
        int calls = 0;
        bool stopped = false;
        try {
            quantize_checkpoint(Context(1), *source, {}, folder / "out", {.scheme = Scheme::nvfp4a16},
                                [&](std::string_view, int64_t, int64_t) {
                                    if (calls++ == stop) throw Error(ErrorKind::interrupted, "stop");
                                });
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::interrupted);
            stopped = true;
        }
        if (!stopped) {
            EXPECT_GT(stop, int(TinyModel::linears().size()));
            break;
        }
        ASSERT_EQ(names_in(folder.path()), std::set<std::string>{"model"}) << "stopped at report " << stop;
    }
    EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"model", "out"}));
}

// The head of each source, tied and untied, in each format: its bytes by the definition, everything else as
// without.
TEST(QuantizeCheckpoint, TheHeadIsQuantisedByItself) {
    const TemporaryFolder folder;
    int number = 0;
    for (const bool tied : {true, false})
        for (const DType type : {DType::bf16, DType::f16, DType::f32})
            for (const Scheme head : {Scheme::nvfp4a16, Scheme::fp8a16}) {
                SCOPED_TRACE(testing::Message()
                             << name_of(type) << (tied ? ", tied, " : ", untied, ") << name_of(head));
                TinyModel model = random_model(type);
                model.config["tie_word_embeddings"] = tied;
                const TinyModel::Tensor& weight =
                    tied ? model.tensors.at("model.embed_tokens.weight")
                         : model.tensors["lm_head.weight"] =
                               random_model(type, 9).tensors.at("model.embed_tokens.weight");
                const std::string name = std::to_string(number++);
                const fs::path out = folder / (name + "-out"), without = folder / (name + "-without");
                const auto source = open(model, folder / name);
                const Calibration calibration = some_calibration();
                const QuantizeReport report =
                    quantize_checkpoint(Context(2), *source, calibration, out, {.ignore = {}, .head = head});
                quantize_checkpoint(Context(2), *source, calibration, without, {});
                EXPECT_EQ(report.head_untied, tied);
                const auto made = checkpoint::open_checkpoint(out),
                           base = checkpoint::open_checkpoint(without);
                EXPECT_EQ(report.output_bytes, made->weight_bytes());
                EXPECT_FALSE(made->config().tie_word_embeddings);
                EXPECT_EQ(made->config().json["tie_word_embeddings"], false);
                EXPECT_FALSE(made->dense().contains("lm_head.weight"));
                EXPECT_TRUE(made->dense().contains("model.embed_tokens.weight"));
                EXPECT_EQ(made->dense().size(), base->dense().size() - (tied ? 0 : 1));
                for (const auto& [module, linear] : base->nvfp4()) {
                    const NvFp4Linear& same = made->nvfp4().at(module);
                    EXPECT_EQ(same.input_scale->word(), linear.input_scale->word());
                    EXPECT_TRUE(std::equal(linear.codes, linear.codes + linear.n * linear.k / 2, same.codes));
                }
                ASSERT_EQ(report.layers.size(), 8u);
                EXPECT_EQ(report.layers.front().module, "lm_head");
                const int64_t n = TinyModel::vocab, k = TinyModel::hidden;
                if (head == Scheme::nvfp4a16) {
                    const Expected expected = by_reference(weight, amax_of(weight));
                    const NvFp4Linear& linear = made->nvfp4().at("lm_head");
                    EXPECT_FALSE(linear.input_scale.has_value());
                    EXPECT_EQ(linear.weight_scale.word(), expected.scale.word());
                    EXPECT_TRUE(std::equal(expected.codes.begin(), expected.codes.end(), linear.codes));
                    EXPECT_TRUE(std::equal(expected.block_scales.begin(), expected.block_scales.end(),
                                           linear.block_scales));
                    continue;
                }
                const checkpoint::Fp8Linear& linear = made->fp8().at("lm_head");
                ASSERT_EQ(linear.n, n);
                ASSERT_EQ(linear.k, k);
                for (int64_t row = 0; row < n; row++) {
                    float amax = 0;
                    for (int64_t i = 0; i < k; i++)
                        amax =
                            std::max(amax, std::fabs(load_element(weight.bytes.data(), type, row * k + i)));
                    const float scale = round_to_type(amax / 448, DType::bf16);
                    EXPECT_EQ(linear.scale[size_t(row)], scale);
                    for (int64_t i = 0; i < k; i++) {
                        const float value = load_element(weight.bytes.data(), type, row * k + i);
                        EXPECT_EQ(linear.weight[row * k + i], encode_e4m3(value / scale));
                    }
                }
            }
}

TEST(QuantizeCheckpoint, AHeadInFp8TakesEveryRowAndNoNonFiniteOne) {
    const TemporaryFolder folder;
    TinyModel model = random_model(DType::bf16);
    TinyModel::Tensor& weight = model.tensors.at("model.embed_tokens.weight");
    const int64_t k = TinyModel::hidden;
    for (int64_t i = 0; i < k; i++) {
        store_element(weight.bytes.data(), DType::bf16, 3 * k + i, i % 2 == 0 ? 0.0f : -0.0f);
        store_element(weight.bytes.data(), DType::bf16, 4 * k + i, 0x1p-133f);
        store_element(weight.bytes.data(), DType::bf16, 5 * k + i, 0x1p127f);
    }
    const checkpoint::Scheme head = Scheme::fp8a16;
    quantize_checkpoint(Context(2), *open(model, folder / "rows"), {}, folder / "out",
                        {.scheme = Scheme::nvfp4a16, .ignore = {}, .head = head});
    const auto made = checkpoint::open_checkpoint(folder / "out");
    const checkpoint::Fp8Linear& linear = made->fp8().at("lm_head");
    EXPECT_EQ(linear.scale[3], 1.0f);
    EXPECT_EQ(linear.weight[3 * k], 0x00);
    EXPECT_EQ(linear.weight[3 * k + 1], 0x80);
    EXPECT_EQ(linear.scale[4], 0x1p-126f);
    EXPECT_EQ(linear.weight[4 * k], 0x04);  // 2^-7
    EXPECT_EQ(linear.weight[5 * k], e4m3_max);

    store_element(weight.bytes.data(), DType::bf16, 6 * k + 2, INFINITY);
    test::expect_error(ErrorKind::failure, "model.embed_tokens.weight holds inf at [6, 2]", [&] {
        quantize_checkpoint(Context(2), *open(model, folder / "inf"), {}, folder / "never",
                            {.scheme = Scheme::nvfp4a16, .ignore = {}, .head = head});
    });
    EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"inf", "out", "rows"}));
    test::expect_error(ErrorKind::usage, "--head quantises lm_head, which --ignore leaves as it is", [&] {
        quantize_checkpoint(Context(2), *open(random_model(DType::bf16), folder / "both"), {},
                            folder / "never", {.scheme = Scheme::nvfp4a16, .head = head});
    });
    test::expect_error(ErrorKind::usage, "is quantised already", [&] {
        quantize_checkpoint(Context(2), *made, {}, folder / "never", {.scheme = Scheme::nvfp4a16});
    });
}

TEST(IgnorePatterns, MatchNamesExpressionsAndTheClass) {
    EXPECT_TRUE(IgnorePatterns({"lm_head"}).matches("lm_head"));
    EXPECT_FALSE(IgnorePatterns({"lm_head"}).matches("model.lm_head"));
    EXPECT_TRUE(IgnorePatterns({"re:.*q_proj"}).matches("model.layers.0.self_attn.q_proj"));
    EXPECT_TRUE(IgnorePatterns({"re:model"})
                    .matches("model.layers.0.self_attn.q_proj"));  // from the start, not to the end
    EXPECT_FALSE(IgnorePatterns({"re:q_proj"}).matches("model.layers.0.self_attn.q_proj"));
    EXPECT_TRUE(IgnorePatterns({"x", "Linear"}).matches("model.layers.0.self_attn.q_proj"));
    EXPECT_FALSE(IgnorePatterns({}).matches("lm_head"));
    EXPECT_EQ(IgnorePatterns({"a", "re:b", "c"}).unused({"b1", "c"}), std::vector<std::string>{"a"});
    test::expect_error(ErrorKind::usage, "--ignore", [] { IgnorePatterns({"re:("}); });
}

}  // namespace
}  // namespace halfbyte::quantizer
