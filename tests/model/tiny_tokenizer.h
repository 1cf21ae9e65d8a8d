// A tokenizer.json of the 256 bytes (id = byte) and given merges (ids from 256), to be changed by a test.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/bpe.h"
#include "model/tokenizer.h"

namespace halfbyte::test {

using checkpoint::Json;

inline Json byte_level_step(bool use_regex, bool add_prefix_space = false) {
    return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"use_regex", use_regex}};
}

// Parts of the merges in bytes ("a", " ").
inline Json tiny_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
    Json vocab = Json::object(), list = Json::array();
    for (int byte = 0; byte < 256; ++byte) vocab[model::byte_level(std::string(1, char(byte)))] = byte;
    for (const auto& [left, right] : merges) {
        vocab[model::byte_level(left + right)] = vocab.size();
        list.push_back(Json::array({model::byte_level(left), model::byte_level(right)}));
    }
    return {{"added_tokens", Json::array()},
            {"normalizer", nullptr},
            {"pre_tokenizer", byte_level_step(false)},
            {"post_processor", nullptr},
            {"decoder", {{"type", "ByteLevel"}}},
            {"model", {{"type", "BPE"}, {"unk_token", nullptr}, {"vocab", vocab}, {"merges", list}}}};
}

inline model::Tokenizer load(const Json& json) {
    return model::Tokenizer(json.dump(), "t.json");
}

}  // namespace halfbyte::test
