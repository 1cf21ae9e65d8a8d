// A one-layer Llama of 32 wide in memory, dense or quantised, to be changed and written.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/compressed_tensors.h"
#include "checkpoint/files.h"
#include "checkpoint/json.h"
#include "checkpoint/safetensors.h"

namespace halfbyte::test {

using checkpoint::Json;
using checkpoint::Scheme;

struct TinyModel {
    struct Tensor {
        DType dtype;
        std::vector<int64_t> shape;
        std::string bytes;
    };
    static constexpr int64_t vocab = 24, hidden = 32, wide = 48, heads = 4, kv_heads = 2, head_dim = 8;

    Json config = {{"architectures", {"LlamaForCausalLM"}},
                   {"bos_token_id", 1},
                   {"eos_token_id", 2},
                   {"hidden_act", "silu"},
                   {"hidden_size", hidden},
                   {"intermediate_size", wide},
                   {"max_position_embeddings", 64},
                   {"num_attention_heads", heads},
                   {"num_hidden_layers", 1},
                   {"num_key_value_heads", kv_heads},
                   {"rms_norm_eps", 1e-5},
                   {"rope_theta", 10000.0},
                   {"tie_word_embeddings", true},
                   {"vocab_size", vocab}};
    std::map<std::string, Tensor> tensors;

    static const std::vector<std::pair<std::string, std::vector<int64_t>>>& linears() {
        static const std::vector<std::pair<std::string, std::vector<int64_t>>> all = {
            {"self_attn.q_proj", {32, 32}}, {"self_attn.k_proj", {16, 32}}, {"self_attn.v_proj", {16, 32}},
            {"self_attn.o_proj", {32, 32}}, {"mlp.gate_proj", {48, 32}},    {"mlp.up_proj", {48, 32}},
            {"mlp.down_proj", {32, 48}}};
        return all;
    }

    // Bytes that differ from place to place; as BF16 they are finite.
    void add(const std::string& name, DType dtype, std::vector<int64_t> shape) {
        int64_t count = int64_t(size_of(dtype));
        for (const int64_t dimension : shape) count *= dimension;
        std::string bytes(count, '\0');
        for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = char((i * 7 + name.size()) % 64);
        tensors[name] = {dtype, std::move(shape), std::move(bytes)};
    }

    static TinyModel dense() {
        TinyModel model;
        model.add("model.embed_tokens.weight", DType::bf16, {vocab, hidden});
        model.add("model.norm.weight", DType::bf16, {hidden});
        model.add("model.layers.0.input_layernorm.weight", DType::bf16, {hidden});
        model.add("model.layers.0.post_attention_layernorm.weight", DType::bf16, {hidden});
        for (const auto& [name, shape] : linears())
            model.add("model.layers.0." + name + ".weight", DType::bf16, shape);
        return model;
    }

    static TinyModel quantised(Scheme scheme) {
        TinyModel model = dense();
        for (const auto& [name, shape] : linears()) {
            const std::string module = "model.layers.0." + name;
            model.tensors.erase(module + ".weight");
            model.add(module + ".weight_packed", DType::u8, {shape[0], shape[1] / 2});
            model.add(module + ".weight_scale", DType::f8_e4m3, {shape[0], shape[1] / 16});
            model.tensors[module + ".weight_global_scale"] = {DType::f32, {1}, bytes_of(936.0f)};
            if (scheme == Scheme::nvfp4)
                model.tensors[module + ".input_global_scale"] = {DType::f32, {1}, bytes_of(194.0f)};
        }
        model.config["quantization_config"] = checkpoint::quantization_config(scheme, {"lm_head"});
        return model;
    }

    void write(const std::filesystem::path& folder) const {
        write_file(folder / "config.json", config.dump(2));
        std::vector<checkpoint::TensorDeclaration> declarations;
        for (const auto& [name, tensor] : tensors) declarations.push_back({name, tensor.dtype, tensor.shape});
        checkpoint::SafetensorsWriter writer(folder / "model.safetensors", declarations, {{"format", "pt"}});
        for (const auto& [name, tensor] : tensors) {
            writer.write(name, {reinterpret_cast<const uint8_t*>(tensor.bytes.data()), tensor.bytes.size()});
        }
        writer.finish();
    }
};

}  // namespace halfbyte::test
