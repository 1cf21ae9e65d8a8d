// halfbyte completion: the completion script of a shell, written from the program's own option tree.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/help.h"

namespace halfbyte::cli {
namespace {

// What a shell needs to know of an option or of a positional argument.
struct Argument {
    std::vector<std::string> names;  // "-m", "--model"; empty: positional
    std::string description;
    bool takes_value = false;
    std::vector<std::string> choices;                  // the only values there are
    enum class Path { none, file, folder } path = {};  // else what the value is the path of
};

struct CommandOptions {
    std::string name, description;
    std::vector<Argument> arguments;
};

Argument argument_of(const CLI::Option& option) {
    Argument argument;
    for (const std::string& name : option.get_snames()) argument.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) argument.names.push_back("--" + name);
    argument.description = option.get_description();
    argument.takes_value = option.get_items_expected_max() > 0;
    const std::string type = option.get_type_name();
    argument.choices = choices_of(option);
    if (type == model_type || type.ends_with(file_type)) argument.path = Argument::Path::file;
    if (type == folder_type) argument.path = Argument::Path::folder;
    return argument;
}

std::vector<CommandOptions> commands_of(const CLI::App& program) {
    std::vector<CommandOptions> commands;
    for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
        commands.push_back({command->get_name(), command->get_description(), {}});
        for (const CLI::Option* option : command->get_options())
            commands.back().arguments.push_back(argument_of(*option));
    }
    return commands;
}

std::vector<std::string> names_of(const std::vector<CommandOptions>& commands) {
    std::vector<std::string> names;
    for (const CommandOptions& command : commands) names.push_back(command.name);
    return names;
}

// Single quotes, as all three shells read them but for the quote itself: fish escapes it inside.
std::string quoted(const std::string& text, std::string_view quote = "'\\''") {
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? std::string(quote) : std::string(1, c);
    return result + "'";
}

// ---- bash

std::string bash_values(const Argument& argument) {
    if (!argument.choices.empty()) return fmt::format("_halfbyte_words {}", fmt::join(argument.choices, " "));
    if (argument.path == Argument::Path::file) return "_halfbyte_paths -f";
    if (argument.path == Argument::Path::folder) return "_halfbyte_paths -d";
    return ":";
}

void print_bash(const std::vector<CommandOptions>& commands) {
    const std::vector<std::string> names = names_of(commands);
    fmt::print(R"(# bash completion of halfbyte; load it with: source <(halfbyte completion bash)
_halfbyte_words() {{
    COMPREPLY=($(compgen -W "$*" -- "$current"))
}}
_halfbyte_paths() {{
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "$current")
}}
_halfbyte() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command= word
    # --option=value arrives as three words.
    if [[ $current == = ]]; then current=; elif [[ $previous == = ]]; then previous=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in {}) command=$word && break ;; esac
    done
    COMPREPLY=()
    case $command in
    '') _halfbyte_words {} --help --version ;;
)",
               fmt::join(names, " | "), fmt::join(names, " "));
    for (const CommandOptions& command : commands) {
        std::vector<std::string> options;
        std::string positional = ":", cases;
        for (const Argument& argument : command.arguments) {
            options.insert(options.end(), argument.names.begin(), argument.names.end());
            if (argument.names.empty())
                positional = bash_values(argument);
            else if (argument.takes_value)
                cases += fmt::format("        {}) {} ;;\n", fmt::join(argument.names, " | "),
                                     bash_values(argument));
        }
        fmt::print(R"(    {})
        case $previous in
{}        *) if [[ $current == -* ]]; then _halfbyte_words {}; else {}; fi ;;
        esac
        ;;
)",
                   command.name, cases, fmt::join(options, " "), positional);
    }
    fmt::print("    esac\n}}\ncomplete -F _halfbyte halfbyte\n");
}

// ---- zsh

// Inside "[...]" and between colons of an _arguments specification.
std::string zsh_escaped(const std::string& text) {
    std::string result;
    for (const char c : text) {
        if (c == ':' || c == '[' || c == ']' || c == '\\') result += '\\';
        result += c;
    }
    return result;
}

std::string zsh_values(const Argument& argument) {
    if (!argument.choices.empty()) return fmt::format("value:({})", fmt::join(argument.choices, " "));
    if (argument.path == Argument::Path::file) return "path:_files";
    if (argument.path == Argument::Path::folder) return "folder:_files -/";
    return "value: ";
}

void print_zsh(const std::vector<CommandOptions>& commands) {
    fmt::print(R"(#compdef halfbyte
# zsh completion of halfbyte; save it as _halfbyte in a folder of $fpath, or: source <(halfbyte completion zsh)
_halfbyte() {{
    local context state line
    typeset -A opt_args
    _arguments -C '(- *)--help[Show this help and exit]' '(- *)--version[Show the version and exit]' \
        '1:command:->command' '*::argument:->arguments'
    case $state in
    command)
        local -a commands=(
)");
    for (const CommandOptions& command : commands)
        fmt::print("            {}\n",
                   quoted(zsh_escaped(command.name) + ":" + zsh_escaped(command.description)));
    fmt::print(R"(        )
        _describe command commands
        ;;
    arguments)
        case $words[1] in
)");
    for (const CommandOptions& command : commands) {
        fmt::print("        {})\n            _arguments", command.name);
        for (const Argument& argument : command.arguments) {
            const std::string values = argument.takes_value ? ":" + zsh_values(argument) : "";
            if (argument.names.empty()) fmt::print(" \\\n                {}", quoted("1" + values));
            for (const std::string& name : argument.names)
                fmt::print(" \\\n                {}",
                           quoted(fmt::format("{}[{}]{}",
                                              name + (argument.takes_value && name.size() > 2 ? "=" : ""),
                                              zsh_escaped(argument.description), values)));
        }
        fmt::print("\n            ;;\n");
    }
    fmt::print(R"(        esac
        ;;
    esac
}}
if [[ $funcstack[1] == _halfbyte ]]; then _halfbyte "$@"; else compdef _halfbyte halfbyte; fi
)");
}

// ---- fish

void print_fish(const std::vector<CommandOptions>& commands) {
    const auto print = [](const std::string& condition, const std::string& rest,
                          const std::string& description) {
        fmt::print("complete -c halfbyte -n '{}' {} -d {}\n", condition, rest, quoted(description, "\\'"));
    };
    fmt::print(
        "# fish completion of halfbyte; load it with: halfbyte completion fish | source\ncomplete -c "
        "halfbyte -f\n");
    for (const CommandOptions& command : commands)
        print("__fish_use_subcommand", "-a " + command.name, command.description);
    for (const CommandOptions& command : commands) {
        for (const Argument& argument : command.arguments) {
            std::string rest;
            for (const std::string& name : argument.names)
                rest += name.size() == 2 ? " -s " + name.substr(1) : " -l " + name.substr(2);
            // -x: a value that is not a file; -F offers files all the same.
            if (argument.takes_value && !argument.names.empty())
                rest += argument.path == Argument::Path::file ? " -r" : " -x";
            if (!argument.choices.empty())
                rest += " -a " + quoted(fmt::format("{}", fmt::join(argument.choices, " ")));
            if (argument.path == Argument::Path::file) rest += " -F";
            if (argument.path == Argument::Path::folder) rest += " -a '(__fish_complete_directories)'";
            print("__fish_seen_subcommand_from " + command.name, rest.empty() ? rest : rest.substr(1),
                  argument.description);
        }
    }
}

}  // namespace

Command add_completion(CLI::App& program) {
    auto shell = std::make_shared<std::string>();
    CLI::App* command = add_command(program, "completion", "Write the completion script of a shell",
                                    "  source <(halfbyte completion bash)\n"
                                    "  halfbyte completion zsh > ~/.zfunc/_halfbyte\n"
                                    "  halfbyte completion fish > ~/.config/fish/completions/halfbyte.fish");
    command->add_option("shell", *shell, "The shell")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    return {command, [&program, shell] {
                const std::vector<CommandOptions> commands = commands_of(program);
                if (*shell == "bash") print_bash(commands);
                if (*shell == "zsh") print_zsh(commands);
                if (*shell == "fish") print_fish(commands);
                return 0;
            }};
}

}  // namespace halfbyte::cli
