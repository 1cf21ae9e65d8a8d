// One layer, with R the residual stream [T, hidden]:
//   n = rms_norm(R);  q, k, v = n Wq, n Wk, n Wv;  rope(q), rope(k);  R += attention(q, K, V) Wo
//   n = rms_norm(R);  R += (silu(n Wgate) * (n Wup)) Wdown
// Everything is FP32 but the weights; the additions to R happen inside the norm that reads them next. The
// products of one line are one where their input scales and transforms allow it (LinearGroup). A
// checkpoint's transforms stand around each product, behind the embedding, and on q and k behind RoPE.
#include "model/llama.h"

#include <algorithm>

#include "core/aligned_memory.h"
#include "core/check.h"
#include "model/weights.h"
#include "reference/rope_scaling.h"

namespace halfbyte::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ModelConfig;

struct Layer {
    DenseWeight input_norm, attention_norm;
    LinearGroup qkv, o, gate_up, down;
    checkpoint::AttentionTransforms transforms;
};

Matrix matrix(float* data, int64_t rows, int64_t cols, int64_t stride) {
    return {data, DType::f32, rows, cols, stride};
}
Matrix matrix(float* data, int64_t rows, int64_t cols) {
    return matrix(data, rows, cols, cols);
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
            const auto linears = [&](std::vector<std::string> parts) {
                for (std::string& part : parts) part.insert(0, name);
                return LinearGroup(context, source, parts, arithmetic, &packed_);
            };
            const auto attention = transforms.attention.find(name + "self_attn");
            layers_.push_back({DenseWeight(source, name + "input_layernorm.weight"),
                               DenseWeight(source, name + "post_attention_layernorm.weight"),
                               linears({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}),
                               linears({"self_attn.o_proj"}), linears({"mlp.gate_proj", "mlp.up_proj"}),
                               linears({"mlp.down_proj"}),
                               attention == transforms.attention.end() ? checkpoint::AttentionTransforms{}
                                                                       : attention->second});
        }
        lm_head_.emplace(config_.tie_word_embeddings
                             ? LinearGroup(source, "lm_head", embedding_, arithmetic)
                             : LinearGroup(context, source, {"lm_head"}, arithmetic, &packed_));
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
        extend_rope_table(cache.length() + T, cache.capacity());

        Workspace& workspace = cache.workspace();
        const Workspace::Scope scope(workspace);
        Stream stream = {T, workspace.take<float>(T * hidden),
                         workspace.take<float>(T * Workspace::row_stride(hidden)), false};
        for (int64_t t = 0; t < T; t++) {
            const int32_t token = tokens[size_t(t)];
            check(token >= 0 && token < config_.vocab_size, ErrorKind::usage,
                  "token {}: ids from 0 to {} are possible", token, config_.vocab_size - 1);
            embedding_->row_to_float(token, stream.residual + t * hidden);
        }
        apply_transforms(context, embedding_transforms_, matrix(stream.residual, T, hidden), by_definition_);
        for (int64_t i = 0; i < config_.layers; i++) {
            // Behind the last layer's keys and values only the rows whose logits are wanted go on.
            const bool last = i + 1 == config_.layers;
            run_layer(context, cache, i, stream, last && !observer ? wanted : T, observer);
        }
        cache.append(T);
        if (stream.T == 0) return;

        LinearInput input = normalized(context, workspace, stream, final_norm_, *lm_head_, observer);
        if (wanted == 0) return;
        if (stream.T == wanted) return lm_head_->apply(context, input, logits, config_.vocab_size);
        LinearInput last(workspace, input.x + (T - wanted) * hidden, wanted, hidden);
        lm_head_->apply(context, last, logits, config_.vocab_size);
    }

  private:
    // The residual stream [T, hidden], and the output of the last block, rows row_stride(hidden) apart, which
    // the next norm adds to it.
    struct Stream {
        int64_t T;
        float *residual, *delta;
        bool has_delta;  // not before the first block
    };

    // rms_norm(residual + delta), the sum written back, as the input of `reader`.
    LinearInput normalized(const Context& context, Workspace& workspace, const Stream& stream,
                           const DenseWeight& weight, const LinearGroup& reader,
                           const InputObserver& observer) const {
        const int64_t T = stream.T, hidden = config_.hidden_size;
        const Matrix sum = matrix(stream.residual, T, hidden);
        const ConstMatrix x =
            constant(stream.has_delta ? matrix(stream.delta, T, hidden, Workspace::row_stride(hidden)) : sum);
        const Matrix residual = stream.has_delta ? sum : Matrix{};
        const auto epsilon = float(config_.rms_norm_eps);
        if (const auto G = reader.encode_scale(); G && !observer) {
            LinearInput input(workspace, nullptr, T, hidden);
            rms_norm_quantize(context, {.x = x,
                                        .residual = residual,
                                        .weight = weight.matrix(),
                                        .epsilon = epsilon,
                                        .quantize = input.add_quantized(*G)});
            return input;
        }
        auto* const y = workspace.take<float>(T * hidden);
        rms_norm(context, {.x = x,
                           .residual = residual,
                           .weight = weight.matrix(),
                           .epsilon = epsilon,
                           .y = matrix(y, T, hidden)});
        LinearInput input(workspace, y, T, hidden);
        if (observer) reader.show_input(context, input, observer);
        return input;
    }

    // silu(gate) * up as the input of `reader`.
    LinearInput multiplied(const Context& context, Workspace& workspace, const Matrix& gate, const Matrix& up,
                           const LinearGroup& reader, const InputObserver& observer) const {
        const int64_t T = gate.rows, inner = gate.cols;
        if (const auto G = reader.encode_scale(); G && !observer) {
            LinearInput input(workspace, nullptr, T, inner);
            silu_mul_quantize(
                context, {.gate = constant(gate), .up = constant(up), .quantize = input.add_quantized(*G)});
            return input;
        }
        auto* const y = workspace.take<float>(T * inner);
        silu_mul(context, {.gate = constant(gate), .up = constant(up), .y = matrix(y, T, inner)});
        LinearInput input(workspace, y, T, inner);
        if (observer) reader.show_input(context, input, observer);
        return input;
    }

    // Keys and values of all rows; the results of the last `kept` ones, which the stream then is.
    void run_layer(const Context& context, KvCache& cache, int64_t index, Stream& stream, int64_t kept,
                   const InputObserver& observer) const {
        const Layer& layer = layers_[size_t(index)];
        attend(context, cache, index, layer, stream, kept, observer);
        stream.residual += (stream.T - kept) * config_.hidden_size;
        stream.T = kept;
        stream.has_delta = true;
        if (kept == 0) return;

        Workspace& workspace = cache.workspace();
        const Workspace::Scope scope(workspace);
        const int64_t T = stream.T, inner = config_.intermediate_size;
        LinearInput input =
            normalized(context, workspace, stream, layer.attention_norm, layer.gate_up, observer);
        const int64_t stride = Workspace::row_stride(2 * inner);
        auto* const gate_up = workspace.take<float>(T * stride);
        layer.gate_up.apply(context, input, gate_up, stride);
        LinearInput product = multiplied(context, workspace, matrix(gate_up, T, inner, stride),
                                         matrix(gate_up + inner, T, inner, stride), layer.down, observer);
        layer.down.apply(context, product, stream.delta, Workspace::row_stride(config_.hidden_size));
    }

    // delta [kept, hidden] = attention(rms_norm(residual + delta)) Wo
    void attend(const Context& context, KvCache& cache, int64_t index, const Layer& layer,
                const Stream& stream, int64_t kept, const InputObserver& observer) const {
        Workspace& workspace = cache.workspace();
        const Workspace::Scope scope(workspace);
        const int64_t T = stream.T, first = cache.length();
        const int64_t q_width = config_.heads * config_.head_dim, kv_width = cache.width();
        LinearInput input = normalized(context, workspace, stream, layer.input_norm, layer.qkv, observer);
        // A row holds q, k and v side by side; the heads of q and k are rotated as one.
        const int64_t width = Workspace::row_stride(q_width + 2 * kv_width);
        auto* const q = workspace.take<float>(T * width);
        float *const k = q + q_width, *const v = k + kv_width;
        layer.qkv.apply(context, input, q, width);
        rope(context, {.x = matrix(q, T, q_width + kv_width, width),
                       .heads = config_.heads + config_.kv_heads,
                       .head_dim = config_.head_dim,
                       .first_position = first,
                       .cos = cos_.data(),
                       .sin = sin_.data()});
        // Blocks divide head_dim, so they lie inside a head; the cache holds transformed keys.
        apply_transforms(context, layer.transforms.q, matrix(q, T, q_width, width), by_definition_);
        apply_transforms(context, layer.transforms.k, matrix(k, T, kv_width, width), by_definition_);
        for (int64_t t = 0; t < T; t++) {
            std::copy_n(k + t * width, kv_width, cache.keys(index) + (first + t) * kv_width);
            std::copy_n(v + t * width, kv_width, cache.values(index) + (first + t) * kv_width);
        }
        if (kept == 0) return;
        auto* const attended = workspace.take<float>(kept * q_width);
        attention(context, {.q = constant(matrix(q + (T - kept) * width, kept, q_width, width)),
                            .keys = cache.keys(index),
                            .values = cache.values(index),
                            .cache_stride = kv_width,
                            .heads = config_.heads,
                            .kv_heads = config_.kv_heads,
                            .head_dim = config_.head_dim,
                            .first_position = first + T - kept,
                            .o = matrix(attended, kept, q_width)});
        LinearInput o_input(workspace, attended, kept, q_width);
        if (observer) layer.o.show_input(context, o_input, observer);
        layer.o.apply(context, o_input, stream.delta, Workspace::row_stride(config_.hidden_size));
    }

    // The table is made for the positions that have been run, and some ahead: a model's full context can be
    // 131,072.
    void extend_rope_table(int64_t needed, int64_t capacity) const {
        const int64_t half = config_.head_dim / 2, made = int64_t(cos_.size()) / half;
        if (made >= needed) return;
        const int64_t positions = std::max(needed, std::min(capacity, std::max<int64_t>(512, 2 * made)));
        cos_.resize(size_t(positions * half));
        sin_.resize(size_t(positions * half));
        reference::rope_table(config_.rope_theta, config_.rope_scaling, config_.head_dim, positions,
                              cos_.data(), sin_.data());
    }

    const std::filesystem::path path_;
    const ModelConfig config_;
    const bool by_definition_;  // of transforms
    std::shared_ptr<const DenseWeight> embedding_;
    TransformList embedding_transforms_;
    DenseWeight final_norm_;
    HugePages packed_;  // weights of the layers
    std::vector<Layer> layers_;
    std::optional<LinearGroup> lm_head_;
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
