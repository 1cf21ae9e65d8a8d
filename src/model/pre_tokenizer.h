// The pre-tokenizer of a tokenizer.json: it cuts a text into the pieces that are encoded each on its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/json.h"
#include "model/pattern.h"

namespace halfbyte::model {

class PreTokenizer {
  public:
    // json: an object with a "type": ByteLevel, or a Sequence of Split and Digits that ends with ByteLevel.
    // Another type or order is an Error (unsupported).
    PreTokenizer(const checkpoint::Json& json, const std::string& file);

    // Calls piece() for each piece of `text`, which is not empty; none of them is empty. A piece is gone
    // after the call.
    void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

  private:
    // What becomes of the places that a pattern matches.
    enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
    struct AnyNumeric {};  // matches one character of Nd, Nl, No
    struct Split {
        std::variant<Pattern, std::string, AnyNumeric> pattern;
        Behavior behavior = Behavior::isolated;
        bool invert = false;  // the places between the matches are taken for the matches
    };
    class Splitter;
    static Behavior behavior_of(const std::string& name, const std::string& file);
    void add(const checkpoint::Json& json, const std::string& file);

    std::vector<Split> splits_;  // in order, before ByteLevel
    bool byte_level_ = false, add_prefix_space_ = false;
    std::optional<Split> byte_level_split_;  // ByteLevel's use_regex
};

}  // namespace halfbyte::model
