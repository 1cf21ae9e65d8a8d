#include "checkpoint/gguf_tokenizer.h"

#include <optional>
#include <unordered_set>

#include "checkpoint/json.h"
#include "core/check.h"

namespace halfbyte::checkpoint {
namespace {

const std::string prefix = "tokenizer.ggml.";

// llama.cpp's token types; the others (1 normal, 2 unknown, 5 unused, 6 byte) are plain entries of the
// vocabulary.
constexpr int64_t control = 3, user_defined = 4;

Json byte_level(bool use_regex) {
    return {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

// What tokenizer.ggml.pre stands for.
struct Kind {
    Json pre_tokenizer;
    bool ignore_merges = false, add_bos = false;
};

Kind kind_of(const std::string& pre, const std::string& file) {
    if (pre == "gpt-2") return {byte_level(true)};
    if (pre == "smollm") {
        const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
        return {{{"type", "Sequence"}, {"pretokenizers", Json::array({digits, byte_level(true)})}}};
    }
    if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3") {
        const Json pattern = {
            {"Regex",
             R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
             R"(\s*[\r\n]+|\s+(?!\S)|\s+)"}};
        const Json split = {
            {"type", "Split"}, {"pattern", pattern}, {"behavior", "Isolated"}, {"invert", false}};
        return {
            {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false)})}}, true, true};
    }
    fail(ErrorKind::unsupported,
         "{}: {}pre is {}; supported are smollm, llama-bpe and gpt-2. A Hugging Face folder with "
         "tokenizer.json can be "
         "used instead",
         file, prefix, quote(pre));
}

class Reader {
  public:
    explicit Reader(const GgufFile& gguf)
        : gguf_(gguf), file_(gguf.file().path().string()), tokens_(gguf.texts(prefix + "tokens")) {
        std::unordered_set<std::string_view> seen;
        for (const std::string& token : tokens_) {
            check(seen.insert(token).second, ErrorKind::malformed, "{}: {}tokens holds {} twice", file_,
                  prefix, quote(token));
        }
        check(tokens_.size() < 1 << 24, ErrorKind::malformed, "{}: {}tokens has {} entries", file_, prefix,
              tokens_.size());
    }

    const std::string& file() const { return file_; }

    std::optional<int64_t> id(const std::string& name) const {
        const std::string key = prefix + name;
        if (!gguf_.has(key)) return std::nullopt;
        const int64_t value = gguf_.integer(key);
        check(value >= 0 && value < int64_t(tokens_.size()), ErrorKind::malformed,
              "{}: {} is {}; the vocabulary has {} tokens", file_, key, value, tokens_.size());
        return value;
    }
    bool flag(const std::string& name, bool absent) const {
        return gguf_.has(prefix + name) ? gguf_.flag(prefix + name) : absent;
    }
    const std::string& token(int64_t id) const { return tokens_[size_t(id)]; }

    Json vocabulary() const {
        Json vocabulary = Json::object();
        auto& members = vocabulary.get_ref<Json::object_t&>();  // operator[] would search all earlier ones
        members.reserve(tokens_.size());
        for (size_t i = 0; i < tokens_.size(); ++i) members.emplace_back(tokens_[i], int64_t(i));
        return vocabulary;
    }

    Json merges() const {
        Json merges = Json::array();
        for (const std::string& merge : gguf_.texts(prefix + "merges")) {
            const size_t space = merge.find(' ');
            check(space != 0 && space < merge.size() - 1 && merge.find(' ', space + 1) == merge.npos,
                  ErrorKind::malformed,
                  "{}: {}merges[{}] is {}; needed are two tokens with a space between them", file_, prefix,
                  merges.size(), quote(merge));
            merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
        }
        return merges;
    }

    Json added_tokens() const {
        Json added = Json::array();
        if (!gguf_.has(prefix + "token_type")) return added;
        const std::vector<int64_t> types = gguf_.integers(prefix + "token_type");
        check(types.size() == tokens_.size(), ErrorKind::malformed,
              "{}: {}token_type has {} entries, {}tokens {}", file_, prefix, types.size(), prefix,
              tokens_.size());
        for (size_t i = 0; i < types.size(); ++i) {
            if (types[i] != control && types[i] != user_defined) continue;
            added.push_back({{"id", int64_t(i)},
                             {"content", tokens_[i]},
                             {"single_word", false},
                             {"lstrip", false},
                             {"rstrip", false},
                             {"normalized", false},
                             {"special", types[i] == control}});
        }
        return added;
    }

  private:
    const GgufFile& gguf_;
    std::string file_;
    std::vector<std::string> tokens_;
};

// The ids around a text: BOS or EOS, or neither.
Json post_processor(const Reader& reader, bool bos, bool eos) {
    const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
    Json single = Json::array(), pair = Json::array(), special = Json::object();
    const auto add = [&](const char* name, int type_id) {
        const auto id = reader.id(name);
        check(id.has_value(), ErrorKind::malformed,
              "{}: {}{} is absent, but the tokenizer is to add that token", reader.file(), prefix, name);
        const std::string& token = reader.token(*id);
        special[token] = {{"id", token}, {"ids", Json::array({*id})}, {"tokens", Json::array({token})}};
        const Json entry = {{"SpecialToken", {{"id", token}, {"type_id", type_id}}}};
        if (type_id == 0) single.push_back(entry);
        pair.push_back(entry);
    };
    if (bos) add("bos_token_id", 0);
    single.push_back(text);
    pair.push_back(text);
    if (eos) add("eos_token_id", 0);
    if (bos) add("bos_token_id", 1);
    pair.push_back(second);
    if (eos) add("eos_token_id", 1);
    return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

}  // namespace

GgufTokenizer tokenizer_from_gguf(const GgufFile& gguf) {
    const std::string file = gguf.file().path().string();
    const std::string model = gguf.text(prefix + "model");
    check(model == "gpt2", ErrorKind::unsupported,
          "{}: {}model is {}{}; only gpt2, a byte-level BPE, is supported. Token ids can still be given "
          "directly",
          file, prefix, quote(model), model == "llama" ? " (SentencePiece)" : "");
    check(gguf.has(prefix + "pre"), ErrorKind::unsupported,
          "{}: {}pre is absent (a file of before 2024), so that the way the text is split is not known", file,
          prefix);
    const Kind kind = kind_of(gguf.text(prefix + "pre"), file);
    const Reader reader(gguf);
    const bool add_bos = reader.flag("add_bos_token", kind.add_bos);
    const bool add_eos = reader.flag("add_eos_token", false);
    const auto unknown = reader.id("unknown_token_id");

    Json tokenizer;
    tokenizer["version"] = "1.0";
    tokenizer["truncation"] = nullptr;
    tokenizer["padding"] = nullptr;
    tokenizer["added_tokens"] = reader.added_tokens();
    tokenizer["normalizer"] = nullptr;
    tokenizer["pre_tokenizer"] = kind.pre_tokenizer;
    tokenizer["post_processor"] = post_processor(reader, add_bos, add_eos);
    tokenizer["decoder"] = byte_level(true);
    tokenizer["model"] = {{"type", "BPE"},
                          {"dropout", nullptr},
                          {"unk_token", unknown ? Json(reader.token(*unknown)) : Json()},
                          {"continuing_subword_prefix", nullptr},
                          {"end_of_word_suffix", nullptr},
                          {"fuse_unk", unknown.has_value()},
                          {"byte_fallback", false},
                          {"ignore_merges", kind.ignore_merges},
                          {"vocab", reader.vocabulary()},
                          {"merges", reader.merges()}};

    Json config;
    config["add_bos_token"] = add_bos;
    config["add_eos_token"] = add_eos;
    config["add_prefix_space"] = false;
    static constexpr const char* names[][2] = {{"bos_token", "bos_token_id"},
                                               {"eos_token", "eos_token_id"},
                                               {"unk_token", "unknown_token_id"},
                                               {"pad_token", "padding_token_id"}};
    for (const auto& [name, key] : names) {
        if (const auto id = reader.id(key)) config[name] = reader.token(*id);
    }
    config["clean_up_tokenization_spaces"] = false;
    const std::string context = gguf.text("general.architecture") + ".context_length";
    if (gguf.has(context)) config["model_max_length"] = gguf.integer(context);
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
    return {tokenizer.dump(1) + "\n", config.dump(2) + "\n"};
}

}  // namespace halfbyte::checkpoint
