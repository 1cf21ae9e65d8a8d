// halfbyte perplexity: a text through the source, the simulated file and the kernels, or through several
// models, side by side.
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
    std::vector<std::string> compared, arithmetics;
    model::PerplexityOptions perplexity;
    bool bos = false;
};

// How a model can be run: an unquantised one as it is, a quantised one in several ways.
struct Way {
    std::string_view name;
    bool quantized;
    bool by_default;
    model::Arithmetic arithmetic;
    std::string_view label;
};
constexpr Way ways[] = {{"source", false, true, model::Arithmetic::kernel, ""},
                        {"simulated", true, true, model::Arithmetic::simulated, "simulated"},
                        {"kernel", true, true, model::Arithmetic::kernel, "kernels"},
                        {"w4a16", true, false, model::Arithmetic::w4a16, "as W4A16"},
                        {"unit-scale", true, false, model::Arithmetic::unit_scale, "unit scale"}};

struct Entry {
    std::string path;  // as given
    std::unique_ptr<checkpoint::Checkpoint> file;
    std::vector<const Way*> ways;
};

struct Row {
    const Entry* entry;
    const Way* way;
    std::string label;
    std::unique_ptr<model::Decoder> decoder;
};

// "BF16": the types of the matrices, since F16 and F32 sources keep theirs.
std::string weight_types(const checkpoint::Checkpoint& source) {
    std::set<std::string_view> types;
    for (const auto& [name, tensor] : source.dense())
        if (tensor.shape.size() == 2) types.insert(name_of(tensor.dtype));
    return fmt::format("{}", fmt::join(types, "/"));
}

bool is_asked(const Options& options, const Way& way) {
    const auto& names = options.arithmetics;
    return names.empty() ? way.by_default : std::find(names.begin(), names.end(), way.name) != names.end();
}

Entry open_entry(const Options& options, const std::string& path) {
    Entry entry = {path, open_model(options.common, path), {}};
    for (const Way& way : ways) {
        if (way.quantized != entry.file->scheme().has_value() || !is_asked(options, way)) continue;
        if (way.arithmetic == model::Arithmetic::unit_scale) check_unit_scale(*entry.file, path);
        entry.ways.push_back(&way);
    }
    return entry;
}

// The source, if there is one to run, and the model.
std::vector<Entry> source_and_model(const Options& options) {
    std::vector<Entry> entries;
    entries.push_back(open_entry(options, options.model));
    const bool quantized = entries[0].file->scheme().has_value();
    check(quantized || options.source.empty(), ErrorKind::usage,
          "perplexity: {} is not quantised, so it is its own source; leave --source out", options.model);
    for (const Way& way : ways) {
        const bool possible = way.quantized ? quantized : !quantized || !options.source.empty();
        check(options.arithmetics.empty() || !is_asked(options, way) || possible, ErrorKind::usage,
              "--arithmetic {}: {}", way.name,
              way.quantized ? options.model + " is not quantised"
                            : "needs --source with the unquantised model");
    }
    if (options.source.empty()) return entries;
    Entry source = open_entry(options, options.source);
    check(!source.file->scheme(), ErrorKind::usage,
          "--source {}: is quantised ({}); the unquantised model is needed", options.source,
          source.file->description());
    if (source.ways.empty())
        warn(options.common, fmt::format("--source {} is not run, since --arithmetic {} leaves it out",
                                         options.source, fmt::join(options.arithmetics, ",")));
    entries.insert(entries.begin(), std::move(source));
    return entries;
}

std::vector<Entry> compared_models(const Options& options) {
    std::vector<Entry> entries;
    for (const std::string& path : options.compared) entries.push_back(open_entry(options, path));
    for (const Way& way : ways) {
        const bool possible = std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
            return way.quantized == entry.file->scheme().has_value();
        });
        check(options.arithmetics.empty() || !is_asked(options, way) || possible, ErrorKind::usage,
              "--arithmetic {}: {} of the compared models is {}", way.name, way.quantized ? "none" : "each",
              "quantised");
    }
    for (const Entry& entry : entries)
        check(!entry.ways.empty(), ErrorKind::usage, "--arithmetic {}: {} is {}; add {}",
              fmt::join(options.arithmetics, ","), entry.path,
              entry.file->scheme() ? "quantised" : "not quantised",
              entry.file->scheme() ? "simulated, kernel, w4a16 or unit-scale" : "source");
    return entries;
}

// The ids of the text by the first model of those compared; that of the others must give the same, or their
// perplexities were of different things.
std::vector<int32_t> encode_for_all(const Options& options, const std::vector<Entry>& entries) {
    const std::string text = read_text(options.text);
    const bool compare = !options.compared.empty();
    const Entry& first = compare ? entries.front() : entries.back();
    const std::vector<int32_t> ids = encode(*first.file, load_tokenizer(*first.file), text, false);
    for (const Entry& entry : entries) {
        const std::string& tokenizer = entry.file->companions().tokenizer;
        if (tokenizer == first.file->companions().tokenizer || (!compare && tokenizer.empty())) continue;
        const std::vector<int32_t> own = encode(*entry.file, load_tokenizer(*entry.file), text, false);
        const auto [a, b] = std::mismatch(ids.begin(), ids.end(), own.begin(), own.end());
        check(
            a == ids.end() && b == own.end(), ErrorKind::usage,
            "{}: {} and {} have different tokenizers: {} makes {} and {} tokens, which differ from number {} "
            "on, so that their perplexities cannot be compared",
            compare ? "--compare" : "--source", first.path, entry.path, options.text, ids.size(), own.size(),
            a - ids.begin());
    }
    return ids;
}

// What can be said before the models are loaded.
void check_request(Options& options, const std::vector<Entry>& entries, int64_t tokens) {
    const Entry& first = options.compared.empty() ? entries.back() : entries.front();
    const checkpoint::ModelConfig& config = first.file->config();
    if (options.bos) {
        check(config.bos_id.has_value(), ErrorKind::usage, "--bos: {} names no BOS token", first.path);
        check(*config.bos_id >= 0 && *config.bos_id < config.vocab_size, ErrorKind::malformed,
              "{}: bos_token_id is {}, the vocabulary has {} tokens", first.path, *config.bos_id,
              config.vocab_size);
        options.perplexity.bos = int32_t(*config.bos_id);
    }
    model::check_windows(options.perplexity, tokens, options.text);
    for (const Entry& entry : entries) {
        const checkpoint::ModelConfig& other = entry.file->config();
        check(other.vocab_size == config.vocab_size, ErrorKind::usage,
              "{} has a vocabulary of {} tokens and {} one of {}; they cannot be compared", first.path,
              config.vocab_size, entry.path, other.vocab_size);
        check(!options.bos || options.compared.empty() || other.bos_id == config.bos_id, ErrorKind::usage,
              "--bos: {} has the BOS token {} and {} {}; they cannot be compared with it", first.path,
              *config.bos_id, entry.path, other.bos_id ? std::to_string(*other.bos_id) : "none");
        model::check_positions(other, options.perplexity.window_size, entry.path);
    }
}

std::string label_of(const Options& options, const Entry& entry, const Way& way) {
    if (!options.compared.empty())
        return entry.path + ", " +
               (way.quantized ? std::string(way.label) : weight_types(*entry.file) + " weights");
    return way.quantized ? fmt::format("exported file, {}", way.label)
                         : fmt::format("source, {} weights", weight_types(*entry.file));
}

std::string with_error(const char* name, const std::optional<model::Estimate>& value, const char* sign = "") {
    if (!value) return {};
    return fmt::format("{} {}{:.4f} +- {:.4f}", name, value->value > 0 ? sign : "", value->value,
                       value->standard_error);
}

Json row_json(const Options& options, const Row& row, const model::PerplexityResult& result) {
    const auto scheme = row.entry->file->scheme();
    const std::string base = options.compared.empty() ? "source" : "base";
    Json json;
    if (!options.compared.empty()) json["model"] = row.entry->path;
    json["arithmetic"] = row.way->quantized ? std::string(row.way->name) : "source-bf16";
    json["scheme"] = scheme ? Json(name_of(*scheme)) : Json(nullptr);
    json["perplexity"] = result.perplexity.value;
    json["nll"] = result.nll;
    json["standard_error"] = result.perplexity.standard_error;
    const auto estimate = [&](const std::string& name, const std::optional<model::Estimate>& value) {
        json[name] = value ? Json(value->value) : Json(nullptr);
        json[name + "_standard_error"] = value ? Json(value->standard_error) : Json(nullptr);
    };
    estimate("kl_to_" + base, result.kl_to_base);
    estimate("ratio_to_" + base, result.ratio_to_base);
    estimate("difference_to_" + base, result.difference_to_base);
    json["tokens_run"] = result.tokens_run;
    json["seconds"] = result.seconds;
    json["logits_hash"] = fmt::format("{:016x}", result.logits_hash);
    return json;
}

int run(Options options) {
    const bool compare = !options.compared.empty();
    check(compare != !options.model.empty(), ErrorKind::usage,
          "perplexity: give the model with -m, or two or more with --compare");
    const std::vector<Entry> entries = compare ? compared_models(options) : source_and_model(options);
    options.perplexity.second_half = options.scoring == "second-half";
    const std::vector<int32_t> ids = encode_for_all(options, entries);
    check_request(options, entries, int64_t(ids.size()));

    const auto context = make_context(options.common);
    const Progress progress = make_progress(options.common);
    std::vector<Row> rows;
    std::vector<model::Contestant> contestants;
    size_t width = 26;
    for (const Entry& entry : entries)
        for (const Way* way : entry.ways) {
            const bool is_base = rows.empty() && (compare || !way->quantized);
            rows.push_back({&entry, way, label_of(options, entry, *way),
                            model::load_decoder(*context, *entry.file, way->arithmetic, progress)});
            contestants.push_back({rows.back().decoder.get(), is_base});
            width = std::max(width, rows.back().label.size() + 1);
        }
    const std::vector<model::PerplexityResult> results =
        model::perplexity(*context, contestants, ids, options.perplexity, progress);
    for (const Entry& entry : entries) entry.file->check_unchanged();

    if (!options.common.json())
        fmt::print("{}, {} windows x {}, {} tokens scored, lower is better\n",
                   std::filesystem::path(options.text).filename().string(), options.perplexity.windows,
                   options.perplexity.window_size, results[0].tokens);
    Json json_rows = Json::array();
    const model::PerplexityResult* simulated = nullptr;  // of the current entry
    std::string different;
    for (size_t i = 0; i < rows.size(); i++) {
        const Row& row = rows[i];
        const model::PerplexityResult& result = results[i];
        if (i > 0 && row.entry != rows[i - 1].entry) simulated = nullptr;
        if (row.way->name == "simulated") simulated = &result;
        const bool checked = row.way->name == "kernel" && simulated != nullptr;
        const bool same = checked && simulated->logits_hash == result.logits_hash;
        if (checked && !same) different = row.entry->path;
        if (options.common.json()) {
            json_rows.push_back(row_json(options, row, result));
            continue;
        }
        fmt::print("  {:<{}}{:>9.4f} +- {:<8.4f} {:<23} {:<23} {}{:>7.1f} tokens/s{}\n", row.label, width,
                   result.perplexity.value, result.perplexity.standard_error,
                   with_error("KL", result.kl_to_base), with_error("ratio", result.ratio_to_base),
                   compare ? fmt::format("{:<26} ", with_error("delta", result.difference_to_base, "+")) : "",
                   double(result.tokens_run) / result.seconds,
                   checked ? (same ? "  (same bits)" : "  (DIFFERENT BITS)") : "");
    }
    if (options.common.json()) {
        Json json = {{"schema", 1}, {"tokens", results[0].tokens}, {"text_tokens", ids.size()}};
        if (compare)
            json["base"] = {{"model", json_rows[0]["model"]}, {"arithmetic", json_rows[0]["arithmetic"]}};
        json["results"] = json_rows;
        print_json(json);
    }
    check(different.empty(), ErrorKind::difference,
          "perplexity: the kernels and the simulation of {} give different logits; this is a defect of "
          "halfbyte",
          different);
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
        "  halfbyte perplexity -m MODEL.gguf -f evaluate.txt\n"
        "  halfbyte perplexity --compare MODEL.gguf OUT OUT16 -f evaluate.txt --arithmetic source,kernel",
        options->common);
    CLI::Option* model =
        command
            ->add_option("-m,--model", options->model, "Hugging Face folder or .gguf file; this or --compare")
            ->type_name(model_type);
    CLI::Option* source =
        command->add_option("--source", options->source, "The unquantised model that -m was made from")
            ->type_name(model_type);
    command
        ->add_option(
            "--compare", options->compared,
            "Two or more models of one tokenizer, side by side; KL divergence, ratio and difference of the "
            "perplexities are to the first row")
        ->type_name(model_type)
        ->expected(2, 64)
        ->excludes(model)
        ->excludes(source);
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
            "How to run the models, with commas between several: source (unquantised ones), simulated and "
            "kernel (quantised ones), by default all that apply; w4a16 leaves the activations of a W4A4 "
            "file unquantised; unit-scale quantises transformed ones with a global scale of 6, as vLLM does "
            "by QuTLASS")
        ->delimiter(',')
        ->check(CLI::IsMember({"source", "simulated", "kernel", "w4a16", "unit-scale"}));
    command->add_flag("--bos", options->bos, "Put the BOS token in the place of each window's first token");
    return {command, [options] { return run(*options); }};
}

}  // namespace halfbyte::cli
