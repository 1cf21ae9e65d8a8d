// What was compared and what differs: a line for each kernel and group of problems.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>

namespace halfbyte::conformance {

class Report {
  public:
    explicit Report(std::string filter) : filter_(std::move(filter)) {}

    // Whether lines of this name are asked for.
    bool wants(std::string_view operation, std::string_view kernel, std::string_view group) const;
    bool filtered() const { return !filter_.empty(); }

    // A problem that ran; `difference` is empty if everything was equal.
    void add(std::string_view operation, std::string_view kernel, std::string_view group, int64_t bytes,
             const std::string& difference);
    // A problem that the kernel does not compute, or a group that was not run.
    void skip(std::string_view operation, std::string_view kernel, std::string_view group,
              const std::string& reason);
    void note(std::string_view operation, std::string_view kernel, std::string_view group,
              const std::string& text);

    int64_t problems() const;
    int64_t differences() const;
    std::string text() const;
    std::string json(const std::string& device) const;

  private:
    struct Line {
        int64_t problems = 0, bytes = 0, differing = 0, skipped = 0;
        std::string first, reason, note;
    };
    using Key = std::tuple<std::string, std::string, std::string>;
    Line& line(std::string_view operation, std::string_view kernel, std::string_view group) {
        return lines_[{std::string(operation), std::string(kernel), std::string(group)}];
    }
    std::string filter_;
    std::mutex mutex_;
    std::map<Key, Line> lines_;
};

}  // namespace halfbyte::conformance
