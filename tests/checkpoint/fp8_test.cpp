// FP8 modules of compressed-tensors files: E4M3 weights with a scale for each row.
#include <fmt/format.h>

#include <limits>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tiny_model.h"
#include "core/element.h"

namespace halfbyte::checkpoint {
using test::bytes_of;
using test::expect_error;
using test::TemporaryFolder;
using test::TinyModel;

static const std::string down = "model.layers.0.mlp.down_proj";

// Every row has a scale of its own, exact in BF16.
static std::string scales(DType type, int64_t rows) {
    std::string bytes(size_t(rows) * size_of(type), '\0');
    for (int64_t row = 0; row < rows; row++) store_element(bytes.data(), type, row, float(row + 1) * 0x1p-7f);
    return bytes;
}

static void make_fp8(TinyModel& model, const std::string& module, int64_t n, int64_t k,
                     DType scale_type = DType::bf16) {
    for (const char* leaf : {".weight_packed", ".weight_global_scale", ".input_global_scale"})
        model.tensors.erase(module + leaf);
    model.add(module + ".weight", DType::f8_e4m3, {n, k});
    model.tensors[module + ".weight_scale"] = {scale_type, {n, 1}, scales(scale_type, n)};
}

// down_proj in FP8, the other layers in NVFP4.
static TinyModel mixed(DType scale_type = DType::bf16) {
    TinyModel model = TinyModel::quantised(Scheme::nvfp4);
    make_fp8(model, down, 32, 48, scale_type);
    Json& q = model.config["quantization_config"];
    q = quantization_config(Scheme::nvfp4, {"lm_head"}, Scheme::fp8a16);
    q["config_groups"]["group_0"]["targets"] = {"re:.*down_proj$"};
    return model;
}

static void refused(const TinyModel& model, std::string_view part, ErrorKind kind = ErrorKind::malformed) {
    SCOPED_TRACE(part);
    const TemporaryFolder folder;
    model.write(folder.path());
    expect_error(kind, part, [&] { open_checkpoint(folder.path()); });
    expect_error(kind, folder.path().string(), [&] { open_checkpoint(folder.path()); });
}

TEST(Fp8Modules, AreReadBesideNvFp4WithScalesOfEveryType) {
    for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
        const TemporaryFolder folder;
        const TinyModel model = mixed(type);
        model.write(folder.path());
        const auto file = open_checkpoint(folder.path());
        EXPECT_EQ(file->description(), "compressed-tensors NVFP4 (W4A4) and FP8A16 (W8A16)");
        EXPECT_EQ(file->scheme(), Scheme::nvfp4);
        EXPECT_EQ(file->nvfp4().size(), 6u);
        ASSERT_EQ(file->fp8().size(), 1u);
        EXPECT_FALSE(file->dense().contains(down + ".weight"));
        const Fp8Linear& linear = file->fp8().at(down);
        EXPECT_EQ(linear.n, 32);
        EXPECT_EQ(linear.k, 48);
        const std::string& bytes = model.tensors.at(down + ".weight").bytes;
        file->release(down);
        EXPECT_EQ(std::string(linear.weight, linear.weight + bytes.size()), bytes);
        for (size_t row = 0; row < 32; row++) EXPECT_EQ(linear.scale[row], float(row + 1) * 0x1p-7f);
    }
}

TEST(Fp8Modules, MayBeAllThatIsQuantised) {
    for (const char* format : {"float-quantized", "naive-quantized"}) {
        TinyModel model = TinyModel::dense();
        for (const auto& [name, shape] : TinyModel::linears())
            make_fp8(model, "model.layers.0." + name, shape[0], shape[1]);
        Json& q = model.config["quantization_config"];
        q = quantization_config(Scheme::nvfp4, {"lm_head"}, Scheme::fp8a16);
        q["config_groups"].erase("group_1");
        q["config_groups"]["group_0"]["targets"] = {"Linear"};
        q["config_groups"]["group_0"]["format"] = format;
        const TemporaryFolder folder;
        model.write(folder.path());
        const auto file = open_checkpoint(folder.path());
        EXPECT_EQ(file->description(), "compressed-tensors FP8A16 (W8A16)");
        EXPECT_EQ(file->scheme(), Scheme::fp8a16);
        EXPECT_EQ(file->fp8().size(), 7u);
        EXPECT_TRUE(file->nvfp4().empty());
    }
}

TEST(Fp8Modules, MayHaveABias) {
    TinyModel model = mixed();
    model.config["mlp_bias"] = true;
    for (const auto& [name, shape] : TinyModel::linears())
        if (name.starts_with("mlp.")) model.add("model.layers.0." + name + ".bias", DType::bf16, {shape[0]});
    const TemporaryFolder folder;
    model.write(folder.path());
    const auto file = open_checkpoint(folder.path());
    EXPECT_TRUE(file->dense().contains(down + ".bias"));
    EXPECT_TRUE(file->fp8().contains(down));
}

TEST(Fp8Modules, WrongTensorsAreNamed) {
    TinyModel model = mixed();
    for (const int byte : {0x7F, 0xFF}) {
        TinyModel with_nan = mixed();
        with_nan.tensors[down + ".weight"].bytes[5 * 48 + 7] = char(byte);
        refused(with_nan, fmt::format("byte 0x{:02X} at [5, 7] is NaN (1 such of 1536 bytes)", byte));
    }
    const auto with_scale = [](float value) {
        TinyModel wrong = mixed(DType::f32);
        wrong.tensors[down + ".weight_scale"].bytes.replace(4 * 3, 4, bytes_of(value));
        return wrong;
    };
    for (const float value :
         {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
        refused(with_scale(value), "row 3 has the scale");
    const auto shaped = [](const std::string& leaf, DType type, std::vector<int64_t> shape) {
        TinyModel wrong = mixed();
        wrong.add(down + leaf, type, std::move(shape));
        return wrong;
    };
    refused(shaped(".weight_scale", DType::f32, {32}),
            "shape [32]; FP8 weights of 32 rows need one scale each");
    refused(shaped(".weight_scale", DType::f32, {1}), "[32, 1]; one for the whole tensor?");
    refused(shaped(".weight_scale", DType::f32, {1, 32}), "shape [1, 32]");
    refused(shaped(".weight_scale", DType::f32, {32, 3}), "shape [32, 3]");
    refused(shaped(".weight_scale", DType::u8, {32, 1}), "U8 given; the scales of FP8 rows are BF16");
    refused(shaped(".weight", DType::f8_e4m3, {1536}), "shape [1536]; FP8 weights are [N, K]");
    refused(shaped(".weight_packed", DType::u8, {32, 24}), "a module has one format");
    refused(shaped(".input_scale", DType::f32, {1}), "FP8 is supported for weights only");
    refused(shaped(".weight_zero_point", DType::f32, {32, 1}), "FP8 weights are symmetric");
    refused(shaped(".other", DType::f32, {1}), "an unknown variant");
    TinyModel transposed = mixed();
    make_fp8(transposed, down, 48, 32);
    refused(transposed, "has the shape [48, 32], the config asks for [32, 48]; transposed?");
    model.tensors.erase(down + ".weight_scale");
    refused(model, "has no \"" + down + ".weight_scale\" beside it");
    TinyModel embedding = mixed();
    embedding.config["quantization_config"]["config_groups"]["group_0"]["targets"] = {"re:.*down_proj$",
                                                                                      "Embedding"};
    make_fp8(embedding, "model.embed_tokens", 24, 32);
    refused(embedding, "is quantised, which is supported for linear layers only", ErrorKind::unsupported);
}

TEST(Fp8Modules, MayHaveAnySizeAndEveryByteIsLookedAt) {
    TinyModel model = mixed();
    model.config["architectures"] = {"OtherForCausalLM"};
    model.config["quantization_config"]["config_groups"]["group_0"]["targets"] = {"re:.*down_proj$", "odd"};
    make_fp8(model, "odd", 3, 5);
    const TemporaryFolder folder;
    model.write(folder.path());
    EXPECT_EQ(open_checkpoint(folder.path())->fp8().at("odd").k, 5);
    for (int at = 0; at < 15; at++) {
        TinyModel with_nan = model;
        with_nan.tensors["odd.weight"].bytes[size_t(at)] = char(0x7F);
        refused(with_nan, fmt::format("byte 0x7F at [{}, {}] is NaN", at / 5, at % 5));
    }
}

TEST(Fp8Modules, MustBeWhatTheConfigSays) {
    TinyModel model = mixed();
    Json& groups = model.config["quantization_config"]["config_groups"];
    groups["group_0"]["targets"] = {"lm_head"};
    refused(model, "is FP8, but config.json says the module is NVFP4 by group \"group_1\"");
    model = mixed();
    model.config["quantization_config"]["ignore"] = {"re:.*down_proj$"};
    refused(model, "is FP8, but config.json says the module is ignored by");
    model = TinyModel::quantised(Scheme::nvfp4);
    model.config["quantization_config"] = mixed().config["quantization_config"];
    refused(model, "is NVFP4, but config.json says the module is FP8A16 by group \"group_0\"");
    model = mixed();
    model.add(down + ".weight", DType::bf16, {32, 48});
    model.tensors.erase(down + ".weight_scale");
    refused(model, "is dense, but config.json says the module is FP8A16");
    model = TinyModel::dense();
    make_fp8(model, down, 32, 48);
    refused(model, "has the dtype F8_E4M3", ErrorKind::unsupported);
}

TEST(Fp8Modules, OtherKindsAreRefusedByName) {
    const auto unsupported = [](std::string_view part, const std::function<void(Json&)>& change) {
        TinyModel model = mixed();
        change(model.config["quantization_config"]["config_groups"]["group_0"]);
        refused(model, part, ErrorKind::unsupported);
    };
    unsupported("weights has strategy = \"tensor\"; only FP8 with a scale for each row",
                [](Json& group) { group["weights"]["strategy"] = "tensor"; });
    unsupported("weights has strategy = \"block\"",
                [](Json& group) { group["weights"]["strategy"] = "block"; });
    unsupported("weights has num_bits = 4", [](Json& group) { group["weights"]["num_bits"] = 4; });
    unsupported("weights has type = \"int\"", [](Json& group) { group["weights"]["type"] = "int"; });
    unsupported("weights has symmetric", [](Json& group) { group["weights"]["symmetric"] = false; });
    unsupported("input_activations are given; FP8 is supported for weights only",
                [](Json& group) { group["input_activations"] = group["weights"]; });
    unsupported("the format \"int-quantized\"", [](Json& group) { group["format"] = "int-quantized"; });
}

TEST(Fp8Modules, TheHeadHasAGroupOfItsOwnInTheConfig) {
    const Json fp8 = quantization_config(Scheme::nvfp4, {}, Scheme::fp8a16),
               nvfp4 = quantization_config(Scheme::nvfp4, {}, Scheme::nvfp4a16);
    EXPECT_EQ(fp8["format"], "mixed-precision");
    EXPECT_EQ(nvfp4["format"], "nvfp4-pack-quantized");
    EXPECT_EQ(fp8["config_groups"]["group_1"],
              quantization_config(Scheme::nvfp4, {})["config_groups"]["group_0"]);
    EXPECT_EQ(fp8["config_groups"]["group_0"]["format"], "float-quantized");
    EXPECT_EQ(nvfp4["config_groups"]["group_0"]["format"], "nvfp4-pack-quantized");
    for (const Json& config : {fp8, nvfp4}) {
        const Json& group = config["config_groups"]["group_0"];
        EXPECT_EQ(group["targets"], Json::array({"lm_head"}));
        EXPECT_TRUE(group["input_activations"].is_null());
    }
}

}  // namespace halfbyte::checkpoint
