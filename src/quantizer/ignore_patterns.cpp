#include "quantizer/ignore_patterns.h"

#include <algorithm>

namespace halfbyte::quantizer {

static bool matches_one(const checkpoint::ModulePattern& pattern, const std::string& module) {
    return pattern.match(module, "Linear") != checkpoint::ModulePattern::Match::none;
}

IgnorePatterns::IgnorePatterns(const std::vector<std::string>& patterns) {
    for (const std::string& text : patterns) patterns_.emplace_back(text, "--ignore", ErrorKind::usage);
}

bool IgnorePatterns::matches(const std::string& module) const {
    return std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const auto& pattern) { return matches_one(pattern, module); });
}

std::vector<std::string> IgnorePatterns::unused(const std::vector<std::string>& modules) const {
    std::vector<std::string> unused;
    for (const auto& pattern : patterns_)
        if (std::none_of(modules.begin(), modules.end(),
                         [&](const std::string& module) { return matches_one(pattern, module); }))
            unused.push_back(pattern.text());
    return unused;
}

}  // namespace halfbyte::quantizer
