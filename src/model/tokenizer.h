// Byte-level BPE as a Hugging Face tokenizer.json describes it: added tokens are cut out of the text, the
// rest is normalised, split into pieces (the pre-tokenizer) and each piece encoded (bpe.h). Truncation and
// padding, which a tokenizer.json may also hold, are not applied.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/utf8.h"  // invalid_utf8, Utf8Stream

namespace halfbyte::model {

class Tokenizer {
  public:
    // json: the text of a tokenizer.json; file: its name for messages. Malformed content and unsupported
    // kinds (SentencePiece, WordPiece, an unknown normalizer, pre-tokenizer or pattern) are Errors that name
    // them.
    Tokenizer(std::string_view json, const std::filesystem::path& file);
    ~Tokenizer();
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;

    // Special tokens in the text become their ids. add_special: what the post-processor adds (BOS), and
    // nothing else. Invalid UTF-8 is an Error (failure) with its byte offset. May be called from several
    // threads.
    std::vector<int32_t> encode(std::string_view text, bool add_special) const;

    // Bytes, not always valid UTF-8: a character can span tokens. Added tokens are given as they are spelled.
    // Ids outside the vocabulary are an Error (usage).
    std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

    bool contains(int32_t id) const;
    std::optional<int32_t> id_of(
        std::string_view token) const;  // as spelled in the vocabulary or added tokens
    int64_t size() const;               // largest id + 1

  private:
    struct State;
    std::unique_ptr<const State> state_;
};

}  // namespace halfbyte::model
