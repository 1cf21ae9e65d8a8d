#include "model/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/json.h"
#include "core/check.h"
#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/json_object.h"
#include "model/normalizer.h"
#include "model/pre_tokenizer.h"

namespace halfbyte::model {
namespace {

using checkpoint::Json;
using checkpoint::quote;
using checkpoint::shown;

const Json& bpe_model(const JsonObject& root) {
    const JsonObject model = root.child("model");
    // Files of before 2020 have no type.
    const std::string type = model.find("type") || !model.find("merges") ? model.text("type") : "BPE";
    check(type == "BPE", ErrorKind::unsupported,
          "{}: a tokenizer of type {}{} is not supported; only byte-level BPE is", root.file(), quote(type),
          type == "Unigram" ? " (SentencePiece)" : "");
    return root.at("model");
}

// Named first where it is what makes a file unsupported: its normalizer alone would be a poor explanation.
const Json& pre_tokenizer(const JsonObject& root) {
    const Json* json = root.find("pre_tokenizer");
    check(json, ErrorKind::unsupported,
          "{}: BPE without a pre_tokenizer (a SentencePiece-style vocabulary) is not supported; only "
          "byte-level BPE is",
          root.file());
    return *json;
}

std::vector<AddedToken> added_tokens(const JsonObject& root, const Bpe& bpe) {
    std::vector<AddedToken> tokens;
    if (!root.find("added_tokens")) return tokens;
    // What the ids of the added tokens spell in the vocabulary; of the other ids nobody asks.
    std::unordered_map<int32_t, std::string> of_id;
    std::unordered_map<std::string, int32_t> of_content;
    std::unordered_set<int64_t> ids;
    for (const Json& json : root.array("added_tokens"))
        if (json.is_object() && json.contains("id") && json["id"].is_number_integer())
            ids.insert(json["id"].get<int64_t>());
    for (const auto& [content, id] : bpe.vocabulary())
        if (ids.contains(id)) of_id.emplace(id, content);
    for (const Json& json : root.array("added_tokens")) {
        const JsonObject fields(json, fmt::format("added_tokens[{}]", tokens.size()), root.file());
        AddedToken token;
        token.content = fields.text("content");
        token.id = token_id(fields.at("id"), token.content, root.file());
        token.special = fields.flag("special", false);
        token.lstrip = fields.flag("lstrip", false);
        token.rstrip = fields.flag("rstrip", false);
        token.single_word = fields.flag("single_word", false);
        token.normalized = fields.flag("normalized", !token.special);
        check(!token.content.empty(), ErrorKind::malformed, "{}: {} is empty", root.file(), fields.place());
        // It is looked for at every place of a text.
        check(token.content.size() <= 4096, ErrorKind::unsupported,
              "{}: {} has {} bytes; at most 4096 are supported", root.file(), fields.place(),
              token.content.size());
        check(of_content.emplace(token.content, token.id).second, ErrorKind::malformed,
              "{}: the added token {} appears twice", root.file(), quote(token.content));
        const auto [other, is_new] = of_id.emplace(token.id, token.content);
        check(is_new || other->second == token.content, ErrorKind::malformed,
              "{}: the added token {} has the id {}, which is that of {}", root.file(), quote(token.content),
              token.id, quote(other->second));
        const auto in_vocabulary = bpe.vocabulary().find(token.content);
        check(in_vocabulary == bpe.vocabulary().end() || in_vocabulary->second == token.id,
              ErrorKind::malformed, "{}: the added token {} has the id {}, but {} in model.vocab",
              root.file(), quote(token.content), token.id,
              in_vocabulary == bpe.vocabulary().end() ? 0 : in_vocabulary->second);
        tokens.push_back(std::move(token));
    }
    return tokens;
}

// What the post-processor puts around the ids of a text.
struct Template {
    std::vector<int32_t> before, after;
    size_t parts = 0;  // of all templates, and their ids
};

void add_template(const Json& json, const std::string& file, Template& around) {
    const JsonObject fields(json, "post_processor", file);
    const std::string& type = fields.text("type");
    if (type == "ByteLevel") return;  // changes offsets only
    if (type == "Sequence") {
        for (const Json& step : fields.array("processors")) add_template(step, file, around);
        return;
    }
    check(type == "TemplateProcessing", ErrorKind::unsupported,
          "{}: post_processor {} is not supported; those that are: ByteLevel, TemplateProcessing, Sequence",
          file, quote(type));
    // A hostile file repeats one long list of ids many times.
    constexpr size_t parts_limit = 1000;
    const auto count_part = [&] {
        check(++around.parts <= parts_limit, ErrorKind::unsupported,
              "{}: the post_processor adds more than {} tokens", file, parts_limit);
    };
    Template own;
    bool text_seen = false;
    for (const Json& part : fields.array("single")) {
        count_part();
        const JsonObject entry(part, "post_processor.single", file);
        if (entry.find("Sequence")) {
            check(!text_seen && entry.child("Sequence").text("id") == "A", ErrorKind::unsupported,
                  "{}: post_processor.single holds other sequences than A, once", file);
            text_seen = true;
            continue;
        }
        const std::string& name = entry.child("SpecialToken").text("id");
        const auto& known = fields.object("special_tokens");
        const auto found = known.find(name);
        check(found != known.end(), ErrorKind::malformed,
              "{}: post_processor.single names {}, which post_processor.special_tokens lacks", file,
              quote(name));
        const JsonObject special(found->second, "an entry of post_processor.special_tokens", file);
        for (const Json& id : special.array("ids")) {
            count_part();
            (text_seen ? own.after : own.before).push_back(token_id(id, name, file));
        }
    }
    check(text_seen, ErrorKind::malformed, "{}: post_processor.single has no Sequence A", file);
    around.before.insert(around.before.begin(), own.before.begin(), own.before.end());
    around.after.insert(around.after.end(), own.after.begin(), own.after.end());
}

// Whatever the chain says, bytes come out of their spelling. This only checks that it says nothing else, and
// returns whether it has ByteFallback.
bool check_decoder(const Json& json, const std::string& file) {
    const JsonObject fields(json, "decoder", file);
    const std::string& type = fields.text("type");
    if (type == "ByteFallback") return true;
    if (type == "Sequence") {
        bool fallback = false;
        for (const Json& step : fields.array("decoders")) fallback |= check_decoder(step, file);
        return fallback;
    }
    if (type == "Replace") {  // U+2581 spells no byte, so that this one changes nothing
        const JsonObject pattern = fields.child("pattern");
        check(pattern.find("String") && pattern.text("String") == "\u2581", ErrorKind::unsupported,
              "{}: decoder Replace of {} is not supported", file, shown(fields.at("pattern")));
        return false;
    }
    check(type == "ByteLevel" || type == "Fuse", ErrorKind::unsupported,
          "{}: decoder {} is not supported; those that are: ByteLevel, ByteFallback, Fuse, Replace, Sequence",
          file, quote(type));
    return false;
}

// The byte of a token "<0x4F>".
std::optional<char> fallback_byte(std::string_view token) {
    const auto digit = [](char c) {
        return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    };
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    const int high = digit(token[3]), low = digit(token[4]);
    if (high < 0 || low < 0) return std::nullopt;
    return char(high << 4 | low);
}

}  // namespace

struct Tokenizer::State {
    struct Decoded {
        std::string bytes;
        bool special = false, fallback = false;  // fallback: one byte of a spelling
    };

    State(const JsonObject& root, const std::string& name);
    void encode_text(std::string_view text, std::vector<int32_t>& ids) const;

    std::string file;
    Bpe bpe;
    PreTokenizer pieces;
    Normalizer normalizer;
    AddedTokenFinder verbatim, normalized;
    Template around;
    std::unordered_map<std::string, int32_t> added;
    std::unordered_map<int32_t, Decoded> decoded;  // a map: one absurd id must not cost memory
    int64_t size = 0;
};

Tokenizer::State::State(const JsonObject& root, const std::string& name)
    : file(name), bpe(bpe_model(root), file), pieces(pre_tokenizer(root), file) {
    if (const Json* json = root.find("normalizer")) normalizer = Normalizer(*json, file);
    if (const Json* json = root.find("post_processor")) add_template(*json, file, around);
    const bool fallback = root.find("decoder") && check_decoder(root.at("decoder"), file);

    for (const auto& [token, id] : bpe.vocabulary()) {
        Decoded& entry = decoded[id];
        if (const auto byte = fallback_byte(token); byte && fallback) {
            entry = {std::string(1, *byte), false, true};
        } else {
            entry.bytes = byte_level_inverse(token).value_or(token);
        }
        size = std::max(size, int64_t(id) + 1);
    }
    // Special ones come first: of two that are equal once normalised, the first counts.
    std::vector<AddedToken> tokens = added_tokens(root, bpe), as_is, in_normalized;
    std::stable_partition(tokens.begin(), tokens.end(),
                          [](const AddedToken& token) { return token.special; });
    for (AddedToken& token : tokens) {
        added.emplace(token.content, token.id);
        decoded[token.id] = {token.content, token.special, false};
        size = std::max(size, int64_t(token.id) + 1);
        if (token.normalized) token.content = normalizer.apply(token.content);
        (token.normalized ? in_normalized : as_is).push_back(std::move(token));
    }
    verbatim = AddedTokenFinder(std::move(as_is));
    normalized = AddedTokenFinder(std::move(in_normalized));
    for (const auto& ids : {around.before, around.after}) {
        for (const int32_t id : ids)
            check(decoded.contains(id), ErrorKind::malformed,
                  "{}: post_processor adds the id {}, which no token has", file, id);
    }
}

void Tokenizer::State::encode_text(std::string_view text, std::vector<int32_t>& ids) const {
    const auto on_token = [&](int32_t id) { ids.push_back(id); };
    const auto on_piece = [&](std::string_view piece) { bpe.encode(piece, ids); };
    const auto on_normalized_text = [&](std::string_view part) { pieces.split(part, on_piece); };
    const auto on_text = [&](std::string_view part) {
        if (normalizer.empty()) return normalized.split(part, on_normalized_text, on_token);
        normalized.split(normalizer.apply(part), on_normalized_text, on_token);
    };
    verbatim.split(text, on_text, on_token);
}

Tokenizer::Tokenizer(std::string_view json, const std::filesystem::path& file) {
    const std::string name = file.string();
    const Json root = checkpoint::parse_json(json, file);
    state_ = std::make_unique<const State>(JsonObject(root, "the file", name), name);
}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
    const size_t invalid = invalid_utf8(text);
    check(invalid == text.npos, ErrorKind::failure,
          "the text is not valid UTF-8 at byte {} (of {}); convert it to UTF-8 first", invalid, text.size());
    std::vector<int32_t> ids;
    if (add_special) ids = state_->around.before;
    state_->encode_text(text, ids);
    if (add_special) ids.insert(ids.end(), state_->around.after.begin(), state_->around.after.end());
    return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
    std::string out, fallback;
    // A run of fallback tokens holds the UTF-8 of a spelling.
    const auto flush = [&] {
        if (fallback.empty()) return;
        const bool spelling = invalid_utf8(fallback) == std::string::npos;
        out += spelling ? byte_level_inverse(fallback).value_or(fallback) : fallback;
        fallback.clear();
    };
    for (const int32_t id : ids) {
        const auto found = state_->decoded.find(id);
        check(found != state_->decoded.end(), ErrorKind::usage, "{}: the vocabulary has no token with id {}",
              state_->file, id);
        const State::Decoded& token = found->second;
        if (skip_special && token.special) continue;
        if (!token.fallback) flush();
        (token.fallback ? fallback : out) += token.bytes;
    }
    flush();
    return out;
}

bool Tokenizer::contains(int32_t id) const {
    return state_->decoded.contains(id);
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
    const std::string key(token);
    if (const auto found = state_->added.find(key); found != state_->added.end()) return found->second;
    const auto& vocabulary = state_->bpe.vocabulary();
    if (const auto found = vocabulary.find(key); found != vocabulary.end()) return found->second;
    return std::nullopt;
}

int64_t Tokenizer::size() const {
    return state_->size;
}

}  // namespace halfbyte::model
