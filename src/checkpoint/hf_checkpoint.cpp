// A Hugging Face folder: config.json, safetensors, tokenizer; dense, or quantised in the dialects of
// compressed-tensors and FP-Quant.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <set>

#include "checkpoint/compressed_tensors.h"
#include "checkpoint/fp_quant.h"
#include "checkpoint/model_config.h"
#include "checkpoint/open.h"
#include "checkpoint/safetensors.h"
#include "core/check.h"

namespace halfbyte::checkpoint {
namespace fs = std::filesystem;
namespace {

fs::path config_file(const fs::path& folder) {
    const fs::path file = folder / "config.json";
    if (is_there(file)) return file;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
        check(entry.path().extension() != ".gguf", ErrorKind::failure,
              "{}: has no config.json; to read the GGUF give {}", folder.string(), entry.path().string());
    }
    fail(ErrorKind::failure, "{}: has no config.json; is this a Hugging Face model folder?", folder.string());
}

Json json_if_there(const fs::path& file) {
    return is_there(file) ? read_json(file) : Json(nullptr);
}

std::string text_if_there(const fs::path& file) {
    return is_there(file) ? read_text(file) : std::string();
}

CompanionFiles read_companions(const fs::path& folder) {
    CompanionFiles files{.generation_config = text_if_there(folder / "generation_config.json"),
                         .tokenizer = text_if_there(folder / "tokenizer.json"),
                         .tokenizer_config = text_if_there(folder / "tokenizer_config.json"),
                         .chat_template = text_if_there(folder / "chat_template.jinja"),
                         .tokenizer_problem = {}};
    if (files.tokenizer.empty()) {
        const bool sentencepiece = is_there(folder / "tokenizer.model");
        files.tokenizer_problem =
            folder.string() +
            (sentencepiece ? ": has tokenizer.model (SentencePiece, not supported) but no tokenizer.json"
                           : ": has no tokenizer.json, which text needs");
    }
    if (!files.chat_template.empty() || files.tokenizer_config.empty()) return files;
    const Json config = parse_json(files.tokenizer_config, folder / "tokenizer_config.json");
    const auto found = config.is_object() ? config.find("chat_template") : config.end();
    if (!config.is_object() || found == config.end()) return files;
    if (found->is_string()) files.chat_template = found->get<std::string>();
    if (!found->is_array()) return files;
    for (const Json& entry : *found) {  // several by name: the one called "default"
        if (entry.is_object() && entry.contains("name") && entry["name"] == "default" &&
            entry.contains("template") && entry["template"].is_string()) {
            files.chat_template = entry["template"].get<std::string>();
        }
    }
    return files;
}

// Dialects that are known and not read, by the tensors they leave.
void refuse_other_dialects(const fs::path& folder, const std::map<std::string, TensorView>& tensors) {
    check(!is_there(folder / "hf_quant_config.json"), ErrorKind::unsupported,
          "{}: hf_quant_config.json says ModelOpt, a dialect that is not supported yet", folder.string());
    for (const auto& [name, tensor] : tensors) {
        check(!name.ends_with(".weight_scale_2"), ErrorKind::unsupported,
              "{}: tensor {} is of the ModelOpt dialect, which is not supported yet",
              tensor.file->path().string(), quote(name));
        check(!name.ends_with(".weight_packed"), ErrorKind::malformed,
              "{}: tensor {} is quantised, but config.json has no quantization_config; was it lost when the "
              "model was copied?",
              tensor.file->path().string(), quote(name));
    }
}

class HfCheckpoint final : public Checkpoint {
  public:
    explicit HfCheckpoint(const fs::path& folder)
        : folder_(folder), config_file_(config_file(folder)), json_(read_json(config_file_)) {
        if (!json_.is_object())
            fail(ErrorKind::malformed, "{}: is {}; a JSON object is needed", config_file_.string(),
                 shown(json_));
        check(says_nothing(find(json_, "transform_config")), ErrorKind::malformed,
              "{}: transform_config stands at the top level, where nothing reads it; it belongs in "
              "quantization_config",
              config_file_.string());
        std::optional<CompressedTensorsConfig> quantization;
        std::optional<FpQuantConfig> fp_quant;
        for (const char* key : {"quantization_config", "compression_config"}) {
            if (const auto found = json_.find(key);
                found != json_.end() && !found->is_null() && !quantization && !fp_quant) {
                const Json* method = found->is_object() ? find(*found, "quant_method") : nullptr;
                if (method != nullptr && *method == "fp_quant")
                    fp_quant.emplace(*found, config_file_);
                else
                    quantization.emplace(*found, config_file_);
            }
        }
        config_ = model_config(json_, json_if_there(folder / "generation_config.json"), config_file_);
        const bool known = is_known_architecture(config_.architecture);

        files_.emplace(folder);
        auto tensors = files_->tensors();
        warnings_ = files_->warnings();
        std::map<std::string, TensorView> matrices;
        if (quantization) {
            matrices = quantization->transforms().take_tensors(tensors);
            fp8_ = take_fp8_modules(*quantization, tensors);
            nvfp4_ = take_quantized_modules(*quantization, known, tensors);
        } else if (fp_quant) {
            dialect_ = "FP-Quant";
            const auto more = fp_quant->warnings();
            warnings_.insert(warnings_.end(), more.begin(), more.end());
            nvfp4_ = fp_quant->take_modules(known, tensors, transforms_);
        } else {
            refuse_other_dialects(folder, tensors);
        }
        for (const auto& [name, tensor] : tensors) {
            // Two that transformers ignores as well: a buffer of old versions, and a copy of tied embeddings.
            if (known && name.ends_with(".rotary_emb.inv_freq")) continue;
            if (known && config_.tie_word_embeddings && name == "lm_head.weight") continue;
            dense_.emplace(name, DenseTensor{tensor.dtype, tensor.shape});
        }
        check_tensors(config_, dense_, nvfp4_, fp8_, folder,
                      [this](const std::string& name) { return label(name); });
        if (quantization)
            transforms_ = quantization->transforms().read(transform_modules(), matrices, warnings_);
        companions_ = read_companions(folder);
        json_ = nullptr;
    }

    const fs::path& path() const override { return folder_; }
    const ModelConfig& config() const override { return config_; }
    const CompanionFiles& companions() const override { return companions_; }
    const std::map<std::string, DenseTensor>& dense() const override { return dense_; }
    const std::map<std::string, NvFp4Linear>& nvfp4() const override { return nvfp4_; }
    const std::map<std::string, Fp8Linear>& fp8() const override { return fp8_; }
    const Transforms& transforms() const override { return transforms_; }

    std::optional<Scheme> scheme() const override {
        if (nvfp4_.empty() && fp8_.empty()) return {};
        for (const auto& [name, linear] : nvfp4_) {
            if (linear.input_scale) return Scheme::nvfp4;
        }
        return nvfp4_.empty() ? Scheme::fp8a16 : Scheme::nvfp4a16;
    }

    std::string description() const override {
        std::set<Scheme> schemes;
        for (const auto& [name, linear] : nvfp4_)
            schemes.insert(linear.input_scale ? Scheme::nvfp4 : Scheme::nvfp4a16);
        if (!fp8_.empty()) schemes.insert(Scheme::fp8a16);
        if (schemes.empty()) return "Hugging Face folder";
        std::vector<std::string> texts;
        for (const Scheme scheme : schemes)
            texts.push_back(fmt::format("{} ({})", halfbyte::checkpoint::name_of(scheme), bits_of(scheme)));
        return fmt::format("{} {}", dialect_, fmt::join(texts, " and "));
    }

    const uint8_t* read(const std::string& name, int64_t first_row, int64_t rows,
                        std::vector<uint8_t>& buffer) const override {
        check(dense_.contains(name), ErrorKind::usage, "{}: there is no dense tensor {}", folder_.string(),
              quote(name));
        const TensorView& tensor = files_->tensors().at(name);
        const int64_t all_rows = tensor.shape.size() < 2 ? 1 : tensor.shape[0];
        check(first_row >= 0 && rows >= 0 && rows <= all_rows - first_row, ErrorKind::usage,
              "{}: rows {} to {} of {}", label(name), first_row, first_row + rows, all_rows);
        if (rows == 0) return buffer.data();
        const int64_t row_bytes = int64_t(tensor.bytes.size()) / all_rows;
        const auto bytes = tensor.bytes.subspan(first_row * row_bytes, rows * row_bytes);
        if (reinterpret_cast<uintptr_t>(bytes.data()) % size_of(tensor.dtype) == 0) return bytes.data();
        buffer.assign(bytes.begin(), bytes.end());  // the format promises no alignment
        return buffer.data();
    }

    void release(const std::string& name) const override {
        const auto& tensors = files_->tensors();
        for (const char* suffix : {"", ".weight", ".weight_packed", ".weight_scale", ".qweight", ".scales"}) {
            if (const auto found = tensors.find(name + suffix); found != tensors.end()) {
                found->second.file->release(found->second.bytes);
            }
        }
    }

    void check_unchanged() const override {
        for (const MappedFile* file : mapped_files()) file->check_unchanged();
    }

    std::string stored_format(const std::string& name) const override {
        return std::string(halfbyte::name_of(dense_.at(name).dtype));
    }

    std::vector<fs::path> weight_files() const override { return files_->files(); }
    std::vector<std::string> warnings() const override { return warnings_; }
    uint64_t file_bytes() const override {
        uint64_t bytes = 0;
        for (const MappedFile* file : mapped_files()) bytes += file->bytes().size();
        return bytes;
    }

    uint64_t weight_bytes() const override {
        uint64_t bytes = 0;
        for (const auto& [name, tensor] : files_->tensors()) bytes += tensor.bytes.size();
        return bytes;
    }

  private:
    std::map<std::string, TransformModule> transform_modules() const {
        using Kind = TransformModule::Kind;
        std::map<std::string, TransformModule> modules;
        for (const auto& [name, linear] : nvfp4_) modules[name] = {Kind::linear, linear.k, linear.n};
        for (const auto& [name, linear] : fp8_) modules[name] = {Kind::linear, linear.k, linear.n};
        for (const auto& [name, tensor] : dense_) {
            if (!name.ends_with(".weight") || tensor.shape.size() != 2) continue;
            const std::string module = name.substr(0, name.size() - std::strlen(".weight"));
            if (class_of_module(module) == "Embedding")
                modules[module] = {Kind::embedding, tensor.shape[0], tensor.shape[1]};
            else
                modules[module] = {Kind::linear, tensor.shape[1], tensor.shape[0]};
        }
        if (config_.tie_word_embeddings)
            modules.try_emplace("lm_head",
                                TransformModule{Kind::linear, config_.hidden_size, config_.vocab_size});
        std::map<std::string, TransformModule> attentions;
        for (const auto& [name, module] : modules) {
            if (!name.ends_with(".q_proj")) continue;
            const int64_t width = config_.head_dim > 0 ? config_.head_dim : module.out;
            attentions[name.substr(0, name.size() - std::strlen(".q_proj"))] = {Kind::attention, width,
                                                                                width};
        }
        modules.merge(attentions);
        return modules;
    }
    std::set<const MappedFile*> mapped_files() const {
        std::set<const MappedFile*> files;
        for (const auto& [name, tensor] : files_->tensors()) files.insert(tensor.file);
        return files;
    }
    std::string label(const std::string& name) const {
        const auto& tensors = files_->tensors();
        auto found = tensors.find(name);
        if (found == tensors.end() && name.ends_with(".weight")) {
            found = tensors.find(name + "_packed");
            if (found == tensors.end())
                found = tensors.find(name.substr(0, name.size() - std::strlen("weight")) + "qweight");
        }
        const std::string file =
            found == tensors.end() ? folder_.string() : found->second.file->path().string();
        return fmt::format("{}: tensor {}", file, quote(found == tensors.end() ? name : found->first));
    }

    fs::path folder_, config_file_;
    Json json_;
    std::optional<SafetensorsFolder> files_;
    ModelConfig config_;
    CompanionFiles companions_;
    std::map<std::string, DenseTensor> dense_;
    std::map<std::string, NvFp4Linear> nvfp4_;
    std::map<std::string, Fp8Linear> fp8_;
    Transforms transforms_;
    std::string dialect_ = "compressed-tensors";
    std::vector<std::string> warnings_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_hf_folder(const fs::path& folder) {
    return std::make_unique<HfCheckpoint>(folder);
}

}  // namespace halfbyte::checkpoint
