// halfbyte inspect: what a model file holds.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "cli/model_files.h"
#include "format/e4m3.h"

namespace halfbyte::cli {
namespace {

using checkpoint::Checkpoint;

struct Options {
    CommonOptions common;
    std::string path;
    bool tensors = false;
};

struct Range {
    float low = std::numeric_limits<float>::infinity(), high = -std::numeric_limits<float>::infinity();
    void add(float value) {
        low = std::min(low, value);
        high = std::max(high, value);
    }
};

struct ScaleStatistics {
    int64_t blocks = 0, zero = 0, subnormal = 0, largest = 0;  // block scales: 0x00, below 2^-6, 448
    Range block, weight, input;  // non-zero block scales; global scales as stored
    Range channel;               // of FP8 rows
};

ScaleStatistics scale_statistics(const Checkpoint& file) {
    ScaleStatistics sum;
    for (const auto& [module, linear] : file.nvfp4()) {
        int64_t counts[256] = {};
        const int64_t blocks = linear.n * (linear.k / 16);
        for (int64_t i = 0; i < blocks; i++) counts[linear.block_scales[i]]++;
        file.release(module);
        sum.blocks += blocks;
        sum.zero += counts[0];
        sum.largest += counts[e4m3_max];
        for (int byte = 1; byte < 8; byte++) sum.subnormal += counts[byte];
        for (int byte = 1; byte <= e4m3_max; byte++)
            if (counts[byte] > 0) sum.block.add(decode_e4m3(uint8_t(byte)));
        sum.weight.add(linear.weight_scale.word());
        if (linear.input_scale) sum.input.add(linear.input_scale->word());
    }
    for (const auto& [module, linear] : file.fp8())
        for (const float scale : linear.scale) sum.channel.add(scale);
    return sum;
}

struct TensorRow {
    std::string name, format;
    std::vector<int64_t> shape;
};

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text;
    for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return "[" + text + "]";
}

// A name out of a file as it is, unless it holds what a terminal could obey.
std::string printable(const std::string& name) {
    const bool plain =
        std::all_of(name.begin(), name.end(), [](unsigned char c) { return c >= 32 && c < 127; });
    return plain ? name : checkpoint::quote(name);
}

using TransformList = std::vector<std::shared_ptr<const checkpoint::NamedTransform>>;

// "input v (hadamard 16), w (random-matrix 32)"; nothing for an empty list.
std::string transforms_text(const char* location, const TransformList& list) {
    std::string text;
    for (const auto& named : list)
        text += fmt::format("{}{}{} ({} {})", text.empty() ? "" : ", ", named->scheme,
                            named->inverse ? "^-1" : "", named->type, named->transform.n);
    return text.empty() ? text : fmt::format("{} {}", location, text);
}

struct TransformReport {
    std::map<std::string, std::string> layers;  // module: "input v (hadamard 16); output u^-1 (hadamard 64)"
    std::vector<const checkpoint::NamedTransform*> matrices;  // each once
};

TransformReport transform_report(const checkpoint::Transforms& transforms) {
    TransformReport report;
    const auto add = [&](const std::string& module, const char* first, const TransformList& a,
                         const char* second, const TransformList& b) {
        const std::string x = transforms_text(first, a), y = transforms_text(second, b);
        report.layers[module] = x + (x.empty() || y.empty() ? "" : "; ") + y;
        for (const TransformList* list : {&a, &b})
            for (const auto& named : *list)
                if (std::find(report.matrices.begin(), report.matrices.end(), named.get()) ==
                    report.matrices.end())
                    report.matrices.push_back(named.get());
    };
    for (const auto& [module, at] : transforms.linear) add(module, "input", at.input, "output", at.output);
    for (const auto& [module, at] : transforms.attention) add(module, "q", at.q, "k", at.k);
    return report;
}

// "model.layers.*.mlp.up_proj" of all its numbers.
std::string without_numbers(const std::string& module) {
    std::string text;
    for (size_t i = 0; i < module.size(); i++) {
        const auto digit = [&](size_t at) { return module[at] >= '0' && module[at] <= '9'; };
        const bool number = digit(i) && (i == 0 || module[i - 1] == '.');
        if (!number) {
            text += module[i];
            continue;
        }
        text += '*';
        while (i + 1 < module.size() && digit(i + 1)) i++;
    }
    return text;
}

void print_transforms(const checkpoint::Transforms& transforms, bool every_layer) {
    const TransformReport report = transform_report(transforms);
    if (every_layer) {
        for (const auto& [module, line] : report.layers)
            fmt::print("{}: {}\n", printable(module), printable(line));
    } else {  // equal layers in one line
        std::map<std::string, std::map<std::string, int64_t>> modules;
        for (const auto& [module, line] : report.layers) modules[line][without_numbers(module)]++;
        for (const auto& [line, names] : modules) {
            std::string text;
            for (const auto& [name, count] : names)
                text += (text.empty() ? "" : ", ") + printable(name) +
                        (count > 1 ? fmt::format(" ({})", count) : std::string());
            fmt::print("{}: {}\n", printable(line), text);
        }
    }
    if (!report.matrices.empty()) {
        double worst = 0;
        for (const auto* named : report.matrices) worst = std::max(worst, named->orthogonality_error);
        fmt::print("transform matrices: {}, largest |c^2 M M^T - 1| {:.3g}\n", report.matrices.size(), worst);
    }
    for (const std::string& line : transforms.folded)
        fmt::print("folded into the weights: {}\n", printable(line));
}

Json transforms_json(const checkpoint::Transforms& transforms) {
    const TransformReport report = transform_report(transforms);
    if (report.layers.empty() && transforms.folded.empty()) return nullptr;
    Json json = {{"layers", Json::array()}, {"matrices", Json::array()}, {"folded", transforms.folded}};
    for (const auto& [module, line] : report.layers)
        json["layers"].push_back({{"module", module}, {"transforms", line}});
    for (const auto* named : report.matrices)
        json["matrices"].push_back({{"scheme", named->scheme},
                                    {"type", named->type},
                                    {"inverse", named->inverse},
                                    {"n", named->transform.n},
                                    {"form", named->transform.matrix.empty() ? "butterfly" : "matrix"},
                                    {"scale", named->transform.scale},
                                    {"orthogonality_error", named->orthogonality_error}});
    return json;
}

int run(const Options& options) {
    const auto file = open_model(options.common, options.path);
    std::vector<TensorRow> rows;
    std::map<std::string, int64_t> formats;
    int64_t parameters = 0;
    for (const auto& [module, linear] : file->nvfp4()) {
        rows.push_back({module + ".weight", "NVFP4", {linear.n, linear.k}});
        parameters += linear.n * linear.k;
    }
    for (const auto& [module, linear] : file->fp8()) {
        rows.push_back({module + ".weight", "FP8", {linear.n, linear.k}});
        parameters += linear.n * linear.k;
    }
    for (const auto& [name, tensor] : file->dense()) {
        rows.push_back({name, file->stored_format(name), tensor.shape});
        parameters += tensor.elements();
    }
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    for (const TensorRow& row : rows) formats[row.format]++;
    const double bits = parameters == 0 ? 0 : 8.0 * double(file->weight_bytes()) / double(parameters);
    const ScaleStatistics scales = scale_statistics(*file);
    const auto weight_files = file->weight_files();
    file->check_unchanged();

    if (options.common.json()) {
        Json json = {{"schema", 1}, {"dialect", file->description()}};
        json["scheme"] = file->scheme() ? Json(name_of(*file->scheme())) : Json(nullptr);
        json["architecture"] = file->config().architecture;
        json["parameters"] = parameters;
        json["file_bytes"] = file->file_bytes();
        json["weight_files"] = Json::array();
        for (const auto& path : weight_files) json["weight_files"].push_back(path.filename().string());
        json["bits_per_weight"] = bits;
        json["warnings"] = file->warnings();
        json["formats"] = formats;
        json["scales"] = nullptr;
        const auto range = [](const Range& r) {
            return r.low > r.high ? Json(nullptr) : Json({r.low, r.high});
        };
        json["fp8_scale_range"] = range(scales.channel);
        if (!file->nvfp4().empty()) {
            json["scales"] = {{"blocks", scales.blocks},
                              {"block_scale_range", range(scales.block)},
                              {"block_scale_zero", scales.zero},
                              {"block_scale_subnormal", scales.subnormal},
                              {"block_scale_448", scales.largest},
                              {"weight_global_scale_range", range(scales.weight)},
                              {"input_global_scale_range", range(scales.input)}};
        }
        json["transforms"] = transforms_json(file->transforms());
        if (options.tensors) {
            json["tensors"] = Json::array();
            for (const TensorRow& row : rows)
                json["tensors"].push_back({{"name", row.name}, {"format", row.format}, {"shape", row.shape}});
        }
        print_json(json);
        return 0;
    }
    std::string counts;
    for (const auto& [format, count] : formats)
        counts +=
            fmt::format("{}{} {} {}{}", counts.empty() ? "" : ", ", count, format,
                        format == "NVFP4" || format == "FP8" ? "linear" : "tensor", count == 1 ? "" : "s");
    fmt::print("{}: {}, {}\n", options.path, printable(file->config().architecture), file->description());
    const std::string files = weight_files.size() == 1 ? "" : fmt::format("{} files, ", weight_files.size());
    fmt::print("{}; {} parameters in {}{}, {:.2f} bits per weight\n", counts, parameters, files,
               mebibytes(file->file_bytes()), bits);
    if (!file->nvfp4().empty()) {
        fmt::print("block scales: {} blocks, {:g} to {:g}; {} zero, {} subnormal, {} at 448\n", scales.blocks,
                   scales.block.low, scales.block.high, scales.zero, scales.subnormal, scales.largest);
        fmt::print("weight global scales (encode): {:g} to {:g}\n", scales.weight.low, scales.weight.high);
        if (scales.input.low <= scales.input.high)
            fmt::print("input global scales (encode): {:g} to {:g}\n", scales.input.low, scales.input.high);
    }
    if (!file->fp8().empty())
        fmt::print("scales of FP8 rows (decode): {:g} to {:g}\n", scales.channel.low, scales.channel.high);
    print_transforms(file->transforms(), options.tensors);
    if (options.tensors)
        for (const TensorRow& row : rows)
            fmt::print("  {:<6} {:<16} {}\n", row.format, shape_text(row.shape), printable(row.name));
    return 0;
}

}  // namespace

Command add_inspect(CLI::App& program) {
    auto options = std::make_shared<Options>();
    CLI::App* command =
        add_command(program, "inspect", "Show the dialect, tensors, scales and transforms of a model file",
                    "  halfbyte inspect OUT\n"
                    "  halfbyte inspect MODEL.gguf --tensors\n"
                    "  halfbyte inspect OUT --format json",
                    options->common);
    command->add_option("path", options->path, "Hugging Face folder or .gguf file")
        ->type_name(model_type)
        ->required();
    command->add_flag("--tensors", options->tensors, "List every tensor, and the transforms of every layer");
    return {command, [options] { return run(*options); }};
}

}  // namespace halfbyte::cli
