// How compressed-tensors names modules in `targets` and `ignore`: "re:" and a regular expression that must
// match at the start of the name (Python's re.match), or a full module name, or the name of a class
// ("Linear").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "halfbyte/error.h"

struct pcre2_real_code_8;

namespace halfbyte::checkpoint {

class ModulePattern {
  public:
    // source: file or option, for messages. Error (of `kind`) for an expression that does not compile or,
    // later, needs too many steps.
    ModulePattern(std::string text, std::string source, ErrorKind kind = ErrorKind::malformed);

    // In order of precedence.
    enum class Match { name, expression, class_name, none };
    Match match(std::string_view module, std::string_view class_name) const;
    const std::string& text() const { return text_; }
    bool is_expression() const { return code_ != nullptr; }

  private:
    std::string text_, source_;
    ErrorKind kind_;
    std::shared_ptr<pcre2_real_code_8> code_;  // null without "re:"
};

// "Embedding" for a module named embed_tokens, else "Linear".
std::string_view class_of_module(std::string_view module);

}  // namespace halfbyte::checkpoint
