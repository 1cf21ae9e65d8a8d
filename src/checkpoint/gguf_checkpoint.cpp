// A GGUF of the llama architecture with the names, the row order and the config of its Hugging Face form.
//
// llama.cpp rotates neighbouring pairs where Hugging Face rotates the halves of a head, so its converter
// moves the rows of q and k: within a head of d rows, Hugging Face's row p * d/2 + i (p = 0, 1) is the GGUF's
// row 2 i + p.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "checkpoint/gguf.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/model_config.h"
#include "checkpoint/open.h"
#include "core/check.h"
#include "core/element.h"
#include "core/float_environment.h"

namespace halfbyte::checkpoint {
namespace fs = std::filesystem;
namespace {

struct Name {
    const char *gguf, *hf;
};
constexpr Name layer_modules[] = {{"attn_norm", "input_layernorm"}, {"ffn_norm", "post_attention_layernorm"},
                                  {"attn_q", "self_attn.q_proj"},   {"attn_k", "self_attn.k_proj"},
                                  {"attn_v", "self_attn.v_proj"},   {"attn_output", "self_attn.o_proj"},
                                  {"ffn_gate", "mlp.gate_proj"},    {"ffn_up", "mlp.up_proj"},
                                  {"ffn_down", "mlp.down_proj"}};
constexpr Name outer_modules[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; empty for a name that is not known.
std::string hf_name(std::string_view name) {
    const size_t last = name.rfind('.');
    if (last == name.npos) return {};
    const std::string_view leaf = name.substr(last), module = name.substr(0, last);
    if (leaf != ".weight" && leaf != ".bias") return {};
    for (const Name& known : outer_modules) {
        if (module == known.gguf) return std::string(known.hf) + std::string(leaf);
    }
    if (!module.starts_with("blk.")) return {};
    const std::string_view rest = module.substr(4), number = rest.substr(0, rest.find('.'));
    for (const Name& known : layer_modules) {
        if (rest == fmt::format("{}.{}", number, known.gguf))
            return fmt::format("model.layers.{}.{}{}", number, known.hf, leaf);
    }
    return {};
}

DType stored_dtype(GgufType type) {
    return type == GgufType::f32 ? DType::f32 : type == GgufType::f16 ? DType::f16 : DType::bf16;
}

// Norms are kept in FP32 by converters, whatever the model's type is: whether that type holds them exactly.
// Looked at when small enough to read while opening.
bool is_small_and_exact(const GgufTensor& tensor, DType dtype) {
    constexpr int64_t small = 1 << 20;
    if (tensor.shape.size() != 1 || tensor.shape[0] > small || is_block_type(tensor.type)) return false;
    std::vector<float> values(tensor.shape[0]);
    dequantize_gguf(tensor, 0, tensor.shape[0], values.data());
    const FloatEnvironment environment;
    return std::all_of(values.begin(), values.end(), [&](float value) {
        return std::bit_cast<uint32_t>(round_to_type(value, dtype)) == std::bit_cast<uint32_t>(value);
    });
}

const std::string rope_divisors = "rope_freqs.weight";

class GgufCheckpoint final : public Checkpoint {
  public:
    explicit GgufCheckpoint(const fs::path& file) : gguf_(file) {
        const std::string architecture = gguf_.text("general.architecture"), where = file.string();
        check(architecture == "llama", ErrorKind::unsupported,
              "{}: the architecture {} is not supported; llama is", where, quote(architecture));
        refuse_variants(where);
        const auto embedding = gguf_.tensors().find("token_embd.weight");
        check(embedding != gguf_.tensors().end() && embedding->second.shape.size() == 2, ErrorKind::malformed,
              "{}: the matrix token_embd.weight is missing", where);
        const DType dtype = stored_dtype(embedding->second.type);
        for (const auto& [name, tensor] : gguf_.tensors()) {
            if (name == rope_divisors) continue;
            const std::string known = hf_name(name);
            check(!known.empty(), ErrorKind::malformed,
                  "{}: the tensor {} is not known in the llama architecture", where, quote(name));
            const bool exact = is_small_and_exact(tensor, dtype);
            dense_.emplace(known, DenseTensor{exact ? dtype : stored_dtype(tensor.type), tensor.shape});
            sources_.emplace(known, &tensor);
        }
        Json generation = Json::object();
        reference::RopeScaling scaling;
        Json json = make_config(where, generation, scaling);
        companions_.generation_config = generation.dump(2) + "\n";
        config_ = model_config(json, generation, file);
        config_.rope_scaling = scaling;
        check_tensors(config_, dense_, {}, {}, file, [this](const std::string& name) { return label(name); });
        read_tokenizer();
    }

    const fs::path& path() const override { return gguf_.file().path(); }
    std::string description() const override { return "GGUF"; }
    const ModelConfig& config() const override { return config_; }
    const CompanionFiles& companions() const override { return companions_; }
    std::optional<Scheme> scheme() const override { return {}; }
    const std::map<std::string, DenseTensor>& dense() const override { return dense_; }
    const std::map<std::string, NvFp4Linear>& nvfp4() const override { return nvfp4_; }
    const Transforms& transforms() const override { return transforms_; }
    std::vector<fs::path> weight_files() const override { return {path()}; }
    uint64_t file_bytes() const override { return gguf_.file().bytes().size(); }
    std::string stored_format(const std::string& name) const override {
        return std::string(halfbyte::checkpoint::name_of(sources_.at(name)->type));
    }
    uint64_t weight_bytes() const override {
        uint64_t bytes = 0;
        for (const auto& [name, tensor] : gguf_.tensors()) bytes += tensor.bytes.size();
        return bytes;
    }

    const uint8_t* read(const std::string& name, int64_t first_row, int64_t rows,
                        std::vector<uint8_t>& buffer) const override {
        const auto found = dense_.find(name);
        check(found != dense_.end(), ErrorKind::usage, "{}: there is no dense tensor {}", path().string(),
              quote(name));
        const GgufTensor& tensor = *sources_.at(name);
        const DType dtype = found->second.dtype;
        const auto& shape = tensor.shape;
        const int64_t all_rows = shape.size() < 2 ? 1 : shape[0];
        int64_t columns = 1;
        for (size_t i = shape.size() < 2 ? 0 : 1; i < shape.size(); ++i) columns *= shape[i];
        check(first_row >= 0 && rows >= 0 && rows <= all_rows - first_row, ErrorKind::usage,
              "{}: rows {} to {} of {}", label(name), first_row, first_row + rows, all_rows);
        if (rows == 0) return buffer.data();

        const bool permuted = is_permuted(name),
                   as_stored = !is_block_type(tensor.type) && stored_dtype(tensor.type) == dtype;
        const int64_t stored_row = gguf_bytes(tensor.type, columns),
                      row_bytes = columns * int64_t(size_of(dtype));
        const uint8_t* direct = tensor.bytes.data() + first_row * stored_row;
        if (as_stored && !permuted && reinterpret_cast<uintptr_t>(direct) % size_of(dtype) == 0)
            return direct;

        const FloatEnvironment environment;
        buffer.resize(rows * row_bytes);
        std::vector<float> values(as_stored ? 0 : columns);
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t row = permuted && all_rows > 1 ? gguf_row(first_row + i) : first_row + i;
            uint8_t* out = buffer.data() + i * row_bytes;
            if (as_stored) {
                std::memcpy(out, tensor.bytes.data() + row * stored_row, row_bytes);
                continue;
            }
            dequantize_gguf(tensor, row * columns, columns, values.data());
            const auto store = [&](DType type) {  // a constant, which the loop is made for
                for (int64_t j = 0; j < columns; ++j) store_element(out, type, j, values[j]);
            };
            dtype == DType::bf16 ? store(DType::bf16) : store(dtype);
        }
        if (permuted && shape.size() == 1) {  // the bias of q or k
            const std::vector<uint8_t> as_in_file = buffer;
            const int64_t size = int64_t(size_of(dtype));
            for (int64_t j = 0; j < columns; ++j)
                std::memcpy(buffer.data() + j * size, as_in_file.data() + gguf_row(j) * size, size);
        }
        return buffer.data();
    }

    void release(const std::string& name) const override {
        if (const auto found = sources_.find(name); found != sources_.end())
            gguf_.file().release(found->second->bytes);
    }

    void check_unchanged() const override { gguf_.file().check_unchanged(); }

  private:
    static bool is_permuted(const std::string& name) {
        return name.find(".self_attn.q_proj.") != name.npos || name.find(".self_attn.k_proj.") != name.npos;
    }
    int64_t gguf_row(int64_t hf_row) const {
        const int64_t half = config_.head_dim / 2, within = hf_row % config_.head_dim;
        return hf_row - within + within % half * 2 + within / half;
    }
    std::string label(const std::string& name) const {
        const auto found = sources_.find(name);
        return fmt::format("{}: tensor {}", path().string(),
                           quote(found == sources_.end() ? name : found->second->name));
    }

    int64_t integer(const char* key) const { return gguf_.integer(std::string("llama.") + key); }
    int64_t integer(const char* key, int64_t otherwise) const {
        return gguf_.has(std::string("llama.") + key) ? integer(key) : otherwise;
    }
    double number(const char* key, double otherwise) const {
        return gguf_.has(std::string("llama.") + key) ? gguf_.number(std::string("llama.") + key) : otherwise;
    }

    void refuse_variants(const std::string& where) const {
        const std::string type = scaling_type();
        check(type == "linear" || type == "none", ErrorKind::unsupported,
              "{}: RoPE scaling {} is not supported; linear and the divisors in {} are", where, quote(type),
              rope_divisors);
        check(number("rope.scaling.attn_factor", 1) == 1, ErrorKind::unsupported,
              "{}: llama.rope.scaling.attn_factor is {}; attention scaled by anything but 1 is not supported",
              where, number("rope.scaling.attn_factor", 1));
        check(integer("expert_count", 0) == 0, ErrorKind::unsupported,
              "{}: llama.expert_count is {}; mixtures of experts are not supported", where,
              integer("expert_count", 0));
    }

    std::string scaling_type() const {
        return gguf_.has("llama.rope.scaling.type") ? gguf_.text("llama.rope.scaling.type") : "linear";
    }
    // A factor, or divisors in a tensor.
    reference::RopeScaling rope_scaling(const std::string& where, double theta, int64_t head_dim) const {
        using Kind = reference::RopeScaling::Kind;
        reference::RopeScaling scaling;
        const double factor = number("rope.scaling.factor", number("rope.scale_linear", 1));
        if (scaling_type() == "linear" && factor != 0 && factor != 1) {  // 0: not said
            check(factor > 1 && factor <= 1e6, ErrorKind::malformed,
                  "{}: llama.rope.scaling.factor is {}; a number from 1 to 1000000 is needed", where, factor);
            scaling = {.kind = Kind::linear, .factor = factor};
        }
        const auto found = gguf_.tensors().find(rope_divisors);
        if (found == gguf_.tensors().end()) return scaling;
        const GgufTensor& tensor = found->second;
        check(scaling.kind == Kind::none, ErrorKind::unsupported,
              "{}: RoPE scaling by {} and by the divisors in {} together is not supported", where, factor,
              rope_divisors);
        check(tensor.type == GgufType::f32 && tensor.shape == std::vector{head_dim / 2}, ErrorKind::malformed,
              "{}: tensor {} is {} [{}]; F32 [{}], half the size of a head, is needed", where,
              quote(rope_divisors), name_of(tensor.type), fmt::join(tensor.shape, ", "), head_dim / 2);
        scaling.divisors.resize(size_t(head_dim / 2));
        dequantize_gguf(tensor, 0, head_dim / 2, scaling.divisors.data());
        for (size_t i = 0; i < scaling.divisors.size(); ++i) {
            check(std::isfinite(scaling.divisors[i]) && scaling.divisors[i] > 0, ErrorKind::malformed,
                  "{}: tensor {} holds {} at [{}]; a finite number above 0 is needed", where,
                  quote(rope_divisors), scaling.divisors[i], i);
        }
        scaling.kind = Kind::divisors;
        return named_scaling(scaling, theta, head_dim);
    }

    // The scaling that the divisors come from, as far as config.json can say it; else the divisors.
    static reference::RopeScaling named_scaling(const reference::RopeScaling& divisors, double theta,
                                                int64_t head_dim) {
        using Kind = reference::RopeScaling::Kind;
        const double factor = divisors.divisors.back();  // of the longest wave
        for (const Kind kind : {Kind::none, Kind::linear, Kind::llama3}) {
            const reference::RopeScaling named = {.kind = kind, .factor = kind == Kind::none ? 1 : factor};
            const auto plain = reference::rope_frequencies(theta, {}, head_dim),
                       scaled = reference::rope_frequencies(theta, named, head_dim);
            // Converters compute in FP32: between 1 and 1 / factor, the line of llama3 is off by some 16
            // units of FP32, which are up to `factor` times as many of its own size. Twice that; what is
            // compared with computed in FP64 has far smaller errors.
            const double tolerance = kind == Kind::llama3 ? 32 * factor * 0x1p-24 : 0x1p-40;
            bool equal = factor >= 1;
            for (size_t i = 0; i < plain.size(); ++i) {
                const double wanted = plain[i] / scaled[i];
                equal &= std::fabs(divisors.divisors[i] - wanted) <= tolerance * wanted;
            }
            if (equal) return named;
        }
        return divisors;
    }

    // config.json as transformers would write it, from the metadata.
    Json make_config(const std::string& where, Json& generation, reference::RopeScaling& scaling) const {
        const int64_t hidden = integer("embedding_length"), heads = integer("attention.head_count");
        check(heads > 0 && hidden > 0, ErrorKind::malformed,
              "{}: llama.attention.head_count is {} and llama.embedding_length {}; both must be positive",
              where, heads, hidden);
        const int64_t head_dim = integer("attention.key_length", hidden / heads);
        check(integer("attention.value_length", head_dim) == head_dim, ErrorKind::unsupported,
              "{}: values of a size other than the keys' {} are not supported", where, head_dim);
        check(integer("rope.dimension_count", head_dim) == head_dim, ErrorKind::unsupported,
              "{}: RoPE on {} of the {} dimensions of a head is not supported", where,
              integer("rope.dimension_count", head_dim), head_dim);
        const DenseTensor& embedding = dense_.at("model.embed_tokens.weight");
        const double theta = number("rope.freq_base", 10000);
        check(theta >= 1 && theta <= 1e12, ErrorKind::malformed,
              "{}: llama.rope.freq_base is {}; a number from 1 to 1e12 is needed", where, theta);
        check(head_dim >= 2 && head_dim % 2 == 0 && head_dim <= 1 << 14, ErrorKind::malformed,
              "{}: the heads have a size of {}; an even number from 2 to 16384 is needed", where, head_dim);
        scaling = rope_scaling(where, theta, head_dim);
        Json rope = {{"rope_theta", theta}, {"rope_type", "default"}};
        if (const Json named = scaling_json(scaling); !named.is_null()) rope.update(named);

        Json ids = Json::object();
        for (const auto& [key, id] : {Name{"bos_token_id", "bos_token_id"},
                                      {"eos_token_id", "eos_token_id"},
                                      {"padding_token_id", "pad_token_id"},
                                      {"unknown_token_id", "unk_token_id"}}) {
            const std::string name = std::string("tokenizer.ggml.") + key;
            if (gguf_.has(name)) ids[id] = gguf_.integer(name);
        }
        for (const char* id : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
            if (ids.contains(id)) generation[id] = ids[id];
        }
        // A chat model's turns end with other tokens than its texts.
        Json ends = Json::array();
        for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
            const std::string name = std::string("tokenizer.ggml.") + key;
            if (!gguf_.has(name)) continue;
            const Json id = gguf_.integer(name);
            if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
        }
        if (ends.size() > 1) generation["eos_token_id"] = ends;
        Json json = {{"architectures", {"LlamaForCausalLM"}},
                     {"attention_bias", dense_.contains("model.layers.0.self_attn.q_proj.bias")},
                     {"attention_dropout", 0.0}};
        if (ids.contains("bos_token_id")) json["bos_token_id"] = ids["bos_token_id"];
        json["dtype"] = "bfloat16";
        if (ids.contains("eos_token_id")) json["eos_token_id"] = ids["eos_token_id"];
        json.update({{"head_dim", head_dim},
                     {"hidden_act", "silu"},
                     {"hidden_size", hidden},
                     {"initializer_range", 0.02},
                     {"intermediate_size", integer("feed_forward_length")},
                     {"max_position_embeddings", integer("context_length")},
                     {"mlp_bias", dense_.contains("model.layers.0.mlp.gate_proj.bias")},
                     {"model_type", "llama"},
                     {"num_attention_heads", heads},
                     {"num_hidden_layers", integer("block_count")},
                     {"num_key_value_heads", integer("attention.head_count_kv", heads)}});
        for (const char* id : {"pad_token_id", "unk_token_id"}) {
            if (ids.contains(id)) json[id] = ids[id];
        }
        json.update({{"pretraining_tp", 1},
                     {"rms_norm_eps", gguf_.number("llama.attention.layer_norm_rms_epsilon")},
                     {"rope_parameters", rope},
                     {"rope_scaling", scaling_json(scaling)},
                     {"rope_theta", theta},
                     {"tie_word_embeddings", !dense_.contains("lm_head.weight")},
                     {"torch_dtype", "bfloat16"},
                     {"use_cache", true},
                     {"vocab_size", embedding.shape[0]}});
        return json;
    }

    // As config.json says it; null for what it need not or cannot say.
    static Json scaling_json(const reference::RopeScaling& scaling) {
        using Kind = reference::RopeScaling::Kind;
        if (scaling.kind == Kind::linear) return {{"factor", scaling.factor}, {"rope_type", "linear"}};
        if (scaling.kind != Kind::llama3) return nullptr;
        return {{"factor", scaling.factor},
                {"high_freq_factor", scaling.high_freq_factor},
                {"low_freq_factor", scaling.low_freq_factor},
                {"original_max_position_embeddings", int64_t(scaling.original_positions)},
                {"rope_type", "llama3"}};
    }

    // A tokenizer that is not supported leaves a usable model, for token ids given by number.
    void read_tokenizer() {
        if (gguf_.has("tokenizer.chat_template"))
            companions_.chat_template = gguf_.text("tokenizer.chat_template");
        if (!gguf_.has("tokenizer.ggml.model")) {
            companions_.tokenizer_problem = path().string() + ": holds no tokenizer, which text needs";
            return;
        }
        try {
            GgufTokenizer made = tokenizer_from_gguf(gguf_);
            companions_.tokenizer = std::move(made.tokenizer);
            companions_.tokenizer_config = std::move(made.tokenizer_config);
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::unsupported) throw;
            companions_.tokenizer_problem = error.what();
        }
    }

    GgufFile gguf_;
    ModelConfig config_;
    CompanionFiles companions_;
    std::map<std::string, DenseTensor> dense_;
    std::map<std::string, NvFp4Linear> nvfp4_;  // empty
    const Transforms transforms_;
    std::map<std::string, const GgufTensor*> sources_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf(const fs::path& file) {
    return std::make_unique<GgufCheckpoint>(file);
}

}  // namespace halfbyte::checkpoint
