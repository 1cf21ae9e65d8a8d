// halfbyte: quantise, check and run NVFP4 models. Results go to stdout, everything else to stderr.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>

#include "cli/command.h"
#include "cli/help.h"
#include "halfbyte/error.h"
#include "halfbyte/version.h"

namespace halfbyte::cli {
namespace {

constexpr Command (*commands[])(CLI::App&) = {add_quantize, add_inspect,   add_perplexity, add_generate,
                                              add_tokenize, add_logits,    add_bench,      add_explain,
                                              add_env,      add_completion};

constexpr const char* help_description = "Show this help and exit";
constexpr const char* version_description = "Show the version and exit";

constexpr const char* exit_codes =
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 a check found a difference, 4 malformed file,\n"
    "5 valid but unsupported (architecture, GGUF type, dialect, transform, CPU level, GPU), 130 interrupted\n"
    "(128 and the signal: 143 by SIGTERM), 141 nobody reads stdout any more (as in '| head').\n"
    "'halfbyte COMMAND --help' shows a command's options and examples.";

// CLI11 takes 010 for 8 and 0x10 for 16, and -1 and 2^64 for the ends of what a type holds. Zeros in front go
// before it reads the number; its ranges then see what was given.
void take_decimal_numbers_only(CLI::App& command) {
    for (CLI::Option* option : command.get_options()) {
        const std::string type = option->get_type_name();
        const bool natural = type.starts_with("UINT");
        if (!natural && !type.starts_with("INT")) continue;
        const std::string name = option->get_name(), range = range_of(*option);
        option->transform(CLI::Validator(
            [=](std::string& text) -> std::string {
                uint64_t natural_number = 0;
                int64_t number = 0;
                const char* const end = text.data() + text.size();
                const auto [rest, error] = natural ? std::from_chars(text.data(), end, natural_number)
                                                   : std::from_chars(text.data(), end, number);
                if (error != std::errc() ||
                    rest != end)  // not an error of CLI11's validation, which has its words
                    throw CLI::ConversionError(fmt::format("{} {}: a whole number{} is needed", name,
                                                           text.empty() ? "''" : text,
                                                           natural         ? " from 0 to 18446744073709551615"
                                                           : range.empty() ? ""
                                                                           : ", " + range + ","));
                text = natural ? fmt::to_string(natural_number) : fmt::to_string(number);
                return {};
            },
            ""));
    }
}

std::string command_names(const std::vector<Command>& added) {
    std::string names;
    for (const Command& command : added) names += (names.empty() ? "" : ", ") + command.options->get_name();
    return "commands: " + names;
}

int run(int argc, char** argv) {
    CLI::App program("NVFP4 models with the same bits on any machine: quantise, inspect, evaluate, run.",
                     "halfbyte");
    program.formatter(help_formatter());
    program.set_help_flag("-h,--help", help_description);
    program.set_version_flag("--version", "halfbyte " + std::string(version), version_description);
    program.footer(exit_codes);
    program.require_subcommand(1);
    std::vector<Command> added;
    for (const auto& add : commands) {
        added.push_back(add(program));
        take_decimal_numbers_only(*added.back().options);
    }
    try {
        program.parse(argc, argv);
    } catch (const CLI::Success& success) {  // --help, --version
        return program.exit(success);
    } catch (const CLI::ParseError& error) {
        const auto subcommands = program.get_subcommands();
        std::string command, text = error.what();
        if (!subcommands.empty()) command = subcommands.front()->get_name() + " ";
        if (error.get_name() == "ArgumentMismatch")  // "--prompt: At Most 1 required but received 2"
            text = text.substr(0, text.find(':')) +
                   (text.find("At Most") != text.npos      ? " is given more than once; it takes one value"
                    : text.find("2 required") != text.npos ? " takes two values or more"
                                                           : " is given without its value");
        const auto words = program.remaining(true);
        const auto option = std::find_if(words.begin(), words.end(), [](const std::string& word) {
            return word.size() > 1 && word.front() == '-';
        });
        if (option != words.end() && error.get_name() != "ArgumentMismatch")
            text = fmt::format("'{}' is not an option of halfbyte{}", *option,
                               subcommands.empty() ? "" : " " + subcommands.front()->get_name());
        else if (const auto rest = program.remaining(); subcommands.empty() && !rest.empty())
            text = fmt::format("'{}' is not a command; {}", rest.front(), command_names(added));
        else if (subcommands.empty())
            text = "no command is given; " + command_names(added);
        print_error_line(fmt::format("halfbyte: error: {}\nTry 'halfbyte {}--help'.", text, command));
        return int(ErrorKind::usage);
    }
    for (const Command& command : added)
        if (command.options->parsed()) return command.run();
    return int(ErrorKind::usage);
}

}  // namespace

CLI::App* add_command(CLI::App& program, const std::string& name, const std::string& description,
                      const std::string& examples) {
    CLI::App* command = program.add_subcommand(name, description);
    command->footer("Examples:\n" + examples);
    command->set_version_flag("--version", "halfbyte " + std::string(version), version_description);
    return command;
}

CLI::App* add_command(CLI::App& program, const std::string& name, const std::string& description,
                      const std::string& examples, CommonOptions& common) {
    CLI::App* command = add_command(program, name, description, examples);
    const std::string group = "Common options";
    command
        ->add_option("--threads", common.threads, "Threads to use; all that the process may use by default")
        ->check(CLI::Range(1, 4096))
        ->group(group);
    std::vector<std::string> levels;
    for (const CpuLevelStatus& status : cpu_levels()) levels.emplace_back(name_of(status.level));
    levels.emplace_back("best");
    command->add_option("--cpu-level", common.cpu_level, "Instruction set; every one gives the same bits")
        ->check(CLI::IsMember(levels))
        ->capture_default_str()
        ->group(group);
    command->add_option("--format", common.format, "Form of the result on stdout")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str()
        ->group(group);
    CLI::Option* quiet =
        command->add_flag("--quiet,-q", common.quiet, "No progress and no warnings")->group(group);
    command->add_flag("-v,--verbose", common.verbose, "Say on stderr what was chosen")
        ->group(group)
        ->excludes(quiet);
    return command;
}

}  // namespace halfbyte::cli

int main(int argc, char** argv) {
    using namespace halfbyte::cli;
    using halfbyte::ErrorKind;
    prepare_process();
    const auto failed = [](const char* text, int code) {
        if (reader_has_gone()) return 128 + SIGPIPE;
        print_error_line(std::string("halfbyte: error: ") + text);
        return code;
    };
    const char* const too_large = "not enough memory; a smaller model, context or chunk needs less";
    int code = 0;
    try {
        code = run(argc, argv);
        if (code == 0) flush_results();
    } catch (const halfbyte::Error& error) {
        code = failed(error.what(), error.kind() == ErrorKind::interrupted ? 128 + interrupting_signal()
                                                                           : int(error.kind()));
    } catch (const std::filesystem::filesystem_error& error) {  // the working folder is gone, for example
        code =
            failed((error.path1().string() + ": " + error.code().message()).c_str(), int(ErrorKind::failure));
    } catch (const std::bad_alloc&) {
        code = failed(too_large, int(ErrorKind::failure));
    } catch (const std::length_error&) {  // of a vector
        code = failed(too_large, int(ErrorKind::failure));
    } catch (const std::exception& error) {
        code = failed(error.what(), int(ErrorKind::failure));
    }
    return code;
}
