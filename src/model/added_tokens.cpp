#include "model/added_tokens.h"

#include <algorithm>

#include "model/utf8.h"

namespace halfbyte::model {

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
    const auto less = [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; };
    const auto equal = [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; };
    std::stable_sort(tokens_.begin(), tokens_.end(), less);
    tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), equal), tokens_.end());
    for (const AddedToken& token : tokens_) ++first_byte_[uint8_t(token.content[0]) + 1];
    for (size_t byte = 0; byte < 256; ++byte) first_byte_[byte + 1] += first_byte_[byte];
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text) const {
    // tokens_[low, high) share the first `depth` bytes with the text; the one that ends there comes first.
    size_t low = first_byte_[uint8_t(text[0])], high = first_byte_[uint8_t(text[0]) + 1];
    const AddedToken* longest = nullptr;
    for (size_t depth = 1; low < high; ++depth) {
        if (tokens_[low].content.size() == depth) longest = &tokens_[low++];
        if (low == high) break;
        // What the first and the last of them share, all of them share.
        const std::string &first_token = tokens_[low].content, &last_token = tokens_[high - 1].content;
        const size_t end = std::min({first_token.size(), last_token.size(), text.size()});
        while (depth < end && first_token[depth] == text[depth] && last_token[depth] == text[depth]) ++depth;
        if (first_token.size() == depth) {
            --depth;
            continue;
        }
        if (depth == text.size()) break;
        const auto begin = tokens_.begin();
        const uint8_t next = uint8_t(text[depth]);
        const auto byte = [&](const AddedToken& token) { return uint8_t(token.content[depth]); };
        const auto below = [&](const AddedToken& token) { return byte(token) < next; };
        const auto not_above = [&](const AddedToken& token) { return byte(token) <= next; };
        const auto first = std::partition_point(begin + low, begin + high, below);
        high = size_t(std::partition_point(first, begin + high, not_above) - begin);
        low = size_t(first - begin);
    }
    return longest;
}

void AddedTokenFinder::split(std::string_view text, const std::function<void(std::string_view)>& on_text,
                             const std::function<void(int32_t)>& on_token) const {
    size_t done = 0, blank_end = 0;  // blank_end: of the white space that rstrip took last
    for (size_t at = 0; at < text.size();) {
        const AddedToken* token = longest_at(text.substr(at));
        if (!token) {
            ++at;  // a token never starts inside a character: its content is valid UTF-8
            continue;
        }
        size_t begin = at, end = at + token->content.size();
        at = end;
        if (token->single_word) {
            const bool word_before = begin > 0 && is_word(last_utf8(text.substr(0, begin)).code);
            const bool word_behind = end < text.size() && is_word(utf8_at(text, end).code);
            if (word_before || word_behind) continue;
        }
        if (token->lstrip) {
            while (begin > done) {
                const Utf8Char before = last_utf8(text.substr(0, begin));
                if (!is_white_space(before.code)) break;
                begin -= before.length;
            }
        }
        if (token->rstrip) {
            end = std::max(end, blank_end);
            while (end < text.size()) {
                const Utf8Char behind = utf8_at(text, end);
                if (!is_white_space(behind.code)) break;
                end += behind.length;
            }
            blank_end = end;
        }
        if (done < begin) on_text(text.substr(done, begin - done));
        on_token(token->id);
        // A token that itself starts with white space is found also in what rstrip took.
        done = end;
    }
    if (done < text.size()) on_text(text.substr(done));
}

}  // namespace halfbyte::model
