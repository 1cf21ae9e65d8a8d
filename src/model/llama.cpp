// One layer, with R the residual stream [T, hidden]:
//   n = rms_norm(R);  q, k, v = n Wq, n Wk, n Wv;  rope(q), rope(k);  R += attention(q, K, V) Wo
//   n = rms_norm(R);  R += (silu(n Wgate) * (n Wup)) Wdown
// Everything is FP32 but the weights; the additions to R happen inside the norm that reads them next. A
// checkpoint's transforms stand around each product, behind the embedding, and on q and k behind RoPE.
#include "model/llama.h"

#include <algorithm>

#include "core/check.h"
#include "model/weights.h"
#include "reference/rope_scaling.h"

namespace halfbyte::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ModelConfig;

struct Layer {
    std::string name;  // "model.layers.0."
    DenseWeight input_norm, attention_norm;
    std::unique_ptr<Linear> q, k, v, o, gate, up, down;
    checkpoint::AttentionTransforms transforms;
};

Matrix matrix(std::vector<float>& data, int64_t rows, int64_t cols) {
    return {data.data(), DType::f32, rows, cols, cols};
}

ConstMatrix constant(const Matrix& m) {
    return {m.data, m.type, m.rows, m.cols, m.stride};
}

class Llama : public Decoder {
  public:
    Llama(const Context& context, const Checkpoint& source, Arithmetic arithmetic, const Progress& progress)
        : path_(source.path()),
          config_(source.config()),
          by_definition_(arithmetic == Arithmetic::simulated),
          embedding_(std::make_shared<DenseWeight>(source, "model.embed_tokens.weight")),
          final_norm_(source, "model.norm.weight") {
        const checkpoint::Transforms& transforms = source.transforms();
        if (const auto found = transforms.linear.find("model.embed_tokens"); found != transforms.linear.end())
            embedding_transforms_ = found->second.output;
        for (int64_t i = 0; i < config_.layers; i++) {
            report(progress, "load", i, config_.layers);
            const std::string name = "model.layers." + std::to_string(i) + ".";
            const auto linear = [&](const char* part) {
                return load_linear(context, source, name + part, arithmetic);
            };
            const auto attention = transforms.attention.find(name + "self_attn");
            layers_.push_back({name, DenseWeight(source, name + "input_layernorm.weight"),
                               DenseWeight(source, name + "post_attention_layernorm.weight"),
                               linear("self_attn.q_proj"), linear("self_attn.k_proj"),
                               linear("self_attn.v_proj"), linear("self_attn.o_proj"),
                               linear("mlp.gate_proj"), linear("mlp.up_proj"), linear("mlp.down_proj"),
                               attention == transforms.attention.end() ? checkpoint::AttentionTransforms{}
                                                                       : attention->second});
        }
        lm_head_ = config_.tie_word_embeddings ? load_linear(source, "lm_head", embedding_, arithmetic)
                                               : load_linear(context, source, "lm_head", arithmetic);
        report(progress, "load", config_.layers, config_.layers);
    }

    const ModelConfig& config() const override { return config_; }
    const std::filesystem::path& path() const override { return path_; }

    KvCache make_cache(int64_t capacity) const override {
        check_positions(config_, capacity, path_.string());
        return KvCache(config_.layers, config_.kv_heads * config_.head_dim, capacity);
    }

    void forward(const Context& context, KvCache& cache, std::span<const int32_t> tokens, int64_t wanted,
                 float* logits, const InputObserver& observer) const override {
        const int64_t T = int64_t(tokens.size()), hidden = config_.hidden_size;
        check(cache.length() + T <= cache.capacity(), ErrorKind::usage,
              "{} tokens after {} do not fit a cache of {} positions", T, cache.length(), cache.capacity());
        check(wanted >= 0 && wanted <= T, ErrorKind::usage, "logits of {} positions wanted, {} run", wanted,
              T);
        if (T == 0) return;
        extend_rope_table(cache.capacity());

        std::vector<float> residual(size_t(T * hidden));
        for (int64_t t = 0; t < T; t++) {
            const int32_t token = tokens[size_t(t)];
            check(token >= 0 && token < config_.vocab_size, ErrorKind::usage,
                  "token {}: ids from 0 to {} are possible", token, config_.vocab_size - 1);
            embedding_->row_to_float(token, residual.data() + t * hidden);
        }
        apply_transforms(context, embedding_transforms_, matrix(residual, T, hidden), by_definition_);
        std::vector<float> delta, normed(residual.size());
        for (int64_t i = 0; i < config_.layers; i++)
            run_layer(context, cache, i, T, residual, delta, normed, observer);
        cache.append(T);

        normalize(context, T, residual, delta, final_norm_, normed);
        if (observer) {
            LinearInput all = input_of(normed.data(), T, hidden);
            observer("lm_head", lm_head_->transformed(context, all).x, T, hidden);
        }
        if (wanted == 0) return;
        LinearInput last = input_of(normed.data() + (T - wanted) * hidden, wanted, hidden);
        lm_head_->apply(context, last, logits, config_.vocab_size);
    }

  private:
    static LinearInput input_of(const float* x, int64_t rows, int64_t k) {
        LinearInput input;
        input.x = x;
        input.rows = rows;
        input.k = k;
        return input;
    }

    // normed = rms_norm(residual + delta), the sum written back; delta is empty before the first layer.
    void normalize(const Context& context, int64_t T, std::vector<float>& residual, std::vector<float>& delta,
                   const DenseWeight& weight, std::vector<float>& normed) const {
        const int64_t hidden = config_.hidden_size;
        const Matrix sum = matrix(residual, T, hidden);
        rms_norm(context, {.x = delta.empty() ? constant(sum) : constant(matrix(delta, T, hidden)),
                           .residual = delta.empty() ? Matrix{} : sum,
                           .weight = weight.matrix(),
                           .epsilon = float(config_.rms_norm_eps),
                           .y = matrix(normed, T, hidden)});
    }

    void run_layer(const Context& context, KvCache& cache, int64_t index, int64_t T,
                   std::vector<float>& residual, std::vector<float>& delta, std::vector<float>& normed,
                   const InputObserver& observer) const {
        const Layer& layer = layers_[size_t(index)];
        const int64_t hidden = config_.hidden_size, first = cache.length();
        const int64_t q_width = config_.heads * config_.head_dim, kv_width = cache.width();
        // Each layer of a group may transform the input that they share in its own way.
        using Part = std::pair<const char*, const Linear*>;
        const auto input = [&](const std::vector<float>& x, int64_t k, std::initializer_list<Part> parts) {
            LinearInput shared = input_of(x.data(), T, k);
            for (const auto& [module, linear] : parts)
                if (observer) observer(layer.name + module, linear->transformed(context, shared).x, T, k);
            return shared;
        };

        normalize(context, T, residual, delta, layer.input_norm, normed);
        LinearInput attention_input = input(normed, hidden,
                                            {{"self_attn.q_proj", layer.q.get()},
                                             {"self_attn.k_proj", layer.k.get()},
                                             {"self_attn.v_proj", layer.v.get()}});
        std::vector<float> q(size_t(T * q_width)), attended(q.size());
        float* keys = cache.keys(index) + first * kv_width;
        layer.q->apply(context, attention_input, q.data(), q_width);
        layer.k->apply(context, attention_input, keys, kv_width);
        layer.v->apply(context, attention_input, cache.values(index) + first * kv_width, kv_width);
        rotate(context, matrix(q, T, q_width), config_.heads, first);
        rotate(context, {keys, DType::f32, T, kv_width, kv_width}, config_.kv_heads, first);
        // Blocks divide head_dim, so they lie inside a head; the cache holds transformed keys.
        apply_transforms(context, layer.transforms.q, matrix(q, T, q_width), by_definition_);
        apply_transforms(context, layer.transforms.k, {keys, DType::f32, T, kv_width, kv_width},
                         by_definition_);
        attention(context, {.q = constant(matrix(q, T, q_width)),
                            .keys = cache.keys(index),
                            .values = cache.values(index),
                            .cache_stride = kv_width,
                            .heads = config_.heads,
                            .kv_heads = config_.kv_heads,
                            .head_dim = config_.head_dim,
                            .first_position = first,
                            .o = matrix(attended, T, q_width)});
        LinearInput o_input = input(attended, q_width, {{"self_attn.o_proj", layer.o.get()}});
        delta.resize(size_t(T * hidden));
        layer.o->apply(context, o_input, delta.data(), hidden);

        normalize(context, T, residual, delta, layer.attention_norm, normed);
        const int64_t inner = config_.intermediate_size;
        LinearInput mlp_input =
            input(normed, hidden, {{"mlp.gate_proj", layer.gate.get()}, {"mlp.up_proj", layer.up.get()}});
        std::vector<float> gate(size_t(T * inner)), up(gate.size());
        layer.gate->apply(context, mlp_input, gate.data(), inner);
        layer.up->apply(context, mlp_input, up.data(), inner);
        silu_mul(context, {.gate = constant(matrix(gate, T, inner)),
                           .up = constant(matrix(up, T, inner)),
                           .y = matrix(gate, T, inner)});
        LinearInput down_input = input(gate, inner, {{"mlp.down_proj", layer.down.get()}});
        layer.down->apply(context, down_input, delta.data(), hidden);
    }

    void rotate(const Context& context, const Matrix& x, int64_t heads, int64_t first) const {
        rope(context, {.x = x,
                       .heads = heads,
                       .head_dim = config_.head_dim,
                       .first_position = first,
                       .cos = cos_.data(),
                       .sin = sin_.data()});
    }

    // The table is made for as many positions as have been asked for: a model's full context can be 131,072.
    void extend_rope_table(int64_t positions) const {
        const int64_t size = positions * config_.head_dim / 2;
        if (int64_t(cos_.size()) >= size) return;
        cos_.resize(size_t(size));
        sin_.resize(size_t(size));
        reference::rope_table(config_.rope_theta, config_.rope_scaling, config_.head_dim, positions,
                              cos_.data(), sin_.data());
    }

    const std::filesystem::path path_;
    const ModelConfig config_;
    const bool by_definition_;  // of transforms
    std::shared_ptr<const DenseWeight> embedding_;
    TransformList embedding_transforms_;
    DenseWeight final_norm_;
    std::vector<Layer> layers_;
    std::unique_ptr<Linear> lm_head_;
    mutable std::vector<float> cos_, sin_;
};

}  // namespace

std::unique_ptr<Decoder> load_llama(const Context& context, const Checkpoint& source, Arithmetic arithmetic,
                                    const Progress& progress) {
    return std::make_unique<Llama>(context, source, arithmetic, progress);
}

std::vector<std::vector<std::string>> llama_linear_groups(const ModelConfig& config) {
    std::vector<std::vector<std::string>> groups;
    for (int64_t i = 0; i < config.layers; i++) {
        const std::string name = "model.layers." + std::to_string(i) + ".";
        groups.push_back({name + "self_attn.q_proj", name + "self_attn.k_proj", name + "self_attn.v_proj"});
        groups.push_back({name + "self_attn.o_proj"});
        groups.push_back({name + "mlp.gate_proj", name + "mlp.up_proj"});
        groups.push_back({name + "mlp.down_proj"});
    }
    groups.push_back({"lm_head"});
    return groups;
}

}  // namespace halfbyte::model
