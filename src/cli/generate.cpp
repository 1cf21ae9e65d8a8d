// halfbyte generate: text from a prompt, streamed as it comes.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/command.h"
#include "cli/model_files.h"
#include "core/check.h"
#include "model/generation.h"

namespace halfbyte::cli {
namespace {

struct Options {
    CommonOptions common;
    std::string model, prompt;
    std::optional<std::string> system, date;
    int64_t max_tokens = 128;
    bool max_tokens_given = false, chat = false, raw = false, ignore_eos = false;
    model::SamplerOptions sampler;
};

struct Prompt {
    std::vector<int32_t> tokens;
    std::vector<int32_t> stop;
};

Prompt make_prompt(const Options& options, const checkpoint::Checkpoint& source,
                   const model::Tokenizer& tokenizer) {
    Prompt prompt;
    if (!options.ignore_eos)
        for (const int64_t id : source.config().eos_ids) prompt.stop.push_back(int32_t(id));
    if (!options.chat) {
        prompt.tokens = encode(source, tokenizer, options.prompt, !options.raw);
        return prompt;
    }
    auto chat = model::recognise_chat_template(source.companions().chat_template);
    check(chat.has_value(), ErrorKind::unsupported,
          "{}: {}; write the conversation out as the model expects it and use --raw", options.model,
          source.companions().chat_template.empty()
              ? "has no chat template"
              : "the chat template is not of a built-in family (ChatML, Llama 3)");
    if (options.date) {
        check(!chat->date.empty(), ErrorKind::usage,
              "--date {}: the chat template of {} tells the model no date", *options.date, options.model);
        chat->date = *options.date;
    }
    std::vector<model::ChatMessage> messages;
    if (options.system) messages.push_back({"system", *options.system});
    messages.push_back({"user", options.prompt});
    prompt.tokens = encode(source, tokenizer, chat->render(messages, true, bos_token(source)), false);
    if (const auto end = tokenizer.id_of(chat->end_token); end && !options.ignore_eos)
        prompt.stop.push_back(*end);
    return prompt;
}

int run(Options options) {
    check_utf8(options.prompt, "--prompt");
    if (options.system) check_utf8(*options.system, "--system");
    if (options.date) check_utf8(*options.date, "--date");
    const auto source = open_model(options.common, options.model);
    const model::Tokenizer tokenizer = load_tokenizer(*source);
    const Prompt prompt = make_prompt(options, *source, tokenizer);
    const int64_t room = source->config().max_positions - int64_t(prompt.tokens.size());
    if (!options.max_tokens_given) options.max_tokens = std::clamp<int64_t>(room, 1, options.max_tokens);
    model::check_prompt(source->path(), source->config(), int64_t(prompt.tokens.size()), options.max_tokens);
    const auto context = make_context(options.common);
    const Progress progress = make_progress(options.common);
    const auto decoder = model::load_decoder(*context, *source, model::Arithmetic::kernel, progress);

    model::Utf8Stream stream;
    std::string text;
    const auto print = [&](const std::string& piece) {
        text += piece;
        if (options.common.json()) return;
        fmt::print("{}", piece);
        flush_results();
    };
    const model::GenerateResult result =
        generate(*context, *decoder, prompt.tokens,
                 {.max_tokens = options.max_tokens, .stop = prompt.stop, .sampler = options.sampler},
                 [&](int32_t token) {
                     if (interrupting_signal() != 0) print("\n");  // the error stands on a line of its own
                     stop_if_interrupted();
                     // Embeddings are often padded: such an id stands for no text.
                     if (tokenizer.contains(token)) print(stream.add(tokenizer.decode(std::span(&token, 1))));
                 });
    print(stream.finish());
    source->check_unchanged();
    if (options.common.json()) {
        print_json({{"schema", 1},
                    {"prompt_tokens", prompt.tokens},
                    {"tokens", result.tokens},
                    {"text", text},
                    {"seconds", result.seconds},
                    {"prompt_seconds", result.prompt_seconds}});
    } else {
        fmt::print("\n");
    }
    if (options.common.verbose)
        print_error_line(
            fmt::format("halfbyte: prompt {} tokens, {:.1f} tokens/s; generated {} tokens, {:.1f} tokens/s",
                        prompt.tokens.size(), double(prompt.tokens.size()) / result.prompt_seconds,
                        result.tokens.size(), double(result.tokens.size()) / result.seconds));
    return 0;
}

// A check of an option. CLI11's own takes -1 and what is too large for the largest number.
template <typename Number>
auto number(const char* needed, bool (*fits)(Number)) {
    return [=](const std::string& text) {
        Number value{};
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        return error == std::errc() && rest == end && fits(value)
                   ? std::string()
                   : fmt::format("{} is given; needed is {}", text, needed);
    };
}

}  // namespace

Command add_generate(CLI::App& program) {
    auto options = std::make_shared<Options>();
    CLI::App* command =
        add_command(program, "generate", "Generate text from a prompt",
                    "  halfbyte generate -m OUT --chat -p 'What is the capital of France?'\n"
                    "  halfbyte generate -m MODEL.gguf -p 'Once upon a time' -n 64 --temp 0.8 --seed 1",
                    options->common);
    command->add_option("-m,--model", options->model, "Hugging Face folder or .gguf file")
        ->type_name(model_type)
        ->required();
    command->add_option("-p,--prompt", options->prompt, "The prompt, or with --chat the user's message")
        ->required();
    CLI::Option* count =
        command->add_option("-n,--max-tokens", options->max_tokens, "Tokens to generate at most")
            ->check(CLI::Range(int64_t(1), int64_t(1) << 40))
            ->capture_default_str();
    CLI::Option* chat =
        command->add_flag("--chat", options->chat, "Put the prompt into the model's chat template");
    command
        ->add_flag("--raw", options->raw,
                   "Use the prompt as it is: no template, nothing added by the tokenizer")
        ->excludes(chat);
    command->add_option("--system", options->system, "The system message")->needs(chat);
    command
        ->add_option("--date", options->date,
                     "The day that a Llama 3.1 template tells the model, such as '26 Jul 2024'; by "
                     "default that of the template, so that the text is the same every day")
        ->needs(chat);
    command->add_option("--temp", options->sampler.temperature, "Temperature; 0 takes the most likely token")
        ->check(
            number<double>("a number >= 0", [](double value) { return std::isfinite(value) && value >= 0; }))
        ->capture_default_str();
    command->add_option("--top-k", options->sampler.top_k, "Sample among the k most likely tokens; 0: all")
        ->check(number<int32_t>("a whole number >= 0", [](int32_t value) { return value >= 0; }))
        ->capture_default_str();
    command
        ->add_option("--top-p", options->sampler.top_p,
                     "Sample among the fewest tokens of this total probability")
        ->check(number<double>("a number in (0, 1]", [](double value) { return value > 0 && value <= 1; }))
        ->capture_default_str();
    command->add_option("--seed", options->sampler.seed, "Seed of the sampling")->capture_default_str();
    command->add_flag("--ignore-eos", options->ignore_eos, "Go on after an end token");
    return {command, [options, count] {
                options->max_tokens_given = count->count() > 0;
                return run(*options);
            }};
}

}  // namespace halfbyte::cli
