#include "model/bpe.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "core/check.h"
#include "model/json_object.h"
#include "model/utf8.h"

namespace halfbyte::model {
namespace {

using checkpoint::Json;
using checkpoint::quote;
using checkpoint::shown;

// GPT-2's table: a printable Latin-1 character stands for itself, the other 68 bytes for U+0100 onwards.
constexpr bool stands_for_itself(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<uint16_t, 256> code_of_byte = [] {
    std::array<uint16_t, 256> table{};
    uint16_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte)
        table[byte] = stands_for_itself(byte) ? uint16_t(byte) : next++;
    return table;
}();

constexpr std::array<int16_t, 0x144> byte_of_code = [] {
    std::array<int16_t, 0x144> table{};
    table.fill(-1);
    for (uint32_t byte = 0; byte < 256; ++byte) table[code_of_byte[byte]] = int16_t(byte);
    return table;
}();

std::pair<std::string, std::string> merge_parts(const Json& merge, size_t index, const std::string& file) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
        return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space != text.npos && text.find(' ', space + 1) == text.npos)
            return {text.substr(0, space), text.substr(space + 1)};
    }
    fail(ErrorKind::malformed, "{}: merge {} is {}; needed are two tokens, [\"a\", \"b\"] or \"a b\"", file,
         index, shown(merge));
}

}  // namespace

std::string byte_level(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) out += utf8(code_of_byte[uint8_t(c)]);
    return out;
}

std::optional<std::string> byte_level_inverse(std::string_view spelling) {
    std::string out;
    for (size_t at = 0; at < spelling.size();) {
        const Utf8Char c = utf8_at(spelling, at);
        if (c.code >= byte_of_code.size() || byte_of_code[c.code] < 0) return std::nullopt;
        out += char(byte_of_code[c.code]);
        at += c.length;
    }
    return out;
}

Bpe::Bpe(const Json& model, const std::string& file) {
    const JsonObject fields(model, "model", file);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        const Json* affix = fields.find(key);
        check(!affix || (affix->is_string() && affix->get_ref<const std::string&>().empty()),
              ErrorKind::unsupported, "{}: model.{} is {}; only an empty one is supported", file, key,
              affix ? shown(*affix) : "");
    }
    const Json* dropout = fields.find("dropout");
    check(!dropout || (dropout->is_number() && dropout->get<double>() == 0), ErrorKind::unsupported,
          "{}: model.dropout is {}; only null or 0 is supported", file, dropout ? shown(*dropout) : "");
    ignore_merges_ = fields.flag("ignore_merges", false);
    fuse_unknown_ = fields.flag("fuse_unk", false);

    const auto& vocab = fields.object("vocab");
    vocabulary_.reserve(vocab.size());
    std::vector<std::pair<int32_t, std::string_view>> by_id;
    for (const auto& [token, id] : vocab) {
        const int32_t value = token_id(id, token, file);
        vocabulary_.emplace(token, value);
        by_id.emplace_back(value, token);
    }
    std::sort(by_id.begin(), by_id.end());
    // Here and below an error's values are formatted only when there is one: these loops go over 100,000s.
    for (size_t i = 1; i < by_id.size(); ++i) {
        if (by_id[i].first == by_id[i - 1].first)
            fail(ErrorKind::malformed, "{}: the tokens {} and {} have one id, {}", file,
                 quote(by_id[i - 1].second), quote(by_id[i].second), by_id[i].first);
    }

    constexpr size_t no_merge = size_t(-1);
    const auto id_of = [&](const std::string& token, size_t merge) {
        const auto found = vocabulary_.find(token);
        if (found == vocabulary_.end())
            fail(ErrorKind::malformed, "{}: {} names the token {}, which model.vocab lacks", file,
                 merge == no_merge ? "model.unk_token" : fmt::format("merge {}", merge), quote(token));
        return found->second;
    };
    if (fields.find("unk_token")) unknown_ = id_of(fields.text("unk_token"), no_merge);

    const bool fallback = fields.flag("byte_fallback", false);
    for (size_t byte = 0; byte < 256; ++byte) {
        const std::string spelling = byte_level(std::string(1, char(byte)));
        if (const auto found = vocabulary_.find(spelling); found != vocabulary_.end()) {
            byte_symbols_[byte] = {found->second};
        } else if (fallback) {  // by the bytes of the spelling, all or none
            for (const char c : spelling) {
                const auto token = vocabulary_.find(fmt::format("<0x{:02X}>", uint8_t(c)));
                if (token == vocabulary_.end()) {
                    byte_symbols_[byte].clear();
                    break;
                }
                byte_symbols_[byte].push_back(token->second);
            }
        }
    }

    const auto& merges = fields.array("merges");
    check(merges.size() < size_t(token_id_limit), ErrorKind::malformed, "{}: {} merges", file, merges.size());
    merges_.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
        const auto [left, right] = merge_parts(merges[rank], rank, file);
        const uint64_t pair = uint64_t(id_of(left, rank)) << 32 | uint32_t(id_of(right, rank));
        merges_.insert_or_assign(pair, Merge{uint32_t(rank), id_of(left + right, rank)});
    }
}

const Bpe::Merge* Bpe::merge_of(int32_t left, int32_t right) const {
    const auto found = merges_.find(uint64_t(left) << 32 | uint32_t(right));
    return found == merges_.end() ? nullptr : &found->second;
}

std::vector<Bpe::Symbol> Bpe::symbols_of(std::string_view piece) const {
    std::vector<Symbol> symbols;
    symbols.reserve(piece.size());
    const auto add = [&](int32_t id) {
        const auto at = int64_t(symbols.size());
        symbols.push_back({id, at - 1, at + 1});
    };
    bool pending = false;  // an unknown token that the next unknown byte may join
    for (const char c : piece) {
        const auto& ids = byte_symbols_[uint8_t(c)];
        if (ids.empty() && !unknown_) continue;
        if (pending && (!ids.empty() || !fuse_unknown_)) add(*unknown_);
        pending = ids.empty();
        for (const int32_t id : ids) add(id);
    }
    if (pending) add(*unknown_);
    return symbols;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
    if (ignore_merges_) {
        if (const auto whole = vocabulary_.find(byte_level(piece)); whole != vocabulary_.end()) {
            ids.push_back(whole->second);
            return;
        }
    }

    // The symbols form a list; the pair with the lowest rank is merged first, the leftmost among equals. The
    // queue keeps entries whose pair is gone; they are recognised when they come up.
    std::vector<Symbol> symbols = symbols_of(piece);
    const auto count = int64_t(symbols.size());
    struct Candidate {
        uint32_t rank;
        int32_t id;
        int64_t left;
        bool operator<(const Candidate& other) const {
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };
    std::priority_queue<Candidate> queue;
    const auto consider = [&](int64_t left) {
        if (left < 0 || symbols[left].next == count) return;
        if (const Merge* merge = merge_of(symbols[left].id, symbols[symbols[left].next].id))
            queue.push({merge->rank, merge->id, left});
    };
    for (int64_t i = 0; i + 1 < count; ++i) consider(i);

    constexpr int32_t gone = -1;
    while (!queue.empty()) {
        const Candidate best = queue.top();
        queue.pop();
        Symbol& left = symbols[best.left];
        if (left.id == gone || left.next == count) continue;
        Symbol& right = symbols[left.next];
        const Merge* merge = merge_of(left.id, right.id);
        if (!merge || merge->id != best.id) continue;
        left.id = best.id;
        left.next = right.next;
        right.id = gone;
        if (left.next < count) symbols[left.next].previous = best.left;
        consider(left.previous);
        consider(best.left);
    }
    for (const Symbol& symbol : symbols) {
        if (symbol.id != gone) ids.push_back(symbol.id);
    }
}

}  // namespace halfbyte::model
