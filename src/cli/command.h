// A command of the program: its options, and what it does when they have been read. One file per command;
// main.cpp lists them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "cli/console.h"

namespace halfbyte::cli {

struct Command {
    CLI::App* options = nullptr;
    std::function<int()> run;  // gives the exit code; may throw Error
};

// Names of the types of values, as help shows them and completion uses them.
inline constexpr const char* model_type = "MODEL";  // a Hugging Face folder or a .gguf file
inline constexpr const char* file_type = "FILE";
inline constexpr const char* folder_type = "FOLDER";

Command add_bench(CLI::App& program);
Command add_completion(CLI::App& program);
Command add_env(CLI::App& program);
Command add_explain(CLI::App& program);
Command add_generate(CLI::App& program);
Command add_inspect(CLI::App& program);
Command add_logits(CLI::App& program);
Command add_perplexity(CLI::App& program);
Command add_quantize(CLI::App& program);
Command add_tokenize(CLI::App& program);

// A subcommand with a description and with examples below its options.
CLI::App* add_command(CLI::App& program, const std::string& name, const std::string& description,
                      const std::string& examples);
// The same with the options of every command that works on a model or a machine.
CLI::App* add_command(CLI::App& program, const std::string& name, const std::string& description,
                      const std::string& examples, CommonOptions& common);

}  // namespace halfbyte::cli
