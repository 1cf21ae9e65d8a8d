// A model's files, whatever their form: a Hugging Face folder (dense, or NVFP4 and FP8 of compressed-tensors,
// or NVFP4 of FP-Quant) or a .gguf. Tensors have Hugging Face names
// ("model.layers.0.self_attn.q_proj.weight"). Opening checks every tensor against the config.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/json.h"
#include "core/mapped_file.h"
#include "halfbyte/dtype.h"
#include "halfbyte/nvfp4.h"
#include "reference/rope_scaling.h"
#include "transform/transform.h"

namespace halfbyte::checkpoint {

// What config.json or the GGUF metadata say, checked for plausible ranges. Unknown architectures are kept by
// name: the model decides what it runs.
struct ModelConfig {
    std::string architecture;  // "LlamaForCausalLM"
    int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, layers = 0;
    int64_t heads = 0, kv_heads = 0, head_dim = 0, max_positions = 0;
    double rope_theta = 0, rms_norm_eps = 0;
    reference::RopeScaling rope_scaling;
    bool tie_word_embeddings = false;
    std::vector<int64_t> eos_ids;  // of generation_config.json, else of config.json
    std::optional<int64_t> bos_id;
    // config.json as it is or as made from the GGUF, without quantization_config. It cannot say divisors of
    // the RoPE frequencies, which a GGUF can hold.
    Json json;
};

// The texts of the other files of a Hugging Face folder; empty when absent.
struct CompanionFiles {
    std::string generation_config, tokenizer, tokenizer_config, chat_template;
    std::string tokenizer_problem;  // why `tokenizer` is empty, for the message of what needs one
};

enum class Scheme { nvfp4, nvfp4a16, fp8a16 };  // W4A4, W4A16, W8A16
std::string_view name_of(Scheme scheme);        // "NVFP4", "NVFP4A16", "FP8A16"
std::string_view bits_of(Scheme scheme);        // "W4A4", "W4A16", "W8A16"

// A transform as a file has it: scheme "R4", type "hadamard".
struct NamedTransform {
    std::string scheme, type;
    bool inverse = false;
    double orthogonality_error = 0;
    Transform transform;
};

struct DenseTensor {
    DType dtype = DType::bf16;  // BF16, FP16 or FP32
    std::vector<int64_t> shape;

    int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }  // a vector is one
    int64_t elements() const {
        int64_t count = 1;
        for (const int64_t size : shape) count *= size;
        return count;
    }
};

// One quantised linear layer: the stored words, in the mapped file.
struct NvFp4Linear {
    int64_t n = 0, k = 0;
    const uint8_t* codes = nullptr;         // [n, k/2]
    const uint8_t* block_scales = nullptr;  // [n, k/16], linear
    EncodeScale weight_scale{1.0f};
    std::optional<EncodeScale> input_scale;  // absent for W4A16
};

// One linear layer of E4M3 weights with a scale for each row; activations stay unquantised.
struct Fp8Linear {
    int64_t n = 0, k = 0;
    const uint8_t* weight = nullptr;  // [n, k] E4M3, in the mapped file; no NaN
    std::vector<float> scale;         // [n], finite and positive: what a weight of 1 stands for
};

// The transforms of one linear layer that are left to run time, each list in the order in which they are
// applied: the layer is y = output(input(x) W^T + b). Layers that use the same matrix share one object.
struct LinearTransforms {
    std::vector<std::shared_ptr<const NamedTransform>> input, output;
};
// The same of one attention: of every head of q and of k behind RoPE, before they meet.
struct AttentionTransforms {
    std::vector<std::shared_ptr<const NamedTransform>> q, k;
};

struct Transforms {
    std::map<std::string, LinearTransforms> linear;        // by module; "model.embed_tokens" has output alone
    std::map<std::string, AttentionTransforms> attention;  // by module: "model.layers.0.self_attn"
    std::vector<std::string>
        folded;  // what was folded into the weights, one line a scheme and location, for people
};

class Checkpoint {
  public:
    virtual ~Checkpoint() = default;

    virtual const std::filesystem::path& path() const = 0;
    // "Hugging Face folder", "compressed-tensors NVFP4 (W4A4)", "GGUF"; every scheme that a layer has, as in
    // "compressed-tensors NVFP4 (W4A4) and NVFP4A16 (W4A16)"
    virtual std::string description() const = 0;
    virtual const ModelConfig& config() const = 0;
    virtual const CompanionFiles& companions() const = 0;
    // None for dense weights; of several the first of NVFP4, NVFP4A16, FP8A16.
    virtual std::optional<Scheme> scheme() const = 0;

    // Dense tensors by name. GGUF block types count as BF16.
    virtual const std::map<std::string, DenseTensor>& dense() const = 0;
    // Quantised modules by name ("model.layers.0.self_attn.q_proj"); empty for dense weights.
    virtual const std::map<std::string, NvFp4Linear>& nvfp4() const = 0;
    // The same of FP8 weights; of compressed-tensors files alone.
    virtual const std::map<std::string, Fp8Linear>& fp8() const;

    // What has to be done at run time besides; empty for most files.
    virtual const Transforms& transforms() const = 0;

    // Rows [first_row, first_row + rows) of a dense tensor (a vector is one row), in its dtype: the address
    // in the mapped file where the bytes lie there as they are, else `buffer`, which is resized and filled.
    virtual const uint8_t* read(const std::string& name, int64_t first_row, int64_t rows,
                                std::vector<uint8_t>& buffer) const = 0;
    // Gives the mapped pages of a dense tensor or of a quantised module back to the kernel.
    virtual void release(const std::string& name) const = 0;

    // Error (failure) if a weight file was cut or written to since it was opened: to ask before a result is
    // given out.
    virtual void check_unchanged() const = 0;

    // How a dense tensor is stored: "BF16", "F32", "Q4_1".
    virtual std::string stored_format(const std::string& name) const = 0;
    virtual std::vector<std::filesystem::path> weight_files() const = 0;
    virtual uint64_t file_bytes() const = 0;    // of all weight files
    virtual uint64_t weight_bytes() const = 0;  // of the tensors in them
    // What is wrong in the files and changes nothing: whole sentences.
    virtual std::vector<std::string> warnings() const { return {}; }
};

// A folder or a file ending in .gguf. Errors: failure (not there), malformed, unsupported (dialect, GGUF
// type, tokenizer, a kind of transform).
std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& path);

}  // namespace halfbyte::checkpoint
