// UTF-8 and the Unicode character classes that tokenizers ask for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace halfbyte::model {

// The offset of the first byte that is not part of valid UTF-8, or npos.
size_t invalid_utf8(std::string_view text);

// Holds back the bytes of an incomplete character at the end, for printing a stream of tokens. Bytes that can
// never be valid become U+FFFD, one for each maximal part of a character (Unicode 3.9, "Substitution of
// Maximal Subparts").
class Utf8Stream {
  public:
    std::string add(std::string_view bytes);  // what can be printed now
    std::string finish();                     // U+FFFD for what is left, or nothing

  private:
    std::string pending_;
};

// The character at `offset` of valid UTF-8, and the number of its bytes.
struct Utf8Char {
    uint32_t code;
    size_t length;
};
Utf8Char utf8_at(std::string_view text, size_t offset);
Utf8Char last_utf8(std::string_view text);  // of text that is not empty
std::string utf8(uint32_t code);

bool is_white_space(uint32_t code);  // Unicode White_Space
bool is_numeric(uint32_t code);      // Nd, Nl, No
bool is_word(uint32_t code);         // Alphabetic, M, Nd, Pc, Join_Control: \w of UTS 18

}  // namespace halfbyte::model
