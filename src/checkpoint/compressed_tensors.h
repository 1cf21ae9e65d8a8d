// The compressed-tensors dialect: the quantization_config of config.json, and per quantised module
//   `nvfp4-pack-quantized`
//   M.weight_packed        U8 [N, K/2]        two codes a byte, lower nibble first
//   M.weight_scale         F8_E4M3 [N, K/16]  linear
//   M.weight_global_scale  F32 [1]            encode word
//   M.input_global_scale   F32 [1]            encode word; with W4A4, and only then
//   `float-quantized`, strategy channel, weights only
//   M.weight               F8_E4M3 [N, K]
//   M.weight_scale         BF16, F16 or F32 [N, 1]   a multiplier of the row
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/module_pattern.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/transform_config.h"

namespace halfbyte::checkpoint {

// The object to write into config.json. ignored_modules: the names of all linear modules that stay
// unquantised. head: a group for lm_head alone, of weights only (NVFP4A16 or FP8A16).
Json quantization_config(Scheme scheme, const std::vector<std::string>& ignored_modules,
                         std::optional<Scheme> head = {});

// A quantization_config as read. Refuses (unsupported, by name) every other format and KV cache schemes.
class CompressedTensorsConfig {
  public:
    CompressedTensorsConfig(const Json& json, const std::filesystem::path& file);

    struct Verdict {
        std::optional<Scheme> scheme;  // none: the module stays dense
        std::string reason;            // which group and target, or which ignore pattern, for messages
    };
    Verdict verdict_on(std::string_view module) const;
    const std::filesystem::path& file() const { return file_; }
    const TransformConfig& transforms() const { return transforms_; }

  private:
    struct Target {
        std::string group;
        Scheme scheme;
        ModulePattern pattern;
    };
    void add_group(const std::string& name, const Json& group, const std::string& outer_format);
    void add_targets(const std::string& group, Scheme scheme, const Json& targets);
    void count_expression(const ModulePattern& pattern, const std::string& where);

    std::filesystem::path file_;
    TransformConfig transforms_;
    // Names (of modules and classes) apart from expressions: a file may hold thousands, for thousands of
    // modules.
    std::map<std::string, Target, std::less<>> named_targets_;
    std::vector<Target> target_expressions_;
    std::set<std::string, std::less<>> ignored_names_;
    std::vector<ModulePattern> ignored_expressions_;
};

// The FP8 modules among the tensors, whose tensors are taken out of the map. Checks each against every rule.
std::map<std::string, Fp8Linear> take_fp8_modules(const CompressedTensorsConfig& config,
                                                  std::map<std::string, TensorView>& tensors);

// The NVFP4 modules among the tensors that take_fp8_modules left, whose tensors are taken out of the map.
// Checks each against every rule, and with known_architecture also that no dense linear layer should have
// been quantised.
std::map<std::string, NvFp4Linear> take_quantized_modules(const CompressedTensorsConfig& config,
                                                          bool known_architecture,
                                                          std::map<std::string, TensorView>& tensors);

}  // namespace halfbyte::checkpoint
