// config.json, with generation_config.json, a chat template and the names of modules for quantization_config.
#include "checkpoint/compressed_tensors.h"
#include "checkpoint/fp_quant.h"
#include "checkpoint/model_config.h"
#include "fuzz/model_files.h"

using namespace halfbyte;
using checkpoint::Json;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto files = fuzz::files_of(fuzz::text_of(data, size));
    fuzz::use_chat_template(fuzz::content_of(files, "chat_template.jinja"));
    Json config, generation;
    const auto parse = [](std::string_view text, const char* name, Json& json) {
        return fuzz::accepts([&] { json = checkpoint::parse_json(text, name); });
    };
    parse(fuzz::content_of(files, "generation_config.json"), "generation_config.json", generation);
    if (!parse(files[0].content, "config.json", config) || !config.is_object()) return 0;
    fuzz::accepts([&] {
        const auto read = checkpoint::model_config(config, generation, "config.json");
        checkpoint::check_tensors(read, {}, {}, {}, "folder", [](const std::string& name) { return name; });
    });
    const auto quantization = config.find("quantization_config");
    if (quantization == config.end()) return 0;
    fuzz::accepts([&] { checkpoint::FpQuantConfig(*quantization, "config.json"); });
    fuzz::accepts([&] {
        const checkpoint::CompressedTensorsConfig read(*quantization, "config.json");
        std::string_view modules = fuzz::content_of(files, "modules");
        // Transforms without a tensor.
        using Kind = checkpoint::TransformModule::Kind;
        std::vector<std::string> warnings;
        fuzz::accepts([&] {
            read.transforms().read(
                {{"lm_head", {Kind::linear, 16, 4}},
                 {"model.embed_tokens", {Kind::embedding, 4, 16}},
                 {"model.layers.0.self_attn", {Kind::attention, 8, 8}},
                 {std::string(modules.substr(0, modules.find('\n'))), {Kind::linear, 16, 48}}},
                {}, warnings);
        });
        for (const std::string_view module :
             {"lm_head", "model.embed_tokens", "model.layers.0.self_attn.q_proj"})
            read.verdict_on(module);
        for (int i = 0; i < 4 && !modules.empty(); ++i) {
            const std::string_view module = modules.substr(0, modules.find('\n'));
            read.verdict_on(module);
            modules.remove_prefix(std::min(module.size() + 1, modules.size()));
        }
    });
    return 0;
}
