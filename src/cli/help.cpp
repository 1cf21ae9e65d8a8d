#include "cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

namespace halfbyte::cli {
namespace {

constexpr size_t column = 30, width = 100;

std::vector<std::string> names_of(const std::set<CLI::Option*>& options) {
    std::vector<std::string> names;
    for (const CLI::Option* option : options) names.push_back(option->get_name());
    return names;
}

std::string wrapped(const std::string& text) {
    std::string lines, line;
    for (const std::string& word : CLI::detail::split(text, ' ')) {
        if (!line.empty() && column + line.size() + 1 + word.size() > width) {
            lines += line + "\n";
            line.clear();
        }
        line += (line.empty() ? "" : " ") + word;
    }
    return lines + line;
}

class Formatter final : public CLI::Formatter {
  public:
    Formatter() { column_width(column); }

    std::string make_option_name(const CLI::Option* option, bool positional) const override {
        const std::string name = CLI::Formatter::make_option_name(option, positional);
        return positional ? name : CLI::detail::join(CLI::detail::split(name, ','), ", ");
    }

    // What stands for the value; flags have none.
    std::string make_option_opts(const CLI::Option* option) const override {
        if (option->get_items_expected_max() == 0) return {};
        const std::string type = option->get_type_name(), word = type.substr(0, type.find(':'));
        if (!choices_of(*option).empty()) return " NAME";
        if (option->get_items_expected_min() > 1) return " " + word + " " + word + "...";
        return word == "INT" || word == "UINT" ? " N" : word == "FLOAT" ? " X" : " " + word;
    }

    std::string make_option_desc(const CLI::Option* option) const override {
        std::vector<std::string> notes;
        if (option->get_required()) notes.push_back("required");
        if (const auto choices = choices_of(*option); !choices.empty())
            notes.push_back(fmt::format("{}", fmt::join(choices, ", ")));
        if (const std::string range = range_of(*option); !range.empty()) notes.push_back(range);
        if (std::string value = option->get_default_str(); !value.empty()) {
            if (value.front() == '[' && value.back() == ']') value = value.substr(1, value.size() - 2);
            notes.push_back("default " + value);
        }
        if (!option->get_needs().empty())
            notes.push_back(fmt::format("with {}", fmt::join(names_of(option->get_needs()), ", ")));
        if (!option->get_excludes().empty())
            notes.push_back(fmt::format("not with {}", fmt::join(names_of(option->get_excludes()), ", ")));
        std::string text = option->get_description();
        if (!notes.empty()) text += fmt::format(" ({})", fmt::join(notes, "; "));
        return wrapped(text);
    }

    std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
        return CLI::detail::find_and_replace(CLI::Formatter::make_help(app, name, mode), "\n\n\n", "\n\n");
    }

    std::string make_description(const CLI::App* app) const override {
        return CLI::Formatter::make_description(app) + "\n";
    }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() {
    return std::make_shared<Formatter>();
}

std::string range_of(const CLI::Option& option) {
    const std::string type = option.get_type_name();  // "INT:INT in [1 - 4096]"
    const size_t open = type.find(" in ["), dash = type.find(" - ", open), close = type.find(']', dash);
    if (open == std::string::npos || dash == std::string::npos || close == std::string::npos) return {};
    const std::string low = type.substr(open + 5, dash - open - 5),
                      high = type.substr(dash + 3, close - dash - 3);
    const bool unbounded = std::strtod(high.c_str(), nullptr) >= double(int64_t(1) << 40);
    return unbounded ? "at least " + low : low + " to " + high;
}

std::vector<std::string> choices_of(const CLI::Option& option) {
    const std::string type = option.get_type_name();
    const size_t open = type.find('{'), close = type.rfind('}');
    if (open == std::string::npos || close == std::string::npos) return {};
    return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

}  // namespace halfbyte::cli
