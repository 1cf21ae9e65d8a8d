#include "quantizer/rotation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "checkpoint/safetensors.h"
#include "core/check.h"
#include "core/element.h"
#include "model/decoder.h"
#include "quantizer/ignore_patterns.h"

namespace halfbyte::quantizer {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Json;
using checkpoint::ModelConfig;
using checkpoint::NamedTransform;

// One matrix with what is made of it.
struct Rotation {
    std::shared_ptr<const SquareMatrix> matrix;    // as stored
    std::shared_ptr<const Fold> inverse, forward;  // x c^-1 T^-T and x c T; of a `file` only the first
    std::shared_ptr<const NamedTransform> online;
};

// A Hadamard matrix, each row with the sign of the seed; no seed: without signs.
Rotation hadamard(const std::string& scheme, const std::string& type, int64_t n,
                  std::optional<uint64_t> seed) {
    SquareMatrix M = *hadamard_matrix(n);
    if (seed) {
        const std::vector<double> signs = random_signs(n, *seed);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) M.values[size_t(i * n + j)] *= signs[size_t(i)];
    }
    const double c = 1 / std::sqrt(double(n));
    // T T^T = n, so c^-1 T^-T = c T.
    const auto fold = std::make_shared<const Fold>(M, c);
    const auto online = std::make_shared<const NamedTransform>(
        NamedTransform{scheme, type, false, 0, make_transform(M.values, n, c)});
    return {std::make_shared<const SquareMatrix>(std::move(M)), fold, fold, online};
}

SquareMatrix read_matrix(const std::filesystem::path& path) {
    const checkpoint::SafetensorsFile file(path);
    check(file.tensors().size() == 1, ErrorKind::malformed,
          "--transform {}: has {} tensors; one matrix [n, n] is needed", path.string(),
          file.tensors().size());
    const checkpoint::TensorView& tensor = file.tensors().begin()->second;
    const bool square = tensor.shape.size() == 2 && tensor.shape[0] == tensor.shape[1] && tensor.shape[0] > 0;
    const bool typed = tensor.dtype == DType::f64 || tensor.dtype == DType::f32 ||
                       tensor.dtype == DType::f16 || tensor.dtype == DType::bf16;
    check(square && typed, ErrorKind::malformed,
          "--transform {}: tensor {} is {} {}; a matrix [n, n] of F64, F32, F16 or BF16 is needed",
          path.string(), checkpoint::quote(tensor.name), name_of(tensor.dtype), tensor.shape_text());
    SquareMatrix M{tensor.shape[0], std::vector<double>(size_t(tensor.elements()))};
    for (int64_t i = 0; i < tensor.elements(); i++) {
        double value = 0;
        if (tensor.dtype == DType::f64)
            std::memcpy(&value, tensor.bytes.data() + i * 8, 8);
        else
            value = load_element(tensor.bytes.data(), tensor.dtype, i);
        // Rounded before it is inverted: at run time T is FP32, and this W' is then its exact counterpart.
        M.values[size_t(i)] = float(value);
        check(std::isfinite(M.values[size_t(i)]), ErrorKind::malformed,
              "--transform {}: the matrix holds {} at [{}, {}]; finite FP32 numbers are needed",
              path.string(), value, i / M.n, i % M.n);
    }
    return M;
}

// |T| / sqrt(n): 1 for an orthogonal T.
double magnitude_of(const SquareMatrix& M) {
    return frobenius_norm(M) / std::sqrt(double(M.n));
}

Rotation from_matrix(const std::filesystem::path& path, SquareMatrix M) {
    // Within these neither FP32 nor a global scale ends: x' and W' are that much larger or smaller than x and
    // W, give or take the condition.
    const double magnitude = magnitude_of(M);
    check(magnitude == 0 || (magnitude >= 0x1p-32 && magnitude <= 0x1p32), ErrorKind::usage,
          "--transform {}: the matrix has the magnitude |T| / sqrt(n) = {:.4g}; 2^-32 to 2^32 is needed (1 "
          "for an "
          "orthogonal matrix); multiply the matrix by {:.4g}",
          path.string(), magnitude, 1 / magnitude);
    const Inversion inverted = invert(M);
    check(inverted.fault().empty(), ErrorKind::usage,
          "--transform {}: the matrix, whose inverse goes into the weights, {}", path.string(),
          inverted.fault());
    const int64_t n = M.n;
    const auto online = std::make_shared<const NamedTransform>(NamedTransform{
        "v", "random-matrix", false, orthogonality_error(M, 1), make_transform(M.values, n, 1)});
    return {std::make_shared<const SquareMatrix>(std::move(M)),
            std::make_shared<const Fold>(transpose(*inverted.inverse), 1.0), nullptr, online};
}

// A width that is cut into blocks, and where it is found.
struct Width {
    int64_t size;
    std::string where;  // "model.layers.0.self_attn.q_proj has inputs"
};

std::string possible_blocks(const std::vector<Width>& widths) {
    std::vector<std::string> names;
    int64_t common = 0;
    bool full = true;
    for (const Width& width : widths) {
        common = std::gcd(common, width.size);
        full = full && has_hadamard_matrix(width.size);
    }
    for (const int64_t n : {16, 32, 64, 128})
        if (common % n == 0) names.push_back(std::to_string(n));
    if (full) names.push_back("full");
    if (names.empty()) return "no block fits every layer; --ignore the layers that none fits";
    return fmt::format("what fits here: {}", fmt::join(names, ", "));
}

void check_blocks(const std::vector<Width>& widths, int64_t block) {
    for (const Width& width : widths) {
        check(block == 0 || width.size % block == 0, ErrorKind::usage,
              "--transform-block {}: {} {} wide, which blocks of {} do not divide; {}", block, width.where,
              width.size, block, possible_blocks(widths));
        check(block != 0 || has_hadamard_matrix(width.size), ErrorKind::usage,
              "--transform-block full: {} {} wide, and no Hadamard matrix of that order is known here; {}",
              width.where, width.size, possible_blocks(widths));
    }
}

std::string divisors(const std::vector<Width>& widths) {
    int64_t common = 0;
    for (const Width& width : widths) common = std::gcd(common, width.size);
    std::vector<int64_t> sizes;
    for (int64_t n = 2; n <= common; n++)
        if (common % n == 0) sizes.push_back(n);
    return fmt::format("{}", fmt::join(sizes, ", "));
}

// "hadamard" is Sylvester's matrix, which readers may make themselves; every other one is read from the file.
std::string type_of(bool random, const std::set<int64_t>& sizes) {
    for (const int64_t n : sizes) random = random || !std::has_single_bit(uint64_t(n));
    return random ? "random-hadamard" : "hadamard";
}

Json application(const std::vector<std::string>& targets, const char* location, bool inverse,
                 const std::vector<std::string>& ignore = {}) {
    return {{"ignore", ignore}, {"inverse", inverse}, {"location", location}, {"targets", targets}};
}

Json scheme_json(const std::string& type, int64_t head_dim, const Json& apply) {
    return {{"apply", apply},
            {"head_dim", head_dim == 0 ? Json(nullptr) : Json(head_dim)},
            {"precision", "torch.float64"},
            {"randomize", false},
            {"requires_grad", false},
            {"type", type}};
}

// The linear layers of the model, and what there is of each.
struct Module {
    std::string name;
    int64_t n = 0, k = 0;
    bool quantized = false;
};

class Planner {
  public:
    Planner(const Checkpoint& source, const TransformOptions& options) : source_(source), options_(options) {
        const IgnorePatterns ignore(options.ignore);
        const ModelConfig& config = source.config();
        // R1 gives a tied lm_head weights of its own.
        plan_.unties = config.tie_word_embeddings && has("R1");
        for (const auto& group : model::linear_groups(source))
            for (const std::string& module : group) {
                const bool tied = module == "lm_head" && config.tie_word_embeddings;
                const auto& shape = source.dense().at(weight_of(module)).shape;
                modules_.push_back(
                    {module, shape[0], shape[1], !ignore.matches(module) && (!tied || plan_.unties)});
            }
        plan_.transform_config = {{"config_groups", Json::object()}};
    }

    RotationPlan plan() {
        if (options_.kind == TransformKind::spinquant) {
            check_spinquant();
            if (has("R1")) add_r1();
            if (has("R2")) add_r2();
            if (has("R3")) add_r3();
            if (has("R4")) add_online("R4", "down_proj", 4);
        } else {
            add_online("v", "", 0);
        }
        return std::move(plan_);
    }

  private:
    bool has(const std::string& rotation) const {
        return options_.kind == TransformKind::spinquant && options_.rotations.contains(rotation);
    }
    std::string weight_of(const std::string& module) const {
        return module == "lm_head" && source_.config().tie_word_embeddings ? "model.embed_tokens.weight"
                                                                           : module + ".weight";
    }
    // Each rotation has signs of its own.
    std::optional<uint64_t> seed(uint64_t rotation) const {
        if (options_.kind == TransformKind::hadamard) return {};
        return options_.seed * 5 + rotation;
    }
    bool random() const { return options_.kind != TransformKind::hadamard; }
    TensorFold& fold(const std::string& tensor) {
        TensorFold& fold = plan_.folds[tensor];
        if (fold.source.empty()) fold.source = tensor;
        return fold;
    }
    void fold_bias(const std::string& module, const std::shared_ptr<const Fold>& forward) {
        const std::string bias = module + ".bias";
        if (source_.dense().contains(bias)) fold(bias).input = forward;
    }
    std::string matrix_text(const std::string& type, int64_t n, bool per_head = false) const {
        const std::string where = per_head ? fmt::format("of {} in every head", n)
                                  : n == 0 ? std::string("over the whole width")
                                           : fmt::format("in blocks of {}", n);
        if (type == "random-matrix")
            return fmt::format("the matrix of {} {}", options_.file.filename().string(), where);
        if (!random()) return "a Hadamard matrix " + where;
        return fmt::format("a Hadamard matrix with random signs (seed {}) {}", options_.seed, where);
    }

    void check_spinquant() const {
        for (const std::string& rotation : options_.rotations)
            check(rotation == "R1" || rotation == "R2" || rotation == "R3" || rotation == "R4",
                  ErrorKind::usage, "--rotations: {} is none; R1, R2, R3 and R4 are",
                  checkpoint::quote(rotation));
        check(!options_.rotations.empty(), ErrorKind::usage,
              "--rotations: one of R1, R2, R3 and R4 at least is needed");
        std::vector<Width> widths;
        if (has("R1"))
            widths.push_back({source_.config().hidden_size, "R1 turns the residual stream, which " +
                                                                modules_[0].name + " reads and which is"});
        bool any_down = false;
        for (const Module& module : modules_) {
            if (!has("R4") || !module.quantized || !module.name.ends_with("down_proj")) continue;
            widths.push_back({module.k, "R4 turns the input of " + module.name + ", which is"});
            any_down = true;
        }
        check(!has("R4") || any_down, ErrorKind::usage,
              "--rotations R4: --ignore leaves no down_proj quantised");
        check_blocks(widths, options_.block);
        check((!has("R2") && !has("R3")) || has_hadamard_matrix(source_.config().head_dim), ErrorKind::usage,
              "--rotations: R2 and R3 turn whole heads, and no Hadamard matrix of the order of head_dim, {}, "
              "is known "
              "here; leave them out",
              source_.config().head_dim);
    }

    // Online before the quantised layers whose names end so, and folded into them.
    void add_online(const std::string& scheme, const std::string& suffix, uint64_t number) {
        std::vector<const Module*> turned;
        std::vector<std::string> ignored;
        std::vector<Width> widths;
        for (const Module& module : modules_) {
            if (!module.name.ends_with(suffix)) continue;
            if (!module.quantized) {
                ignored.push_back(module.name);
                continue;
            }
            turned.push_back(&module);
            widths.push_back({module.k, module.name + " has inputs"});
        }
        std::function<Rotation(int64_t)> make;
        int64_t block = options_.block;
        std::string type;
        if (options_.kind == TransformKind::file) {
            SquareMatrix M = read_matrix(options_.file);
            block = M.n;
            check(
                !options_.block_given || options_.block == block, ErrorKind::usage,
                "--transform-block {}: the matrix of {} is [{}, {}]; leave --transform-block out, or give {}",
                options_.block == 0 ? "full" : std::to_string(options_.block), options_.file.string(), block,
                block, block);
            for (const Width& width : widths)
                check(width.size % block == 0, ErrorKind::usage,
                      "--transform {}: the matrix is [{}, {}], and {} {} wide, which blocks of {} do not "
                      "divide; sizes "
                      "that do, for all layers: {}",
                      options_.file.string(), block, block, width.where, width.size, block, divisors(widths));
            type = "random-matrix";
            plan_.file = options_.file;
            plan_.file_magnitude = magnitude_of(M);
            make = [rotation = from_matrix(options_.file, std::move(M))](int64_t) { return rotation; };
        } else {
            check_blocks(widths, block);
            std::set<int64_t> sizes;
            for (const Width& width : widths) sizes.insert(block == 0 ? width.size : block);
            type = type_of(random(), sizes);
            make = [=, this](int64_t n) { return hadamard(scheme, type, n, seed(number)); };
        }

        std::map<int64_t, Rotation> made;  // one matrix a size
        for (const Module* module : turned) {
            const int64_t n = block == 0 ? module->k : block;
            auto rotation = made.find(n);
            if (rotation == made.end()) {
                rotation = made.emplace(n, make(n)).first;
                plan_.tensors.push_back(
                    {fmt::format("{}.{}_input.weight", module->name, scheme), rotation->second.matrix});
            }
            fold(module->name + ".weight").input = rotation->second.inverse;
            plan_.online.linear[module->name].input = {rotation->second.online};
        }
        const std::vector<std::string> targets = {suffix.empty() ? "Linear" : "re:.*" + suffix + "$"};
        const std::string what = matrix_text(type, block);
        plan_.transform_config["config_groups"][scheme] =
            scheme_json(type, block,
                        Json::array({application(targets, "input", false, ignored),
                                     application(targets, "weight_input", true, ignored)}));
        plan_.lines.push_back(
            fmt::format("{}: the input of every quantised {} is multiplied at run time by {}; the inverse "
                        "is folded into the weights",
                        scheme, suffix.empty() ? "layer" : suffix, what));
        plan_.online.folded.push_back(
            fmt::format("{}: inverse in the weights of {} layers", scheme, turned.size()));
    }

    void add_r1() {
        const ModelConfig& config = source_.config();
        const int64_t n = options_.block == 0 ? config.hidden_size : options_.block;
        const std::string type = type_of(true, {n});
        const Rotation R1 = hadamard("R1", type, n, seed(1));
        fold("model.embed_tokens.weight").input = R1.forward;
        const auto reads = [&](const std::string& module, const std::string& norm) {
            TensorFold& weight = fold(module + ".weight");
            weight.source = weight_of(module);
            weight.norm = norm;
            weight.input = R1.inverse;
            fold(norm).ones = true;
        };
        const auto writes = [&](const std::string& module) {
            fold(module + ".weight").output = R1.forward;
            fold_bias(module, R1.forward);
        };
        // The layers of the Llama form, as linear_groups of it has them.
        for (int64_t i = 0; i < config.layers; i++) {
            const std::string layer = fmt::format("model.layers.{}.", i);
            for (const char* module : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"})
                reads(layer + module, layer + "input_layernorm.weight");
            writes(layer + "self_attn.o_proj");
            for (const char* module : {"mlp.gate_proj", "mlp.up_proj"})
                reads(layer + module, layer + "post_attention_layernorm.weight");
            writes(layer + "mlp.down_proj");
        }
        reads("lm_head", "model.norm.weight");
        plan_.transform_config["config_groups"]["R1"] =
            scheme_json(type, options_.block,
                        Json::array({application({"re:.*embed_tokens$", "re:.*o_proj$", "re:.*down_proj$"},
                                                 "weight_output", false),
                                     application({"re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$",
                                                  "re:.*gate_proj$", "re:.*up_proj$", "lm_head"},
                                                 "weight_input", true)}));
        plan_.lines.push_back(
            fmt::format("R1: the residual stream is turned by {}, folded into the embedding and all "
                        "layers{}; the RMSNorm weights were "
                        "folded into the layers behind them first and are 1",
                        matrix_text(type, options_.block),
                        plan_.unties ? "; lm_head, which shared the embedding, has weights of its own" : ""));
        plan_.online.folded.push_back("R1: the residual stream, in the weights of all layers");
    }

    void add_r2() {
        const ModelConfig& config = source_.config();
        const int64_t n = config.head_dim;
        const std::string type = type_of(true, {n});
        const Rotation R2 = hadamard("R2", type, n, seed(2));
        for (int64_t i = 0; i < config.layers; i++) {
            const std::string attention = fmt::format("model.layers.{}.self_attn.", i);
            fold(attention + "v_proj.weight").output = R2.forward;
            fold_bias(attention + "v_proj", R2.forward);
            fold(attention + "o_proj.weight").input = R2.inverse;
        }
        plan_.transform_config["config_groups"]["R2"] =
            scheme_json(type, n,
                        Json::array({application({"re:.*v_proj$"}, "weight_output", false),
                                     application({"re:.*o_proj$"}, "weight_input", true)}));
        plan_.lines.push_back(fmt::format("R2: the values are turned by {}, folded into v_proj and o_proj",
                                          matrix_text(type, n, true)));
        plan_.online.folded.push_back("R2: the values, in the weights of v_proj and o_proj");
    }

    void add_r3() {
        const ModelConfig& config = source_.config();
        const int64_t n = config.head_dim;
        const std::string type = type_of(true, {n});
        const Rotation R3 = hadamard("R3", type, n, seed(3));
        for (int64_t i = 0; i < config.layers; i++)
            plan_.online.attention[fmt::format("model.layers.{}.self_attn", i)] = {{R3.online}, {R3.online}};
        plan_.tensors.push_back({"model.layers.0.self_attn.R3_q_attn.weight", R3.matrix});
        const std::vector<std::string> targets = {"re:.*self_attn$"};
        plan_.transform_config["config_groups"]["R3"] = scheme_json(
            type, n,
            Json::array({application(targets, "q_attn", false), application(targets, "k_cache", false)}));
        plan_.lines.push_back(
            fmt::format("R3: queries and keys are multiplied at run time, behind RoPE, by {}",
                        matrix_text(type, n, true)));
    }

    const Checkpoint& source_;
    const TransformOptions& options_;
    std::vector<Module> modules_;
    RotationPlan plan_;
};

}  // namespace

RotationPlan plan_rotation(const Checkpoint& source, const TransformOptions& options) {
    return Planner(source, options).plan();
}

}  // namespace halfbyte::quantizer
