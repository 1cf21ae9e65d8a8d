// Transforms at run time: each place they stand in, in every arithmetic.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>

#include "checkpoint/safetensors.h"
#include "checkpoint/tiny_model.h"
#include "core/element.h"
#include "core/float_environment.h"
#include "model/decoder.h"
#include "quantizer/random_model.h"
#include "reference/reference.h"
#include "transform/hadamard.h"
#include "transform/square_matrix.h"

namespace halfbyte::model {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::Json;
using checkpoint::open_checkpoint;
using checkpoint::Scheme;
using test::bytes_of;
using test::TemporaryFolder;
using test::TinyModel;

const std::string layer = "model.layers.0.", q_proj = layer + "self_attn.q_proj";

// Entries +-1, orthogonal, not symmetric and no diag(signs) times Sylvester's.
std::vector<double> signed_matrix(int64_t n, uint64_t seed) {
    std::vector<double> M = hadamard_matrix(n)->values;
    const auto rows = random_signs(n, seed), columns = random_signs(n, seed + 1);
    for (int64_t i = 0; i < n * n; i++) M[size_t(i)] *= rows[size_t(i / n)] * columns[size_t(i % n)];
    return M;
}

TinyModel::Tensor f64(const std::vector<double>& values) {
    const auto n = int64_t(std::sqrt(double(values.size())));
    return {DType::f64, {n, n}, bytes_of(values)};
}

// A scheme of transforms that is being put together: "M.S_LOCATION.weight" holds the matrix of the first
// module.
struct Rotation {
    Json json;
    std::map<std::string, TinyModel::Tensor> tensors;
    Rotation& add(const std::string& name, int64_t n, uint64_t seed,
                  const std::vector<std::tuple<const char*, bool, std::vector<std::string>>>& places) {
        Json apply = Json::array();
        for (const auto& [location, inverse, targets] : places) {
            apply.push_back({{"targets", targets},
                             {"location", location},
                             {"inverse", inverse},
                             {"ignore", Json::array()}});
            for (const std::string& target : targets)
                tensors[target + "." + name + "_" + location + ".weight"] = f64(signed_matrix(n, seed));
        }
        json[name] = {{"type", "random-hadamard"}, {"head_dim", n}, {"apply", apply}};
        return *this;
    }
    TinyModel of(TinyModel model) const {
        Json& config = model.config["quantization_config"];
        config["quant_method"] = "compressed-tensors";
        config["transform_config"] = {{"config_groups", json}};
        model.tensors.insert(tensors.begin(), tensors.end());
        return model;
    }
};

std::unique_ptr<Checkpoint> opened(const TinyModel& model) {
    const TemporaryFolder folder;
    model.write(folder.path());
    return open_checkpoint(folder.path());
}

// Random weights, norms of 1 (so that they commute with rotations), with biases.
TinyModel dense_model() {
    TinyModel model = test::random_model(DType::f32);
    for (auto& [name, tensor] : model.tensors)
        if (name.ends_with("norm.weight")) tensor.bytes = bytes_of(std::vector<float>(32, 1.0f));
    return model;
}

TinyModel with_biases(TinyModel model) {
    model.config["attention_bias"] = true;
    model.config["mlp_bias"] = true;
    for (const auto& [name, shape] : TinyModel::linears()) {
        std::vector<float> bias;
        for (int64_t i = 0; i < shape[0]; i++) bias.push_back(float((i * 29) % 17) / 16 - 0.5f);
        model.tensors[layer + name + ".bias"] = {DType::f32, {shape[0]}, bytes_of(bias)};
    }
    return model;
}

// Codes and scales of a spread that activations reach.
TinyModel quantised_model(Scheme scheme) {
    TinyModel model = TinyModel::quantised(scheme);
    std::mt19937 random(3);
    for (auto& [name, tensor] : model.tensors) {
        if (name.ends_with("_packed"))
            for (char& byte : tensor.bytes) byte = char(random());
        if (name.ends_with("weight_scale"))
            for (char& byte : tensor.bytes) byte = char(0x38 + random() % 16);
        if (tensor.dtype == DType::bf16)
            for (size_t i = 0; i < tensor.bytes.size(); i += 2)
                store_element(tensor.bytes.data(), DType::bf16, int64_t(i / 2),
                              float(random() % 256) / 128 - 1);
        if (name.ends_with("input_global_scale")) tensor.bytes = bytes_of(300.0f);
        if (name.ends_with("weight_global_scale")) tensor.bytes = bytes_of(1000.0f);
    }
    return with_biases(model);
}

std::vector<float> some_floats(size_t count) {
    std::mt19937 random(7);
    std::normal_distribution<float> values;
    std::vector<float> x(count);
    for (float& value : x) value = values(random);
    return x;
}

std::vector<float> run(const Decoder& decoder, const Context& context, int64_t chunk,
                       const InputObserver& observer = {}) {
    const std::vector<int32_t> tokens = {3, 17, 5, 11, 23, 0, 8, 14, 2, 9};
    const int64_t count = int64_t(tokens.size()), vocab = decoder.config().vocab_size;
    std::vector<float> logits(size_t(count * vocab));
    KvCache cache = decoder.make_cache(count);
    for (int64_t begin = 0; begin < count; begin += chunk) {
        const int64_t rows = std::min(chunk, count - begin);
        decoder.forward(context, cache, std::span(tokens).subspan(size_t(begin), size_t(rows)), rows,
                        logits.data() + begin * vocab, observer);
    }
    return logits;
}

std::vector<float> logits_of(const TinyModel& model, Arithmetic arithmetic = Arithmetic::kernel,
                             int64_t chunk = 4) {
    const Context context(2);
    const auto file = opened(model);
    return run(*load_decoder(context, *file, arithmetic), context, chunk);
}

double rms_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += std::pow(double(a[i]) - double(b[i]), 2);
    return std::sqrt(sum / double(a.size()));
}
double rms(const std::vector<float>& a) {
    return rms_difference(a, std::vector<float>(a.size()));
}

// Each of the steps, and each transform, may move its result by about u sqrt(K) of its size, K = 48 at most
// (the bound of decoder_test.cpp).
double tolerance(const std::vector<float>& logits, int transforms) {
    return (12 + 2 + transforms) * 0x1p-24 * std::sqrt(48.0) * rms(logits);
}

std::vector<float> transformed(std::vector<float> x, int64_t k,
                               const std::vector<std::vector<double>>& matrices) {
    const FloatEnvironment environment;
    for (const auto& M : matrices) {
        const auto n = int64_t(std::sqrt(double(M.size())));
        const std::vector<float> T(M.begin(), M.end());
        const Matrix m = {x.data(), DType::f32, int64_t(x.size()) / k, k, k};
        reference::transform({.x = {m.data, m.type, m.rows, m.cols, m.stride},
                              .transform = {.n = n, .matrix = T.data(), .scale = hadamard_scale(int(n))},
                              .y = m});
    }
    return x;
}

// One layer against the definition: transform, the layer without transforms, bias and all, transform.
TEST(TransformedLayers, AreTheLayerBetweenTheTransforms) {
    const Rotation rotation = Rotation()
                                  .add("b", 16, 1, {{"input", false, {q_proj}}, {"output", true, {q_proj}}})
                                  .add("a", 8, 2, {{"input", true, {q_proj}}, {"output", false, {q_proj}}});
    const auto M16 = signed_matrix(16, 1), M8 = signed_matrix(8, 2);
    const auto inverse = [](const std::vector<double>& M) {
        return transpose({int64_t(std::sqrt(double(M.size()))), M}).values;
    };
    constexpr int64_t rows = 5, k = 32, stride = 40;
    const std::vector<float> x = some_floats(rows * k);
    const Context context(2);
    for (const auto& [model, arithmetic] : {std::pair(with_biases(dense_model()), Arithmetic::kernel),
                                            {with_biases(dense_model()), Arithmetic::simulated},
                                            {quantised_model(Scheme::nvfp4), Arithmetic::kernel},
                                            {quantised_model(Scheme::nvfp4), Arithmetic::simulated},
                                            {quantised_model(Scheme::nvfp4), Arithmetic::w4a16},
                                            {quantised_model(Scheme::nvfp4a16), Arithmetic::kernel},
                                            {quantised_model(Scheme::nvfp4a16), Arithmetic::simulated}}) {
        const auto plain = opened(model), rotated = opened(rotation.of(model));
        const auto apply = [&](const Checkpoint& file, const std::vector<float>& given) {
            std::vector<float> y(rows * stride, 7.0f);
            Workspace workspace;
            LinearInput input(workspace, given.data(), rows, k);
            LinearGroup(context, file, {q_proj}, arithmetic).apply(context, input, y.data(), stride);
            return y;
        };
        const auto inner = apply(*plain, transformed(x, k, {M16, inverse(M8)}));
        std::vector<float> expected;
        for (int64_t row = 0; row < rows; row++)
            expected.insert(expected.end(), &inner[size_t(row * stride)], &inner[size_t(row * stride + 32)]);
        expected = transformed(expected, 32, {inverse(M16), M8});
        const auto actual = apply(*rotated, x);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t n = 0; n < stride; n++)
                ASSERT_EQ(actual[size_t(row * stride + n)], n < 32 ? expected[size_t(row * 32 + n)] : 7.0f)
                    << row << " " << n;
        EXPECT_NE(apply(*plain, x), actual);
    }
}

// q, k and v as one group and each alone: the same bits, whether they are one product or several.
TEST(LinearGroup, IsItsLayersSideBySide) {
    const std::vector<std::string> parts = {q_proj, layer + "self_attn.k_proj", layer + "self_attn.v_proj"};
    struct Case {
        const char* name;
        TinyModel model;
        std::optional<float> encode_scale;  // of the group in kernel arithmetic
        Arithmetic arithmetic = Arithmetic::kernel;
    };
    const TinyModel w4a4 = quantised_model(Scheme::nvfp4);
    TinyModel weight_scales = w4a4, input_scales = w4a4;
    weight_scales.tensors.at(parts[1] + ".weight_global_scale").bytes = bytes_of(700.0f);
    input_scales.tensors.at(parts[1] + ".input_global_scale").bytes = bytes_of(200.0f);
    const auto rotated = [&](const char* location, const std::vector<std::string>& targets) {
        return Rotation().add("r", 16, 5, {{location, false, targets}}).of(w4a4);
    };
    for (const auto& [name, model, encode_scale, arithmetic] :
         std::vector<Case>{{"one scale", w4a4, 300.0f},
                           {"scales of their own for the weights", weight_scales, 300.0f},
                           {"scales of their own for the inputs", input_scales, {}},
                           {"input transforms of all", rotated("input", parts), {}},
                           {"an input transform of one", rotated("input", {parts[0]}), {}},
                           {"an output transform of one", rotated("output", {parts[1]}), 300.0f},
                           {"W4A16", quantised_model(Scheme::nvfp4a16), {}},
                           {"run as W4A16", weight_scales, {}, Arithmetic::w4a16},
                           {"simulated", weight_scales, {}, Arithmetic::simulated},
                           {"dense", with_biases(dense_model()), {}}}) {
        SCOPED_TRACE(name);
        const auto file = opened(model);
        const Context context(2);
        const auto columns = [&](const std::string& module) {
            const auto found = file->nvfp4().find(module);
            return found == file->nvfp4().end() ? file->dense().at(module + ".weight").rows()
                                                : found->second.n;
        };
        int64_t width = 0;
        for (const std::string& part : parts) width += columns(part);
        for (const int64_t rows : {1, 5}) {
            const std::vector<float> x = some_floats(size_t(rows * 32));
            Workspace workspace;
            LinearInput shared(workspace, x.data(), rows, 32);
            const LinearGroup group(context, *file, parts, arithmetic);
            const int64_t stride = width + 3;
            std::vector<float> y(size_t(rows * stride), 7.0f), expected = y;
            group.apply(context, shared, y.data(), stride);
            EXPECT_EQ(group.encode_scale(), encode_scale);
            int64_t first = 0;
            for (const std::string& part : parts) {
                LinearInput input(workspace, x.data(), rows, 32);
                LinearGroup(context, *file, {part}, arithmetic)
                    .apply(context, input, expected.data() + first, stride);
                first += columns(part);
            }
            EXPECT_EQ(y, expected);

            std::vector<std::string> seen;
            group.show_input(context, shared,
                             [&](const std::string& module, const float*, int64_t m, int64_t k) {
                                 seen.push_back(module);
                                 EXPECT_EQ(m, rows);
                                 EXPECT_EQ(k, 32);
                             });
            EXPECT_EQ(seen, parts);
        }
    }
}

TEST(TransformedLayers, GiveTheSameBytesInWhateverOrderTheyAreLoaded) {
    TinyModel model = quantised_model(Scheme::nvfp4);
    const std::string up = layer + "mlp.up_proj", gate = layer + "mlp.gate_proj";
    const auto file = opened(Rotation().add("v", 16, 1, {{"input", false, {gate, up}}}).of(model));
    ASSERT_EQ(file->transforms().linear.at(up).input[0], file->transforms().linear.at(gate).input[0]);
    const Context context(1);
    const std::vector<float> x = some_floats(3 * 32);
    const auto run_in_order = [&](const std::vector<std::string>& modules) {
        std::map<std::string, std::vector<float>> results;
        std::vector<LinearGroup> layers;
        for (const std::string& module : modules)
            layers.push_back(LinearGroup(context, *file, {module}, Arithmetic::kernel));
        Workspace workspace;
        LinearInput input(workspace, x.data(), 3, 32);
        for (size_t i = 0; i < modules.size(); i++) {
            std::vector<float> y(3 * 48);
            layers[i].apply(context, input, y.data(), 48);
            const auto [known, added] = results.emplace(modules[i], y);
            EXPECT_EQ(known->second, y);
        }
        EXPECT_EQ(input.transformed.size(), 1u);  // computed once for both
        EXPECT_EQ(input.transformed.front().input.quantized.size(), 1u);
        return results;
    };
    const auto first = run_in_order({gate, up});
    EXPECT_EQ(run_in_order({up, gate}), first);
    EXPECT_EQ(run_in_order({up, gate, up, gate, gate}), first);
    EXPECT_NE(first.at(up), first.at(gate));
}

// A rotation of the residual stream at run time alone: behind the embedding, and undone before every product
// that reads it; with norms of 1 the logits stay. v and o in the basis of R2, q and k in that of R3,
// down_proj's input there and back by two schemes.
TEST(TransformedModels, RotationsThatCancelChangeNothing) {
    const std::string attention = layer + "self_attn", o = attention + ".o_proj", v = attention + ".v_proj",
                      down = layer + "mlp.down_proj";
    const std::vector<std::string> readers = {
        q_proj, attention + ".k_proj", v, layer + "mlp.gate_proj", layer + "mlp.up_proj", "lm_head"};
    const auto rotate = [&](bool k_inverse = false) {
        Rotation all;
        all.add("R1", 32, 1, {{"output", false, {"model.embed_tokens", o, down}}, {"input", true, readers}})
            .add("R2", 8, 2, {{"output", false, {v}}, {"input", true, {o}}})
            .add("R4", 16, 3, {{"input", false, {down}}})
            .add("R4_back", 16, 3, {{"input", true, {down}}});
        return all.add("R3", 8, 4, {{"q_attn", false, {attention}}, {"k_cache", k_inverse, {attention}}});
    };
    for (const bool tied : {true, false}) {
        TinyModel model = dense_model();
        if (!tied) {
            model.config["tie_word_embeddings"] = false;
            model.tensors["lm_head.weight"] = {DType::f32, {24, 32}, bytes_of(some_floats(24 * 32))};
        }
        const auto expected = logits_of(model), actual = logits_of(rotate().of(model));
        EXPECT_LE(rms_difference(actual, expected), tolerance(expected, 15)) << tied;
        EXPECT_GT(rms_difference(logits_of(rotate(true).of(model)), expected), 0.01 * rms(expected));
        // Keys stay in the cache as they were rotated: in pieces the same bits.
        EXPECT_EQ(logits_of(rotate().of(model), Arithmetic::kernel, 1), actual);
        EXPECT_EQ(logits_of(rotate().of(model), Arithmetic::simulated, 10), actual);
    }
}

// Kernels against the simulation on expanded weights with the transforms of src/reference, everything at
// once.
TEST(TransformedModels, KernelsAndSimulationAgreeBitForBit) {
    Rotation all;
    const std::string attention = layer + "self_attn";
    std::vector<std::string> modules;
    for (const auto& [name, shape] : TinyModel::linears()) modules.push_back(layer + name);
    all.add("v", 16, 1, {{"input", false, modules}, {"output", true, modules}})
        .add("w", 8, 2,
             {{"input", true, {q_proj, "lm_head"}}, {"output", false, {"lm_head", "model.embed_tokens"}}})
        .add("R3", 8, 4, {{"q_attn", false, {attention}}, {"k_cache", true, {attention}}});
    for (const Scheme scheme : {Scheme::nvfp4, Scheme::nvfp4a16}) {
        const TinyModel model = all.of(quantised_model(scheme));
        const auto expected = logits_of(model, Arithmetic::simulated, 10);
        EXPECT_EQ(logits_of(model, Arithmetic::kernel, 10), expected);
        EXPECT_EQ(logits_of(model, Arithmetic::kernel, 3), expected);
        for (const float logit : expected) ASSERT_TRUE(std::isfinite(logit));
        EXPECT_NE(logits_of(quantised_model(scheme)), expected);
    }
}

// The reference's rows are shared out, as the kernels' are.
TEST(ApplyTransforms, GivesTheSameBitsWithAnyNumberOfThreads) {
    const auto file = opened(Rotation()
                                 .add("a", 16, 1, {{"input", false, {q_proj}}})
                                 .add("b", 8, 2, {{"input", true, {q_proj}}})
                                 .of(dense_model()));
    const TransformList& list = file->transforms().linear.at(q_proj).input;
    ASSERT_EQ(list.size(), 2u);
    constexpr int64_t k = 32, stride = 40;
    for (const int64_t rows : {0, 1, 7, 33}) {
        const std::vector<float> x = some_floats(size_t(rows * stride));
        std::vector<float> expected = x;  // row after row
        for (int64_t row = 0; row < rows; row++)
            for (const auto& named : list) {
                float* const data = expected.data() + row * stride;
                reference::transform({.x = {data, DType::f32, 1, k, k},
                                      .transform = named->transform.view(),
                                      .y = {data, DType::f32, 1, k, k}});
            }
        for (const int threads : {1, 2, 5}) {
            for (const bool by_definition : {true, false}) {
                std::vector<float> y = x;
                apply_transforms(Context(threads), list, {y.data(), DType::f32, rows, k, stride},
                                 by_definition);
                EXPECT_EQ(y, expected) << rows << ", " << threads << ", " << by_definition;
            }
        }
    }
}

// A W4A4 layer behind one transform reads its quantised form alone, and x' is written nowhere; who asks for
// x' later, as an observer or a layer with another arithmetic, gets it.
TEST(TransformedLayers, AreQuantisedAsTheyAreTransformed) {
    const auto M = signed_matrix(16, 1);
    const auto file =
        opened(Rotation().add("v", 16, 1, {{"input", false, {q_proj}}}).of(quantised_model(Scheme::nvfp4)));
    constexpr int64_t rows = 5, k = 32;
    const std::vector<float> x = some_floats(rows * k);
    const Context context(2);
    const LinearGroup group(context, *file, {q_proj}, Arithmetic::kernel);
    Workspace workspace;
    LinearInput input(workspace, x.data(), rows, k);
    std::vector<float> first(rows * k), second(rows * k);
    group.apply(context, input, first.data(), k);
    ASSERT_EQ(input.transformed.size(), 1u);
    EXPECT_EQ(input.transformed.front().input.x, nullptr);
    EXPECT_EQ(input.transformed.front().input.quantized.size(), 1u);
    group.show_input(context, input, [&](const std::string&, const float* seen, int64_t, int64_t) {
        EXPECT_EQ(std::vector<float>(seen, seen + rows * k), transformed(x, k, {M}));
    });
    group.apply(context, input, second.data(), k);
    EXPECT_EQ(second, first);
    EXPECT_EQ(input.transformed.size(), 1u);
    EXPECT_EQ(input.transformed.front().input.quantized.size(), 1u);
}

TEST(TransformedModels, TheObserverSeesWhatIsQuantised) {
    const std::string k_proj = layer + "self_attn.k_proj";
    const TinyModel model = dense_model();
    const Rotation rotation = Rotation()
                                  .add("v", 16, 1, {{"input", false, {q_proj, "lm_head"}}})
                                  .add("w", 16, 9, {{"input", false, {k_proj}}});
    const auto seen = [](const TinyModel& source) {
        std::map<std::string, std::vector<float>> inputs;
        const Context context(1);
        const auto file = opened(source);
        const auto decoder = load_decoder(context, *file, Arithmetic::kernel);
        run(*decoder, context, 10, [&](const std::string& module, const float* x, int64_t rows, int64_t k) {
            inputs[module].assign(x, x + rows * k);
        });
        EXPECT_EQ(inputs.size(), 8u);
        return inputs;
    };
    const auto plain = seen(model), rotated = seen(rotation.of(model));
    EXPECT_EQ(rotated.at(q_proj), transformed(plain.at(q_proj), 32, {signed_matrix(16, 1)}));
    EXPECT_EQ(rotated.at(k_proj), transformed(plain.at(k_proj), 32, {signed_matrix(16, 9)}));
    EXPECT_EQ(rotated.at(layer + "self_attn.v_proj"), plain.at(layer + "self_attn.v_proj"));
    EXPECT_NE(rotated.at("lm_head"), plain.at("lm_head"));
}

// FP-Quant's act_global_scale is G itself. QuTLASS, where vLLM runs transformed compressed-tensors files with
// it, is given G = 6 in the place of the calibrated one: SF = E4M3(amax), and a value is code * SF / 6. Both
// are one formula.
TEST(FpQuant, UnitScaleIsAGlobalScaleOfSix) {
    const float G = 6;
    std::vector<float> x = some_floats(64 * 16);
    for (int block = 0; block < 64; block++)
        for (int i = 0; i < 16; i++) x[size_t(block * 16 + i)] *= std::exp2(float(block % 20) - 10);
    std::vector<uint8_t> codes(64 * 8), scales(64);
    const FloatEnvironment environment;
    reference::quantize({.x = {x.data(), DType::f32, 64, 16, 16},
                         .encode_scale = &G,
                         .shape = NvFp4Shape::of(64, 16),
                         .codes = codes.data(),
                         .block_scales = scales.data()});
    const float D = EncodeScale(G).decode();
    for (int block = 0; block < 64; block++) {
        float amax = 0;
        for (int i = 0; i < 16; i++) amax = std::max(amax, std::fabs(x[size_t(block * 16 + i)]));
        // 6 (amax / 6) is amax but for two roundings, so SF is amax within half a step of E4M3 and those.
        const float SF =
            std::ldexp(float(scales[size_t(block)] & 7) / 8 + (scales[size_t(block)] >> 3 ? 1.0f : 0.0f),
                       std::max(scales[size_t(block)] >> 3, 1) - 7);
        EXPECT_NEAR(SF, std::min(amax, 448.0f), std::max(amax / 16, 0x1p-10f) * 1.0001f);
        constexpr float values[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
        for (int i = 0; i < 16 && amax < 448 && amax > 1; i++) {
            const uint8_t code = uint8_t(codes[size_t(block * 8 + i / 2)] >> (i % 2 * 4) & 15);
            const float value = (code & 8 ? -1 : 1) * values[code & 7] * SF * D;
            EXPECT_NEAR(value, x[size_t(block * 16 + i)],
                        SF / 6 * 1.0001f + amax / 16);  // at most half of the step 4 to 6
        }
    }
}

// Arithmetic::unit_scale is that G for the layers that have transforms at their input, and for no other.
TEST(FpQuant, UnitScaleReplacesTheCalibratedOneOfTransformedLayers) {
    const std::vector<std::string> some = {q_proj, layer + "mlp.down_proj"};
    const Rotation rotation = Rotation()
                                  .add("v", 16, 1, {{"input", false, some}})
                                  .add("w", 8, 2, {{"input", false, {layer + "mlp.up_proj"}}});
    TinyModel model = quantised_model(Scheme::nvfp4);
    const auto actual = logits_of(rotation.of(model), Arithmetic::unit_scale);
    EXPECT_NE(actual, logits_of(rotation.of(model), Arithmetic::kernel));
    for (const std::string& module : some)
        model.tensors[module + ".input_global_scale"].bytes = bytes_of(6.0f);
    EXPECT_EQ(actual, logits_of(rotation.of(model), Arithmetic::kernel));
    const auto file = opened(rotation.of(quantised_model(Scheme::nvfp4))),
               weights_only = opened(rotation.of(quantised_model(Scheme::nvfp4a16)));
    EXPECT_TRUE(takes_unit_scale(*file, q_proj));
    EXPECT_FALSE(takes_unit_scale(*file, layer + "mlp.up_proj"));  // blocks of 8
    EXPECT_FALSE(takes_unit_scale(*file, layer + "mlp.gate_proj"));
    EXPECT_FALSE(takes_unit_scale(*weights_only, q_proj));
}

// An FP-Quant file in the place of a compressed-tensors file with the same numbers: the same bits, for a
// calibrated G and for the unit scale. No file of FP-Quant was at hand; this is one by its description.
TEST(FpQuant, RunsLikeTheSameNumbersInCompressedTensors) {
    for (const float G : {300.0f, 10.0f, 6.0f}) {
        TinyModel model = quantised_model(Scheme::nvfp4), other = model;
        std::vector<double> M = signed_matrix(16, 1);
        for (double& value : M) value /= 4;
        std::string bf16;
        for (const double value : M) bf16 += bytes_of(round_to<BFloat16>(float(value)).bits);
        for (const auto& [name, shape] : TinyModel::linears()) {
            const std::string module = layer + name;
            model.tensors[module + ".input_global_scale"].bytes = bytes_of(G);
            const auto move = [&](const char* from, const char* to) {
                other.tensors[module + to] = model.tensors[module + from];
                other.tensors.erase(module + from);
            };
            move(".weight_packed", ".qweight");
            move(".weight_scale", ".scales");
            move(".input_global_scale", ".act_global_scale");
            other.tensors[module + ".scales"].dtype = DType::u8;
            other.tensors[module + ".forward_hadamard_matrix"] = {DType::bf16, {16, 16}, bf16};
        }
        other.config["quantization_config"] = {
            {"quant_method", "fp_quant"}, {"forward_dtype", "nvfp4"}, {"hadamard_group_size", 16}};
        Rotation rotation;
        rotation.json["v"] = {
            {"type", "random-hadamard"},
            {"head_dim", 16},
            {"apply", {{{"targets", {"Linear"}}, {"location", "input"}, {"ignore", {"lm_head"}}}}}};
        rotation.tensors[q_proj + ".v_input.weight"] = f64(M);  // normalised there too
        for (const Arithmetic arithmetic : {Arithmetic::kernel, Arithmetic::simulated, Arithmetic::w4a16})
            EXPECT_EQ(logits_of(other, arithmetic), logits_of(rotation.of(model), arithmetic)) << G;
    }
}

}  // namespace
}  // namespace halfbyte::model
