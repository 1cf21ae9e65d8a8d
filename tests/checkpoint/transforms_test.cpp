// transform_config and FP-Quant: what is read, and what every wrong file is told.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tiny_model.h"
#include "checkpoint/transform_config.h"
#include "core/float16.h"
#include "transform/hadamard.h"
#include "transform/square_matrix.h"

namespace halfbyte::checkpoint {
namespace fs = std::filesystem;
using test::bytes_of;
using test::expect_error;
using test::TemporaryFolder;
using test::TinyModel;

static const std::string layer = "model.layers.0.", q_proj = layer + "self_attn.q_proj",
                         down_proj = layer + "mlp.down_proj", attention = layer + "self_attn";

static Json apply(const char* location, bool inverse, Json targets, Json ignore = Json::array()) {
    return {{"targets", std::move(targets)},
            {"location", location},
            {"inverse", inverse},
            {"ignore", std::move(ignore)}};
}

static Json scheme(const char* type, Json head_dim, Json apply) {
    return {{"type", type},           {"apply", std::move(apply)},       {"randomize", false},
            {"requires_grad", false}, {"head_dim", std::move(head_dim)}, {"precision", "torch.float64"}};
}

static TinyModel rotated(Json groups, Scheme kind = Scheme::nvfp4) {
    TinyModel model = TinyModel::quantised(kind);
    model.config["quantization_config"]["transform_config"] = {{"config_groups", std::move(groups)}};
    return model;
}

// QuIP's v: online input, folded weight_input.
static Json quip(const char* type = "hadamard", Json block = 16) {
    return {{"v", scheme(type, std::move(block),
                         {apply("input", false, {"Linear"}, {"lm_head"}),
                          apply("weight_input", true, {"Linear"}, "lm_head")})}};
}

static std::vector<double> sylvester_matrix(int64_t n) {
    return hadamard_matrix(n)->values;
}

// Hadamard with signs on both sides: not symmetric, and no diag(signs) times Sylvester's.
static std::vector<double> signed_matrix(int64_t n, uint64_t seed) {
    std::vector<double> M = sylvester_matrix(n);
    const auto rows = random_signs(n, seed), columns = random_signs(n, seed + 1);
    for (int64_t i = 0; i < n * n; i++) M[size_t(i)] *= rows[size_t(i / n)] * columns[size_t(i % n)];
    return M;
}

static TinyModel::Tensor f64(const std::vector<double>& values) {
    const auto n = int64_t(std::sqrt(double(values.size())));
    return {DType::f64, {n, n}, bytes_of(values)};
}

static TinyModel::Tensor rounded(const std::vector<double>& values, DType type) {
    TinyModel::Tensor tensor = f64(values);
    tensor.dtype = type;
    tensor.bytes.clear();
    for (const double value : values)
        tensor.bytes += type == DType::f32    ? bytes_of(float(value))
                        : type == DType::bf16 ? bytes_of(round_to<BFloat16>(float(value)).bits)
                                              : bytes_of(round_to<Float16>(float(value)).bits);
    return tensor;
}

static std::vector<double> scaled(std::vector<double> values, double factor) {
    for (double& value : values) value *= factor;
    return values;
}

// T of a transform, as a matrix.
static std::vector<double> matrix_of(const Transform& transform) {
    const int64_t n = transform.n;
    std::vector<double> T;
    for (int64_t k = 0; k < n; k++)
        for (int64_t j = 0; j < n; j++)
            T.push_back(transform.matrix.empty()
                            ? double(sylvester(int(k), int(j))) *
                                  (transform.signs.empty() ? 1 : double(transform.signs[size_t(k)]))
                            : double(transform.matrix[size_t(k * n + j)]));
    return T;
}

static std::vector<double> transposed(const std::vector<double>& values, int64_t n) {
    return transpose({n, values}).values;
}

static std::unique_ptr<Checkpoint> opened(const TinyModel& model) {
    const TemporaryFolder folder;
    model.write(folder.path());
    return open_checkpoint(folder.path());  // the mapped files stay readable
}

static void refused(const TinyModel& model, std::vector<std::string> parts,
                    ErrorKind kind = ErrorKind::malformed) {
    SCOPED_TRACE(parts.front());
    const TemporaryFolder folder;
    model.write(folder.path());
    parts.push_back(folder.path().string());
    for (const std::string& part : parts) expect_error(kind, part, [&] { open_checkpoint(folder.path()); });
}

TEST(Transforms, AreSharedByAllModulesOfAScheme) {
    for (const Scheme kind : {Scheme::nvfp4, Scheme::nvfp4a16}) {
        TinyModel model = rotated(quip(), kind);
        // As safetensors keeps it: once, with the first module that has it.
        model.tensors[down_proj + ".v_input.weight"] = f64(sylvester_matrix(16));
        const auto file = opened(model);
        EXPECT_TRUE(file->warnings().empty());
        const Transforms& transforms = file->transforms();
        ASSERT_EQ(transforms.linear.size(), 7u);
        EXPECT_TRUE(transforms.attention.empty());
        EXPECT_EQ(transforms.folded, std::vector<std::string>{"v weight_input^-1 (hadamard 16): 7 modules"});
        const auto& first = transforms.linear.at(down_proj).input.at(0);
        EXPECT_EQ(first->scheme, "v");
        EXPECT_EQ(first->type, "hadamard");
        EXPECT_FALSE(first->inverse);
        EXPECT_EQ(first->orthogonality_error, 0);
        EXPECT_TRUE(first->transform.matrix.empty());
        EXPECT_EQ(first->transform.scale, 0.25f);
        for (const auto& [module, at] : transforms.linear) {
            EXPECT_TRUE(at.output.empty());
            ASSERT_EQ(at.input.size(), 1u);
            EXPECT_EQ(at.input[0], first) << module;
        }
        EXPECT_EQ(file->nvfp4().size(), 7u);
        EXPECT_FALSE(file->dense().contains(down_proj + ".v_input.weight"));
    }
}

TEST(Transforms, CopiesOfOneContentAreOneObject) {
    TinyModel model = rotated(quip("random-hadamard"));
    const auto M = signed_matrix(16, 1);
    for (const auto& [name, shape] : TinyModel::linears())
        model.tensors[layer + name + ".v_input.weight"] = f64(M);
    const auto once = opened(model);
    for (const auto& [module, at] : once->transforms().linear)
        EXPECT_EQ(at.input[0], once->transforms().linear.at(q_proj).input[0]) << module;
    EXPECT_EQ(matrix_of(once->transforms().linear.at(q_proj).input[0]->transform), M);
}

TEST(Transforms, EveryModuleMayHaveItsOwnMatrix) {
    TinyModel model = rotated(quip("random-hadamard"));
    uint64_t seed = 1;
    for (const auto& [name, shape] : TinyModel::linears())
        model.tensors[layer + name + ".v_input.weight"] = f64(signed_matrix(16, seed++));
    const auto file = opened(model);
    seed = 1;
    for (const auto& [name, shape] : TinyModel::linears())
        EXPECT_EQ(matrix_of(file->transforms().linear.at(layer + name).input[0]->transform),
                  signed_matrix(16, seed++))
            << name;
    model.tensors.erase(q_proj + ".v_input.weight");
    refused(model, {"\"" + q_proj + "\" has no \"" + q_proj + ".v_input.weight\" of its own",
                    "6 different ones of [16, 16]"});
}

TEST(Transforms, StandInTheOrderOfGroupsAndOfApply) {
    const Json groups = {
        {"z",
         scheme("hadamard", 16, {apply("output", true, {q_proj}), apply("input", false, "re:.*q_proj$")})},
        {"a", scheme("hadamard", 8,
                     {apply("input", true, {"Linear"}, {"re:.*(k|v|o|gate|up|down)_proj"}),
                      apply("q_attn", false, {"re:.*self_attn$"}), apply("k_cache", false, {attention})})},
        {"e", scheme("hadamard", nullptr,
                     {apply("output", false, {"Embedding"}),
                      apply("weight_output", false, "model.embed_tokens")})}};
    const auto file = opened(rotated(groups));
    const Transforms& transforms = file->transforms();
    const auto said = [](const std::vector<std::shared_ptr<const NamedTransform>>& list) {
        std::string text;
        for (const auto& named : list)
            text += fmt::format("{}{}{} ", named->scheme, named->inverse ? "^-1 " : " ", named->transform.n);
        return text;
    };
    EXPECT_EQ(transforms.linear.size(), 3u);
    EXPECT_EQ(said(transforms.linear.at(q_proj).input), "z 16 a^-1 8 ");
    EXPECT_EQ(said(transforms.linear.at(q_proj).output), "z^-1 16 ");
    EXPECT_EQ(said(transforms.linear.at("lm_head").input), "a^-1 8 ");  // a linear layer, tied or not
    EXPECT_EQ(said(transforms.linear.at("model.embed_tokens").output), "e 32 ");
    EXPECT_EQ(said(transforms.attention.at(attention).q), "a 8 ");
    EXPECT_EQ(said(transforms.attention.at(attention).k), "a 8 ");
    EXPECT_EQ(transforms.folded, std::vector<std::string>{"e weight_output (hadamard): 1 module"});
    ASSERT_EQ(file->warnings().size(), 1u);  // of z, which turns outputs, there is none
    EXPECT_NE(file->warnings()[0].find("scheme \"a\": the input of \"" + q_proj +
                                       "\", \"lm_head\" is transformed at run time, and no weight_input"),
              std::string::npos);
}

// Scheme "v" and the module v_proj, a scheme that is called like a part of a name, and one that ends like a
// location.
TEST(Transforms, TensorsAreKnownByTheirWholeName) {
    Json groups = quip();
    groups["k_proj"] = scheme("hadamard", 8, {apply("input", false, {layer + "self_attn.v_proj"})});
    groups["v_weight"] = scheme("hadamard", 16, {apply("input", false, {down_proj})});
    TinyModel model = rotated(groups);
    model.tensors[layer + "self_attn.v_proj.k_proj_input.weight"] = f64(sylvester_matrix(8));
    model.tensors[down_proj + ".v_weight_input.weight"] = f64(sylvester_matrix(16));
    const auto file = opened(model);
    EXPECT_EQ(file->nvfp4().size(), 7u);
    EXPECT_EQ(file->transforms().linear.at(layer + "self_attn.v_proj").input.size(), 2u);
    EXPECT_EQ(file->transforms().linear.at(down_proj).input.size(), 2u);
}

TEST(Transforms, HadamardMatricesOfEveryForm) {
    const auto transform_of = [](const char* type, bool inverse,
                                 std::map<std::string, TinyModel::Tensor> tensors, bool randomize = false,
                                 int64_t n = 16) {
        Json groups = {{"v", scheme(type, n, {apply("input", inverse, {q_proj})})}};
        groups["v"]["randomize"] = randomize;
        TinyModel model = rotated(groups);
        for (const auto& [leaf, tensor] : tensors) model.tensors[q_proj + ".v_input." + leaf] = tensor;
        return opened(model)->transforms().linear.at(q_proj).input.at(0);
    };
    for (const int64_t n : {8, 16, 32}) {
        const auto M = signed_matrix(n, 5);
        const float c = hadamard_scale(int(n));
        for (const bool inverse : {false, true}) {
            const auto expected = inverse ? transposed(M, n) : M;
            for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
                SCOPED_TRACE(fmt::format("{} {} {}", n, inverse, name_of(type)));
                const auto tensor = type == DType::f64 ? f64(M) : rounded(M, type);
                const auto named = transform_of("random-hadamard", inverse, {{"weight", tensor}}, false, n);
                EXPECT_EQ(matrix_of(named->transform), expected);
                EXPECT_EQ(named->transform.scale, c);
                EXPECT_EQ(named->inverse, inverse);
                EXPECT_EQ(named->type, "random-hadamard");
                EXPECT_LE(named->orthogonality_error, 0x1p-22);
                // Files of version 0.10 have the normalisation in the matrix: it is not applied again.
                const auto inside = scaled(M, 1 / std::sqrt(double(n)));
                const auto old = transform_of(
                    "random-hadamard", inverse,
                    {{"weight", type == DType::f64 ? f64(inside) : rounded(inside, type)}}, false, n);
                EXPECT_EQ(old->transform.scale, 1.0f);
                EXPECT_EQ(old->type, "normalised random-hadamard");
                const auto T = matrix_of(old->transform);
                for (size_t i = 0; i < T.size(); i++)
                    EXPECT_NEAR(T[i], expected[i] / std::sqrt(double(n)), 0x1p-8 / 2);
            }
        }
        // randomize: M[perm][:, perm], then the inverse.
        std::vector<int64_t> perm(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; i++) perm[size_t(i)] = (i * 3 + 1) % n;
        std::vector<double> shuffled;
        for (const int64_t i : perm)
            for (const int64_t j : perm) shuffled.push_back(M[size_t(i * n + j)]);
        const std::map<std::string, TinyModel::Tensor> tensors = {
            {"weight", f64(M)}, {"perm", {DType::i64, {n}, bytes_of(perm)}}};
        EXPECT_EQ(matrix_of(transform_of("random-hadamard", false, tensors, true, n)->transform), shuffled);
        EXPECT_EQ(matrix_of(transform_of("hadamard", true, tensors, true, n)->transform),
                  transposed(shuffled, n));
        // Without a tensor: Sylvester's, and its inverse is itself.
        for (const bool inverse : {false, true}) {
            const auto named = transform_of("hadamard", inverse, {}, false, n);
            EXPECT_TRUE(named->transform.matrix.empty() && named->transform.signs.empty());
            EXPECT_EQ(named->transform.scale, c);
            EXPECT_EQ(named->transform.n, n);
        }
    }
}

// compressed-tensors stores the inverse under the location that has it, beside the matrix under the others.
TEST(Transforms, RandomMatricesAndTheirInverses) {
    constexpr int64_t n = 8;
    std::vector<double> M(n * n), inverse_of_M;
    for (size_t i = 0; i < M.size(); i++) M[i] = double(float((i * 37 + 11) % 64)) / 64;
    for (int64_t i = 0; i < n; i++) M[size_t(i * n + i)] += 2;
    inverse_of_M = inverse({n, M})->values;
    const auto file_of = [&](std::map<std::string, std::vector<double>> tensors) {
        TinyModel model = rotated(
            {{"u", scheme("random-matrix", n,
                          {apply("input", false, {q_proj}), apply("output", true, {q_proj, down_proj})})}});
        for (const auto& [name, values] : tensors) model.tensors[name + ".weight"] = f64(values);
        return opened(model);
    };
    const auto check = [&](const Checkpoint& file) {
        const auto& q = file.transforms().linear.at(q_proj);
        EXPECT_EQ(q.input[0]->transform.scale, 1.0f);  // never divided by sqrt(n)
        EXPECT_FALSE(q.input[0]->inverse);
        EXPECT_TRUE(q.output[0]->inverse);
        EXPECT_EQ(q.output[0], file.transforms().linear.at(down_proj).output[0]);
        EXPECT_GT(q.input[0]->orthogonality_error, 1);
        const auto T = matrix_of(q.input[0]->transform), back = matrix_of(q.output[0]->transform);
        for (size_t i = 0; i < M.size(); i++) {
            EXPECT_NEAR(T[i], M[i], 1e-6);
            EXPECT_NEAR(back[i], inverse_of_M[i], 1e-6);
        }
    };
    const std::string in = q_proj + ".u_input", out = q_proj + ".u_output", far = down_proj + ".u_output";
    check(*file_of({{in, M}, {out, inverse_of_M}}));
    check(*file_of({{in, M}, {far, inverse_of_M}}));
    check(*file_of({{in, M}}));
    check(*file_of({{far, inverse_of_M}}));
    check(*file_of({{in, M}, {out, M}}));  // the matrix itself under both names
    check(*file_of({{in, M}, {out, M}, {far, M}}));
}

TEST(Transforms, OfADenseModelAlone) {
    TinyModel model = TinyModel::dense();
    model.config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                           {"transform_config", {{"config_groups", quip()}}}};
    model.tensors[q_proj + ".v_input.weight"] = f64(sylvester_matrix(16));
    const auto file = opened(model);
    EXPECT_FALSE(file->scheme().has_value());
    EXPECT_EQ(file->transforms().linear.size(), 7u);
    EXPECT_FALSE(file->dense().contains(q_proj + ".v_input.weight"));
}

TEST(Transforms, EveryFormOfTheSchema) {
    const auto opens = [](const std::function<void(Json&)>& change, size_t warnings = 0) {
        Json groups = quip();
        change(groups["v"]);
        auto file = opened(rotated(groups));
        EXPECT_EQ(file->warnings().size(), warnings);
        EXPECT_EQ(file->transforms().linear.at(q_proj).input.size(), 1u);
        return file;
    };
    opens([](Json& v) { v.erase("head_dim"), v["block_size"] = 16; });
    opens([](Json& v) { v["block_size"] = 16; });
    opens([](Json& v) {
        v["randomize_modules"] = false, v.erase("randomize"), v.erase("precision"), v.erase("requires_grad");
    });
    for (const char* precision : {"torch.float32", "float32", "torch.bfloat16", "torch.float16"})
        opens([&](Json& v) { v["precision"] = precision; });
    opens([](Json& v) { v["apply"][0]["targets"] = "Linear", v["apply"][0]["ignore"] = "lm_head"; });
    opens([](Json& v) {
        for (Json& entry : v["apply"]) entry.erase("ignore");
        v["apply"][0]["inverse"] = nullptr;
    });
    opens([](Json& v) { v["apply"][0]["targets"] = {"re:.*_proj", "re:model.layers"}; });
    const auto warned = [&](std::string_view text, const std::function<void(Json&)>& change) {
        const auto file = opens(change, 1);
        EXPECT_NE(file->warnings()[0].find("scheme \"v\": apply["), std::string::npos);
        EXPECT_NE(file->warnings()[0].find(text), std::string::npos) << file->warnings()[0];
    };
    warned("apply[0]: of input, targets match no module: \"LlamaMLP\", \"a.b\", \"c\" and 2 more",
           [](Json& v) {
               v["apply"][0]["targets"] = {"re:.*_proj$", "re:.*nothing", "a.b", "c", "d", "LlamaMLP"};
           });
    // What was folded into the weights is left alone whatever its targets say.
    warned("apply[2]: of weight_output, targets match no module: \"x\"",
           [](Json& v) { v["apply"].push_back(apply("weight_output", false, "x")); });
    warned("apply[2]: of weight_output, targets are empty",
           [](Json& v) { v["apply"].push_back(apply("weight_output", false, Json::array())); });
    warned("apply[0]: ignore matches no module: \"re:head$\"",
           [](Json& v) { v["apply"][0]["ignore"] = {"lm_head", "re:head$", "model.embed_tokens"}; });
    warned("apply[2]: input of nothing, since ignore has every module of targets",
           [](Json& v) { v["apply"].push_back(apply("input", false, {q_proj}, "Linear")); });
    Json empty = quip();
    empty["w"] = scheme("hadamard", 16, Json::array());
    const auto file = opened(rotated(empty));
    ASSERT_EQ(file->warnings().size(), 1u);
    EXPECT_NE(file->warnings()[0].find("scheme \"w\": apply is empty"), std::string::npos);
    TinyModel model = rotated(Json::object());
    EXPECT_TRUE(opened(model)->transforms().linear.empty());
}

TEST(Transforms, RefusesWhatItDoesNotKnow) {
    const auto wrong = [](std::vector<std::string> parts, const std::function<void(Json&)>& change,
                          ErrorKind kind = ErrorKind::unsupported) {
        Json groups = quip();
        change(groups["v"]);
        parts.push_back("transform_config: scheme \"v\"");
        refused(rotated(groups), parts, kind);
    };
    const ErrorKind malformed = ErrorKind::malformed;
    wrong({"the field \"learnable\" is not known"}, [](Json& v) { v["learnable"] = true; });
    wrong({"apply[1]: the field \"dim\" is not known"}, [](Json& v) { v["apply"][1]["dim"] = 3; });
    wrong({"the type \"fourier\" is not supported", "random-matrix"}, [](Json& v) { v["type"] = "fourier"; });
    wrong({"the type \"\" is not supported"}, [](Json& v) { v["type"] = ""; });
    const char* types = "needs type, one of hadamard, random-hadamard, random-matrix";
    wrong({types}, [](Json& v) { v.erase("type"); }, ErrorKind::malformed);
    wrong({types}, [](Json& v) { v["type"] = nullptr; }, ErrorKind::malformed);
    wrong({"needs apply, a list"}, [](Json& v) { v.erase("apply"); }, ErrorKind::malformed);
    wrong({"needs apply, a list"}, [](Json& v) { v["apply"] = nullptr; }, ErrorKind::malformed);
    wrong({"the location \"v_cache\" is not known", "k_cache"},
          [](Json& v) { v["apply"][0]["location"] = "v_cache"; });
    wrong({"the precision \"torch.int8\""}, [](Json& v) { v["precision"] = "torch.int8"; });
    wrong({"head_dim is 16 and block_size 8"}, [](Json& v) { v["block_size"] = 8; }, malformed);
    wrong(
        {"q_attn needs head_dim"},
        [](Json& v) { v["head_dim"] = nullptr, v["apply"] = {apply("q_attn", false, {attention})}; },
        malformed);
    for (const Json& value : {Json(0), Json(-16), Json(2.5), Json("16"), Json(1ull << 40)})
        wrong({"head_dim is " + shown(value)}, [&](Json& v) { v["head_dim"] = value; }, malformed);
    wrong({"randomize is 1; true or false"}, [](Json& v) { v["randomize"] = 1; }, malformed);
    wrong({"is 3; an object is needed"}, [](Json& v) { v = 3; }, malformed);
    wrong({"apply is {}; a list is needed"}, [](Json& v) { v["apply"] = Json::object(); }, malformed);
    wrong({"apply[0]: is 3; an object"}, [](Json& v) { v["apply"][0] = 3; }, malformed);
    wrong({"apply[0]: needs targets"}, [](Json& v) { v["apply"][0].erase("targets"); }, malformed);
    wrong({"targets: holds 3; texts are needed"}, [](Json& v) { v["apply"][0]["targets"] = {3}; }, malformed);
    wrong({"no regular expression"}, [](Json& v) { v["apply"][0]["targets"] = "re:("; }, malformed);
    wrong({"more than 128 regular expressions"},
          [](Json& v) { v["apply"][0]["targets"] = std::vector<std::string>(129, "re:x"); });
    wrong({"more than 128 entries of apply"}, [](Json& v) {
        for (int i = 0; i < 130; i++) v["apply"].push_back(v["apply"][1]);
    });
    wrong({"\"model.embed_tokens\" is an embedding, whose input are ids"},
          [](Json& v) { v["apply"] = {apply("input", false, {"Embedding"})}; });
    wrong({"has this location twice"}, [](Json& v) { v["apply"][1] = v["apply"][0]; });
    wrong({"the target \"Linear\" means \"lm_head\", which has no q_attn", "self_attn$"},
          [](Json& v) { v["apply"][0]["location"] = "q_attn"; });
    wrong({"the target \"re:.*self_attn$\" means \"" + attention + "\", which has no output"},
          [](Json& v) { v["apply"] = {apply("output", false, "re:.*self_attn$")}; });

    TinyModel model = rotated(quip());
    Json& config = model.config["quantization_config"]["transform_config"];
    config["other"] = 1;
    refused(model, {"transform_config: the field \"other\" is not known; config_groups are"},
            ErrorKind::unsupported);
    config = "x";
    refused(model, {"transform_config: is \"x\"; an object is needed"});
    config = {{"config_groups", 3}};
    refused(model, {"config_groups: is 3; an object"});
    config = {{"config_groups", {{"a.b", Json::object()}}}};
    refused(model, {"a name without a dot"});

    for (TinyModel stray : {TinyModel::dense(), TinyModel::quantised(Scheme::nvfp4)}) {
        stray.config["transform_config"] = Json::object();
        opened(stray);
        stray.config["transform_config"] = {{"config_groups", quip()}};
        refused(stray,
                {"config.json: transform_config stands at the top level", "belongs in quantization_config"});
    }
}

// A transform that belongs to the numbers is applied or the file is refused; it is never left out.
TEST(Transforms, RefusesOnlineOnesOfNoModule) {
    const std::string linear = "Linear (8, first \"" + q_proj + "\")",
                      embedding = "Embedding (1, first \"model.embed_tokens\")",
                      attentions = "LlamaAttention (1, first \"" + attention + "\")";
    for (const auto& [location, there] : {std::pair<const char*, std::string>("input", ": " + linear),
                                          {"output", linear + " and " + embedding},
                                          {"q_attn", ": " + attentions},
                                          {"k_cache", ": " + attentions}}) {
        const auto wrong = [&, location = location, there = there](Json targets, const std::string& given) {
            Json groups = quip();
            groups["w"] = scheme("hadamard", 8, {apply(location, false, std::move(targets))});
            refused(rotated(groups),
                    {"config.json: transform_config: scheme \"w\": apply[0]: " + std::string(location) +
                         " is to be done at run time, but its targets " + given,
                     there});
        };
        wrong({"re:.*mlp.w1$"}, "match no module: \"re:.*mlp.w1$\".");
        wrong("model.layers.7.self_attn.q_proj", "match no module: \"model.layers.7.self_attn.q_proj\".");
        wrong({"a", "b", "c", "LlamaMLP", "e"}, "match no module: \"LlamaMLP\", \"a\", \"b\" and 2 more.");
        wrong(Json::array(), "are empty.");
    }
}

// The reader leaves no module with one side of a transform alone.
TEST(Transforms, RefusesSidesThatCoverDifferentModules) {
    const auto wrong = [](std::vector<std::string> parts, const std::function<void(Json&)>& change) {
        Json groups = quip();
        change(groups["v"]["apply"]);
        parts.push_back("transform_config: scheme \"v\": ");
        parts.push_back(" cancel each other, so they must cover the same modules");
        refused(rotated(groups), parts);
    };
    const std::string gate = layer + "mlp.gate_proj", k_proj = layer + "self_attn.k_proj";
    wrong({"input and weight_input^-1", "modules; only weight_input^-1 has \"" + gate + "\""},
          [&](Json& v) { v[0]["ignore"] = {"lm_head", gate}; });
    wrong({"modules; only input has \"" + gate + "\", \"" + down_proj + "\""},
          [&](Json& v) { v[1]["ignore"] = {"lm_head", gate, down_proj}; });
    wrong({"only input has \"lm_head\"; only weight_input^-1 has \"" + q_proj + "\""},
          [&](Json& v) { v[0]["ignore"] = {q_proj}; });
    wrong({"input^-1 and weight_input cancel", "only weight_input has \"" + q_proj + "\", \"" + k_proj},
          [&](Json& v) { v[0]["targets"] = {down_proj}, v[0]["inverse"] = true, v[1]["inverse"] = false; });
    // One of several targets that is not there, on one side and on both.
    const Json typo = {q_proj, layer + "self_attn.k_porj"}, right = {q_proj, k_proj};
    wrong({"only weight_input^-1 has \"" + k_proj + "\"; targets match no module: \"" + layer +
           "self_attn.k_porj\""},
          [&](Json& v) { v[0]["targets"] = typo, v[1]["targets"] = right; });
    wrong({"only input has \"" + k_proj + "\"; targets match no module"},
          [&](Json& v) { v[0]["targets"] = right, v[1]["targets"] = typo; });
    wrong({"only input has \"" + q_proj + "\", "}, [&](Json& v) { v[1]["targets"] = "x"; });
    wrong({"only input has \"" + q_proj + "\", "}, [&](Json& v) { v[1]["targets"] = Json::array(); });
    Json both = quip();
    both["v"]["apply"][0]["targets"] = both["v"]["apply"][1]["targets"] = typo;
    const auto file = opened(rotated(both));
    EXPECT_EQ(file->transforms().linear.size(), 1u);
    EXPECT_EQ(file->warnings().size(), 2u);

    wrong({"output^-1 and weight_output cancel", "only output^-1 has \"" + q_proj + "\""}, [&](Json& v) {
        v = {apply("output", true, {q_proj, down_proj}), apply("weight_output", false, {down_proj})};
    });
    const auto attentions = [&](std::string only, const char* location) {
        refused(
            rotated({{"R3", scheme("hadamard", 8, {apply(location, false, {"re:.*self_attn$"})})}}),
            {"scheme \"R3\": q_attn and k_cache cancel", "; only " + only + " has \"" + attention + "\""});
    };
    attentions("q_attn", "q_attn");
    attentions("k_cache", "k_cache");
    // One residual stream undone at run time here and in the weights there: no sides of each other.
    const auto partly = opened(
        rotated({{"R1", scheme("hadamard", 16,
                               {apply("weight_output", false, {"model.embed_tokens", "re:.*(o|down)_proj$"}),
                                apply("weight_input", true, {"re:.*(q|k|v)_proj$", "lm_head"}),
                                apply("input", true, {"re:.*(gate|up)_proj$"})})}}));
    EXPECT_TRUE(partly->warnings().empty());
    EXPECT_EQ(partly->transforms().linear.size(), 2u);
}

TEST(Transforms, WarnsOfAnInputThatNothingUndoes) {
    const auto warned = [](const TinyModel& model, std::string_view text) {
        const auto file = opened(model);
        ASSERT_EQ(file->warnings().size(), 1u) << text;
        EXPECT_NE(file->warnings()[0].find(text), std::string::npos) << file->warnings()[0];
    };
    Json groups = quip("random-hadamard");
    groups["v"]["apply"][1]["inverse"] = false;
    TinyModel model = rotated(groups);
    model.tensors[q_proj + ".v_input.weight"] = f64(signed_matrix(16, 1));
    warned(model, "config.json: transform_config: scheme \"v\": input and weight_input of \"" + q_proj +
                      "\", \"" + layer + "self_attn.k_proj\", \"" + layer +
                      "self_attn.v_proj\" and 4 more are both not inverse");
    // Sylvester's matrix is its own inverse.
    groups = quip();
    groups["v"]["apply"][1]["inverse"] = false;
    EXPECT_TRUE(opened(rotated(groups))->warnings().empty());

    groups = quip();
    groups["v"]["apply"].erase(1);
    warned(rotated(groups), "scheme \"v\": the input of \"" + q_proj + "\", ");
    groups["w"] = scheme("hadamard", 16, {apply("weight_input", true, {"Linear"}, {down_proj, "lm_head"})});
    warned(rotated(groups),
           "the input of \"" + down_proj + "\" is transformed at run time, and no weight_input undoes it");
}

TEST(Transforms, TheFilesOfOtherProgramsHaveNoWarnings) {
    const fs::path folder = fs::path(HALFBYTE_SHARED_DATA) / "checkpoints";
    if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there";
    for (const char* name : {"quip-v16", "quip-v64-random", "quip-vu64", "spinquant", "spinquant-r124"})
        EXPECT_TRUE(open_checkpoint(folder / (std::string("llmc-") + name + "-2layer"))->warnings().empty())
            << name;
}

TEST(Transforms, RefusesBlocksThatDoNotDivide) {
    refused(rotated(quip("hadamard", 32)),
            {"blocks of 32 do not divide the 48 of \"" + down_proj + "\" at input",
             "possible: 2, 4, 8, 12, 16, 24, 48"});
    refused(rotated(quip("random-matrix", 32)),
            {"blocks of 32 do not divide the 48", "possible: 2, 3, 4, 6, 8, 12, 16, 24, 48"});
    // Folded ones as well.
    refused(rotated({{"R", scheme("hadamard", 64, {apply("weight_output", false, {q_proj})})}}),
            {"blocks of 64 do not divide the 32 of \"" + q_proj + "\" at weight_output"});
    refused(rotated({{"R3", scheme("hadamard", 16, {apply("k_cache", false, "re:.*self_attn$")})}}),
            {"blocks of 16 do not divide the 8 of \"" + attention + "\" at k_cache; possible: 2, 4, 8"});
}

TEST(Transforms, RefusesWrongMatrices) {
    const std::string name = q_proj + ".v_input.weight",
                      quoted = "model.safetensors: tensor \"" + name + "\"";
    const auto wrong = [&](std::vector<std::string> parts, TinyModel::Tensor tensor,
                           const char* type = "random-hadamard") {
        TinyModel model = rotated(quip(type));
        model.tensors[name] = std::move(tensor);
        parts.push_back(quoted);
        refused(model, parts);
    };
    const auto M = signed_matrix(16, 3);
    wrong({"shape [8, 8]", "blocks of 16, so [16, 16] is needed"}, f64(signed_matrix(8, 3)));
    wrong({"shape [16, 8]", "[16, 16] is needed"},
          {DType::f64, {16, 8}, bytes_of(std::vector<double>(128, 1.0))});
    wrong({"shape [256]"}, {DType::f64, {256}, bytes_of(M)});
    wrong({"I8 [16, 16] given", "F64, F32, BF16 or F16"}, {DType::i8, {16, 16}, std::string(256, '\1')});
    for (const double value :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e300}) {
        auto bad = M;
        bad[5 * 16 + 3] = value;
        wrong({"at [5, 3]; the entries of a transform must be finite in FP32"}, f64(bad));
        wrong({"at [5, 3]"}, f64(bad), "random-matrix");
    }
    auto bad = M;
    bad[77] = -bad[77];
    wrong({"is not orthogonal: max |c^2 M M^T - 1| = 0.125 with c = 1/sqrt(16), at most 2.38e-07"}, f64(bad));
    wrong({"; the worst row is 4, of norm 4. A Hadamard matrix has"}, f64(bad));
    wrong({"is not orthogonal", "the worst row is 0, of norm 8."}, f64(scaled(M, 2)));
    wrong({"is not orthogonal", "with c = 1, at most"}, rounded(scaled(M, 0.26), DType::f32));
    bad = scaled(M, 0.25);
    bad[3] += 1e-6;
    wrong({"is not orthogonal"}, f64(bad));
    wrong({"is not orthogonal", "at most 2.38e-07"}, rounded(scaled(M, 0.25 * (1 + 1e-6)), DType::f32));
    EXPECT_NO_THROW({  // what BF16 rounds is no fault
        TinyModel model = rotated(quip("random-hadamard", 8));
        model.tensors[name] = rounded(scaled(signed_matrix(8, 3), std::sqrt(0.125)), DType::bf16);
        opened(model);
    });

    // Missing, stray, singular, perm. Of many modules the first in the order of the layer is named.
    refused(rotated(quip("random-hadamard")), {"\"" + q_proj + "\" needs the matrix \"" + q_proj +
                                               ".v_input.weight\" [16, 16], and no module of this scheme"});
    refused(rotated({{"v", scheme("random-hadamard", 16, {apply("input", false, {"Linear"})})}}),
            {"\"" + q_proj + "\" needs the matrix"});
    refused(rotated({{"v", scheme("hadamard", 48, {apply("input", false, {down_proj})})}}),
            {"only a hadamard of a power of two"});
    TinyModel model = rotated(quip());
    model.tensors["lm_head.v_input.weight"] = f64(sylvester_matrix(16));
    refused(model, {"\"lm_head.v_input.weight\": belongs to no transform"});
    model = rotated(quip());
    model.tensors[q_proj + ".v_output.weight"] = f64(sylvester_matrix(16));
    refused(model,
            {"does not belong beside", "the matrix of a transform that transform_config does not mention?"});
    model = rotated(quip());
    model.tensors[q_proj + ".v_weight_input.weight"] = f64(sylvester_matrix(16));
    refused(model, {"\"" + q_proj + ".v_weight_input.weight\"",
                    "was folded into the weights, which leaves no tensor"});
    model = rotated(quip());
    model.tensors[q_proj + ".v_input.perm"] = {DType::i64, {16}, std::string(128, '\0')};
    refused(model, {"\"" + q_proj + ".v_input.perm\": belongs to no transform"});

    const auto with_order = [&](const std::vector<int64_t>& order, DType type = DType::i64) {
        Json groups = quip();
        groups["v"]["randomize"] = true;
        TinyModel more = rotated(groups);
        more.tensors[name] = f64(M);
        if (!order.empty())
            more.tensors[q_proj + ".v_input.perm"] = {type, {int64_t(order.size())}, bytes_of(order)};
        return more;
    };
    std::vector<int64_t> order(16);
    std::iota(order.begin(), order.end(), 0);
    opened(with_order(order));
    refused(with_order({}), {"needs the permutation", "[16], since randomize is true"});
    refused(with_order(std::vector<int64_t>(8, 0)), {"the permutation of a matrix [16, 16] is I64 [16]"});
    refused(with_order(order, DType::u64), {"U64 [16] given"});
    order[3] = 4;
    refused(with_order(order), {"holds 4 twice; each number from 0 to 15 is needed once"});
    order[3] = 16;
    refused(with_order(order), {"holds 16"});
    order[3] = -1;
    refused(with_order(order), {"holds -1"});
    model = with_order(order);
    model.tensors.erase(name);
    refused(model, {"needs the matrix"});  // not made from numbers of the config alone

    model = rotated({{"v", scheme("random-matrix", 16,
                                  {apply("input", false, {q_proj}), apply("output", true, {q_proj})})}});
    model.tensors[name] = f64(std::vector<double>(256, 1.0));
    refused(model, {quoted, "of \"" + q_proj + "\" has a matrix that is singular (condition infinite)"});
}

// Of a matrix at run time the inverse is in the weights: as --transform FILE has it, one that cannot be
// inverted is refused.
TEST(Transforms, RefusesRandomMatricesWithoutAUsableInverse) {
    const std::string name = q_proj + ".v_input.weight";
    const auto with = [&](const std::vector<double>& values, Json places) {
        TinyModel model = rotated({{"v", scheme("random-matrix", 16, std::move(places))}});
        model.tensors[name] = f64(values);
        return model;
    };
    std::vector<double> diagonal(256), zeros(256), ones(256, 1.0);
    for (size_t i = 0; i < 16; i++) diagonal[17 * i] = i == 3 ? 1e-5 : 1;
    const Json input = {apply("input", false, {q_proj}), apply("weight_input", true, {q_proj})},
               inverse = {apply("input", true, {q_proj}), apply("weight_input", false, {q_proj})};
    for (const Json& places : {input, inverse}) {
        const char* needed = "; a condition |T| |T^-1| / n of at most 4096 is needed (1 for an orthogonal";
        for (const auto& values : {zeros, ones})
            refused(with(values, places),
                    {"model.safetensors: tensor \"" + name + "\": v input of \"" + q_proj +
                         "\" has a matrix that is singular (condition infinite)",
                     needed});
        refused(with(diagonal, places), {"has a matrix that has the condition 2.421e+04", needed});
    }
    diagonal[17 * 3] = 1e-4;
    EXPECT_EQ(opened(with(diagonal, input))->transforms().linear.size(), 1u);
}

TEST(Transforms, OfADenseFolderAreAskedForByNameToo) {
    for (const char* tensor : {"self_attn.q_proj.v_input", "mlp.up_proj.u_output", "self_attn.R3_k_cache"}) {
        TinyModel model = TinyModel::dense();
        model.tensors[layer + tensor + ".weight"] = f64(sylvester_matrix(16));
        refused(model, {"\"" + layer + tensor + ".weight\": is no tensor of LlamaForCausalLM",
                        "; the matrix of a transform that transform_config does not mention?"});
    }
    TinyModel model = TinyModel::dense();
    model.add(layer + "self_attn.q_proj.other.weight", DType::bf16, {16, 16});
    refused(model, {"decide which tensors there are)"});
}

// Entries computed in the type of the file: sqrt(n) is rounded, and the quotient again. 2u would not do.
TEST(Transforms, NormalisedMatricesMayHaveTwoRoundingsPerEntry) {
    const auto normalised = [](int64_t n, auto quotient, DType type) {
        std::vector<double> M = hadamard_matrix(n)->values;
        for (double& value : M) value = quotient(value);
        const auto tensor = rounded(M, type);
        const TensorView view = {
            .name = "M",
            .dtype = type,
            .shape = {n, n},
            .bytes = {reinterpret_cast<const uint8_t*>(tensor.bytes.data()), tensor.bytes.size()},
            .file = nullptr};
        return normalisation_of(view, {n, M});
    };
    for (const int64_t n : {28, 72, 112}) {
        const float root = std::sqrt(float(n));
        const auto found =
            normalised(n, [&](double value) { return double(float(value) / root); }, DType::f32);
        EXPECT_EQ(found.c, 1.0f);
        EXPECT_GT(found.orthogonality_error, 2 * 0x1p-24 + double(n + 1) * 0x1p-52) << n;
        const auto half_root = round_to<Float16>(root);
        normalised(
            n,
            [&](double value) {
                return double(to_float(round_to<Float16>(float(value) / to_float(half_root))));
            },
            DType::f16);
    }
}

TEST(Transforms, NumbersOfTheConfigAloneTakeNoMemory) {
    TinyModel model = rotated({{"v", scheme("hadamard", 1 << 30, {apply("input", false, {"Linear"})})}});
    refused(model, {"blocks of 1073741824 do not divide"});
    model.config["hidden_size"] = 1 << 20;
    refused(model, {"the config asks for"});
}

// ---- FP-Quant. There is no file of it to test with: this one is built after the description in
// docs/formats.md.

static TinyModel fp_quant(int64_t block = 16, DType type = DType::bf16) {
    TinyModel model = TinyModel::quantised(Scheme::nvfp4);
    for (const auto& [name, shape] : TinyModel::linears()) {
        const std::string module = layer + name;
        const auto rename = [&](const char* from, const char* to) {
            model.tensors[module + to] = model.tensors[module + from];
            model.tensors.erase(module + from);
        };
        rename(".weight_packed", ".qweight");
        rename(".weight_scale", ".scales");
        rename(".input_global_scale", ".act_global_scale");
        model.tensors[module + ".scales"].dtype = DType::u8;
        for (const char* leaf : {".forward_hadamard_matrix", ".backward_hadamard_matrix"})
            model.tensors[module + leaf] =
                rounded(scaled(sylvester_matrix(block), 1 / std::sqrt(double(block))), type);
    }
    model.config["quantization_config"] = {
        {"quant_method", "fp_quant"},           {"forward_dtype", "nvfp4"},
        {"forward_method", "abs_max"},          {"backward_dtype", "bf16"},
        {"hadamard_group_size", block},         {"transform_init", "hadamard"},
        {"pseudoquantization", false},          {"store_master_weights", false},
        {"modules_to_not_convert", {"lm_head"}}};
    return model;
}

TEST(FpQuant, IsRead) {
    for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
        TinyModel model = fp_quant(16, type);
        const std::string matrix = down_proj + ".forward_hadamard_matrix";
        model.tensors[matrix] = rounded(scaled(signed_matrix(16, 4), 0.25), type);
        const auto file = opened(model);
        EXPECT_EQ(file->description(), "FP-Quant NVFP4 (W4A4)");
        ASSERT_EQ(file->nvfp4().size(), 7u);
        const NvFp4Linear& q = file->nvfp4().at(q_proj);
        EXPECT_EQ(q.n, 32);
        EXPECT_EQ(q.k, 32);
        EXPECT_EQ(std::string(q.codes, q.codes + 512), model.tensors[q_proj + ".qweight"].bytes);
        EXPECT_EQ(std::string(q.block_scales, q.block_scales + 64), model.tensors[q_proj + ".scales"].bytes);
        // Encode words both: G is act_global_scale itself, D = fl(1 / G); no factor of 6.
        EXPECT_EQ(q.weight_scale.decode(), 1 / 936.0f);
        EXPECT_EQ(q.input_scale->encode(), 194.0f);
        EXPECT_EQ(q.input_scale->decode(), 1 / 194.0f);
        const auto& transforms = file->transforms().linear;
        ASSERT_EQ(transforms.size(), 7u);
        EXPECT_EQ(transforms.at(q_proj).input.at(0), transforms.at(layer + "mlp.up_proj").input.at(0));
        EXPECT_EQ(transforms.at(q_proj).input[0]->type, "hadamard");
        EXPECT_EQ(transforms.at(q_proj).input[0]->transform.scale, 1.0f);  // normalised as it stands
        EXPECT_EQ(matrix_of(transforms.at(q_proj).input[0]->transform), scaled(sylvester_matrix(16), 0.25));
        EXPECT_EQ(matrix_of(transforms.at(down_proj).input[0]->transform),
                  scaled(signed_matrix(16, 4), 0.25));
        EXPECT_TRUE(file->warnings().empty());
        EXPECT_TRUE(file->dense().contains("model.embed_tokens.weight"));
        EXPECT_EQ(file->dense().size(), 4u);
    }
    TinyModel model = fp_quant();
    model.config["quantization_config"]["forward_method"] = "quest";
    model.config["quantization_config"].erase("modules_to_not_convert");
    model.config["quantization_config"]["more"] = 1;
    for (const auto& [name, shape] : TinyModel::linears())
        model.tensors.erase(layer + name + ".backward_hadamard_matrix");
    const auto file = opened(model);
    ASSERT_EQ(file->warnings().size(), 1u);
    EXPECT_NE(file->warnings()[0].find(
                  "forward_method is quest; activations are quantised by the largest magnitude"),
              std::string::npos);
}

TEST(FpQuant, RefusesWhatIsWrong) {
    const auto config = [](std::string part, const char* key, Json value,
                           ErrorKind kind = ErrorKind::unsupported) {
        TinyModel model = fp_quant();
        model.config["quantization_config"][key] = std::move(value);
        refused(model, {part}, kind);
    };
    config("forward_dtype \"mxfp4\" is not supported", "forward_dtype", "mxfp4");
    config("forward_dtype \"mxfp4\"", "forward_dtype", nullptr);  // its default
    config("forward_method \"rms\"", "forward_method", "rms");
    config("pseudoquantization is true", "pseudoquantization", true);
    config("store_master_weights is true", "store_master_weights", true);
    config("needs hadamard_group_size", "hadamard_group_size", nullptr, ErrorKind::malformed);
    config("hadamard_group_size is 0", "hadamard_group_size", 0, ErrorKind::malformed);
    config("hadamard_group_size 32 of config.json does not divide; possible: 2, 4, 8, 12, 16, 24, 48",
           "hadamard_group_size", 32, ErrorKind::malformed);
    config("the matrix of a transform of blocks of 8", "hadamard_group_size", 8, ErrorKind::malformed);
    config("is quantised, but modules_to_not_convert of config.json has \"q_proj\"", "modules_to_not_convert",
           {"lm_head", "q_proj"}, ErrorKind::malformed);

    const auto tensors = [](std::string part, const std::function<void(TinyModel&)>& change,
                            ErrorKind kind = ErrorKind::malformed) {
        TinyModel model = fp_quant();
        change(model);
        refused(model, {part}, kind);
    };
    for (const char* leaf :
         {".scales", ".weight_global_scale", ".act_global_scale", ".forward_hadamard_matrix"}) {
        tensors("has no \"" + q_proj + leaf + "\" beside it",
                [&](TinyModel& m) { m.tensors.erase(q_proj + leaf); });
        tensors("\"" + q_proj + leaf + "\": there is no \"" + q_proj + ".qweight\"", [&](TinyModel& m) {
            const auto kept = m.tensors[q_proj + leaf];
            for (const char* each : {".qweight", ".scales", ".weight_global_scale", ".act_global_scale",
                                     ".forward_hadamard_matrix", ".backward_hadamard_matrix"})
                m.tensors.erase(q_proj + each);
            m.tensors[q_proj + leaf] = kept;
        });
    }
    tensors("block scales are U8",
            [](TinyModel& m) { m.tensors[q_proj + ".scales"].dtype = DType::f8_e4m3; });
    tensors("is NaN", [](TinyModel& m) { m.tensors[q_proj + ".scales"].bytes[5] = '\x7f'; });
    tensors("global scale 0",
            [](TinyModel& m) { m.tensors[q_proj + ".act_global_scale"].bytes = bytes_of(0.0f); });
    tensors("does not belong beside",
            [](TinyModel& m) { m.add(q_proj + ".dqweight", DType::bf16, {32, 32}); });
    tensors("an unknown variant", [](TinyModel& m) { m.add(q_proj + ".zeros", DType::bf16, {32, 32}); });
    tensors("is not orthogonal", [](TinyModel& m) {
        m.tensors[q_proj + ".forward_hadamard_matrix"] =
            rounded(scaled(sylvester_matrix(16), 0.5), DType::bf16);
    });
    tensors("has entries of +-1; FP-Quant's matrices are normalised", [](TinyModel& m) {
        m.tensors[q_proj + ".forward_hadamard_matrix"] = rounded(sylvester_matrix(16), DType::bf16);
    });
    tensors("is dense, but modules_to_not_convert of config.json does not name it", [](TinyModel& m) {
        for (const char* each : {".qweight", ".scales", ".weight_global_scale", ".act_global_scale",
                                 ".forward_hadamard_matrix", ".backward_hadamard_matrix"})
            m.tensors.erase(q_proj + each);
        m.add(q_proj + ".weight", DType::bf16, {32, 32});
    });
    tensors(
        "pseudoquantised weights",
        [](TinyModel& m) {
            for (const char* each : {".qweight", ".scales", ".weight_global_scale", ".act_global_scale",
                                     ".forward_hadamard_matrix", ".backward_hadamard_matrix"})
                m.tensors.erase(q_proj + each);
            m.add(q_proj + ".dqweight", DType::bf16, {32, 32});
        },
        ErrorKind::unsupported);
}

}  // namespace halfbyte::checkpoint
