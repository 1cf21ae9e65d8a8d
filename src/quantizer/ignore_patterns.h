// Which linear layers stay unquantised, as compressed-tensors spells it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halfbyte::quantizer {

// "re:PATTERN" matches a module name from its start (Python's re.match), anything else the whole name, "Linear" all.
// Error (usage) for a pattern that PCRE2 cannot compile, with its message.
class IgnorePatterns {
  public:
    explicit IgnorePatterns(const std::vector<std::string>& patterns);
    bool matches(const std::string& module) const;
    // The patterns that match none of the modules.
    std::vector<std::string> unused(const std::vector<std::string>& modules) const;

  private:
    std::vector<std::string> patterns_;
};

}  // namespace halfbyte::quantizer
