// halfbyte perplexity: a text through the source, the simulated file and the kernels, side by side.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "cli/command.h"
#include "cli/model_files.h"
#include "core/check.h"
#include "model/evaluation.h"

namespace halfbyte::cli {
namespace {

struct Options {
    CommonOptions common;
    std::string model, source, text, scoring = "all";
    std::vector<std::string> arithmetics;
    model::PerplexityOptions perplexity;
    bool bos = false;
};

struct Row {
    std::string name;  // as JSON spells it
    std::string label;
    std::optional<checkpoint::Scheme> scheme;
    std::unique_ptr<model::Decoder> decoder;
};

// "BF16": the types of the matrices, since F16 and F32 sources keep theirs.
std::string weight_types(const checkpoint::Checkpoint& source) {
    std::set<std::string_view> types;
    for (const auto& [name, tensor] : source.dense())
        if (tensor.shape.size() == 2) types.insert(name_of(tensor.dtype));
    return fmt::format("{}", fmt::join(types, "/"));
}

// Which rows are wanted, in the order source, simulated, kernel, w4a16; the last only when asked for.
std::vector<std::string> choose_arithmetics(const Options& options, bool quantized) {
    const bool has_source = !options.source.empty() || !quantized;
    check(quantized || options.source.empty(), ErrorKind::usage,
          "perplexity: {} is not quantised, so it is its own source; leave --source out", options.model);
    std::vector<std::string> chosen;
    for (const char* name : {"source", "simulated", "kernel", "w4a16"}) {
        const bool asked = std::find(options.arithmetics.begin(), options.arithmetics.end(), name) !=
                           options.arithmetics.end();
        const bool possible = std::string_view(name) == "source" ? has_source : quantized;
        check(!asked || possible, ErrorKind::usage, "--arithmetic {}: {}", name,
              std::string_view(name) == "source" ? "needs --source with the unquantised model"
                                                 : options.model + " is not quantised");
        const bool by_default = options.arithmetics.empty() && std::string_view(name) != "w4a16";
        if (asked || (by_default && possible)) chosen.push_back(name);
    }
    return chosen;
}

int run(Options options) {
    const auto file = checkpoint::open_checkpoint(options.model);
    const std::vector<std::string> arithmetics = choose_arithmetics(options, file->scheme().has_value());
    std::unique_ptr<checkpoint::Checkpoint> source;
    if (!options.source.empty()) {
        source = checkpoint::open_checkpoint(options.source);
        check(!source->scheme(), ErrorKind::usage,
              "--source {}: is quantised ({}); the unquantised model is needed", options.source,
              source->description());
    }
    const std::string text = read_text(options.text);
    const model::Tokenizer tokenizer = load_tokenizer(*file);
    if (options.bos) {
        check(file->config().bos_id.has_value(), ErrorKind::usage, "--bos: {} names no BOS token",
              options.model);
        check(*file->config().bos_id >= 0 && *file->config().bos_id < file->config().vocab_size,
              ErrorKind::malformed, "{}: bos_token_id is {}, the vocabulary has {} tokens", options.model,
              *file->config().bos_id, file->config().vocab_size);
        options.perplexity.bos = int32_t(*file->config().bos_id);
    }
    options.perplexity.second_half = options.scoring == "second-half";
    const std::vector<int32_t> ids = encode(*file, tokenizer, text, false);

    const auto context = make_context(options.common);
    const Progress progress = make_progress(options.common);
    std::vector<Row> rows;
    std::vector<model::Contestant> contestants;
    for (const std::string& arithmetic : arithmetics) {
        const bool is_source = arithmetic == "source";
        const checkpoint::Checkpoint& checkpoint = is_source && source ? *source : *file;
        rows.push_back({is_source ? "source-bf16" : arithmetic,
                        is_source ? fmt::format("source, {} weights", weight_types(checkpoint))
                        : arithmetic == "simulated" ? "exported file, simulated"
                        : arithmetic == "w4a16"     ? "exported file, as W4A16"
                                                    : "exported file, kernels",
                        checkpoint.scheme(),
                        model::load_decoder(*context, checkpoint,
                                            arithmetic == "simulated" ? model::Arithmetic::simulated
                                            : arithmetic == "w4a16"   ? model::Arithmetic::w4a16
                                                                      : model::Arithmetic::kernel,
                                            progress)});
        contestants.push_back({rows.back().decoder.get(), is_source});
    }
    const std::vector<model::PerplexityResult> results =
        model::perplexity(*context, contestants, ids, options.perplexity, progress);
    file->check_unchanged();
    if (source) source->check_unchanged();

    std::optional<uint64_t> simulated_hash;
    bool same_bits = true;
    Json json_rows = Json::array();
    if (!options.common.json())
        fmt::print("{}, {} windows x {}, {} tokens scored, lower is better\n",
                   std::filesystem::path(options.text).filename().string(), options.perplexity.windows,
                   options.perplexity.window_size, results[0].tokens);
    for (size_t i = 0; i < rows.size(); i++) {
        const model::PerplexityResult& result = results[i];
        const bool compared = rows[i].name == "kernel" && simulated_hash;
        if (rows[i].name == "simulated") simulated_hash = result.logits_hash;
        if (compared) same_bits = *simulated_hash == result.logits_hash;
        if (options.common.json()) {
            Json row = {{"arithmetic", rows[i].name}};
            row["scheme"] = rows[i].scheme ? Json(name_of(*rows[i].scheme)) : Json(nullptr);
            row["perplexity"] = result.perplexity.value;
            row["nll"] = result.nll;
            row["standard_error"] = result.perplexity.standard_error;
            const auto estimate = [&](const char* name, const std::optional<model::Estimate>& value) {
                row[name] = value ? Json(value->value) : Json(nullptr);
                row[name + std::string("_standard_error")] =
                    value ? Json(value->standard_error) : Json(nullptr);
            };
            estimate("kl_to_source", result.kl_to_source);
            estimate("ratio_to_source", result.ratio_to_source);
            row["tokens_run"] = result.tokens_run;
            row["seconds"] = result.seconds;
            row["logits_hash"] = fmt::format("{:016x}", result.logits_hash);
            json_rows.push_back(row);
            continue;
        }
        std::string kl, ratio;
        if (result.kl_to_source)
            kl = fmt::format("KL {:.4f} +- {:.4f}", result.kl_to_source->value,
                             result.kl_to_source->standard_error);
        if (result.ratio_to_source)
            ratio = fmt::format("ratio {:.4f} +- {:.4f}", result.ratio_to_source->value,
                                result.ratio_to_source->standard_error);
        fmt::print("  {:<26}{:>9.4f} +- {:<8.4f} {:<23} {:<23} {:>7.1f} tokens/s{}\n", rows[i].label,
                   result.perplexity.value, result.perplexity.standard_error, kl, ratio,
                   double(result.tokens_run) / result.seconds,
                   compared ? (same_bits ? "  (same bits)" : "  (DIFFERENT BITS)") : "");
    }
    if (options.common.json())
        print_json({{"schema", 1},
                    {"tokens", results[0].tokens},
                    {"text_tokens", ids.size()},
                    {"results", json_rows}});
    check(same_bits, ErrorKind::difference,
          "perplexity: the kernels and the simulation of {} give different logits; this is a defect of "
          "halfbyte",
          options.model);
    return 0;
}

}  // namespace

Command add_perplexity(CLI::App& program) {
    auto options = std::make_shared<Options>();
    CLI::App* command = add_command(
        program, "perplexity",
        "Evaluate a model on a text: source, simulated and kernel arithmetic side by side",
        "  halfbyte perplexity -m OUT --source MODEL.gguf -f evaluate.txt\n"
        "  halfbyte perplexity -m OUT -f evaluate.txt --windows 8 --arithmetic kernel --format json\n"
        "  halfbyte perplexity -m OUT -f evaluate.txt --arithmetic kernel,w4a16\n"
        "  halfbyte perplexity -m MODEL.gguf -f evaluate.txt",
        options->common);
    command->add_option("-m,--model", options->model, "Hugging Face folder or .gguf file")
        ->type_name(model_type)
        ->required();
    command->add_option("--source", options->source, "The unquantised model that -m was made from")
        ->type_name(model_type);
    command->add_option("-f,--file", options->text, "Text to evaluate on, UTF-8")
        ->type_name(file_type)
        ->required();
    const auto positive = CLI::Range(int64_t(1), int64_t(1) << 40);
    command->add_option("--windows", options->perplexity.windows, "Windows to run")
        ->check(positive)
        ->capture_default_str();
    command->add_option("--window-size", options->perplexity.window_size, "Tokens of a window")
        ->check(CLI::Range(int64_t(2), int64_t(1) << 40))
        ->capture_default_str();
    command->add_option("--scoring", options->scoring, "Positions that count; second-half as llama.cpp does")
        ->check(CLI::IsMember({"all", "second-half"}))
        ->capture_default_str();
    command
        ->add_option("--chunk", options->perplexity.chunk,
                     "Positions run at a time; changes no bit of the result")
        ->check(positive)
        ->capture_default_str();
    command
        ->add_option(
            "--arithmetic", options->arithmetics,
            "source, simulated, kernel: all that apply by default; w4a16 leaves the activations of a "
            "W4A4 file unquantised")
        ->delimiter(',')
        ->check(CLI::IsMember({"source", "simulated", "kernel", "w4a16"}));
    command->add_flag("--bos", options->bos, "Put the BOS token in the place of each window's first token");
    return {command, [options] { return run(*options); }};
}

}  // namespace halfbyte::cli
