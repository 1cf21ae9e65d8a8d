#include "checkpoint/compressed_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/nvfp4_tensors.h"
#include "core/check.h"
#include "core/element.h"

namespace halfbyte::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char *nvfp4_format = "nvfp4-pack-quantized", *fp8_format = "float-quantized";
constexpr const char *packed = ".weight_packed", *block_scale = ".weight_scale",
                     *weight_global = ".weight_global_scale", *input_global = ".input_global_scale";

struct Member {
    const char* key;
    Json wanted;
    bool absent_is_fine;
};

void check_arguments(const Json& arguments, const std::string& where, const char* what,
                     const std::vector<Member>& members, const char* supported) {
    if (!arguments.is_object())
        fail(ErrorKind::malformed, "{}: {} is {}; an object is needed", where, what, shown(arguments));
    for (const auto& [key, wanted, absent_is_fine] : members) {
        const Json* value = find(arguments, key);
        check(value == nullptr ? absent_is_fine : *value == wanted, ErrorKind::unsupported,
              "{}: {} has {} = {}; only {} is supported", where, what, key,
              value == nullptr ? "null" : shown(*value), supported);
    }
}

// 4-bit floats in blocks of 16. Other members (strategy, observer, scale_dtype) differ between versions of
// the producers and change nothing in the file.
void check_nvfp4_arguments(const Json& arguments, const std::string& where, const char* what) {
    check_arguments(arguments, where, what,
                    {{"num_bits", 4, false},
                     {"type", "float", false},
                     {"group_size", 16, false},
                     {"symmetric", true, true}},
                    "NVFP4 (num_bits 4, type float, group_size 16, symmetric)");
}

// E4M3 with a scale for each row.
void check_fp8_arguments(const Json& arguments, const std::string& where) {
    check_arguments(arguments, where, "weights",
                    {{"num_bits", 8, false},
                     {"type", "float", false},
                     {"strategy", "channel", false},
                     {"symmetric", true, true},
                     {"dynamic", false, true}},
                    "FP8 with a scale for each row (num_bits 8, type float, strategy channel, symmetric)");
}

}  // namespace

Json quantization_config(Scheme scheme, const std::vector<std::string>& ignored_modules,
                         std::optional<Scheme> head) {
    const auto arguments = [](Json dynamic, const char* observer) {
        return Json{{"actorder", nullptr},
                    {"block_structure", nullptr},
                    {"dynamic", std::move(dynamic)},
                    {"group_size", 16},
                    {"num_bits", 4},
                    {"observer", observer},
                    {"observer_kwargs", Json::object()},
                    {"scale_dtype", "torch.float8_e4m3fn"},
                    {"strategy", "tensor_group"},
                    {"symmetric", true},
                    {"type", "float"},
                    {"zp_dtype", nullptr}};
    };
    const Json inputs = scheme == Scheme::nvfp4 ? arguments("local", "static_minmax") : Json(nullptr);
    const Json group = {{"format", nvfp4_format},
                        {"input_activations", inputs},
                        {"output_activations", nullptr},
                        {"targets", Json::array({"Linear"})},
                        {"weights", arguments(false, "memoryless_minmax")}};
    Json groups = {{"group_0", group}};
    if (head) {
        Json weights = arguments(false, "memoryless_minmax");
        if (head == Scheme::fp8a16)
            weights.update({{"group_size", nullptr},
                            {"num_bits", 8},
                            {"scale_dtype", nullptr},
                            {"strategy", "channel"}});
        // The name before the class: compressed-tensors 0.19 takes the right group in either order, but warns
        // of a name that stands behind a class that matches as well.
        groups["group_0"] = {{"format", head == Scheme::fp8a16 ? fp8_format : nvfp4_format},
                             {"input_activations", nullptr},
                             {"output_activations", nullptr},
                             {"targets", Json::array({"lm_head"})},
                             {"weights", std::move(weights)}};
        groups["group_1"] = group;
    }
    return {{"config_groups", groups},
            {"format", head == Scheme::fp8a16 ? "mixed-precision" : nvfp4_format},
            {"global_compression_ratio", nullptr},
            {"ignore", ignored_modules},
            {"kv_cache_scheme", nullptr},
            {"quant_method", "compressed-tensors"},
            {"quantization_status", "compressed"},
            {"sparsity_config", Json::object()},
            {"transform_config", Json::object()},
            {"version", "0.19.0"}};
}

CompressedTensorsConfig::CompressedTensorsConfig(const Json& json, const fs::path& file) : file_(file) {
    const std::string where = file.string() + ": quantization_config";
    if (!json.is_object()) fail(ErrorKind::malformed, "{}: is {}; an object is needed", where, shown(json));
    const std::string method = text_at(json, "quant_method", "", where);
    check(!method.starts_with("modelopt") && !json.contains("quant_algo"), ErrorKind::unsupported,
          "{}: the ModelOpt dialect is not supported yet", where);
    check(method == "compressed-tensors", ErrorKind::unsupported,
          "{}: quant_method {} is not supported; compressed-tensors is", where, quote(method));

    if (const Json* transforms = find(json, "transform_config"); !says_nothing(transforms))
        transforms_ = TransformConfig(*transforms, file);
    check(find(json, "kv_cache_scheme") == nullptr, ErrorKind::unsupported,
          "{}: kv_cache_scheme is given; a quantised KV cache is not supported yet", where);
    if (const Json* sparsity = find(json, "sparsity_config"); !says_nothing(sparsity)) {
        check(sparsity->is_object(), ErrorKind::malformed, "{}: sparsity_config is {}; an object is needed",
              where, shown(*sparsity));
        const std::string format = text_at(*sparsity, "format", "?", where + ": sparsity_config");
        check(format == "dense", ErrorKind::unsupported,
              "{}: sparsity_config has the format {}, which is not supported; dense is", where,
              quote(format));
    }
    const std::string status = text_at(json, "quantization_status", "compressed", where);
    check(status == "compressed", ErrorKind::unsupported,
          "{}: quantization_status is {}; only compressed files are read", where, quote(status));

    // Of a dense model that was rotated there is a transform_config alone.
    const Json* groups = find(json, "config_groups");
    const bool some = groups != nullptr && groups->is_object() && !groups->empty();
    check(some || (says_nothing(groups) && !transforms_.empty()), ErrorKind::malformed,
          "{}: needs an object config_groups with at least one group, or a transform_config", where);
    const std::string format = text_at(json, "format", "", where);
    if (some) {
        for (const auto& [name, group] : groups->items()) add_group(name, group, format);
    }
    if (const Json* ignore = find(json, "ignore")) {
        for (std::string& text : texts_at(*ignore, where + ": ignore")) {
            ModulePattern pattern(std::move(text), where + ": ignore");
            count_expression(pattern, where);
            if (pattern.is_expression())
                ignored_expressions_.push_back(std::move(pattern));
            else
                ignored_names_.insert(pattern.text());
        }
    }
}

// Each is tried on every module.
void CompressedTensorsConfig::count_expression(const ModulePattern& pattern, const std::string& where) {
    constexpr size_t limit = 128;
    check(!pattern.is_expression() || target_expressions_.size() + ignored_expressions_.size() < limit,
          ErrorKind::unsupported, "{}: more than {} regular expressions", where, limit);
}

void CompressedTensorsConfig::add_group(const std::string& name, const Json& group,
                                        const std::string& outer_format) {
    const std::string where = fmt::format("{}: quantization_config: group {}", file_.string(), quote(name));
    if (group.is_array()) {  // the short form {"NVFP4": ["Linear"]}
        check(name == "NVFP4" || name == "NVFP4A16", ErrorKind::unsupported,
              "{}: only NVFP4 and NVFP4A16 are supported", where);
        return add_targets(name, name == "NVFP4" ? Scheme::nvfp4 : Scheme::nvfp4a16, group);
    }
    if (!group.is_object()) fail(ErrorKind::malformed, "{}: is {}; an object is needed", where, shown(group));
    const std::string format = text_at(group, "format", outer_format, where);
    // naive-quantized is the name that compressed-tensors infers for FP8 weights whose inputs stay
    // unquantised.
    const bool fp8 = format == fp8_format || format == "naive-quantized";
    check(fp8 || format == nvfp4_format, ErrorKind::unsupported,
          "{}: the format {} is not supported; {} and {} are", where, quote(format), nvfp4_format,
          fp8_format);
    const Json *weights = find(group, "weights"), *inputs = find(group, "input_activations"),
               *targets = find(group, "targets");
    check(weights != nullptr, ErrorKind::malformed, "{}: needs weights", where);
    check(targets != nullptr, ErrorKind::malformed, "{}: needs targets", where);
    check(find(group, "output_activations") == nullptr, ErrorKind::unsupported,
          "{}: output_activations are not supported", where);
    if (fp8) {
        check_fp8_arguments(*weights, where);
        check(inputs == nullptr, ErrorKind::unsupported,
              "{}: input_activations are given; FP8 is supported for weights only", where);
        return add_targets(name, Scheme::fp8a16, *targets);
    }
    check_nvfp4_arguments(*weights, where, "weights");
    if (inputs != nullptr) {
        check_nvfp4_arguments(*inputs, where, "input_activations");
        // "local" is a stored global scale with block scales at run time; some producers write false for the
        // same.
        const Json* dynamic = find(*inputs, "dynamic");
        check(dynamic == nullptr || *dynamic == "local" || *dynamic == false, ErrorKind::unsupported,
              "{}: input_activations have dynamic = {}; only \"local\", with stored input_global_scale, is "
              "supported",
              where, dynamic == nullptr ? "null" : shown(*dynamic));
    }
    add_targets(name, inputs != nullptr ? Scheme::nvfp4 : Scheme::nvfp4a16, *targets);
}

void CompressedTensorsConfig::add_targets(const std::string& group, Scheme scheme, const Json& targets) {
    const std::string where =
        fmt::format("{}: quantization_config: group {}: targets", file_.string(), quote(group));
    for (std::string& text : texts_at(targets, where)) {
        Target target{group, scheme, ModulePattern(std::move(text), where)};
        count_expression(target.pattern, where);
        if (target.pattern.is_expression())
            target_expressions_.push_back(std::move(target));
        else
            named_targets_.emplace(std::string(target.pattern.text()), std::move(target));
    }
}

CompressedTensorsConfig::Verdict CompressedTensorsConfig::verdict_on(std::string_view module) const {
    const std::string_view class_name = class_of_module(module);
    const auto ignored = [](const std::string& text) {
        return Verdict{{}, fmt::format("ignored by {}", quote(text))};
    };
    for (const std::string_view name : {module, class_name}) {
        if (const auto found = ignored_names_.find(name); found != ignored_names_.end())
            return ignored(*found);
    }
    for (const ModulePattern& pattern : ignored_expressions_) {
        if (pattern.match(module, class_name) != ModulePattern::Match::none) return ignored(pattern.text());
    }
    // Names beat expressions, which beat classes; among equals the first in alphabetical order.
    const auto named = [&](std::string_view name) {
        const auto found = named_targets_.find(name);
        return found == named_targets_.end() ? nullptr : &found->second;
    };
    const Target* best = named(module);
    if (best == nullptr) {
        for (const Target& target : target_expressions_) {
            if ((best == nullptr || target.pattern.text() < best->pattern.text()) &&
                target.pattern.match(module, class_name) != ModulePattern::Match::none)
                best = &target;
        }
    }
    if (best == nullptr) best = named(class_name);
    if (best == nullptr) return {{}, "matched by no target"};
    return {best->scheme, fmt::format("{} by group {}, target {}", name_of(best->scheme), quote(best->group),
                                      quote(best->pattern.text()))};
}

namespace {

// The multipliers of the rows, BF16, F16 or F32 [n, 1].
std::vector<float> row_scales(const TensorView& scales, int64_t n) {
    check(scales.dtype == DType::bf16 || scales.dtype == DType::f16 || scales.dtype == DType::f32,
          ErrorKind::malformed, "{}: {} given; the scales of FP8 rows are BF16, F16 or F32", label(scales),
          name_of(scales.dtype));
    const bool one = scales.shape.empty() || scales.shape == std::vector<int64_t>{1};
    check(scales.shape == std::vector<int64_t>{n, 1}, ErrorKind::malformed,
          "{}: shape {}; FP8 weights of {} rows need one scale each, [{}, 1]{}", label(scales),
          scales.shape_text(), n, n, one ? "; one for the whole tensor?" : "");
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t row = 0; row < n; row++) {
        const float value = load_element(scales.bytes.data(), scales.dtype, row);
        check(std::isfinite(value) && value > 0, ErrorKind::malformed,
              "{}: row {} has the scale {}; it must be finite and positive. {}", label(scales), row, value,
              value == 0 ? "A row of zeros, divided by 448?" : "Is the file damaged?");
        values[size_t(row)] = value;
    }
    return values;
}

void check_no_nan(const TensorView& weight) {
    const auto is_nan = [](uint8_t byte) { return (byte & 0x7F) == 0x7F; };
    const auto bytes = weight.bytes;
    // Eight bytes at a time: only the magnitude 0x7F reaches the top bit when 1 is added.
    uint64_t found = 0;
    size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        uint64_t word;
        std::memcpy(&word, bytes.data() + i, 8);
        found |= ((word & 0x7F7F7F7F7F7F7F7F) + 0x0101010101010101) & 0x8080808080808080;
    }
    for (; i < bytes.size(); i++) found |= is_nan(bytes[i]);
    if (found != 0) {
        const auto at = std::find_if(bytes.begin(), bytes.end(), is_nan) - bytes.begin();
        fail(ErrorKind::malformed,
             "{}: byte 0x{:02X} at [{}, {}] is NaN ({} such of {} bytes); weights must be numbers. Was the "
             "model "
             "made from weights with NaN or infinity?",
             label(weight), bytes[at], at / weight.shape[1], at % weight.shape[1],
             std::count_if(bytes.begin(), bytes.end(), is_nan), bytes.size());
    }
    weight.file->release(bytes);
}

}  // namespace

std::map<std::string, Fp8Linear> take_fp8_modules(const CompressedTensorsConfig& config,
                                                  std::map<std::string, TensorView>& tensors) {
    std::map<std::string, Fp8Linear> modules;
    std::vector<std::string> taken;
    for (const auto& [name, weight] : tensors) {
        if (!name.ends_with(".weight") || weight.dtype != DType::f8_e4m3) continue;
        const std::string module = name.substr(0, name.size() - std::strlen(".weight"));
        const auto verdict = config.verdict_on(module);
        check(verdict.scheme == Scheme::fp8a16, ErrorKind::malformed,
              "{}: is FP8, but {} says the module is {}", label(weight), config.file().filename().string(),
              verdict.reason);
        check(weight.shape.size() == 2 && weight.shape[0] > 0 && weight.shape[1] > 0, ErrorKind::malformed,
              "{}: shape {}; FP8 weights are [N, K], both positive", label(weight), weight.shape_text());
        const TensorView& scales = need(tensors, weight, module + block_scale, "is the file incomplete?");
        modules.emplace(module, Fp8Linear{.n = weight.shape[0],
                                          .k = weight.shape[1],
                                          .weight = weight.bytes.data(),
                                          .scale = row_scales(scales, weight.shape[0])});
        check_no_nan(weight);
        for (auto next = tensors.lower_bound(module + ".");
             next != tensors.end() && next->first.starts_with(module + "."); ++next) {
            const std::string leaf = next->first.substr(module.size());
            if (leaf == ".weight" || leaf == block_scale || leaf == ".bias") continue;
            const char* cause = "an unknown variant of the format?";
            if (leaf == packed)
                cause = "a module has one format";
            else if (leaf == ".input_scale" || leaf == input_global)
                cause = "FP8 is supported for weights only";
            else if (leaf == ".weight_zero_point")
                cause = "FP8 weights are symmetric";
            else if (leaf.ends_with(".weight"))
                cause = stray_matrix;
            fail(ErrorKind::malformed, "{}: does not belong beside {}; {}", label(next->second), quote(name),
                 cause);
        }
        taken.insert(taken.end(), {name, scales.name});
    }
    for (const std::string& name : taken) tensors.erase(name);
    return modules;
}

std::map<std::string, NvFp4Linear> take_quantized_modules(const CompressedTensorsConfig& config,
                                                          bool known_architecture,
                                                          std::map<std::string, TensorView>& tensors) {
    std::map<std::string, NvFp4Linear> modules;
    std::vector<std::string> taken;
    const std::string config_name = config.file().filename().string();
    for (const auto& [name, codes] : tensors) {
        if (!name.ends_with(packed)) continue;
        const std::string module = name.substr(0, name.size() - std::strlen(packed));
        const auto verdict = config.verdict_on(module);
        check(verdict.scheme.has_value() && verdict.scheme != Scheme::fp8a16, ErrorKind::malformed,
              "{}: is {}, but {} says the module is {}", label(codes), verdict.scheme ? "NVFP4" : "quantised",
              config_name, verdict.reason);

        const TensorView& scales = need(tensors, codes, module + block_scale, "is the file incomplete?");
        const TensorView& global =
            need(tensors, codes, module + weight_global,
                 tensors.contains(module + ".weight_scale_2") ? "weight_scale_2 is ModelOpt's name for it"
                                                              : "is the file incomplete?");
        const auto [n, k] = checked_shape(codes, scales, DType::f8_e4m3);
        NvFp4Linear linear{.n = n,
                           .k = k,
                           .codes = codes.bytes.data(),
                           .block_scales = scales.bytes.data(),
                           .weight_scale = checked_weight_scale(global),
                           .input_scale = {}};
        taken.insert(taken.end(), {name, scales.name, global.name});
        if (verdict.scheme == Scheme::nvfp4) {
            const TensorView& input =
                need(tensors, codes, module + input_global,
                     "W4A4 needs one. A W4A16 file whose config lacks \"input_activations\": null?");
            linear.input_scale = checked_global_scale(input);
            taken.push_back(input.name);
        }
        check_block_scales(scales);

        for (auto next = tensors.lower_bound(module + ".");
             next != tensors.end() && next->first.starts_with(module + "."); ++next) {
            const std::string leaf = next->first.substr(module.size());
            if (leaf == packed || leaf == block_scale || leaf == weight_global || leaf == ".bias") continue;
            if (leaf == input_global && linear.input_scale) continue;
            const char* cause = "an unknown variant of the format?";
            if (leaf == ".weight")
                cause = "a module is either quantised or dense";
            else if (leaf == input_global)
                cause = "W4A16 (\"input_activations\": null) has none. A W4A4 file with the wrong config?";
            else if (leaf == ".weight_scale_2" || leaf == ".input_scale")
                cause = "a ModelOpt name; which one is right?";
            else if (leaf.ends_with(".weight"))
                cause = stray_matrix;
            fail(ErrorKind::malformed, "{}: does not belong beside {}; {}", label(next->second), quote(name),
                 cause);
        }
        modules.emplace(module, linear);
    }

    for (const auto& [name, tensor] : tensors) {
        const std::string module = name.substr(0, name.rfind('.')), leaf = name.substr(module.size());
        if (modules.contains(module)) continue;
        for (const char* part : {block_scale, weight_global, input_global}) {
            check(leaf != part, ErrorKind::malformed,
                  "{}: there is no {} that it belongs to; is the file incomplete?", label(tensor),
                  quote(module + packed));
        }
        if (!known_architecture || leaf != ".weight" || tensor.shape.size() != 2) continue;
        const auto verdict = config.verdict_on(module);
        check(!verdict.scheme.has_value(), ErrorKind::malformed,
              "{}: is dense, but {} says the module is {}. Is it missing in the ignore list?", label(tensor),
              config_name, verdict.reason);
    }
    for (const std::string& name : taken) tensors.erase(name);
    return modules;
}

}  // namespace halfbyte::checkpoint
