// The byte-pair encoding of one piece of text, over bytes. A tokenizer.json spells each byte as one printable
// character (GPT-2's table: "Ġ" is the space); the vocabulary is kept in that spelling.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/json.h"

namespace halfbyte::model {

std::string byte_level(std::string_view bytes);  // bytes in GPT-2's spelling
// The bytes that a spelling stands for; nothing if it holds a character that stands for none.
std::optional<std::string> byte_level_inverse(std::string_view spelling);

class Bpe {
  public:
    // model: the "model" object of a tokenizer.json of type BPE. file: for messages.
    Bpe(const checkpoint::Json& model, const std::string& file);

    // Appends the ids of a piece. Bytes that are not in the vocabulary become the unknown token (one for a
    // run of them if fuse_unk) or, as in Hugging Face's tokenizers, nothing if the model has none.
    void encode(std::string_view piece, std::vector<int32_t>& ids) const;

    const std::unordered_map<std::string, int32_t>& vocabulary() const { return vocabulary_; }

  private:
    struct Merge {
        uint32_t rank;
        int32_t id;
    };
    struct Symbol {
        int32_t id;
        int64_t previous, next;
    };
    struct PairHash {
        size_t operator()(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15) >> 20; }
    };
    const Merge* merge_of(int32_t left, int32_t right) const;
    std::vector<Symbol> symbols_of(std::string_view piece) const;

    std::unordered_map<std::string, int32_t> vocabulary_;
    std::unordered_map<uint64_t, Merge, PairHash> merges_;  // left id << 32 | right id
    std::array<std::vector<int32_t>, 256> byte_symbols_;    // its id, or its fallback's; empty: unknown
    std::optional<int32_t> unknown_;
    bool fuse_unknown_ = false, ignore_merges_ = false;
};

}  // namespace halfbyte::model
