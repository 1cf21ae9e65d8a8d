#include "quantizer/folder_readme.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "halfbyte/version.h"
#include "quantizer/rotated_checkpoint.h"

namespace halfbyte::quantizer {

std::string folder_readme(const checkpoint::Checkpoint& source, const QuantizeReport& report,
                          const std::optional<Calibration>& calibration, const QuantizeOptions& options) {
    const bool w4a4 = options.scheme == checkpoint::Scheme::nvfp4;
    std::set<std::string> stored;  // types that are not kept as they are
    for (const auto& [name, tensor] : source.dense())
        if (const std::string format = source.stored_format(name); format.starts_with('Q'))
            stored.insert(format);
    const std::string dequantised =
        stored.empty() ? "" : fmt::format(", weights dequantised from {}", fmt::join(stored, " and "));
    const auto path = std::filesystem::absolute(source.path() / "").lexically_normal().parent_path();
    std::string text = fmt::format(
        "# {0} in NVFP4\n\n"
        "Made by halfbyte {1} from {0} ({2}{3}).\n\n"
        "* Scheme: {4} ({5}), compressed-tensors `nvfp4-pack-quantized`: E2M1 codes, an E4M3 scale per 16 "
        "weights, an FP32\n"
        "  scale per tensor{6}.\n"
        "* Weights: rounded to nearest with amax scales; {7} linear layers, {8:.2f} bits per weight in them, "
        "{9:.2f} in the\n"
        "  whole file.\n",
        path.filename().string(), version, source.description(), dequantised, name_of(options.scheme),
        w4a4 ? "W4A4" : "W4A16", options.separate_scales ? "" : "; q/k/v and gate/up share one",
        report.layers.size(), report.quantized_bits_per_weight, report.bits_per_weight);
    if (w4a4)
        text += fmt::format("* Input scales: static, from the largest activations over {} tokens of {}.\n",
                            calibration->tokens,
                            options.calibration_text.empty() ? "a text" : options.calibration_text);
    if (options.rotated) {
        const RotationPlan& plan = options.rotated->plan();
        text += "* Transforms:\n";
        for (const std::string& line : plan.lines) text += "  * " + line + ".\n";
        if (!plan.tensors.empty())
            text +=
                "  * What is done at run time stands in config.json (`transform_config`) and in tensors of "
                "its own. An "
                "engine that\n"
                "    ignores it loads the file and computes wrong logits: transformers 5.17 and llama.cpp's "
                "converter do.\n";
    }
    if (options.head)
        text += fmt::format(
            "* lm_head: {}, a group of its own in config.json (`{}`), its inputs are not quantised{}.\n",
            options.head == checkpoint::Scheme::fp8a16 ? "FP8 (E4M3) with a BF16 scale for each row"
                                                       : "NVFP4 weights",
            options.head == checkpoint::Scheme::fp8a16 ? "float-quantized" : "nvfp4-pack-quantized",
            report.head_untied ? "; the source shares the embedding's weights, here it has its own" : "");
    std::string ignored;
    for (const std::string& pattern : options.ignore)
        ignored += (ignored.empty() ? "`" : ", `") + pattern + "`";
    text += fmt::format("* Left unquantised: {}.\n", ignored.empty() ? "nothing" : ignored);
    if (report.weight_files.size() > 1)
        text +=
            fmt::format("* Weights lie in {} files, {} to {}; model.safetensors.index.json lists them.\n",
                        report.weight_files.size(), report.weight_files.front(), report.weight_files.back());
    if (!options.command.empty()) text += fmt::format("\nCommand:\n\n    {}\n", options.command);
    return text;
}

}  // namespace halfbyte::quantizer
