#include "checkpoint/fp_quant.h"

#include <cstring>
#include <memory>
#include <set>
#include <tuple>

#include "checkpoint/module_pattern.h"
#include "checkpoint/nvfp4_tensors.h"
#include "checkpoint/transform_config.h"
#include "core/check.h"

namespace halfbyte::checkpoint {
namespace {

constexpr const char *codes_name = ".qweight", *scales_name = ".scales",
                     *weight_global = ".weight_global_scale", *input_global = ".act_global_scale",
                     *matrix_name = ".forward_hadamard_matrix", *backward_name = ".backward_hadamard_matrix";

}  // namespace

FpQuantConfig::FpQuantConfig(const Json& json, const std::filesystem::path& file) : file_(file) {
    const std::string where = file.string() + ": quantization_config";
    const std::string type = text_at(json, "forward_dtype", "mxfp4", where);
    check(type == "nvfp4", ErrorKind::unsupported,
          "{}: forward_dtype {} is not supported; of FP-Quant nvfp4 is", where, quote(type));
    method_ = text_at(json, "forward_method", "abs_max", where);
    check(method_ == "abs_max" || method_ == "quest", ErrorKind::unsupported,
          "{}: forward_method {} is not known; abs_max and quest are", where, quote(method_));
    check(!flag_at(json, "pseudoquantization", false, where), ErrorKind::unsupported,
          "{}: pseudoquantization is true: the weights are rounded, not packed (dqweight); packed ones are "
          "needed",
          where);
    check(!flag_at(json, "store_master_weights", false, where), ErrorKind::unsupported,
          "{}: store_master_weights is true: the weights are not packed; packed ones are needed", where);
    init_ = text_at(json, "transform_init", "hadamard", where);
    const auto block = count_at(json, "hadamard_group_size", where);
    check(block.has_value(), ErrorKind::malformed, "{}: needs hadamard_group_size", where);
    block_ = *block;
    const Json* modules = find(json, "modules_to_not_convert");
    not_converted_ = modules == nullptr ? std::vector<std::string>{"lm_head"}
                                        : texts_at(*modules, where + ": modules_to_not_convert");
    constexpr size_t limit = 1024;  // each is compared with every module
    check(not_converted_.size() <= limit, ErrorKind::unsupported,
          "{}: modules_to_not_convert has {} names; at most {} are read", where, not_converted_.size(),
          limit);
}

const std::string* FpQuantConfig::exclusion(std::string_view module) const {
    for (const std::string& name : not_converted_)
        if (module.ends_with(name)) return &name;
    return nullptr;
}

std::vector<std::string> FpQuantConfig::warnings() const {
    if (method_ != "quest") return {};
    return {fmt::format(
        "{}: forward_method is quest; activations are quantised by the largest magnitude of a block "
        "(abs_max), as vLLM does with nvfp4",
        file_.string())};
}

std::map<std::string, NvFp4Linear> FpQuantConfig::take_modules(bool known_architecture,
                                                               std::map<std::string, TensorView>& tensors,
                                                               Transforms& transforms) const {
    std::map<std::string, NvFp4Linear> modules;
    std::vector<std::string> taken;
    std::map<std::tuple<DType, std::string_view>, std::shared_ptr<const NamedTransform>> made;  // by content
    const std::string config_name = file_.filename().string();
    for (const auto& [name, codes] : tensors) {
        if (!name.ends_with(codes_name)) continue;
        const std::string module = name.substr(0, name.size() - std::strlen(codes_name));
        const std::string* excluded = exclusion(module);
        check(excluded == nullptr, ErrorKind::malformed,
              "{}: is quantised, but modules_to_not_convert of {} has {}", label(codes), config_name,
              excluded == nullptr ? "" : quote(*excluded));
        const char* incomplete = "is the file incomplete?";
        const TensorView &scales = need(tensors, codes, module + scales_name, incomplete),
                         &global = need(tensors, codes, module + weight_global, incomplete),
                         &input = need(tensors, codes, module + input_global, incomplete),
                         &matrix = need(tensors, codes, module + matrix_name, incomplete);
        const auto [n, k] = checked_shape(codes, scales, DType::u8);
        check_block_scales(scales);
        modules.emplace(module, NvFp4Linear{.n = n,
                                            .k = k,
                                            .codes = codes.bytes.data(),
                                            .block_scales = scales.bytes.data(),
                                            .weight_scale = checked_weight_scale(global),
                                            .input_scale = checked_global_scale(input)});
        if (k % block_ != 0)
            fail(ErrorKind::malformed,
                 "{}: K = {}, which hadamard_group_size {} of {} does not divide; possible: {}", label(codes),
                 k, block_, config_name, possible_block_sizes(k, true));

        const std::string_view bytes(reinterpret_cast<const char*>(matrix.bytes.data()), matrix.bytes.size());
        const bool square = matrix.shape == std::vector{block_, block_};
        auto& transform = made[{matrix.dtype, square ? bytes : std::string_view()}];
        if (transform == nullptr || !square) {
            const SquareMatrix T = matrix_of(matrix, block_);
            const Normalisation normalisation = normalisation_of(matrix, T);
            check(normalisation.c == 1, ErrorKind::malformed,
                  "{}: has entries of +-1; FP-Quant's matrices are normalised, with rows of norm 1",
                  label(matrix));
            transform = std::make_shared<NamedTransform>(
                NamedTransform{.scheme = "forward_hadamard_matrix",
                               .type = init_,
                               .inverse = false,
                               .orthogonality_error = normalisation.orthogonality_error,
                               .transform = make_transform(T.values, block_, 1)});
        }
        transforms.linear[module].input.push_back(transform);

        for (const char* part :
             {codes_name, scales_name, weight_global, input_global, matrix_name, backward_name})
            taken.push_back(module + part);
        const std::set<std::string> own(taken.end() - 6, taken.end());
        for (auto next = tensors.lower_bound(module + ".");
             next != tensors.end() && next->first.starts_with(module + "."); ++next) {
            if (own.contains(next->first) || next->first == module + ".bias") continue;
            fail(ErrorKind::malformed, "{}: does not belong beside {}; {}", label(next->second), quote(name),
                 next->first.ends_with(".weight") || next->first.ends_with(".dqweight")
                     ? "a module is either quantised or dense"
                     : "an unknown variant of the format?");
        }
    }
    for (const auto& [name, tensor] : tensors) {
        const std::string module = name.substr(0, name.rfind('.')), leaf = name.substr(module.size());
        if (modules.contains(module)) continue;
        check(leaf != ".dqweight", ErrorKind::unsupported,
              "{}: pseudoquantised weights (rounded, not packed) are not supported", label(tensor));
        for (const char* part : {scales_name, weight_global, input_global, matrix_name})
            check(leaf != part, ErrorKind::malformed,
                  "{}: there is no {} that it belongs to; is the file incomplete?", label(tensor),
                  quote(module + codes_name));
        if (!known_architecture || leaf != ".weight" || tensor.shape.size() != 2 ||
            class_of_module(module) != "Linear")
            continue;
        check(exclusion(module) != nullptr, ErrorKind::malformed,
              "{}: is dense, but modules_to_not_convert of {} does not name it", label(tensor), config_name);
    }
    for (const std::string& name : taken) tensors.erase(name);
    return modules;
}

}  // namespace halfbyte::checkpoint
