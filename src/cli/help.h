// How --help looks: the name of an option, what its value is, then in words which values there are and the
// default.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

namespace halfbyte::cli {

std::shared_ptr<CLI::FormatterBase> help_formatter();

// The only values an option takes; empty if there are others. CLI11 keeps the members of a set in the name of
// the value's type, "TEXT:{text,json}", and nowhere else.
std::vector<std::string> choices_of(const CLI::Option& option);

// "1 to 4096" or "at least 1"; empty without a range.
std::string range_of(const CLI::Option& option);

}  // namespace halfbyte::cli
