// A regular expression from a tokenizer.json, run by PCRE2. Those patterns are written for Oniguruma; the
// part of its syntax that means the same in both, or can be rewritten to, is accepted and everything else
// refused by name. Characters newer than PCRE2's Unicode tables (14.0 in PCRE2 10.42) count as unassigned.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace halfbyte::model {

class Pattern {
  public:
    // file: for messages. Error (unsupported) for a construct that is not accepted, Error (malformed) for one
    // that is no regular expression.
    Pattern(std::string_view expression, const std::string& file);

  private:
    friend class Matcher;
    struct Compiled;
    std::string expression_, file_;
    std::shared_ptr<const Compiled> compiled_;
};

// What matching needs beside the pattern, for one thread. The pattern must outlive it.
class Matcher {
  public:
    explicit Matcher(const Pattern& pattern);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

    // Calls found(begin, end) for each match in `text` (valid UTF-8) from left to right, as Oniguruma's
    // bindings iterate: no overlaps, and no empty match where the match before it ended. Error (failure) when
    // matching exceeds its limit of steps, which is linear in the text, or of memory: the pattern may come
    // from a hostile file.
    void for_each_match(std::string_view text, const std::function<void(size_t, size_t)>& found) const;

  private:
    struct Memory;
    int match(std::string_view text, size_t start, uint64_t& extra_steps) const;
    const Pattern& pattern_;
    std::unique_ptr<Memory> memory_;
};

}  // namespace halfbyte::model
