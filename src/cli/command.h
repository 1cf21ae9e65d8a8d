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

Command add_env(CLI::App& program);
Command add_generate(CLI::App& program);
Command add_inspect(CLI::App& program);
Command add_logits(CLI::App& program);
Command add_perplexity(CLI::App& program);
Command add_quantize(CLI::App& program);
Command add_tokenize(CLI::App& program);

// A subcommand with a description, examples below the options, and the options that every command has.
CLI::App* add_command(CLI::App& program, const std::string& name, const std::string& description,
                      const std::string& examples, CommonOptions& common);

}  // namespace halfbyte::cli
