#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_builder.h"
#include "checkpoint/json.h"
#include "core/float16.h"

namespace halfbyte::checkpoint {
namespace fs = std::filesystem;
using test::bytes_of;
using test::expect_error;
using test::GgufBuilder;
using test::TemporaryFolder;
using test::write_file;

constexpr uint32_t f32 = 0, f16 = 1, q4_1 = 3, q8_0 = 8, bf16 = 30;
constexpr int64_t hidden = 32, wide = 64, heads = 4, kv_heads = 2, head_dim = 8, vocab = 24;

// Row r of a matrix of `rows` rows holds the value of `value(r)` everywhere.
static std::string rows_of(uint32_t type, int64_t rows, int64_t columns,
                           const std::function<float(int64_t)>& value) {
    std::string bytes;
    for (int64_t r = 0; r < rows; ++r) {
        const float v = value(r);
        for (int64_t c = 0; c < columns; c += type == q8_0 || type == q4_1 ? 32 : 1) {
            const auto half = [](float x) { return bytes_of(round_to<Float16>(x).bits); };
            if (type == f32) bytes += bytes_of(v);
            if (type == f16) bytes += half(v);
            if (type == bf16) bytes += bytes_of(round_to<BFloat16>(v).bits);
            if (type == q8_0) bytes += half(v) + std::string(32, '\1');
            if (type == q4_1) bytes += half(v) + half(0) + std::string(16, '\x11');
        }
    }
    return bytes;
}

// Within each head of eight rows, the file's order 0 4 1 5 2 6 3 7 of Hugging Face's rows.
static int64_t hf_row(int64_t gguf_row) {
    const int64_t order[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return gguf_row / 8 * 8 + order[gguf_row % 8];
}

struct TinyGguf {
    uint32_t matrix_type = q8_0;
    std::map<std::string, GgufBuilder::Tensor> tensors;
    GgufBuilder metadata;

    explicit TinyGguf(uint32_t type = q8_0, float theta = 100000.0f) : matrix_type(type) {
        metadata.text("general.architecture", "llama")
            .u32("llama.block_count", 1)
            .u32("llama.context_length", 64);
        metadata.u32("llama.embedding_length", hidden).u32("llama.feed_forward_length", wide);
        metadata.u32("llama.attention.head_count", heads).u32("llama.attention.head_count_kv", kv_heads);
        metadata.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f).f32("llama.rope.freq_base", theta);
        metadata.u32("llama.rope.dimension_count", head_dim);
        metadata.u32("tokenizer.ggml.bos_token_id", 1)
            .u32("tokenizer.ggml.eos_token_id", 2)
            .u32("tokenizer.ggml.padding_token_id", 3);
        const auto plain = [](int64_t r) { return float(r); };
        const auto permuted = [](int64_t r) { return float(hf_row(r)); };
        matrix("token_embd.weight", vocab, hidden, plain);
        vector("output_norm.weight", hidden, [](int64_t) { return 1.5f; });
        vector("blk.0.attn_norm.weight", hidden, [](int64_t) { return 0.5f; });
        vector("blk.0.ffn_norm.weight", hidden, [](int64_t) { return 0.25f; });
        matrix("blk.0.attn_q.weight", heads * head_dim, hidden, permuted);
        matrix("blk.0.attn_k.weight", kv_heads * head_dim, hidden, permuted);
        matrix("blk.0.attn_v.weight", kv_heads * head_dim, hidden, plain);
        matrix("blk.0.attn_output.weight", hidden, heads * head_dim, plain);
        matrix("blk.0.ffn_gate.weight", wide, hidden, plain);
        matrix("blk.0.ffn_up.weight", wide, hidden, plain);
        matrix("blk.0.ffn_down.weight", hidden, wide, plain);
    }
    void matrix(const std::string& name, int64_t rows, int64_t columns,
                const std::function<float(int64_t)>& value) {
        tensors[name] = {name,
                         {uint64_t(columns), uint64_t(rows)},
                         matrix_type,
                         rows_of(matrix_type, rows, columns, value)};
    }
    void vector(const std::string& name, int64_t size, const std::function<float(int64_t)>& value,
                uint32_t type = f32) {
        tensors[name] = {name, {uint64_t(size)}, type, rows_of(type, size, 1, value)};
    }
    fs::path write(const TemporaryFolder& folder) const {
        GgufBuilder builder = metadata;
        for (const auto& [name, tensor] : tensors) builder.tensors.push_back(tensor);
        return write_file(folder / "tiny.gguf", builder.build());
    }
};

// Rows of a tensor as FP32.
static std::vector<float> read_rows(const Checkpoint& file, const std::string& name, int64_t first,
                                    int64_t rows, int64_t columns) {
    std::vector<uint8_t> buffer;
    const uint8_t* bytes = file.read(name, first, rows, buffer);
    const DType dtype = file.dense().at(name).dtype;
    std::vector<float> values(rows * columns);
    for (size_t i = 0; i < values.size(); ++i) {
        uint16_t half;
        std::memcpy(&half, bytes + 2 * i, 2);
        if (dtype == DType::f32)
            std::memcpy(&values[i], bytes + 4 * i, 4);
        else
            values[i] = dtype == DType::f16 ? to_float(Float16{half}) : to_float(BFloat16{half});
    }
    return values;
}

TEST(GgufCheckpoint, HasHuggingFaceNamesRowsAndTypes) {
    for (const uint32_t type : {f32, f16, bf16, q8_0, q4_1}) {
        SCOPED_TRACE(type);
        const TemporaryFolder folder;
        const auto file = open_checkpoint(TinyGguf(type).write(folder));
        EXPECT_EQ(file->description(), "GGUF");
        EXPECT_FALSE(file->scheme().has_value());
        EXPECT_EQ(file->dense().size(), 11u);
        const DType expected = type == f32 ? DType::f32 : type == f16 ? DType::f16 : DType::bf16;
        for (const auto& [name, rows] : std::map<std::string, int64_t>{{"self_attn.q_proj", 32},
                                                                       {"self_attn.k_proj", 16},
                                                                       {"self_attn.v_proj", 16},
                                                                       {"mlp.up_proj", 64}}) {
            const std::string tensor = "model.layers.0." + name + ".weight";
            EXPECT_EQ(file->dense().at(tensor).dtype, expected);
            const auto all = read_rows(*file, tensor, 0, rows, hidden);
            for (int64_t i = 0; i < rows * hidden; ++i)
                ASSERT_EQ(all[i], float(i / hidden)) << name << " " << i;
            for (int64_t first = 0; first < rows; ++first) {  // any part of it
                const auto part = read_rows(*file, tensor, first, std::min<int64_t>(3, rows - first), hidden);
                for (size_t i = 0; i < part.size(); ++i)
                    ASSERT_EQ(part[i], float(first + int64_t(i) / hidden)) << name;
            }
            file->release(tensor);
            EXPECT_EQ(read_rows(*file, tensor, 7, 1, hidden)[0], 7.0f);
        }
        EXPECT_EQ(read_rows(*file, "model.norm.weight", 0, 1, hidden)[31], 1.5f);
        EXPECT_EQ(file->dense().at("model.norm.weight").dtype, expected);
        EXPECT_EQ(file->stored_format("model.norm.weight"), "F32");
        std::vector<uint8_t> buffer;
        expect_error(ErrorKind::usage, "rows 30 to 33 of 32",
                     [&] { file->read("model.layers.0.self_attn.q_proj.weight", 30, 3, buffer); });
        expect_error(ErrorKind::usage, "no dense tensor \"x\"", [&] { file->read("x", 0, 1, buffer); });
    }
}

TEST(GgufCheckpoint, RoundsBlockTypesOnceToBf16) {
    TinyGguf gguf(q4_1);
    const auto half = [](float x) { return bytes_of(round_to<Float16>(x).bits); };
    std::string row = half(0.1f) + half(-0.7f) + std::string(16, '\xF3');
    gguf.tensors["blk.0.attn_v.weight"].bytes.replace(0, row.size(), row);
    const TemporaryFolder folder;
    const auto values = read_rows(*open_checkpoint(gguf.write(folder)),
                                  "model.layers.0.self_attn.v_proj.weight", 0, 1, hidden);
    const float d = 0.0999755859375f, m = -0.7001953125f;
    EXPECT_EQ(values[0], to_float(round_to<BFloat16>(d * 3 + m)));
    EXPECT_EQ(values[16], to_float(round_to<BFloat16>(d * 15 + m)));
}

TEST(GgufCheckpoint, VectorsTakeTheTypeOfTheMatricesIfItHoldsThemExactly) {
    const TemporaryFolder folder;
    const auto dtype_of = [&](uint32_t matrices, float value, uint32_t stored = f32) {
        TinyGguf gguf(matrices);
        gguf.vector("output_norm.weight", hidden, [&](int64_t i) { return i == 7 ? value : 1.0f; }, stored);
        const auto file = open_checkpoint(gguf.write(folder));
        EXPECT_EQ(read_rows(*file, "model.norm.weight", 0, 1, hidden)[7], value);  // whatever the type
        return file->dense().at("model.norm.weight").dtype;
    };
    constexpr float eleven_bits = 1 + 0x1p-10f, too_large = 0x1p16f, too_small = 0x1p-30f;
    EXPECT_EQ(dtype_of(f16, eleven_bits), DType::f16);
    EXPECT_EQ(dtype_of(bf16, eleven_bits), DType::f32);
    EXPECT_EQ(dtype_of(f16, too_large), DType::f32);  // never an infinity
    EXPECT_EQ(dtype_of(f16, too_small), DType::f32);  // nor a zero
    EXPECT_EQ(dtype_of(q8_0, too_large), DType::bf16);
    EXPECT_EQ(dtype_of(f16, too_small, bf16), DType::bf16);
    EXPECT_EQ(dtype_of(f32, eleven_bits, f16), DType::f32);
}

TEST(GgufCheckpoint, NamesTheRopeScalingThatItsDivisorsComeFrom) {
    using reference::RopeScaling;
    const TemporaryFolder folder;
    const auto open_with = [&](const std::function<void(TinyGguf&)>& change) {
        TinyGguf gguf(q8_0, 500000.0f);
        change(gguf);
        return open_checkpoint(gguf.write(folder));
    };
    const auto divisors = [](const std::vector<float>& values) {
        return [values](TinyGguf& g) {
            g.vector("rope_freqs.weight", int64_t(values.size()),
                     [&](int64_t i) { return values[size_t(i)]; });
        };
    };
    // As the converter makes them, in FP32: the waves of 6.3, 167, 4443 and 118144 positions.
    const auto llama3 = [](float factor, float low, float high, float original) {
        std::vector<float> values;
        for (int i = 0; i < 4; ++i) {
            const float turns =
                original * std::pow(500000.0f, -float(i) / 4) / (2 * std::numbers::pi_v<float>);
            const float kept = std::clamp((turns - low) / (high - low), 0.0f, 1.0f);
            values.push_back(1 / ((1 - kept) / factor + kept));
        }
        return values;
    };
    for (const float factor : {8.0f, 32.0f}) {
        const auto values = llama3(factor, 1, 4, 8192);
        EXPECT_EQ(values[0], 1.0f);
        EXPECT_EQ(values[3], factor);
        EXPECT_TRUE(values[2] > 1.5f && values[2] < factor);
        const auto file = open_with(divisors(values));
        const RopeScaling expected = {.kind = RopeScaling::Kind::llama3, .factor = factor};
        EXPECT_EQ(file->config().rope_scaling, expected);
        const Json& json = file->config().json;
        const Json scaling = {{"factor", factor},
                              {"high_freq_factor", 4.0},
                              {"low_freq_factor", 1.0},
                              {"original_max_position_embeddings", 8192},
                              {"rope_type", "llama3"}};
        EXPECT_EQ(json["rope_scaling"], scaling);
        EXPECT_EQ(json["rope_parameters"]["rope_theta"], 500000.0);
        for (const auto& [key, value] : scaling.items()) EXPECT_EQ(json["rope_parameters"][key], value);
    }
    // Divisors that llama3 does not give are kept, and config.json does not claim to say them.
    for (const auto& values :
         {llama3(8, 1, 4, 4096), llama3(8, 1, 4.01f, 8192), {1, 1, 1, 0.5f}, {1, 2, 3, 4}}) {
        const auto file = open_with(divisors(values));
        EXPECT_EQ(file->config().rope_scaling.kind, RopeScaling::Kind::divisors);
        EXPECT_EQ(file->config().rope_scaling.divisors, values);
        EXPECT_TRUE(file->config().json["rope_scaling"].is_null());
    }
    EXPECT_EQ(open_with(divisors({1, 1, 1, 1}))->config().rope_scaling, RopeScaling());

    const RopeScaling linear = {.kind = RopeScaling::Kind::linear, .factor = 4};
    const auto number = [](const char* key, float value, const char* type = nullptr) {
        return [=](TinyGguf& g) {
            g.metadata.f32(key, value);
            if (type) g.metadata.text("llama.rope.scaling.type", type);
        };
    };
    for (const auto& change : {std::function<void(TinyGguf&)>(divisors({4, 4, 4, 4})),
                               {number("llama.rope.scaling.factor", 4)},
                               {number("llama.rope.scaling.factor", 4, "linear")},
                               {number("llama.rope.scale_linear", 4)}}) {
        const auto file = open_with(change);
        EXPECT_EQ(file->config().rope_scaling, linear);
        EXPECT_EQ(file->config().json["rope_scaling"], (Json{{"factor", 4.0}, {"rope_type", "linear"}}));
    }
    EXPECT_EQ(open_with(number("llama.rope.scaling.factor", 4, "none"))->config().rope_scaling,
              RopeScaling());
    EXPECT_EQ(open_with(number("llama.rope.scaling.factor", 0))->config().rope_scaling, RopeScaling());
    EXPECT_EQ(open_with(number("llama.rope.scaling.factor", 1))->config().rope_scaling, RopeScaling());
}

TEST(GgufCheckpoint, KeepsVectorsThatAreNotExactlyBf16) {
    TinyGguf gguf;
    gguf.vector("output_norm.weight", hidden, [](int64_t i) { return i == 31 ? 0.1f : 1.0f; });
    gguf.vector("blk.0.ffn_norm.weight", hidden, [](int64_t) { return 0.0999755859375f; }, f16);
    gguf.vector("blk.0.attn_norm.weight", hidden, [](int64_t) { return 2.0f; }, f16);
    const TemporaryFolder folder;
    const auto file = open_checkpoint(gguf.write(folder));
    EXPECT_EQ(file->dense().at("model.norm.weight").dtype, DType::f32);
    EXPECT_EQ(read_rows(*file, "model.norm.weight", 0, 1, hidden)[31], 0.1f);
    EXPECT_EQ(file->dense().at("model.layers.0.post_attention_layernorm.weight").dtype, DType::f16);
    EXPECT_EQ(read_rows(*file, "model.layers.0.post_attention_layernorm.weight", 0, 1, hidden)[0],
              0.0999755859375f);
    EXPECT_EQ(file->dense().at("model.layers.0.input_layernorm.weight").dtype, DType::bf16);
    EXPECT_EQ(read_rows(*file, "model.layers.0.input_layernorm.weight", 0, 1, hidden)[0], 2.0f);
}

TEST(GgufCheckpoint, PermutesTheBiasesOfQAndKToo) {
    for (const uint32_t type : {f32, f16}) {
        TinyGguf gguf;
        // 1/1000 more keeps FP32 values from being BF16.
        const float extra = type == f32 ? 0.001f : 0.0f;
        gguf.vector("blk.0.attn_q.bias", 32, [&](int64_t r) { return float(hf_row(r)) + extra; }, type);
        gguf.vector("blk.0.attn_k.bias", 16, [&](int64_t r) { return float(hf_row(r)); }, type);
        gguf.vector("blk.0.attn_v.bias", 16, [&](int64_t r) { return float(r); }, type);
        gguf.vector("blk.0.attn_output.bias", 32, [&](int64_t r) { return float(r); }, type);
        const TemporaryFolder folder;
        const auto file = open_checkpoint(gguf.write(folder));
        EXPECT_TRUE(file->config().json["attention_bias"].get<bool>());
        const auto q = read_rows(*file, "model.layers.0.self_attn.q_proj.bias", 0, 1, 32);
        const auto k = read_rows(*file, "model.layers.0.self_attn.k_proj.bias", 0, 1, 16);
        const auto v = read_rows(*file, "model.layers.0.self_attn.v_proj.bias", 0, 1, 16);
        for (int64_t i = 0; i < 32; ++i) EXPECT_EQ(q[i], float(i) + extra);
        for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(k[i], float(i));
        for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(v[i], float(i));
    }
}

TEST(GgufCheckpoint, MakesTheFilesOfAHuggingFaceFolder) {
    TinyGguf gguf;
    gguf.metadata.text("tokenizer.chat_template", "{{ x }}").u32("tokenizer.ggml.unknown_token_id", 0);
    const TemporaryFolder folder;
    const auto file = open_checkpoint(gguf.write(folder));
    const Json& json = file->config().json;
    EXPECT_EQ(json["architectures"], Json::array({"LlamaForCausalLM"}));
    EXPECT_EQ(json["model_type"], "llama");
    EXPECT_EQ(json["dtype"], "bfloat16");
    EXPECT_EQ(json["torch_dtype"], "bfloat16");
    EXPECT_EQ(json["rms_norm_eps"].dump(), "9.999999747378752e-06");
    EXPECT_EQ(json["rope_theta"].dump(), "100000.0");
    EXPECT_EQ(json["rope_parameters"]["rope_theta"], 100000.0);
    EXPECT_EQ(json["rope_parameters"]["rope_type"], "default");
    EXPECT_EQ(json["head_dim"], head_dim);
    EXPECT_EQ(json["hidden_size"], hidden);
    EXPECT_EQ(json["intermediate_size"], wide);
    EXPECT_EQ(json["num_attention_heads"], heads);
    EXPECT_EQ(json["num_key_value_heads"], kv_heads);
    EXPECT_EQ(json["num_hidden_layers"], 1);
    EXPECT_EQ(json["max_position_embeddings"], 64);
    EXPECT_EQ(json["vocab_size"], vocab);
    EXPECT_EQ(json["tie_word_embeddings"], true);
    EXPECT_EQ(json["attention_bias"], false);
    EXPECT_EQ(json["mlp_bias"], false);
    EXPECT_EQ(json["hidden_act"], "silu");
    EXPECT_EQ(json["unk_token_id"], 0);
    EXPECT_EQ(file->config().eos_ids, std::vector<int64_t>{2});
    EXPECT_EQ(file->config().bos_id, 1);
    EXPECT_EQ(file->config().architecture, "LlamaForCausalLM");
    EXPECT_EQ(parse_json(file->companions().generation_config, "f").dump(),
              R"({"bos_token_id":1,"eos_token_id":2,"pad_token_id":3})");
    EXPECT_EQ(file->companions().chat_template, "{{ x }}");

    gguf.matrix("output.weight", vocab, hidden, [](int64_t r) { return float(r); });
    const auto untied = open_checkpoint(gguf.write(folder));
    EXPECT_FALSE(untied->config().tie_word_embeddings);
    EXPECT_TRUE(untied->dense().contains("lm_head.weight"));
}

TEST(GgufCheckpoint, EndsATextWithEveryTokenThatEndsATurn) {
    const TemporaryFolder folder;
    TinyGguf gguf;
    gguf.metadata.u32("tokenizer.ggml.eot_token_id", 2);
    EXPECT_EQ(open_checkpoint(gguf.write(folder))->config().eos_ids, std::vector<int64_t>{2});
    gguf.metadata.u32("tokenizer.ggml.eom_token_id", 5);
    const auto file = open_checkpoint(gguf.write(folder));
    EXPECT_EQ(file->config().eos_ids, (std::vector<int64_t>{2, 5}));
    EXPECT_EQ(parse_json(file->companions().generation_config, "f")["eos_token_id"], Json::array({2, 5}));
    EXPECT_EQ(file->config().json["eos_token_id"], 2);
}

TEST(GgufCheckpoint, OpensWithATokenizerThatIsNotSupported) {
    const TemporaryFolder folder;
    TinyGguf gguf;
    EXPECT_NE(open_checkpoint(gguf.write(folder))->companions().tokenizer_problem.find("holds no tokenizer"),
              std::string::npos);
    gguf.metadata.text("tokenizer.ggml.model", "llama");
    const auto file = open_checkpoint(gguf.write(folder));
    EXPECT_EQ(file->companions().tokenizer, "");
    EXPECT_NE(file->companions().tokenizer_problem.find("llama"), std::string::npos);
}

TEST(GgufCheckpoint, RefusesWhatIsNotALlama) {
    const TemporaryFolder folder;
    const auto refused = [&](ErrorKind kind, std::string_view part,
                             const std::function<void(TinyGguf&)>& change) {
        SCOPED_TRACE(part);
        TinyGguf gguf;
        change(gguf);
        expect_error(kind, part, [&] { open_checkpoint(gguf.write(folder)); });
        expect_error(kind, "tiny.gguf: ", [&] { open_checkpoint(gguf.write(folder)); });
    };
    const auto unsupported = ErrorKind::unsupported, malformed = ErrorKind::malformed;
    refused(unsupported, "the architecture \"qwen2\"", [](TinyGguf& g) {
        g.metadata = GgufBuilder();
        g.metadata.text("general.architecture", "qwen2");
    });
    refused(malformed, "general.architecture is missing", [](TinyGguf& g) { g.metadata = GgufBuilder(); });
    for (const char* type : {"yarn", "longrope", "x"}) {
        refused(unsupported, fmt::format("RoPE scaling \"{}\" is not supported", type),
                [&](TinyGguf& g) { g.metadata.text("llama.rope.scaling.type", type); });
    }
    refused(unsupported, "RoPE scaling by 2 and by the divisors in rope_freqs.weight together",
            [](TinyGguf& g) {
                g.metadata.f32("llama.rope.scaling.factor", 2.0f);
                g.vector("rope_freqs.weight", 4, [](int64_t) { return 1.0f; });
            });
    refused(unsupported, "llama.rope.scaling.attn_factor is 2",
            [](TinyGguf& g) { g.metadata.f32("llama.rope.scaling.attn_factor", 2.0f); });
    for (const float wrong : {-2.0f, 0.5f, std::numeric_limits<float>::infinity(), std::nanf("")})
        refused(malformed, "llama.rope.scaling.factor is ",
                [&](TinyGguf& g) { g.metadata.f32("llama.rope.scaling.factor", wrong); });
    for (const float wrong : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")})
        refused(malformed, fmt::format("\"rope_freqs.weight\" holds {} at [2]", wrong), [&](TinyGguf& g) {
            g.vector("rope_freqs.weight", 4, [&](int64_t i) { return i == 2 ? wrong : 1.0f; });
        });
    refused(malformed, "\"rope_freqs.weight\" is F32 [8]; F32 [4], half the size of a head, is needed",
            [](TinyGguf& g) { g.vector("rope_freqs.weight", 8, [](int64_t) { return 1.0f; }); });
    refused(malformed, "\"rope_freqs.weight\" is F16 [4]",
            [](TinyGguf& g) { g.vector("rope_freqs.weight", 4, [](int64_t) { return 1.0f; }, f16); });
    refused(malformed, "\"rope_factors_long.weight\" is not known",
            [](TinyGguf& g) { g.vector("rope_factors_long.weight", 4, [](int64_t) { return 1.0f; }); });
    refused(unsupported, "mixtures of experts", [](TinyGguf& g) { g.metadata.u32("llama.expert_count", 8); });
    refused(unsupported, "values of a size other",
            [](TinyGguf& g) { g.metadata.u32("llama.attention.value_length", 16); });
    refused(malformed, "\"blk.0.attn_x.weight\" is not known",
            [](TinyGguf& g) { g.vector("blk.0.attn_x.weight", 4, [](int64_t) { return 1.0f; }); });
    refused(malformed, "\"blk.0.attn_q.scale\" is not known",
            [](TinyGguf& g) { g.vector("blk.0.attn_q.scale", 1, [](int64_t) { return 1.0f; }); });
    refused(malformed, "\"x\" is not known",
            [](TinyGguf& g) { g.vector("x", 1, [](int64_t) { return 1.0f; }); });
    refused(malformed, "is no tensor of LlamaForCausalLM",
            [](TinyGguf& g) { g.vector("blk.1.attn_norm.weight", 32, [](int64_t) { return 1.0f; }); });
    refused(malformed, "is no tensor of LlamaForCausalLM",
            [](TinyGguf& g) { g.vector("blk.00.attn_norm.weight", 32, [](int64_t) { return 1.0f; }); });
    refused(malformed, "token_embd.weight is missing",
            [](TinyGguf& g) { g.tensors.erase("token_embd.weight"); });
    refused(malformed, "model.layers.0.mlp.up_proj.weight is missing",
            [](TinyGguf& g) { g.tensors.erase("blk.0.ffn_up.weight"); });
    refused(malformed, "\"blk.0.ffn_up.weight\": has the shape [32, 32], the config asks for [64, 32]",
            [](TinyGguf& g) { g.matrix("blk.0.ffn_up.weight", 32, 32, [](int64_t) { return 1.0f; }); });
    refused(malformed, "llama.block_count is missing", [](TinyGguf& g) {
        g.metadata = GgufBuilder();
        g.metadata.text("general.architecture", "llama")
            .u32("llama.embedding_length", 32)
            .u32("llama.attention.head_count", 4);
        g.metadata.u32("llama.context_length", 64).u32("llama.feed_forward_length", 64);
    });
}

}  // namespace halfbyte::checkpoint
