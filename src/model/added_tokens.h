// Added tokens: strings that are found in the text before anything else and become one id each. The semantics
// are those of Hugging Face's tokenizers: leftmost, then longest.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace halfbyte::model {

struct AddedToken {
    std::string content;
    int32_t id = 0;
    bool special = false;      // left out by decode(skip_special)
    bool lstrip = false;       // takes the white space before it
    bool rstrip = false;       // takes the white space behind it
    bool single_word = false;  // not next to a word character
    bool normalized = false;   // looked for in the normalised text
};

class AddedTokenFinder {
  public:
    // Of tokens with equal content the first counts.
    explicit AddedTokenFinder(std::vector<AddedToken> tokens = {});

    // Cuts `text` (valid UTF-8): on_text(part), not empty, and on_token(id), from left to right.
    void split(std::string_view text, const std::function<void(std::string_view)>& on_text,
               const std::function<void(int32_t)>& on_token) const;

  private:
    // The longest token that `text` starts with, or null.
    const AddedToken* longest_at(std::string_view text) const;

    std::vector<AddedToken> tokens_;        // by content
    std::array<size_t, 257> first_byte_{};  // tokens_[first_byte_[b], first_byte_[b + 1]) start with byte b
};

}  // namespace halfbyte::model
