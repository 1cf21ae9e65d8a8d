// halfbyte tokenize: the token ids of a text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/model_files.h"

namespace halfbyte::cli {
namespace {

struct Options {
    CommonOptions common;
    std::string model, text;
};

int run(const Options& options) {
    check_utf8(options.text, "--prompt");
    const auto source = checkpoint::open_checkpoint(options.model);
    const std::vector<int32_t> tokens = load_tokenizer(*source).encode(options.text, true);
    if (options.common.json())
        print_json({{"schema", 1}, {"tokens", tokens}});
    else
        fmt::print("{}\n", fmt::join(tokens, " "));
    return 0;
}

}  // namespace

Command add_tokenize(CLI::App& program) {
    auto options = std::make_shared<Options>();
    CLI::App* command = add_command(program, "tokenize", "Print the token ids of a text",
                                    "  halfbyte tokenize -m MODEL.gguf -p 'Hello, world!'\n"
                                    "  halfbyte tokenize -m DIR -p 'Hello, world!' --format json",
                                    options->common);
    command->add_option("-m,--model", options->model, "Hugging Face folder or .gguf file")
        ->type_name(model_type)
        ->required();
    command->add_option("-p,--prompt", options->text, "The text")->required();
    return {command, [options] { return run(*options); }};
}

}  // namespace halfbyte::cli
