// What config.json says about a model, and the tensors that follow from it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace halfbyte::checkpoint {

// Architectures whose tensors are known by name and shape: "LlamaForCausalLM". Of any other only the name is
// kept.
bool is_known_architecture(std::string_view architecture);

// config: config.json; generation: generation_config.json, or null. Error (malformed) for missing, wrong or
// implausible values, (unsupported) for other kinds of RoPE scaling and activations, by name.
ModelConfig model_config(const Json& config, const Json& generation, const std::filesystem::path& file);

// A known architecture: every tensor that it needs is there, has its shape and a floating-point type, and
// there is no other. label gives file and name of a tensor for messages.
void check_tensors(const ModelConfig& config, const std::map<std::string, DenseTensor>& dense,
                   const std::map<std::string, NvFp4Linear>& nvfp4,
                   const std::map<std::string, Fp8Linear>& fp8, const std::filesystem::path& path,
                   const std::function<std::string(const std::string&)>& label);

}  // namespace halfbyte::checkpoint
