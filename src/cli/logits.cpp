// halfbyte logits: the logits of every position of a token sequence, as a safetensors file.
#include <fmt/format.h>

#include "checkpoint/safetensors.h"
#include "cli/command.h"
#include "core/check.h"
#include "core/version.h"
#include "core/word_hash.h"
#include "model/decoder.h"

namespace halfbyte::cli {
namespace {

struct Options {
    CommonOptions common;
    std::string model, output, arithmetic = "kernel";
    std::vector<int32_t> tokens;
    bool force = false;
};

int run(const Options& options) {
    using model::Arithmetic;
    check(options.force || !std::filesystem::exists(options.output), ErrorKind::usage,
          "{}: exists already; --force replaces it", options.output);
    const auto source = checkpoint::open_checkpoint(options.model);
    check(source->scheme() || options.arithmetic == "kernel", ErrorKind::usage,
          "{}: is not quantised; --arithmetic {} needs an NVFP4 model", options.model, options.arithmetic);
    const auto context = make_context(options.common);
    const Arithmetic arithmetic = options.arithmetic == "simulated" ? Arithmetic::simulated
                                  : options.arithmetic == "w4a16"   ? Arithmetic::w4a16
                                                                    : Arithmetic::kernel;
    const auto decoder = model::load_decoder(*context, *source, arithmetic, make_progress(options.common));
    const int64_t count = int64_t(options.tokens.size()), vocab = decoder->config().vocab_size;
    std::vector<float> logits(size_t(count * vocab));
    model::KvCache cache = decoder->make_cache(count);
    decoder->forward(*context, cache, options.tokens, count, logits.data());
    WordHash hash;
    hash.add(logits);

    checkpoint::SafetensorsWriter writer(
        options.output, {{"logits", DType::f32, {count, vocab}}},
        {{"tool", "halfbyte " + std::string(version)}, {"arithmetic", options.arithmetic}});
    writer.write("logits", {reinterpret_cast<const uint8_t*>(logits.data()), logits.size() * sizeof(float)});
    writer.finish();
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
                    "  halfbyte logits -m DIR --tokens 504,3575,282 -o logits.safetensors\n"
                    "  halfbyte logits -m DIR --tokens 1,2,3 --arithmetic w4a16 -o logits.safetensors",
                    options->common);
    command->add_option("-m,--model", options->model, "Hugging Face folder or .gguf file")->required();
    command->add_option("--tokens", options->tokens, "Token ids, separated by commas")
        ->delimiter(',')
        ->required();
    command->add_option("-o,--output", options->output, "File to write: logits, F32 [tokens, vocabulary]")->required();
    command
        ->add_option("--arithmetic", options->arithmetic,
                     "How quantised layers run; w4a16 leaves the activations of a W4A4 file unquantised")
        ->check(CLI::IsMember({"kernel", "simulated", "w4a16"}))
        ->capture_default_str();
    command->add_flag("--force", options->force, "Replace an existing file");
    return {command, [options] { return run(*options); }};
}

}  // namespace halfbyte::cli
