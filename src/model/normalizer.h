// The normalizer of a tokenizer.json: what happens to the text between the added tokens before it is split.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/json.h"

namespace halfbyte::model {

class Normalizer {
  public:
    Normalizer() = default;  // leaves every text as it is
    // json: an object with a "type": Sequence, NFC, NFD, NFKC, NFKD, Prepend, or Replace of a string. Another
    // type is an Error (unsupported).
    Normalizer(const checkpoint::Json& json, const std::string& file);

    bool empty() const { return steps_.empty(); }
    // Error (failure) where it makes a text many times as long: the steps may come from a hostile file.
    std::string apply(std::string_view text) const;

  private:
    struct UnicodeForm {
        int options;  // of utf8proc_map
    };
    struct Prepend {
        std::string text;  // before a text that is not empty
    };
    struct Replace {
        std::string from, to;  // from is not empty
    };
    void add(const checkpoint::Json& json, const std::string& file);

    std::string file_;
    std::vector<std::variant<UnicodeForm, Prepend, Replace>> steps_;
};

}  // namespace halfbyte::model
