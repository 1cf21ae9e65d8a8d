#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tiny_model.h"
#include "support/little_memory.h"

namespace halfbyte::checkpoint {
namespace fs = std::filesystem;
using test::bytes_of;
using test::expect_error;
using test::TemporaryFolder;
using test::TinyModel;
using test::write_file;

static const std::string q_proj = "model.layers.0.self_attn.q_proj";

static void refused(const TinyModel& model, std::string_view part, ErrorKind kind = ErrorKind::malformed) {
    SCOPED_TRACE(part);
    const TemporaryFolder folder;
    model.write(folder.path());
    expect_error(kind, part, [&] { open_checkpoint(folder.path()); });
    expect_error(kind, folder.path().string(),
                 [&] { open_checkpoint(folder.path()); });  // the text names the place
}

static std::unique_ptr<Checkpoint> opened(const TinyModel& model, const TemporaryFolder& folder) {
    model.write(folder.path());
    return open_checkpoint(folder.path());
}

static std::string read_all(const Checkpoint& file, const std::string& name) {
    const DenseTensor& tensor = file.dense().at(name);
    const int64_t rows = tensor.shape.size() < 2 ? 1 : tensor.shape[0];
    int64_t size = int64_t(size_of(tensor.dtype));
    for (const int64_t dimension : tensor.shape) size *= dimension;
    std::vector<uint8_t> buffer;
    const uint8_t* bytes = file.read(name, 0, rows, buffer);
    return {bytes, bytes + size};
}

TEST(HfCheckpoint, OpensADenseFolder) {
    const TemporaryFolder folder;
    TinyModel model = TinyModel::dense();
    model.add("model.norm.weight", DType::f32, {32});
    model.add(q_proj + ".weight", DType::f16, {32, 32});
    const auto file = opened(model, folder);
    EXPECT_EQ(file->description(), "Hugging Face folder");
    EXPECT_FALSE(file->scheme().has_value());
    EXPECT_EQ(file->dense().size(), model.tensors.size());
    EXPECT_TRUE(file->nvfp4().empty());
    for (const auto& [name, tensor] : model.tensors) {
        EXPECT_EQ(file->dense().at(name).dtype, tensor.dtype);
        EXPECT_EQ(read_all(*file, name), tensor.bytes) << name;
        EXPECT_EQ(file->stored_format(name), name_of(tensor.dtype));
        file->release(name);
        EXPECT_EQ(read_all(*file, name), tensor.bytes) << name;
    }
    std::vector<uint8_t> buffer;
    const uint8_t* rows = file->read(q_proj + ".weight", 5, 2, buffer);
    EXPECT_EQ(std::string(rows, rows + 128), model.tensors[q_proj + ".weight"].bytes.substr(5 * 64, 128));
    EXPECT_EQ(file->file_bytes(), fs::file_size(folder / "model.safetensors"));
    const ModelConfig& config = file->config();
    EXPECT_EQ(config.architecture, "LlamaForCausalLM");
    EXPECT_EQ(config.head_dim, 8);
    EXPECT_EQ(config.kv_heads, 2);
    EXPECT_EQ(config.eos_ids, std::vector<int64_t>{2});
    EXPECT_EQ(config.bos_id, 1);
    EXPECT_EQ(config.rope_theta, 10000.0);
    EXPECT_EQ(config.rms_norm_eps, 1e-5);
    EXPECT_NE(file->companions().tokenizer_problem, "");
}

TEST(HfCheckpoint, CopiesWhatLiesAtAnOddAddress) {
    const TemporaryFolder folder;
    TinyModel model = TinyModel::dense();
    model.config["architectures"] = {"SomethingElse"};
    model.tensors.clear();
    model.tensors["a"] = {DType::u8, {1}, "x"};
    model.tensors["b"] = {DType::f32, {2, 1}, "01234567"};
    const auto file = opened(model, folder);
    std::vector<uint8_t> buffer;
    const uint8_t* bytes = file->read("b", 1, 1, buffer);
    EXPECT_EQ(bytes, buffer.data());
    EXPECT_EQ(std::string(bytes, bytes + 4), "4567");
    EXPECT_EQ(file->weight_bytes(), 9u);
}

TEST(HfCheckpoint, KeepsAnUnknownArchitectureByName) {
    const TemporaryFolder folder;
    TinyModel model = TinyModel::quantised(Scheme::nvfp4);
    model.config["architectures"] = {"OtherForCausalLM"};
    model.config.erase("hidden_size");
    model.tensors.erase("model.norm.weight");
    const auto file = opened(model, folder);
    EXPECT_EQ(file->config().architecture, "OtherForCausalLM");
    EXPECT_EQ(file->nvfp4().size(), 7u);
}

TEST(HfCheckpoint, ReadsEveryVersionOfConfigJson) {
    const auto config_of = [](const std::function<void(Json&)>& change, const std::string& generation = "") {
        const TemporaryFolder folder;
        TinyModel model = TinyModel::dense();
        change(model.config);
        if (!generation.empty()) write_file(folder / "generation_config.json", generation);
        return opened(model, folder)->config();
    };
    const auto nothing = [](Json&) {};
    EXPECT_EQ(config_of([](Json& c) {
                  c.erase("rope_theta");
                  c["rope_parameters"] = {{"rope_theta", 5e5}, {"rope_type", "default"}};
              }).rope_theta,
              5e5);
    EXPECT_EQ(config_of([](Json& c) { c.erase("rope_theta"); }).rope_theta, 10000.0);
    EXPECT_EQ(config_of([](Json& c) { c["rope_scaling"] = nullptr; }).rope_theta, 10000.0);
    EXPECT_EQ(config_of([](Json& c) { c["head_dim"] = nullptr; }).head_dim, 8);
    EXPECT_EQ(config_of([](Json& c) { c["eos_token_id"] = {7, 9}; }).eos_ids, (std::vector<int64_t>{7, 9}));
    EXPECT_EQ(config_of([](Json& c) { c["eos_token_id"] = nullptr; }).eos_ids, std::vector<int64_t>{});
    EXPECT_EQ(config_of(nothing, R"({"eos_token_id":[3,4]})").eos_ids, (std::vector<int64_t>{3, 4}));
    EXPECT_EQ(config_of(nothing, R"({"eos_token_id":5,"bos_token_id":6})").bos_id, 6);
    EXPECT_EQ(config_of(nothing, R"({"eos_token_id":null})").eos_ids, std::vector<int64_t>{2});
    EXPECT_EQ(config_of([](Json& c) { c.erase("bos_token_id"); }).bos_id, std::nullopt);
    EXPECT_FALSE(
        config_of([](Json& c) { c["quantization_config"] = nullptr; }).json.contains("quantization_config"));
}

TEST(HfCheckpoint, RefusesImplausibleConfigs) {
    const auto with = [](const char* key, Json value) {
        TinyModel model = TinyModel::dense();
        model.config[key] = std::move(value);
        return model;
    };
    for (const char* key :
         {"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}) {
        refused(with(key, 0), std::string(key) + " is 0;");
        refused(with(key, -1), std::string(key) + " is -1;");
        refused(with(key, 2.5), std::string(key) + " is 2.5;");
        refused(with(key, "4"), std::string(key) + " is ");
        refused(with(key, ~uint64_t(0)), std::string(key) + " is 18446744073709551615;");
        refused(with(key, nullptr), std::string(key) + " is missing");
    }
    refused(with("num_key_value_heads", 3), "is not a multiple of num_key_value_heads 3");
    refused(with("num_attention_heads", 5), "is not a multiple of num_attention_heads");
    refused(with("head_dim", 7), "head_dim 7 is odd");
    refused(with("rms_norm_eps", -1.0), "rms_norm_eps");
    refused(with("rope_theta", 0), "rope_theta");
    refused(with("tie_word_embeddings", 1), "is 1; true or false is needed");
    refused(with("eos_token_id", -1), "eos_token_id");
    refused(with("eos_token_id", {1, "x"}), "eos_token_id");
    refused(with("architectures", nullptr), "architectures");
    refused(with("architectures", Json::array()), "architectures");
    refused(with("rope_parameters", {{"rope_theta", 1e6}}),
            "10000 at the top and 1000000 in rope_parameters");
    refused(with("hidden_act", "gelu"), "hidden_act \"gelu\"", ErrorKind::unsupported);
    refused(with("rope_parameters", {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor",
            ErrorKind::unsupported);
    refused(with("rope_scaling", "llama3"), "is \"llama3\"; a JSON object is needed");
}

static const Json llama3 = {{"rope_type", "llama3"},
                            {"factor", 32.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};

TEST(HfCheckpoint, ReadsRopeScalingInEverySpelling) {
    using reference::RopeScaling;
    const auto scaling_of = [](const std::map<std::string, Json>& changes) {
        const TemporaryFolder folder;
        TinyModel model = TinyModel::dense();
        for (const auto& [key, value] : changes) model.config[key] = value;
        return opened(model, folder)->config().rope_scaling;
    };
    const RopeScaling none, linear = {.kind = RopeScaling::Kind::linear, .factor = 2.5},
                            expected = {.kind = RopeScaling::Kind::llama3,
                                        .factor = 32,
                                        .low_freq_factor = 1,
                                        .high_freq_factor = 4,
                                        .original_positions = 8192};
    Json with_theta = llama3, other = llama3;
    with_theta["rope_theta"] = 10000.0;
    other.update({{"factor", 8},
                  {"low_freq_factor", 2},
                  {"high_freq_factor", 3.5},
                  {"original_max_position_embeddings", 4096}});
    EXPECT_EQ(scaling_of({}), none);
    EXPECT_EQ(scaling_of({{"rope_scaling", nullptr}}), none);
    EXPECT_EQ(scaling_of({{"rope_scaling", Json::object()}}), none);
    EXPECT_EQ(scaling_of({{"rope_scaling", {{"rope_type", "default"}}}}), none);
    EXPECT_EQ(scaling_of({{"rope_scaling", llama3}}), expected);
    EXPECT_EQ(scaling_of({{"rope_parameters", llama3}}), expected);
    EXPECT_EQ(scaling_of({{"rope_parameters", with_theta}, {"rope_scaling", llama3}}), expected);
    EXPECT_EQ(scaling_of({{"rope_scaling", llama3}, {"original_max_position_embeddings", 8192}}), expected);
    EXPECT_EQ(scaling_of({{"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}}), linear);
    EXPECT_EQ(scaling_of({{"rope_scaling", {{"type", "linear"}, {"rope_type", "linear"}, {"factor", 2.5}}}}),
              linear);
    const RopeScaling read = scaling_of({{"rope_scaling", other}});
    EXPECT_EQ(read.factor, 8);
    EXPECT_EQ(read.low_freq_factor, 2);
    EXPECT_EQ(read.high_freq_factor, 3.5);
    EXPECT_EQ(read.original_positions, 4096);
}

TEST(HfCheckpoint, RefusesRopeScalingThatIsUnknownOrImplausible) {
    const auto with = [](const Json& scaling, const char* key = "rope_scaling") {
        TinyModel model = TinyModel::dense();
        model.config[key] = scaling;
        return model;
    };
    for (const char* type : {"yarn", "dynamic", "longrope", "su", "mrope", "proportional"}) {
        for (const char* key : {"rope_scaling", "rope_parameters"}) {
            refused(with({{"rope_type", type}, {"factor", 2}}, key),
                    fmt::format("{}: RoPE scaling \"{}\" is not supported; linear and llama3 are", key, type),
                    ErrorKind::unsupported);
            refused(with({{"type", type}, {"factor", 2}}, key), type, ErrorKind::unsupported);
        }
    }
    for (const char* key :
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
        Json scaling = llama3;
        scaling.erase(key);
        refused(with(scaling), std::string(key) + " is missing");
        for (const Json& wrong : {Json(0), Json(-1), Json("8"), Json(1e12)}) {
            scaling[key] = wrong;
            refused(with(scaling), std::string("rope_scaling: ") + key + " is ");
        }
    }
    refused(with({{"type", "linear"}}), "rope_scaling: factor is missing");
    refused(with({{"type", "linear"}, {"factor", 0.5}}), "factor is 0.5; a number from 1");
    refused(with({{"type", "linear"}, {"rope_type", "llama3"}, {"factor", 2}}),
            "rope_type is \"llama3\" and type \"linear\"");
    Json scaling = llama3;
    scaling["low_freq_factor"] = 4;
    refused(with(scaling), "low_freq_factor 4 must be below high_freq_factor 4");
    TinyModel model = with(llama3);
    model.config["rope_parameters"] = {{"rope_type", "default"}};
    refused(model, "rope_scaling and rope_parameters say different scalings");
    model = with(llama3);
    model.config["original_max_position_embeddings"] = 4096;
    refused(model, "original_max_position_embeddings is 4096 at the top and 8192 in");
    refused(with(0.5, "partial_rotary_factor"), "partial_rotary_factor", ErrorKind::unsupported);
}

TEST(HfCheckpoint, AConfigThatClaims1e18OrTheMostOfEverythingTakesNoMemory) {
    for (const char* key :
         {"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
          "num_key_value_heads", "head_dim", "max_position_embeddings", "eos_token_id"}) {
        TinyModel model = TinyModel::dense();
        model.config[key] = 1'000'000'000'000'000'000;
        test::with_little_memory([&] { refused(model, std::string(key) + " is 1000000000000000000"); });
    }
    // What is still allowed, beside the tensors of a tiny model: the first that is missing ends it.
    TinyModel model = TinyModel::dense();
    model.config["num_hidden_layers"] = 1 << 14;
    test::with_little_memory(
        [&] { refused(model, "tensor model.layers.1.input_layernorm.weight is missing"); });
    for (const auto& [key, value] : {std::pair("hidden_size", 1 << 20),
                                     {"vocab_size", 1 << 24},
                                     {"intermediate_size", 1 << 24},
                                     {"head_dim", 1 << 14}})
        model.config[key] = value;
    test::with_little_memory([&] { refused(model, "the config asks for [16777216, 1048576]"); });
}

TEST(HfCheckpoint, SaysWhatIsNotThere) {
    const TemporaryFolder folder;
    const auto failure = [&](std::string_view part) {
        expect_error(ErrorKind::failure, part, [&] { open_checkpoint(folder.path()); });
    };
    expect_error(ErrorKind::failure, "no such file or folder", [&] { open_checkpoint(folder / "nothing"); });
    expect_error(ErrorKind::failure, "give the folder",
                 [&] { open_checkpoint(write_file(folder / "a.safetensors", "")); });
    failure("has no config.json; is this a Hugging Face");
    write_file(folder / "m.gguf", "");
    failure("m.gguf");
    write_file(folder / "config.json", TinyModel().config.dump());
    failure("has neither model.safetensors nor");
    write_file(folder / "config.json", "{");
    expect_error(ErrorKind::malformed, "config.json: not valid JSON",
                 [&] { open_checkpoint(folder.path()); });
    write_file(folder / "config.json", "[]");
    expect_error(ErrorKind::malformed, "config.json: is []; a JSON object is needed",
                 [&] { open_checkpoint(folder.path()); });
}

TEST(HfCheckpoint, ChecksEveryTensorAgainstTheConfig) {
    for (const auto& [name, tensor] : TinyModel::dense().tensors) {
        TinyModel model = TinyModel::dense();
        model.tensors.erase(name);
        refused(model, "tensor " + name + " is missing");
        model.add(name, DType::bf16, {32, 33});
        refused(model, "\"" + name + "\": has the shape [32, 33]");
        model.add(name, DType::i32, TinyModel::dense().tensors[name].shape);
        refused(model, "has the dtype I32", ErrorKind::unsupported);
    }
    TinyModel model = TinyModel::dense();
    model.add("model.layers.0.mlp.down_proj.weight", DType::bf16, {48, 32});
    refused(model, "the config asks for [32, 48]; transposed?");
    const auto extra = [](const std::string& name) {
        TinyModel more = TinyModel::dense();
        more.add(name, DType::bf16, {32});
        return more;
    };
    refused(extra("model.layers.1.input_layernorm.weight"),
            "\"model.layers.1.input_layernorm.weight\": is no tensor of LlamaForCausalLM");
    refused(extra(q_proj + ".bias"), "attention_bias false");
    model = TinyModel::dense();
    model.config["tie_word_embeddings"] = false;
    refused(model, "lm_head.weight is missing");
    model.add("lm_head.weight", DType::bf16, {24, 32});
    const TemporaryFolder folder;
    EXPECT_TRUE(opened(model, folder)->dense().contains("lm_head.weight"));
}

TEST(HfCheckpoint, WantsBiasesWhereTheConfigSaysSo) {
    TinyModel model = TinyModel::dense();
    model.config["attention_bias"] = true;
    model.config["mlp_bias"] = true;
    for (const auto& [name, shape] : TinyModel::linears())
        model.add("model.layers.0." + name + ".bias", DType::bf16, {shape[0]});
    const TemporaryFolder folder;
    EXPECT_EQ(opened(model, folder)->dense().size(), 18u);
    model.tensors.erase("model.layers.0.mlp.up_proj.bias");
    refused(model, "tensor model.layers.0.mlp.up_proj.bias is missing");
}

TEST(HfCheckpoint, LeavesOutTheCopyOfTiedEmbeddingsAndOldBuffers) {
    TinyModel model = TinyModel::dense();
    model.add("lm_head.weight", DType::bf16, {24, 32});
    model.add("model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {4});
    const TemporaryFolder folder;
    EXPECT_EQ(opened(model, folder)->dense().size(), 11u);
}

TEST(HfCheckpoint, FindsTheChatTemplate) {
    const TemporaryFolder folder;
    TinyModel::dense().write(folder.path());
    const auto chat = [&] { return open_checkpoint(folder.path())->companions().chat_template; };
    EXPECT_EQ(chat(), "");
    write_file(folder / "tokenizer.json", "{}");
    EXPECT_EQ(open_checkpoint(folder.path())->companions().tokenizer_problem, "");
    write_file(folder / "tokenizer_config.json", R"({"chat_template":"A"})");
    EXPECT_EQ(chat(), "A");
    write_file(folder / "tokenizer_config.json",
               R"({"chat_template":[{"name":"tool","template":"T"},{"name":"default","template":"D"},3]})");
    EXPECT_EQ(chat(), "D");
    write_file(folder / "chat_template.jinja", "J");
    EXPECT_EQ(chat(), "J");
    fs::remove(folder / "chat_template.jinja");
    write_file(folder / "tokenizer_config.json", "{");
    expect_error(ErrorKind::malformed, "tokenizer_config.json", chat);
}

// ---- compressed-tensors

TEST(CompressedTensors, OpensBothSchemes) {
    for (const Scheme scheme : {Scheme::nvfp4, Scheme::nvfp4a16}) {
        const TemporaryFolder folder;
        const TinyModel model = TinyModel::quantised(scheme);
        const auto file = opened(model, folder);
        EXPECT_EQ(file->scheme(), scheme);
        EXPECT_EQ(file->description(), scheme == Scheme::nvfp4 ? "compressed-tensors NVFP4 (W4A4)"
                                                               : "compressed-tensors NVFP4A16 (W4A16)");
        ASSERT_EQ(file->nvfp4().size(), 7u);
        EXPECT_EQ(file->dense().size(), 4u);
        const NvFp4Linear& down = file->nvfp4().at("model.layers.0.mlp.down_proj");
        EXPECT_EQ(down.n, 32);
        EXPECT_EQ(down.k, 48);
        const std::string module = "model.layers.0.mlp.down_proj";
        const auto& codes = model.tensors.at(module + ".weight_packed").bytes;
        const auto& scales = model.tensors.at(module + ".weight_scale").bytes;
        file->release(module);
        EXPECT_EQ(std::string(down.codes, down.codes + codes.size()), codes);
        EXPECT_EQ(std::string(down.block_scales, down.block_scales + scales.size()), scales);
        EXPECT_EQ(down.weight_scale.word(), 936.0f);
        EXPECT_EQ(down.input_scale.has_value(), scheme == Scheme::nvfp4);
        if (scheme == Scheme::nvfp4) {
            EXPECT_EQ(down.input_scale->word(), 194.0f);
        }
        EXPECT_FALSE(file->config().json.contains("quantization_config"));
    }
}

TEST(CompressedTensors, OpensEveryFormOfTheConfig) {
    const auto opens = [](const std::function<void(Json&)>& change, Scheme scheme = Scheme::nvfp4) {
        TinyModel model = TinyModel::quantised(scheme);
        change(model.config["quantization_config"]);
        const TemporaryFolder folder;
        EXPECT_EQ(opened(model, folder)->scheme(), scheme);
    };
    opens([](Json& q) {  // the oldest files
        for (const char* key : {"scale_dtype", "zp_dtype"})
            q["config_groups"]["group_0"]["weights"].erase(key);
        q["config_groups"]["group_0"].erase("format");
        q.erase("transform_config");
        q.erase("version");
    });
    opens([](Json& q) { q["config_groups"]["group_0"]["input_activations"]["dynamic"] = false; });
    opens([](Json& q) { q["config_groups"]["group_0"]["weights"]["strategy"] = "group"; });
    opens([](Json& q) { q["config_groups"]["group_0"]["targets"] = {"re:.*proj$"}; });
    opens([](Json& q) { q["config_groups"]["group_0"]["targets"] = "Linear"; });
    opens([](Json& q) { q["config_groups"] = {{"NVFP4", {"Linear"}}}; });
    opens([](Json& q) { q["config_groups"] = {{"NVFP4A16", {"Linear"}}}; }, Scheme::nvfp4a16);
    opens([](Json& q) { q["format"] = "mixed-precision"; });
    opens([](Json& q) { q["transform_config"] = nullptr; });
    opens([](Json& q) { q["transform_config"] = {{"config_groups", Json::object()}}; });
    opens([](Json& q) { q["sparsity_config"] = {{"format", "dense"}}; });
    opens([](Json& q) { q["ignore"] = {"re:.*norm", "model.embed_tokens"}; });
    opens([](Json& q) { q["unknown"] = 3; });
    opens([](Json& q) {  // a name beats a class
        q["config_groups"]["a"] = q["config_groups"]["group_0"];
        q["config_groups"]["a"]["targets"] = {"re:model\\.layers\\.0\\.mlp", q_proj};
        q["config_groups"]["group_0"]["targets"] = {"Linear"};
    });
}

TEST(CompressedTensors, ReadsTwoSchemesInOneFile) {
    TinyModel model = TinyModel::quantised(Scheme::nvfp4);
    Json& groups = model.config["quantization_config"]["config_groups"];
    groups["b"] = groups["group_0"];
    groups["b"]["input_activations"] = nullptr;
    groups["b"]["targets"] = {"re:.*down_proj$"};
    model.tensors.erase("model.layers.0.mlp.down_proj.input_global_scale");
    const TemporaryFolder folder;
    const auto file = opened(model, folder);
    EXPECT_EQ(file->scheme(), Scheme::nvfp4);
    EXPECT_FALSE(file->nvfp4().at("model.layers.0.mlp.down_proj").input_scale.has_value());
    EXPECT_TRUE(file->nvfp4().at(q_proj).input_scale.has_value());
}

TEST(CompressedTensors, RefusesOtherDialectsByName) {
    const auto unsupported = [](std::string_view part, const std::function<void(Json&)>& change) {
        TinyModel model = TinyModel::quantised(Scheme::nvfp4);
        change(model.config["quantization_config"]);
        refused(model, part, ErrorKind::unsupported);
    };
    const auto group = [](Json& q) -> Json& { return q["config_groups"]["group_0"]; };
    unsupported("kv_cache_scheme", [](Json& q) { q["kv_cache_scheme"] = {{"num_bits", 8}}; });
    unsupported("sparsity_config has the format \"sparse-24-bitmask\"",
                [](Json& q) { q["sparsity_config"] = {{"format", "sparse-24-bitmask"}}; });
    unsupported("quantization_status is \"frozen\"", [](Json& q) { q["quantization_status"] = "frozen"; });
    unsupported("the ModelOpt dialect", [](Json& q) { q["quant_method"] = "modelopt"; });
    unsupported("the ModelOpt dialect", [](Json& q) { q = {{"quant_algo", "NVFP4"}}; });
    for (const char* method : {"gptq", "awq", "fp8", "quark"}) {
        unsupported(std::string("quant_method \"") + method, [&](Json& q) { q["quant_method"] = method; });
    }
    unsupported("quant_method \"\"", [](Json& q) { q.erase("quant_method"); });
    for (const char* format : {"mxfp4-pack-quantized", "int-quantized", "pack-quantized"}) {
        unsupported(std::string("the format \"") + format, [&](Json& q) { group(q)["format"] = format; });
    }
    unsupported("the format \"mixed-precision\"",
                [&](Json& q) { q["format"] = "mixed-precision", group(q).erase("format"); });
    unsupported("only NVFP4 and NVFP4A16", [](Json& q) { q["config_groups"] = {{"MXFP4", {"Linear"}}}; });
    unsupported("weights has num_bits = 8;", [&](Json& q) { group(q)["weights"]["num_bits"] = 8; });
    unsupported("weights has type = \"int\"", [&](Json& q) { group(q)["weights"]["type"] = "int"; });
    unsupported("weights has group_size = 32;", [&](Json& q) { group(q)["weights"]["group_size"] = 32; });
    unsupported("weights has group_size = null", [&](Json& q) { group(q)["weights"].erase("group_size"); });
    unsupported("weights has symmetric", [&](Json& q) { group(q)["weights"]["symmetric"] = false; });
    unsupported("input_activations has num_bits = 8;",
                [&](Json& q) { group(q)["input_activations"]["num_bits"] = 8; });
    unsupported("dynamic = true;", [&](Json& q) { group(q)["input_activations"]["dynamic"] = true; });
    unsupported("output_activations", [&](Json& q) { group(q)["output_activations"] = Json::object(); });

    TinyModel model = TinyModel::dense();
    model.add(q_proj + ".weight_scale_2", DType::f32, {});
    refused(model, "ModelOpt dialect", ErrorKind::unsupported);
    const TemporaryFolder folder;
    TinyModel::dense().write(folder.path());
    write_file(folder / "hf_quant_config.json", "{}");
    expect_error(ErrorKind::unsupported, "ModelOpt", [&] { open_checkpoint(folder.path()); });
}

TEST(CompressedTensors, RefusesBrokenConfigs) {
    const auto broken = [](std::string_view part, const std::function<void(Json&)>& change) {
        TinyModel model = TinyModel::quantised(Scheme::nvfp4);
        change(model.config["quantization_config"]);
        refused(model, part);
    };
    const auto group = [](Json& q) -> Json& { return q["config_groups"]["group_0"]; };
    broken("is 3; an object is needed", [](Json& q) { q = 3; });
    broken("quant_method is 3; a text is needed", [](Json& q) { q["quant_method"] = 3; });
    broken("needs an object config_groups", [](Json& q) { q.erase("config_groups"); });
    broken("needs an object config_groups", [](Json& q) { q["config_groups"] = Json::object(); });
    broken("group \"group_0\": is 3; an object is needed", [&](Json& q) { group(q) = 3; });
    broken("needs weights", [&](Json& q) { group(q)["weights"] = nullptr; });
    broken("needs targets", [&](Json& q) { group(q).erase("targets"); });
    broken("targets: is 3; a list of texts is needed", [&](Json& q) { group(q)["targets"] = 3; });
    broken("targets: holds 3; texts are needed", [&](Json& q) { group(q)["targets"] = {3}; });
    broken("ignore: holds", [](Json& q) { q["ignore"] = {nullptr}; });
    broken("no regular expression", [&](Json& q) { group(q)["targets"] = {"re:("}; });
    broken("no regular expression", [](Json& q) { q["ignore"] = {"re:*"}; });
    TinyModel many = TinyModel::quantised(Scheme::nvfp4);
    many.config["quantization_config"]["ignore"] = std::vector<std::string>(129, "re:x");
    refused(many, "more than 128 regular expressions", ErrorKind::unsupported);
    // The config against the tensors.
    broken(
        "q_proj.weight_packed\": is quantised, but config.json says the module is ignored by \"re:.*q_proj\"",
        [](Json& q) { q["ignore"] = {"re:.*q_proj"}; });
    broken("is quantised, but config.json says the module is matched by no target",
           [&](Json& q) { group(q)["targets"] = {"re:.*mlp.*"}; });
    broken("W4A16 (\"input_activations\": null) has none",
           [&](Json& q) { group(q)["input_activations"] = nullptr; });
}

TEST(CompressedTensors, ChecksEveryTensorOfAModule) {
    const auto broken = [](std::string_view part, const std::function<void(TinyModel&)>& change,
                           ErrorKind kind = ErrorKind::malformed) {
        TinyModel model = TinyModel::quantised(Scheme::nvfp4);
        change(model);
        refused(model, part, kind);
    };
    const std::string packed = q_proj + ".weight_packed", scale = q_proj + ".weight_scale",
                      global = q_proj + ".weight_global_scale", input = q_proj + ".input_global_scale";
    // Missing.
    broken(packed + "\" that it belongs to", [&](TinyModel& m) { m.tensors.erase(packed); });
    broken("has no \"" + scale + "\" beside it", [&](TinyModel& m) { m.tensors.erase(scale); });
    broken("has no \"" + global + "\" beside it", [&](TinyModel& m) { m.tensors.erase(global); });
    broken("weight_scale_2 is ModelOpt's name", [&](TinyModel& m) {
        m.tensors[q_proj + ".weight_scale_2"] = m.tensors[global];
        m.tensors.erase(global);
    });
    broken("has no \"" + input + "\" beside it; W4A4 needs one",
           [&](TinyModel& m) { m.tensors.erase(input); });
    broken("tensor " + q_proj + ".weight is missing", [&](TinyModel& m) {
        for (const auto& name : {packed, scale, global, input}) m.tensors.erase(name);
    });
    // Extra.
    broken("either quantised or dense",
           [&](TinyModel& m) { m.add(q_proj + ".weight", DType::bf16, {32, 32}); });
    broken("a ModelOpt name", [&](TinyModel& m) { m.add(q_proj + ".input_scale", DType::f32, {}); });
    broken("the matrix of a transform",
           [&](TinyModel& m) { m.add(q_proj + ".v_input.weight", DType::f64, {16, 16}); });
    broken("an unknown variant",
           [&](TinyModel& m) { m.add(q_proj + ".weight_zero_point", DType::i8, {32, 2}); });
    broken("lm_head.weight_packed\" that it belongs to",
           [&](TinyModel& m) { m.add("lm_head.weight_scale", DType::f8_e4m3, {24, 2}); });
    broken("is dense, but config.json says the module is NVFP4 by group \"group_0\", target \"Linear\"",
           [&](TinyModel& m) {
               for (const auto& name : {packed, scale, global, input}) m.tensors.erase(name);
               m.add(q_proj + ".weight", DType::bf16, {32, 32});
           });
    broken(
        "quantised, which is supported for linear layers only",
        [&](TinyModel& m) {
            m.tensors.erase("model.embed_tokens.weight");
            m.config["quantization_config"]["config_groups"]["group_0"]["targets"] = {"Linear", "Embedding"};
            m.add("model.embed_tokens.weight_packed", DType::u8, {24, 16});
            m.add("model.embed_tokens.weight_scale", DType::f8_e4m3, {24, 2});
            m.tensors["model.embed_tokens.weight_global_scale"] =
                m.tensors["model.embed_tokens.input_global_scale"] = m.tensors[global];
        },
        ErrorKind::unsupported);
    broken("has no quantization_config; was it lost",
           [&](TinyModel& m) { m.config.erase("quantization_config"); });
    // Shapes and types.
    broken("packed codes are U8 [N, K/2]", [&](TinyModel& m) { m.add(packed, DType::i8, {32, 16}); });
    broken("packed codes are U8 [N, K/2]", [&](TinyModel& m) { m.add(packed, DType::u8, {512}); });
    broken("so K/2 one of 8", [&](TinyModel& m) { m.add(packed, DType::u8, {32, 12}); });
    broken("so K/2 one of 8", [&](TinyModel& m) { m.add(packed, DType::u8, {32, 0}); });
    broken("block scales are F8_E4M3. E8M0", [&](TinyModel& m) { m.add(scale, DType::u8, {32, 2}); });
    broken("must be [32, 2]; transposed?", [&](TinyModel& m) { m.add(scale, DType::f8_e4m3, {2, 32}); });
    broken("must be [32, 2]; codes stored one to a byte, or blocks of 32",
           [&](TinyModel& m) { m.add(scale, DType::f8_e4m3, {32, 1}); });
    broken("must be [32, 2]; tiled for a kernel",
           [&](TinyModel& m) { m.add(scale, DType::f8_e4m3, {128, 4}); });
    broken("must be [32, 2]", [&](TinyModel& m) { m.add(scale, DType::f8_e4m3, {64}); });
    broken("must be [32, 4]; codes stored one to a byte",
           [&](TinyModel& m) { m.add(packed, DType::u8, {32, 32}); });
    broken(
        "\"model.layers.0.mlp.down_proj.weight_packed\": has the shape [48, 32], the config asks for [32, "
        "48]; transposed?",
        [](TinyModel& m) {
            m.add("model.layers.0.mlp.down_proj.weight_packed", DType::u8, {48, 16});
            m.add("model.layers.0.mlp.down_proj.weight_scale", DType::f8_e4m3, {48, 2});
        });
    // Global scales.
    for (const auto& name : {global, input}) {
        const auto set = [&](std::string_view part, TinyModel::Tensor tensor) {
            broken("\"" + name + "\"", [&](TinyModel& m) { m.tensors[name] = tensor; });
            broken(part, [&](TinyModel& m) { m.tensors[name] = tensor; });
        };
        set("reached while calibrating",
            {DType::f32, {1}, bytes_of(std::numeric_limits<float>::quiet_NaN())});
        set("global scale inf", {DType::f32, {1}, bytes_of(std::numeric_limits<float>::infinity())});
        set("global scale 0", {DType::f32, {}, bytes_of(0.0f)});
        set("global scale -0", {DType::f32, {}, bytes_of(-0.0f)});
        set("global scale -936", {DType::f32, {1}, bytes_of(-936.0f)});
        set("Its reciprocal overflows", {DType::f32, {1}, bytes_of(1e-40f)});
        set("global scale inf", {DType::f16, {1}, bytes_of(uint16_t(0x7C00))});
        set("is one number, [1] or []", {DType::f32, {2}, bytes_of(std::vector<float>{1, 1})});
        set("is one number, [1] or []", {DType::f32, {0}, ""});
        set("is one number, [1] or []", {DType::f32, {1, 1}, bytes_of(1.0f)});
        set("is F32, BF16 or F16", {DType::f64, {1}, bytes_of(936.0)});
    }
    broken("looks like a ModelOpt decode scale",
           [&](TinyModel& m) { m.tensors[global].bytes = bytes_of(1 / 936.0f); });
    // Block scales: every byte value at every place.
    for (int byte = 0; byte < 256; ++byte) {
        if (byte < 0x7F) continue;
        const int at = byte % 64;
        broken(fmt::format("{}\": byte 0x{:02X} at row {}, block {} is {} (1 such of 64", scale, byte, at / 2,
                           at % 2, (byte & 0x7F) == 0x7F ? "NaN" : "negative"),
               [&](TinyModel& m) { m.tensors[scale].bytes[at] = char(byte); });
    }
    TinyModel model = TinyModel::quantised(Scheme::nvfp4);
    for (int byte = 0; byte < 0x7F; ++byte)
        model.tensors[q_proj + ".weight_scale"].bytes[byte % 64] = char(byte);
    for (const auto& name : {global, input})
        model.tensors[name] = {DType::bf16, {}, bytes_of(uint16_t(0x4342))};
    model.tensors["model.layers.0.self_attn.k_proj.input_global_scale"] = {
        DType::f16, {1}, bytes_of(uint16_t(0x3800))};
    const TemporaryFolder folder;
    const auto file = opened(model, folder);
    EXPECT_EQ(file->nvfp4().at(q_proj).weight_scale.word(), 194.0f);
    EXPECT_EQ(file->nvfp4().at("model.layers.0.self_attn.k_proj").input_scale->word(), 0.5f);
}

TEST(CompressedTensors, WritesTheConfigOfARealCheckpoint) {
    const Json real = read_json(fs::path(HALFBYTE_TEST_DATA) / "llmc-nvfp4-2layer/config.json");
    EXPECT_EQ(quantization_config(Scheme::nvfp4, {"lm_head"}).dump(2), real["quantization_config"].dump(2));
    const Json weights_only =
        quantization_config(Scheme::nvfp4a16, {"lm_head", "model.layers.0.mlp.up_proj"});
    EXPECT_TRUE(weights_only["config_groups"]["group_0"]["input_activations"].is_null());
    EXPECT_EQ(weights_only["ignore"], (Json{"lm_head", "model.layers.0.mlp.up_proj"}));
    EXPECT_EQ(quantization_config(Scheme::nvfp4, {})["ignore"], Json::array());
    const fs::path shared = fs::path(HALFBYTE_SHARED_DATA) / "checkpoints/llmc-nvfp4a16-2layer/config.json";
    if (fs::exists(shared)) {
        EXPECT_EQ(quantization_config(Scheme::nvfp4a16, {"lm_head"}).dump(2),
                  read_json(shared)["quantization_config"].dump(2));
    }
}

TEST(CompressedTensors, OpensRealCheckpoints) {
    const auto file = open_checkpoint(fs::path(HALFBYTE_TEST_DATA) / "llmc-nvfp4-2layer");
    EXPECT_EQ(file->scheme(), Scheme::nvfp4);
    EXPECT_EQ(file->nvfp4().size(), 14u);
    EXPECT_EQ(file->dense().size(), 6u);
    EXPECT_EQ(file->config().rms_norm_eps, 9.999999747378752e-06);
    EXPECT_EQ(file->config().rope_theta, 100000.0);
    EXPECT_TRUE(file->config().tie_word_embeddings);
    EXPECT_EQ(file->nvfp4().at("model.layers.1.mlp.down_proj").k, 1536);
    const auto head = open_checkpoint(fs::path(HALFBYTE_TEST_DATA) / "llmc-nvfp4-lmhead-2layer");
    EXPECT_EQ(head->nvfp4().at("lm_head").n, 1024);
    EXPECT_FALSE(head->dense().contains("lm_head.weight"));
}

TEST(CompressedTensors, OpensOrRefusesEverySharedCheckpoint) {
    const fs::path shared = fs::path(HALFBYTE_SHARED_DATA) / "checkpoints";
    if (!fs::exists(shared)) GTEST_SKIP() << "no " << shared;
    int opens = 0, refuses = 0;
    for (const auto& entry : fs::directory_iterator(shared)) {
        const std::string name = entry.path().filename().string();
        if (!name.ends_with("-2layer")) continue;
        SCOPED_TRACE(name);
        if (!name.starts_with("modelopt") && !name.starts_with("llmc-mxfp4")) {
            const auto file = open_checkpoint(entry.path());
            EXPECT_EQ(file->scheme(), name.starts_with("llmc-nvfp4a16") ? Scheme::nvfp4a16 : Scheme::nvfp4);
            const bool input = name.find("quip") != name.npos, r4 = name.find("r124") != name.npos;
            EXPECT_EQ(file->transforms().linear.size(), input ? 14u : r4 ? 2u : 0u);
            EXPECT_EQ(file->transforms().folded.empty(), name.starts_with("llmc-nvfp4"));
            ++opens;
            continue;
        }
        const char* part = name.starts_with("modelopt") ? "ModelOpt" : "mxfp4-pack-quantized";
        expect_error(ErrorKind::unsupported, part, [&] { open_checkpoint(entry.path()); });
        ++refuses;
    }
    EXPECT_EQ(opens, 9);
    EXPECT_EQ(refuses, 5);
    for (const char* name : {"llmc-nvfp4-2layer.gguf", "modelopt-nvfp4-2layer.gguf"}) {
        expect_error(ErrorKind::unsupported, "40 (NVFP4)", [&] { open_checkpoint(shared / "gguf" / name); });
    }
}

}  // namespace halfbyte::checkpoint
