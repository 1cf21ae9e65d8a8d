#include "checkpoint/model_config.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "checkpoint/transform_config.h"
#include "core/check.h"

namespace halfbyte::checkpoint {
namespace fs = std::filesystem;
namespace {

// Values of one JSON object; null counts as absent.
class Fields {
  public:
    Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
        if (!json.is_object())
            fail(ErrorKind::malformed, "{}: is {}; a JSON object is needed", where_, shown(json));
    }
    const std::string& where() const { return where_; }

    const Json* find(const char* key) const {
        const auto found = json_.find(key);
        return found == json_.end() || found->is_null() ? nullptr : &*found;
    }
    int64_t integer(const char* key, int64_t low, int64_t high, std::optional<int64_t> otherwise = {}) const {
        const Json* value = find(key);
        if (value == nullptr && otherwise) return *otherwise;
        return whole(need(value, key), key, low, high);
    }
    double number(const char* key, double low, double high, std::optional<double> otherwise = {}) const {
        const Json* value = find(key);
        if (value == nullptr && otherwise) return *otherwise;
        need(value, key);
        check(value->is_number() && value->get<double>() >= low && value->get<double>() <= high,
              ErrorKind::malformed, "{}: {} is {}; a number from {} to {} is needed", where_, key,
              shown(*value), low, high);
        return value->get<double>();
    }
    bool flag(const char* key, bool otherwise) const {
        const Json* value = find(key);
        check(value == nullptr || value->is_boolean(), ErrorKind::malformed,
              "{}: {} is {}; true or false is needed", where_, key, value == nullptr ? "" : shown(*value));
        return value == nullptr ? otherwise : value->get<bool>();
    }
    std::string text(const char* key, const char* otherwise) const {
        const Json* value = find(key);
        check(value == nullptr || value->is_string(), ErrorKind::malformed, "{}: {} is {}; a text is needed",
              where_, key, value == nullptr ? "" : shown(*value));
        return value == nullptr ? otherwise : value->get<std::string>();
    }
    // A token id or a list of them.
    std::vector<int64_t> ids(const char* key) const {
        const Json* value = find(key);
        std::vector<int64_t> result;
        if (value == nullptr) return result;
        if (!value->is_array()) return {whole(*value, key, 0, id_limit)};
        for (const Json& id : *value) result.push_back(whole(id, key, 0, id_limit));
        return result;
    }
    static constexpr int64_t id_limit = (int64_t(1) << 31) - 1;

  private:
    const Json& need(const Json* value, const char* key) const {
        check(value != nullptr, ErrorKind::malformed, "{}: {} is missing", where_, key);
        return *value;
    }
    int64_t whole(const Json& value, const char* key, int64_t low, int64_t high) const {
        const bool fits = value.is_number_integer() &&
                          (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(high)) &&
                          value.get<int64_t>() >= low && value.get<int64_t>() <= high;
        check(fits, ErrorKind::malformed, "{}: {} is {}; a whole number from {} to {} is needed", where_, key,
              shown(value), low, high);
        return value.get<int64_t>();
    }

    const Json& json_;
    std::string where_;
};

reference::RopeScaling rope_scaling(const Fields& rope, const Fields& config) {
    using Kind = reference::RopeScaling::Kind;
    const std::string old_type = rope.text("type", "default"),
                      type = rope.text("rope_type", old_type.c_str());
    check(type == old_type || rope.find("type") == nullptr, ErrorKind::malformed,
          "{}: rope_type is {} and type {}; they must agree", rope.where(), quote(type), quote(old_type));
    reference::RopeScaling scaling;
    if (type == "default") return scaling;
    check(type == "linear" || type == "llama3", ErrorKind::unsupported,
          "{}: RoPE scaling {} is not supported; linear and llama3 are", rope.where(), quote(type));
    scaling.kind = type == "linear" ? Kind::linear : Kind::llama3;
    scaling.factor = rope.number("factor", 1, 1e6);
    if (scaling.kind == Kind::linear) return scaling;
    scaling.low_freq_factor = rope.number("low_freq_factor", 1e-6, 1e6);
    scaling.high_freq_factor = rope.number("high_freq_factor", 1e-6, 1e6);
    check(scaling.low_freq_factor < scaling.high_freq_factor, ErrorKind::malformed,
          "{}: low_freq_factor {} must be below high_freq_factor {}", rope.where(), scaling.low_freq_factor,
          scaling.high_freq_factor);
    const char* original = "original_max_position_embeddings";
    scaling.original_positions = double(rope.integer(original, 1, 1 << 30));
    const int64_t outer = config.integer(original, 1, 1 << 30, int64_t(scaling.original_positions));
    check(double(outer) == scaling.original_positions, ErrorKind::malformed,
          "{}: {} is {} at the top and {} in {}", config.where(), original, outer, scaling.original_positions,
          rope.where());
    return scaling;
}

// Before transformers 5, rope_theta stands at the top and a scaling in rope_scaling; then both in
// rope_parameters.
void read_rope(ModelConfig& config, const Fields& fields) {
    const auto check_whole_heads = [](const Fields& from) {
        check(from.number("partial_rotary_factor", 0, 1, 1) == 1, ErrorKind::unsupported,
              "{}: RoPE on a part of each head (partial_rotary_factor) is not supported", from.where());
    };
    check_whole_heads(fields);
    const double outer = fields.number("rope_theta", 1, 1e12, 10000);
    config.rope_theta = outer;
    std::optional<reference::RopeScaling> scaling;
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
        if (fields.find(key) == nullptr) continue;
        const Fields rope(*fields.find(key), fields.where() + ": " + key);
        check_whole_heads(rope);
        config.rope_theta = rope.number("rope_theta", 1, 1e12, config.rope_theta);
        const reference::RopeScaling own = rope_scaling(rope, fields);
        check(!scaling || *scaling == own, ErrorKind::malformed,
              "{}: rope_scaling and rope_parameters say different scalings", fields.where());
        scaling = own;
    }
    check(config.rope_theta == outer || fields.find("rope_theta") == nullptr, ErrorKind::malformed,
          "{}: rope_theta is {} at the top and {} in rope_parameters", fields.where(), outer,
          config.rope_theta);
    if (scaling) config.rope_scaling = *scaling;
}

void read_llama(ModelConfig& config, const Fields& fields) {
    config.vocab_size = fields.integer("vocab_size", 1, 1 << 24);
    config.hidden_size = fields.integer("hidden_size", 1, 1 << 20);
    config.intermediate_size = fields.integer("intermediate_size", 1, 1 << 24);
    config.layers = fields.integer("num_hidden_layers", 1, 1 << 14);
    config.heads = fields.integer("num_attention_heads", 1, 1 << 14);
    config.kv_heads = fields.integer("num_key_value_heads", 1, 1 << 14, config.heads);
    const bool divides = config.hidden_size % config.heads == 0;
    check(divides || fields.find("head_dim") != nullptr, ErrorKind::malformed,
          "{}: hidden_size {} is not a multiple of num_attention_heads {}, and head_dim is missing",
          fields.where(), config.hidden_size, config.heads);
    config.head_dim = fields.integer("head_dim", 2, 1 << 14, config.hidden_size / config.heads);
    check(config.head_dim % 2 == 0, ErrorKind::malformed, "{}: head_dim {} is odd; RoPE needs pairs",
          fields.where(), config.head_dim);
    check(config.heads % config.kv_heads == 0, ErrorKind::malformed,
          "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", fields.where(),
          config.heads, config.kv_heads);
    config.max_positions = fields.integer("max_position_embeddings", 1, 1 << 30, 2048);
    config.rms_norm_eps = fields.number("rms_norm_eps", 0, 1, 1e-6);
    read_rope(config, fields);
    config.tie_word_embeddings = fields.flag("tie_word_embeddings", false);
    const std::string activation = fields.text("hidden_act", "silu");
    check(activation == "silu", ErrorKind::unsupported, "{}: hidden_act {} is not supported; silu is",
          fields.where(), quote(activation));
}

struct ExpectedTensor {
    std::string name;
    std::vector<int64_t> shape;
    bool linear = false;  // may be quantised
};

using Visitor = std::function<void(const ExpectedTensor&)>;

// One after the other and not as a list: a config may claim thousands of layers that its files lack.
void visit_llama_tensors(const ModelConfig& config, const Visitor& visit) {
    const bool attention_bias = Fields(config.json, "config.json").flag("attention_bias", false);
    const bool mlp_bias = Fields(config.json, "config.json").flag("mlp_bias", false);
    const int64_t hidden = config.hidden_size, wide = config.intermediate_size;
    const int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
    const auto linear = [&](const std::string& module, int64_t n, int64_t k, bool bias) {
        visit({module + ".weight", {n, k}, true});
        if (bias) visit({module + ".bias", {n}});
    };
    visit({"model.embed_tokens.weight", {config.vocab_size, hidden}});
    visit({"model.norm.weight", {hidden}});
    if (!config.tie_word_embeddings) linear("lm_head", config.vocab_size, hidden, false);
    for (int64_t i = 0; i < config.layers; ++i) {
        const std::string layer = fmt::format("model.layers.{}.", i);
        visit({layer + "input_layernorm.weight", {hidden}});
        visit({layer + "post_attention_layernorm.weight", {hidden}});
        linear(layer + "self_attn.q_proj", q, hidden, attention_bias);
        linear(layer + "self_attn.k_proj", kv, hidden, attention_bias);
        linear(layer + "self_attn.v_proj", kv, hidden, attention_bias);
        linear(layer + "self_attn.o_proj", hidden, q, attention_bias);
        linear(layer + "mlp.gate_proj", wide, hidden, mlp_bias);
        linear(layer + "mlp.up_proj", wide, hidden, mlp_bias);
        linear(layer + "mlp.down_proj", hidden, wide, mlp_bias);
    }
}

// The families; a new one is a row here and its two functions.
struct Family {
    std::string_view architecture;
    void (*read)(ModelConfig&, const Fields&);
    void (*visit_tensors)(const ModelConfig&, const Visitor&);
};
constexpr Family families[] = {{"LlamaForCausalLM", read_llama, visit_llama_tensors}};

const Family* family_of(std::string_view architecture) {
    for (const Family& family : families) {
        if (family.architecture == architecture) return &family;
    }
    return nullptr;
}

std::string module_of(const std::string& tensor) {
    return tensor.substr(0, tensor.rfind('.'));
}

}  // namespace

bool is_known_architecture(std::string_view architecture) {
    return family_of(architecture) != nullptr;
}

ModelConfig model_config(const Json& json, const Json& generation, const fs::path& file) {
    const Fields fields(json, file.string());
    const Json* architectures = fields.find("architectures");
    check(architectures != nullptr && architectures->is_array() && !architectures->empty() &&
              architectures->front().is_string(),
          ErrorKind::malformed, "{}: needs a list \"architectures\" that names one", file.string());
    ModelConfig config;
    config.architecture = architectures->front().get<std::string>();
    config.eos_ids = fields.ids("eos_token_id");
    auto bos = fields.ids("bos_token_id");
    if (!generation.is_null()) {
        const Fields generation_fields(generation, (file.parent_path() / "generation_config.json").string());
        if (generation_fields.find("eos_token_id") != nullptr)
            config.eos_ids = generation_fields.ids("eos_token_id");
        if (generation_fields.find("bos_token_id") != nullptr) bos = generation_fields.ids("bos_token_id");
    }
    if (!bos.empty()) config.bos_id = bos.front();
    config.json = json;
    config.json.erase("quantization_config");
    config.json.erase("compression_config");
    if (const Family* family = family_of(config.architecture)) family->read(config, fields);
    return config;
}

void check_tensors(const ModelConfig& config, const std::map<std::string, DenseTensor>& dense,
                   const std::map<std::string, NvFp4Linear>& nvfp4,
                   const std::map<std::string, Fp8Linear>& fp8, const fs::path& path,
                   const std::function<std::string(const std::string&)>& label) {
    const Family* family = family_of(config.architecture);
    if (family == nullptr) return;
    const Fields fields(config.json, "config.json");
    const std::string reasons = fmt::format(
        "(num_hidden_layers {}, tie_word_embeddings {}, attention_bias {} and mlp_bias {} decide which "
        "tensors there are)",
        config.layers, config.tie_word_embeddings, fields.flag("attention_bias", false),
        fields.flag("mlp_bias", false));

    std::map<std::string, std::vector<int64_t>> quantized;  // shapes by module
    for (const auto& [module, linear] : nvfp4) quantized[module] = {linear.n, linear.k};
    for (const auto& [module, linear] : fp8) quantized[module] = {linear.n, linear.k};
    std::set<std::string> wanted;
    family->visit_tensors(config, [&](const ExpectedTensor& tensor) {
        const std::string module = module_of(tensor.name);
        const auto found = dense.find(tensor.name);
        const auto linear = quantized.find(module);
        std::vector<int64_t> shape;
        if (found != dense.end()) {
            wanted.insert(tensor.name);
            shape = found->second.shape;
            const DType dtype = found->second.dtype;
            check(dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32, ErrorKind::unsupported,
                  "{}: has the dtype {}; BF16, F16 and F32 weights are supported", label(tensor.name),
                  name_of(dtype));
        } else if (linear != quantized.end() && tensor.name.ends_with(".weight")) {
            check(tensor.linear, ErrorKind::unsupported,
                  "{}: module {} is quantised, which is supported for linear layers only", path.string(),
                  module);
            wanted.insert(module);
            shape = linear->second;
        } else {
            fail(ErrorKind::malformed, "{}: tensor {} is missing {}; is a file incomplete?", path.string(),
                 tensor.name, reasons);
        }
        const bool transposed = shape.size() == 2 && std::vector{shape[1], shape[0]} == tensor.shape;
        check(shape == tensor.shape, ErrorKind::malformed,
              "{}: has the shape [{}], the config asks for [{}]{}", label(tensor.name),
              fmt::join(shape, ", "), fmt::join(tensor.shape, ", "), transposed ? "; transposed?" : "");
    });
    const auto unexpected = [&](const std::string& name) {
        fail(ErrorKind::malformed, "{}: is no tensor of {} {}{}", label(name), config.architecture, reasons,
             TransformConfig::names_matrix(name) ? fmt::format("; {}", stray_matrix) : "");
    };
    for (const auto& [name, tensor] : dense) {
        if (!wanted.contains(name)) unexpected(name);
    }
    for (const auto& [module, its_shape] : quantized) {
        if (!wanted.contains(module)) unexpected(module + ".weight");
    }
}

}  // namespace halfbyte::checkpoint
