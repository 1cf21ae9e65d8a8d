// halfbyte logits: the logits of every position of a token sequence, as a safetensors file.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "checkpoint/safetensors.h"
#include "cli/command.h"
#include "cli/model_files.h"
#include "core/check.h"
#include "core/output_file.h"
#include "core/word_hash.h"
#include "halfbyte/version.h"
#include "model/decoder.h"

namespace halfbyte::cli {
namespace {

struct Options {
    CommonOptions common;
    std::string model, output, tokens, arithmetic = "kernel";
    bool force = false;
};

// "1,2,3"
std::vector<int32_t> parse_tokens(const std::string& text) {
    std::vector<int32_t> tokens;
    const char *next = text.data(), *const end = next + text.size();
    for (bool more = true; more; next++) {
        const auto [rest, error] = std::from_chars(next, end, tokens.emplace_back());
        check(
            error == std::errc() && tokens.back() >= 0 && (rest == end || *rest == ','), ErrorKind::usage,
            "--tokens: '{}' at character {} is not a token id; needed are whole numbers separated by commas",
            std::string(next, std::find(next, end, ',')), next - text.data() + 1);
        more = rest != end;
        next = rest;
    }
    return tokens;
}

int run(const Options& options) {
    using model::Arithmetic;
    OutputFile::check_place(options.output, options.force);
    settle_leftovers(options.common, options.output, options.force);
    const std::vector<int32_t> tokens = parse_tokens(options.tokens);
    const auto source = open_model(options.common, options.model);
    std::error_code ignored;
    const std::filesystem::path output_path = options.output, &model_path = source->path();
    check(!std::filesystem::exists(output_path, ignored) ||
              (!std::filesystem::equivalent(output_path, model_path, ignored) &&
               !std::filesystem::equivalent(parent_of(output_path), model_path, ignored)),
          ErrorKind::usage, "--output {}: is a file of the model {}; give another name", options.output,
          options.model);
    check(source->scheme() || options.arithmetic == "kernel", ErrorKind::usage,
          "{}: is not quantised; --arithmetic {} needs an NVFP4 model", options.model, options.arithmetic);
    if (options.arithmetic == "unit-scale") check_unit_scale(*source, options.model);
    model::check_positions(source->config(), int64_t(tokens.size()), "--tokens");
    const auto context = make_context(options.common);
    const Arithmetic arithmetic = options.arithmetic == "simulated"    ? Arithmetic::simulated
                                  : options.arithmetic == "w4a16"      ? Arithmetic::w4a16
                                  : options.arithmetic == "unit-scale" ? Arithmetic::unit_scale
                                                                       : Arithmetic::kernel;
    const Progress progress = make_progress(options.common);
    const int64_t count = int64_t(tokens.size()), vocab = source->config().vocab_size;
    for (const int32_t token : tokens)
        check(token < vocab || vocab == 0, ErrorKind::usage,
              "--tokens: {} is given; ids from 0 to {} are possible", token, vocab - 1);
    check_free_space(options.output, uint64_t(count * vocab) * sizeof(float) + 4096);
    const auto decoder = model::load_decoder(*context, *source, arithmetic, progress);
    model::KvCache cache = decoder->make_cache(count);

    OutputFile output(options.output, options.force);
    checkpoint::SafetensorsWriter writer(
        output.path(), {{"logits", DType::f32, {count, vocab}}},
        {{"tool", "halfbyte " + std::string(version)}, {"arithmetic", options.arithmetic}});
    constexpr int64_t chunk = 64;
    std::vector<float> logits(size_t(std::min(chunk, count) * vocab));
    WordHash hash;
    int64_t infinite = 0;
    for (int64_t begin = 0; begin < count; begin += chunk) {
        progress("logits", begin, count);
        const int64_t rows = std::min(chunk, count - begin);
        decoder->forward(*context, cache, std::span(tokens).subspan(size_t(begin), size_t(rows)), rows,
                         logits.data());
        const auto values = std::span(logits).first(size_t(rows * vocab));
        hash.add(values);
        infinite += std::count_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
        writer.write("logits", {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
    }
    writer.finish();
    source->check_unchanged();
    progress("logits", count, count);
    output.commit();
    if (infinite > 0)
        warn(options.common,
             fmt::format("{}: {} of {} logits are NaN or infinite", options.model, infinite, count * vocab));
    if (options.common.json())
        print_json({{"schema", 1},
                    {"output", options.output},
                    {"shape", {count, vocab}},
                    {"logits_hash", fmt::format("{:016x}", hash.value())}});
    else
        fmt::print("{}: logits F32 [{}, {}], hash {:016x}\n", options.output, count, vocab, hash.value());
    return 0;
}

}  // namespace

Command add_logits(CLI::App& program) {
    auto options = std::make_shared<Options>();
    CLI::App* command =
        add_command(program, "logits", "Write the logits of a token sequence to a safetensors file",
                    "  halfbyte logits -m DIR --tokens 1,2,3 -o logits.safetensors\n"
                    "  halfbyte logits -m OUT --tokens 1,2,3 --arithmetic w4a16 -o logits16.safetensors",
                    options->common);
    command->add_option("-m,--model", options->model, "Hugging Face folder or .gguf file")
        ->type_name(model_type)
        ->required();
    command->add_option("--tokens", options->tokens, "Token ids, separated by commas")
        ->type_name("IDS")
        ->required();
    command->add_option("-o,--output", options->output, "File to write: logits, F32 [tokens, vocabulary]")
        ->type_name(file_type)
        ->required();
    command
        ->add_option("--arithmetic", options->arithmetic,
                     "How quantised layers run; w4a16 leaves the activations of a W4A4 file unquantised, "
                     "unit-scale quantises transformed ones with a global scale of 6")
        ->check(CLI::IsMember({"kernel", "simulated", "w4a16", "unit-scale"}))
        ->capture_default_str();
    command->add_flag("--force", options->force, "Replace an existing file");
    return {command, [options] { return run(*options); }};
}

}  // namespace halfbyte::cli
