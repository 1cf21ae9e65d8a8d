#include "cuda/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace halfbyte::conformance {

bool Report::wants(std::string_view operation, std::string_view kernel, std::string_view group) const {
    return fmt::format("{} {} {}", operation, kernel, group).find(filter_) != std::string::npos;
}

void Report::add(std::string_view operation, std::string_view kernel, std::string_view group, int64_t bytes,
                 const std::string& difference) {
    const std::lock_guard lock(mutex_);
    Line& l = line(operation, kernel, group);
    l.problems++;
    l.bytes += bytes;
    if (difference.empty()) return;
    l.differing++;
    if (l.first.empty()) l.first = difference;
}

void Report::skip(std::string_view operation, std::string_view kernel, std::string_view group,
                  const std::string& reason) {
    const std::lock_guard lock(mutex_);
    Line& l = line(operation, kernel, group);
    l.skipped++;
    l.reason = reason;
}

void Report::note(std::string_view operation, std::string_view kernel, std::string_view group,
                  const std::string& text) {
    const std::lock_guard lock(mutex_);
    line(operation, kernel, group).note = text;
}

int64_t Report::problems() const {
    int64_t sum = 0;
    for (const auto& [key, l] : lines_) sum += l.problems;
    return sum;
}

int64_t Report::differences() const {
    int64_t sum = 0;
    for (const auto& [key, l] : lines_) sum += l.differing;
    return sum;
}

std::string Report::text() const {
    std::string text;
    int64_t bytes = 0;
    for (const auto& [key, l] : lines_) {
        const auto& [operation, kernel, group] = key;
        text += fmt::format("{:<22} {:<26} {:<22} {:>6} problems {:>12} bytes  {}", operation, kernel, group,
                            l.problems, l.bytes,
                            l.differing > 0   ? fmt::format("{} DIFFER", l.differing)
                            : l.problems == 0 ? "not run: " + l.reason
                                              : "ok");
        if (l.problems > 0 && l.skipped > 0)
            text += fmt::format("; {} not computed: {}", l.skipped, l.reason);
        if (!l.note.empty()) text += "; " + l.note;
        text += '\n';
        if (l.differing > 0) text += fmt::format("    first: {}\n", l.first);
        bytes += l.bytes;
    }
    return text + fmt::format("{} problems, {} bytes compared, {} problems differ\n", problems(), bytes,
                              differences());
}

std::string Report::json(const std::string& device) const {
    nlohmann::json document = {
        {"schema", 1}, {"device", device}, {"problems", problems()}, {"differing", differences()}};
    for (const auto& [key, l] : lines_)
        document["lines"].push_back({{"operation", std::get<0>(key)},
                                     {"kernel", std::get<1>(key)},
                                     {"group", std::get<2>(key)},
                                     {"problems", l.problems},
                                     {"bytes", l.bytes},
                                     {"differing", l.differing},
                                     {"skipped", l.skipped},
                                     {"reason", l.reason},
                                     {"first", l.first},
                                     {"note", l.note}});
    return document.dump(2) + "\n";
}

}  // namespace halfbyte::conformance
