// halfbyte quantize: a dense model to an NVFP4 checkpoint.
#include "quantizer/quantize_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>

#include "cli/command.h"
#include "cli/model_files.h"
#include "core/check.h"
#include "core/process_memory.h"
#include "quantizer/rotated_checkpoint.h"

namespace halfbyte::cli {
namespace {

using checkpoint::Scheme;
using quantizer::TransformKind;

struct Options {
    CommonOptions common;
    std::string model, output, scheme, calibrate, max_shard_size = "5GB";
    int64_t calibrate_tokens = 2048;
    std::vector<std::string> ignore = {"lm_head"};
    std::string head;                        // empty: like the other layers
    std::string transform, transform_block;  // empty: none; that of the kind
    std::vector<std::string> rotations;      // empty: R1, R2
    uint64_t seed = 0;
    bool calibrate_tokens_given = false, seed_given = false, transform_given = false;
    bool separate_scales = false, dry_run = false, force = false;
};

std::string quoted(const std::string& word) {
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
        return std::isalnum(c) || std::string_view("_-./=:,+@%").find(char(c)) != std::string_view::npos;
    });
    if (plain) return word;
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
    return text + "'";
}

// "500M", "5G", "5GB", "5GiB", "1.5GB" or bytes: K, M, G, T count in thousands, Ki, Mi, Gi, Ti in 1024s.
// Nothing for what is no size, or one below a byte or beyond 2^62.
std::optional<uint64_t> parse_size(const std::string& text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    auto [next, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
    if (error != std::errc()) return {};
    std::string unit(next, end);
    for (char& c : unit) c = char(std::toupper(uint8_t(c)));
    if (unit.ends_with('B')) unit.pop_back();
    const double base = unit.ends_with('I') ? 1024 : 1000;
    if (unit.size() == 2 && base == 1024) unit.pop_back();
    const size_t power = unit.empty() ? 0 : std::string_view("KMGT").find(unit) + 1;
    if (unit.size() > 1 || (!unit.empty() && power == 0)) return {};
    value *= std::pow(base, double(power));
    if (!(value >= 1 && value < 0x1p62)) return {};
    return uint64_t(std::llround(value));
}

std::string command_line(const Options& options, const std::string& scheme, const std::string& calibrate) {
    std::string text = fmt::format("halfbyte quantize -m {} -o {} --scheme {}", quoted(options.model),
                                   quoted(options.output), scheme);
    if (!calibrate.empty()) {
        text += " --calibrate " + (calibrate == "TEXT" ? calibrate : quoted(calibrate));
        if (options.calibrate_tokens != 2048)
            text += fmt::format(" --calibrate-tokens {}", options.calibrate_tokens);
    }
    if (options.ignore != std::vector<std::string>{"lm_head"})  // none is the default of --head
        for (const std::string& pattern : options.ignore) text += " --ignore " + quoted(pattern);
    if (!options.head.empty()) text += " --head " + options.head;
    if (options.separate_scales) text += " --separate-scales";
    if (!options.transform.empty()) text += " --transform " + quoted(options.transform);
    if (!options.transform_block.empty()) text += " --transform-block " + options.transform_block;
    if (!options.rotations.empty()) text += fmt::format(" --rotations {}", fmt::join(options.rotations, ","));
    if (options.seed_given) text += fmt::format(" --seed {}", options.seed);
    if (options.max_shard_size != "5GB") text += " --max-shard-size " + options.max_shard_size;
    return text;
}

// The options that change nothing in OUT.
std::string other_options(const Options& options) {
    const CommonOptions& common = options.common;
    std::string text;
    if (options.dry_run) text += " --dry-run";
    if (options.force) text += " --force";
    if (common.threads != 0) text += fmt::format(" --threads {}", common.threads);
    if (common.cpu_level != "best") text += " --cpu-level " + common.cpu_level;
    if (common.json()) text += " --format json";
    if (common.quiet) text += " --quiet";
    if (common.verbose) text += " --verbose";
    return text;
}

// Nothing without --transform. Each option is for some kinds only.
std::optional<quantizer::TransformOptions> transform_options(const Options& options) {
    const std::string& name = options.transform;
    const auto needs = [&](bool given, const std::string& option, bool fits, const char* what) {
        check(!given || fits, ErrorKind::usage, "{}: {}; {}", option, what,
              name.empty() ? "give one, or leave it out" : "leave it out with --transform " + name);
    };
    const bool spinquant = name == "spinquant", random = name == "quip" || spinquant;
    const bool file = options.transform_given && !random && name != "hadamard";
    std::string extension = std::filesystem::path(name).extension().string();
    for (char& c : extension) c = char(std::tolower(uint8_t(c)));
    check(!file || extension == ".safetensors", ErrorKind::usage,
          "--transform {}: quip, spinquant, hadamard or a .safetensors file with one matrix is needed",
          quoted(name));
    needs(!options.transform_block.empty(), "--transform-block " + options.transform_block, !name.empty(),
          "it is the size of --transform");
    needs(options.seed_given, fmt::format("--seed {}", options.seed), random,
          "it makes the random signs of --transform quip and spinquant");
    needs(!options.rotations.empty(), fmt::format("--rotations {}", fmt::join(options.rotations, ",")),
          spinquant, "it chooses among those of --transform spinquant");
    if (name.empty()) return {};

    quantizer::TransformOptions request = {.kind = spinquant        ? TransformKind::spinquant
                                                   : name == "quip" ? TransformKind::quip
                                                   : file           ? TransformKind::file
                                                                    : TransformKind::hadamard,
                                           .file = file ? name : "",
                                           .block = spinquant ? 0 : 16,
                                           .seed = options.seed,
                                           .rotations = {"R1", "R2"},
                                           .ignore = options.ignore};
    if (!options.rotations.empty()) request.rotations = {options.rotations.begin(), options.rotations.end()};
    if (!options.transform_block.empty())
        request.block = options.transform_block == "full" ? 0 : std::stoll(options.transform_block);
    const bool sized = !spinquant || request.rotations.contains("R1") || request.rotations.contains("R4");
    check(options.transform_block.empty() || sized, ErrorKind::usage,
          "--transform-block {}: it is the size of R1 and R4; leave it out with --rotations {}",
          options.transform_block, fmt::join(options.rotations, ","));
    request.block_given = !options.transform_block.empty();
    return request;
}

// Runs the source over the first tokens of the text.
quantizer::Calibration calibrate(const Options& options, const Context& context,
                                 const checkpoint::Checkpoint& source, const model::Tokenizer& tokenizer,
                                 const Progress& progress) {
    constexpr int64_t window = 512;
    std::vector<int32_t> ids = encode(source, tokenizer, read_text(options.calibrate), false);
    check(int64_t(ids.size()) >= options.calibrate_tokens, ErrorKind::usage,
          "--calibrate {}: the text has {} tokens, --calibrate-tokens asks for {}", options.calibrate,
          ids.size(), options.calibrate_tokens);
    ids.resize(size_t(options.calibrate_tokens));
    if (!options.common.quiet) {
        uint64_t weights = 0;
        for (const auto& [name, tensor] : source.dense()) {
            weights += uint64_t(tensor.elements()) * size_of(tensor.dtype);
        }
        const checkpoint::ModelConfig& config = source.config();
        const int64_t cache = 2 * config.layers * config.kv_heads * config.head_dim;
        const int64_t activations =
            4 * config.hidden_size + 2 * config.heads * config.head_dim + 3 * config.intermediate_size;
        print_error_line(
            fmt::format("halfbyte: calibration runs the source model and needs about {} of memory",
                        mebibytes(weights + uint64_t(window * (cache + activations) * 4) + (64u << 20))));
    }
    const auto decoder = model::load_decoder(context, source, model::Arithmetic::kernel, progress);
    return quantizer::calibrate(context, *decoder, ids, window, progress);
}

std::vector<quantizer::LayerReport> worst_layers(std::vector<quantizer::LayerReport> layers) {
    std::stable_sort(layers.begin(), layers.end(),
                     [](const auto& a, const auto& b) { return a.snr_db < b.snr_db; });
    if (layers.size() > 5) layers.resize(5);
    return layers;
}

void print_report(const Options& options, const quantizer::QuantizeReport& report,
                  const std::vector<std::string>& transforms, double seconds) {
    const auto worst = worst_layers(report.layers);
    if (options.common.json()) {
        Json rows = Json::array();
        for (const auto& layer : worst)
            rows.push_back({{"tensor", layer.module + ".weight"}, {"snr_db", layer.snr_db}});
        print_json({{"schema", 1},
                    {"output", options.dry_run ? Json(nullptr) : Json(options.output)},
                    {"scheme", options.scheme},
                    {"source_bytes", report.source_bytes},
                    {"output_bytes", report.output_bytes},
                    {"weight_files", report.weight_files},
                    {"quantized_layers", report.layers.size()},
                    {"dense_tensors", report.dense_tensors},
                    {"head", options.head.empty() ? Json(nullptr) : Json(options.head)},
                    {"bits_per_weight", report.bits_per_weight},
                    {"quantized_bits_per_weight", report.quantized_bits_per_weight},
                    {"transforms", transforms},
                    {"worst", rows},
                    {"clipped_values", report.stats.clipped},
                    {"flushed_blocks", report.stats.flushed},
                    {"seconds", seconds},
                    {"peak_memory_bytes", peak_memory_bytes()},
                    {"warnings", report.warnings}});
        return;
    }
    std::string source_types;
    for (const std::string& type : report.source_types)
        source_types += (source_types.empty() ? "" : "/") + type;
    fmt::print("{} {} -> {} {} ({}), {:.1f} s, peak memory {}\n", mebibytes(report.source_bytes),
               source_types, mebibytes(report.output_bytes), options.scheme,
               options.scheme == "NVFP4" ? "W4A4" : "W4A16", seconds, mebibytes(peak_memory_bytes()));
    fmt::print(
        "{} linear layers with {:.2f} bits per weight, {} other tensors; {:.2f} bits per weight in all\n",
        report.layers.size(), report.quantized_bits_per_weight, report.dense_tensors, report.bits_per_weight);
    if (!options.head.empty())
        fmt::print("lm_head: {} weights{}\n", options.head == "fp8" ? "FP8" : "NVFP4",
                   report.head_untied ? " of its own, in the source it shares the embedding's" : "");
    for (const std::string& line : transforms) fmt::print("{}\n", line);
    fmt::print("clipped {} of {} values, flushed {} of {} blocks to zero\n", report.stats.clipped,
               report.stats.values, report.stats.flushed, report.stats.blocks);
    fmt::print("worst layers by signal to noise:\n");
    for (const auto& layer : worst) fmt::print("  {:6.2f} dB  {}\n", layer.snr_db, layer.module);
    if (options.dry_run)
        fmt::print("dry run: nothing was written\n");
    else
        fmt::print("written to {}{}\n", options.output,
                   report.weight_files.size() == 1
                       ? ""
                       : fmt::format(", weights in {} files", report.weight_files.size()));
}

std::optional<Scheme> head_scheme(const Options& options) {
    if (options.head.empty()) return {};
    return options.head == "fp8" ? Scheme::fp8a16 : Scheme::nvfp4a16;
}

int run(const Options& options) {
    const auto start = std::chrono::steady_clock::now();
    check(options.scheme == "NVFP4A16" || !options.calibrate.empty(), ErrorKind::usage,
          "--scheme NVFP4 (W4A4) needs static input scales, measured on a text that is not the one to "
          "evaluate on:\n"
          "  {}\nor leave the activations unquantised (W4A16):\n  {}",
          command_line(options, "NVFP4", "TEXT") + other_options(options),
          command_line(options, "NVFP4A16", "") + other_options(options));
    check(options.scheme == "NVFP4" || options.calibrate.empty(), ErrorKind::usage,
          "--calibrate {}: NVFP4A16 has no input scales; leave it out, or use --scheme NVFP4",
          options.calibrate);
    check(options.scheme == "NVFP4" || !options.calibrate_tokens_given, ErrorKind::usage,
          "--calibrate-tokens {}: NVFP4A16 has no input scales; leave it out, or use --scheme NVFP4",
          options.calibrate_tokens);
    std::optional<quantizer::TransformOptions> transform = transform_options(options);
    // Turned at run time are the layers of the scheme; --head is for weights alone.
    if (transform && !options.head.empty()) transform->ignore.push_back("lm_head");
    quantizer::QuantizeOptions request = {
        .scheme = options.scheme == "NVFP4" ? Scheme::nvfp4 : Scheme::nvfp4a16,
        .ignore = options.ignore,
        .head = head_scheme(options),
        .separate_scales = options.separate_scales,
        .dry_run = options.dry_run,
        .force = options.force,
        .max_shard_bytes = *parse_size(options.max_shard_size),
        .command = command_line(options, options.scheme, options.calibrate),
        .calibration_text = std::filesystem::path(options.calibrate).filename().string()};

    const auto source = open_model(options.common, options.model);
    const auto context = make_context(options.common);
    const Progress progress = make_progress(options.common);
    std::optional<quantizer::RotatedCheckpoint> rotated;
    if (transform) request.rotated = &rotated.emplace(*context, *source, *transform);
    const checkpoint::Checkpoint& tensors = rotated ? *rotated : *source;
    if (!options.dry_run) settle_leftovers(options.common, options.output, options.force);
    quantizer::check_request(*source, options.output, request);
    // The tokenizer goes into the new folder, so a broken one is found now. One that is absent or that
    // halfbyte cannot run is in the way of a calibration only.
    std::optional<model::Tokenizer> tokenizer;
    try {
        tokenizer = load_tokenizer(*source);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::unsupported || !options.calibrate.empty()) throw;
    }
    std::optional<quantizer::Calibration> calibration;
    if (!options.calibrate.empty()) calibration = calibrate(options, *context, tensors, *tokenizer, progress);

    const quantizer::QuantizeReport report =
        quantizer::quantize_checkpoint(*context, *source, calibration, options.output, request, progress);
    for (const std::string& warning : report.warnings) warn(options.common, warning);
    print_report(options, report, rotated ? rotated->plan().lines : std::vector<std::string>(),
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    return 0;
}

}  // namespace

Command add_quantize(CLI::App& program) {
    auto options = std::make_shared<Options>();
    CLI::App* command = add_command(
        program, "quantize", "Quantise a model to an NVFP4 checkpoint (compressed-tensors)",
        "  halfbyte quantize -m MODEL.gguf -o OUT --scheme NVFP4 --calibrate calibrate.txt\n"
        "  halfbyte quantize -m DIR -o OUT16 --scheme NVFP4A16 --ignore lm_head --ignore 're:.*down_proj$'\n"
        "  halfbyte quantize -m DIR -o HEAD8 --scheme NVFP4A16 --head fp8\n"
        "  halfbyte quantize -m DIR -o ROTATED --scheme NVFP4A16 --transform quip --transform-block 16 "
        "--seed 1\n"
        "  halfbyte quantize -m DIR -o SHARDS --scheme NVFP4A16 --max-shard-size 2GB",
        options->common);
    command->add_option("-m,--model", options->model, "Source: Hugging Face folder or .gguf file")
        ->type_name(model_type)
        ->required();
    command->add_option("-o,--output", options->output, "Folder to make; it appears whole or not at all")
        ->type_name(folder_type)
        ->required();
    command
        ->add_option("--scheme", options->scheme,
                     "NVFP4 quantises weights and activations, NVFP4A16 weights only")
        ->check(CLI::IsMember({"NVFP4", "NVFP4A16"}))
        ->required();
    command
        ->add_option("--calibrate", options->calibrate,
                     "Text to measure the input scales of NVFP4 on, UTF-8; never the evaluation text")
        ->type_name(file_type);
    CLI::Option* calibrate_tokens =
        command->add_option("--calibrate-tokens", options->calibrate_tokens, "Tokens of it to run")
            ->check(CLI::Range(int64_t(1), int64_t(1) << 40))
            ->capture_default_str();
    CLI::Option* ignore =
        command
            ->add_option("--ignore", options->ignore,
                         "Linear layers to leave as they are, instead of the default: a module name, or "
                         "re:PATTERN matched "
                         "from the name's start; may be given several times")
            ->expected(1)
            ->take_all()
            ->capture_default_str();
    command
        ->add_option(
            "--head", options->head,
            "Quantise the weights of lm_head, by default left as they are: nvfp4, or fp8 with a scale "
            "for each row. Its inputs are not quantised; one that shares the embedding's weights gets its "
            "own")
        ->check(CLI::IsMember({"nvfp4", "fp8"}));
    command->add_flag("--separate-scales", options->separate_scales,
                      "A weight scale of its own for each of q, k, v and of gate, up");
    CLI::Option* transform =
        command
            ->add_option(
                "--transform", options->transform,
                "Rotate what is quantised: quip (with random signs) and hadamard turn each layer's "
                "input at run time by a Hadamard matrix, a .safetensors FILE by the one matrix [n, n] "
                "in it; spinquant turns the weights, see --rotations")
            ->type_name("NAME|" + std::string(file_type));
    command
        ->add_option("--transform-block", options->transform_block,
                     "Its n; by default 16, for spinquant full, the whole width; a FILE has its own")
        ->check(CLI::IsMember({"16", "32", "64", "128", "full"}));
    command
        ->add_option("--rotations", options->rotations,
                     "Of spinquant, with commas between several: R1 the residual stream and R2 the values, "
                     "folded into "
                     "the weights; R3 q and k and R4 the input of down_proj, at run time; by default R1,R2")
        ->delimiter(',')
        ->check(CLI::IsMember({"R1", "R2", "R3", "R4"}))
        ->expected(1, 4);
    CLI::Option* seed =
        command->add_option("--seed", options->seed, "Of the random signs of quip and spinquant")
            ->capture_default_str();
    command
        ->add_option("--max-shard-size", options->max_shard_size,
                     "Largest weight file to write, such as 500MB, 5GB (thousands) or 5GiB (1024s); a larger "
                     "model is written as several files and an index")
        ->check([](const std::string& text) {
            const bool size = parse_size(text).has_value();
            return size ? "" : "'" + text + "' is not a size such as 500MB, 5GB, 5GiB or 5000000000";
        })
        ->type_name("SIZE")
        ->capture_default_str();
    command->add_flag("--dry-run", options->dry_run, "Do everything but write");
    command->add_flag("--force", options->force, "Replace an existing OUT");
    return {command, [options, calibrate_tokens, seed, ignore, transform] {
                // The default leaves lm_head out, which --head says otherwise.
                if (!options->head.empty() && ignore->count() == 0) options->ignore.clear();
                options->seed_given = seed->count() > 0;
                options->transform_given = transform->count() > 0;
                options->calibrate_tokens_given = calibrate_tokens->count() > 0;
                return run(*options);
            }};
}

}  // namespace halfbyte::cli
