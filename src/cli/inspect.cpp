// halfbyte inspect: what a model file holds.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "checkpoint/checkpoint.h"
#include "cli/command.h"
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

int run(const Options& options) {
    const auto file = checkpoint::open_checkpoint(options.path);
    std::vector<TensorRow> rows;
    std::map<std::string, int64_t> formats;
    int64_t parameters = 0;
    for (const auto& [module, linear] : file->nvfp4()) {
        rows.push_back({module + ".weight", "NVFP4", {linear.n, linear.k}});
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
    for (const std::string& warning : file->warnings()) warn(options.common, warning);
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
        if (!file->nvfp4().empty()) {
            const auto range = [](const Range& r) {
                return r.low > r.high ? Json(nullptr) : Json({r.low, r.high});
            };
            json["scales"] = {{"blocks", scales.blocks},
                              {"block_scale_range", range(scales.block)},
                              {"block_scale_zero", scales.zero},
                              {"block_scale_subnormal", scales.subnormal},
                              {"block_scale_448", scales.largest},
                              {"weight_global_scale_range", range(scales.weight)},
                              {"input_global_scale_range", range(scales.input)}};
        }
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
        counts += fmt::format("{}{} {} {}{}", counts.empty() ? "" : ", ", count, format,
                              format == "NVFP4" ? "linear" : "tensor", count == 1 ? "" : "s");
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
    if (options.tensors)
        for (const TensorRow& row : rows)
            fmt::print("  {:<6} {:<16} {}\n", row.format, shape_text(row.shape), printable(row.name));
    return 0;
}

}  // namespace

Command add_inspect(CLI::App& program) {
    auto options = std::make_shared<Options>();
    CLI::App* command =
        add_command(program, "inspect", "Show the dialect, tensors and scales of a model file",
                    "  halfbyte inspect OUT\n"
                    "  halfbyte inspect MODEL.gguf --tensors\n"
                    "  halfbyte inspect OUT --format json",
                    options->common);
    command->add_option("path", options->path, "Hugging Face folder or .gguf file")
        ->type_name(model_type)
        ->required();
    command->add_flag("--tensors", options->tensors, "List every tensor");
    return {command, [options] { return run(*options); }};
}

}  // namespace halfbyte::cli
