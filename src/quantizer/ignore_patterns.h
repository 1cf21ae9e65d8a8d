// Which linear layers stay unquantised, as compressed-tensors spells it.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/module_pattern.h"

namespace halfbyte::quantizer {

class IgnorePatterns {
  public:
    // Error (usage) naming a "re:" pattern that does not compile.
    explicit IgnorePatterns(const std::vector<std::string>& patterns);
    bool matches(const std::string& module) const;
    // The patterns that match none of the modules.
    std::vector<std::string> unused(const std::vector<std::string>& modules) const;

  private:
    std::vector<checkpoint::ModulePattern> patterns_;
};

}  // namespace halfbyte::quantizer
