#include "model/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>

#include "checkpoint/files.h"
#include "model/tiny_tokenizer.h"
#include "support/little_memory.h"
#include "support/throws.h"

namespace halfbyte::model {
namespace {

using test::byte_level_step;
using test::Json;
using test::load;
using test::tiny_tokenizer;
using Ids = std::vector<int32_t>;

const std::filesystem::path golden_file =
    std::filesystem::path(HALFBYTE_TEST_DATA) / "tokenizer/tokenizer.json";

const Tokenizer& smollm() {
    static const Tokenizer tokenizer(test::read_file(golden_file), golden_file);
    return tokenizer;
}

std::string shown(const std::string& bytes) {
    Utf8Stream stream;
    std::string out = stream.add(bytes);
    return out + stream.finish();
}

Json sequence(std::vector<Json> steps) {
    Json list = Json::array();
    for (Json& step : steps) list.push_back(std::move(step));
    return {{"type", "Sequence"}, {"pretokenizers", list}};
}
Json split(Json pattern, const char* behavior = "Isolated", bool invert = false) {
    return {{"type", "Split"}, {"pattern", std::move(pattern)}, {"behavior", behavior}, {"invert", invert}};
}

TEST(Tokenizer, GoldenIdsAndTexts) {
    const Json golden =
        checkpoint::read_json(std::filesystem::path(HALFBYTE_TEST_DATA) / "tokenizer_golden.json");
    ASSERT_EQ(golden["cases"].size(), 63u);
    for (const Json& example : golden["cases"]) {
        const std::string text = example["text"];
        SCOPED_TRACE(text);
        const Ids ids = smollm().encode(text, false);
        EXPECT_EQ(ids, example["ids"].get<Ids>());
        EXPECT_EQ(smollm().encode(text, true), example["ids_with_special"].get<Ids>());
        EXPECT_EQ(shown(smollm().decode(ids)), example["decoded"].get<std::string>());
    }
}

// A small vocabulary with the pattern, ignore_merges and the post-processor of Llama 3.
TEST(Tokenizer, GoldenIdsOfLlama3) {
    const Json golden =
        checkpoint::read_json(std::filesystem::path(HALFBYTE_TEST_DATA) / "llama3_tokenizer_golden.json");
    ASSERT_EQ(golden["cases"].size(), 39u);
    const Tokenizer tokenizer = load(golden["tokenizer"]);
    Json without = golden["tokenizer"];
    without["model"]["ignore_merges"] = false;
    const Tokenizer merging = load(without);
    int differing = 0;
    for (const Json& example : golden["cases"]) {
        const std::string text = example["text"];
        SCOPED_TRACE(text);
        const Ids ids = tokenizer.encode(text, false);
        EXPECT_EQ(ids, example["ids"].get<Ids>());
        EXPECT_EQ(tokenizer.encode(text, true), example["ids_with_special"].get<Ids>());
        EXPECT_EQ(tokenizer.decode(ids), text);
        differing += merging.encode(text, false) != ids;
    }
    EXPECT_GT(differing, 0);
}

TEST(Tokenizer, WikiText2) {
    const auto file = std::filesystem::path(HALFBYTE_SHARED_DATA) / "wikitext-2/test.txt";
    if (!std::filesystem::exists(file)) GTEST_SKIP() << "no WikiText-2 at " << file;
    const std::string text = test::read_file(file);
    const Ids ids = smollm().encode(text, false);
    EXPECT_EQ(ids.size(), 312144u);
    ASSERT_GE(ids.size(), 32u);
    EXPECT_EQ(Ids(ids.begin(), ids.begin() + 32),
              (Ids{3717, 446, 6356, 2067, 5131,  46,   446,  3717, 3717,  6356,  2067,
                   5131, 46,  314,  354,  2321,  4771, 3297, 8552, 284,   16984, 17523,
                   1673, 909, 761,  253,  16204, 3394, 29,   48,   45608, 1791}));
    EXPECT_EQ(smollm().decode(ids), text);
}

RC_GTEST_PROP(Tokenizer, DecodingGivesTheTextBack, (const std::vector<uint32_t>& codes)) {
    const Tokenizer tokenizer = load(tiny_tokenizer({{"a", "b"}, {" ", "a"}}));
    std::string text;
    for (const uint32_t code : codes) text += utf8(code % 0xD800);
    RC_ASSERT(tokenizer.decode(tokenizer.encode(text, true)) == text);
}

TEST(Tokenizer, IdsOfTokensAndSize) {
    EXPECT_EQ(smollm().id_of("<|im_end|>"), 2);
    EXPECT_EQ(smollm().id_of("Hello"), 19556);
    EXPECT_EQ(smollm().id_of("\u0120Hello"), 38699);
    EXPECT_EQ(smollm().id_of("no such token"), std::nullopt);
    EXPECT_EQ(smollm().size(), 49152);
}

TEST(Tokenizer, DecodeLeavesSpecialTokensOutAndRefusesUnknownIds) {
    const Ids ids = {1, 19556, 2};
    EXPECT_EQ(smollm().decode(ids), "<|im_start|>Hello<|im_end|>");
    EXPECT_EQ(smollm().decode(ids, true), "Hello");
    for (const int32_t id : {-1, 49152, INT32_MAX})
        EXPECT_TRUE(test::throws(ErrorKind::usage, std::to_string(id), [&] { smollm().decode(Ids{0, id}); }))
            << id;
}

TEST(Tokenizer, InvalidUtf8IsAFailureWithItsOffset) {
    EXPECT_TRUE(test::throws(ErrorKind::failure, "at byte 3", [] { smollm().encode("abc\xFF", true); }));
}

TEST(Bpe, TheByteSpellingIsOneToOne) {
    for (int byte = 0; byte < 256; ++byte) {
        const std::string bytes(1, char(byte));
        EXPECT_EQ(byte_level_inverse(byte_level(bytes)), bytes) << byte;
    }
    EXPECT_EQ(byte_level(" \n\xAD"), "\u0120\u010A\u0143");
    for (const char* other : {"\u0144", "\u2581", " ", "\n", "\u00AD"})
        EXPECT_EQ(byte_level_inverse(other), std::nullopt);
}

TEST(Bpe, MergesByRankThenFromTheLeft) {
    EXPECT_EQ(load(tiny_tokenizer({{"a", "a"}})).encode("aaaaa", false), (Ids{256, 256, 'a'}));
    EXPECT_EQ(load(tiny_tokenizer({{"b", "c"}, {"a", "b"}})).encode("abc", false), (Ids{'a', 256}));
    EXPECT_EQ(load(tiny_tokenizer({{"a", "b"}, {"b", "c"}})).encode("abc", false), (Ids{256, 'c'}));
    EXPECT_EQ(load(tiny_tokenizer({{"a", "b"}, {"ab", "ab"}, {"abab", "ab"}})).encode("ababab", false),
              (Ids{258}));
}

// A slow form of the same rule, on words that make many candidates stale.
RC_GTEST_PROP(Bpe, AgreesWithMergingOnePairAtATime, (const std::vector<uint8_t>& letters)) {
    const std::vector<std::pair<std::string, std::string>> merges = {
        {"b", "a"},   {"a", "a"}, {"a", "b"},   {"aa", "b"},   {"ba", "aa"},
        {"ab", "ba"}, {"b", "b"}, {"bb", "aa"}, {"aab", "aab"}};
    std::string text;
    for (const uint8_t letter : letters) text += char('a' + letter % 2);
    std::vector<std::string> word;
    for (const char c : text) word.emplace_back(1, c);
    while (true) {
        size_t rank = merges.size(), place = 0;
        for (size_t i = 0; i + 1 < word.size(); ++i) {
            for (size_t r = 0; r < rank; ++r) {
                if (merges[r] == std::pair(word[i], word[i + 1])) rank = r, place = i;
            }
        }
        if (rank == merges.size()) break;
        word[place] += word[place + 1];
        word.erase(word.begin() + place + 1);
    }
    static const Tokenizer tokenizer = load(tiny_tokenizer(merges));
    Ids wanted;
    for (const std::string& token : word) wanted.push_back(tokenizer.id_of(token).value());
    RC_ASSERT(tokenizer.encode(text, false) == wanted);
}

TEST(Bpe, AWordOfAMillionLettersIsNotQuadratic) {
    const Ids ids = smollm().encode(std::string(1'000'000, 'a'), false);
    EXPECT_EQ(ids, Ids(250'000, 46880));
}

TEST(LongAddedTokens, NeitherTheyNorBlanksAreQuadratic) {
    Json json = tiny_tokenizer();
    const std::string almost(4095, 'a');
    json["added_tokens"] = {{{"id", 300}, {"content", almost + "b"}},
                            {{"id", 301}, {"content", almost + "c"}},
                            {{"id", 302}, {"content", " "}, {"rstrip", true}}};
    const Tokenizer tokenizer = load(json);
    const size_t size = 100'000;
    EXPECT_EQ(tokenizer.encode(std::string(size, 'a'), false), Ids(size, 'a'));
    EXPECT_EQ(tokenizer.encode(std::string(size, ' '), false), Ids(size, 302));
    EXPECT_EQ(tokenizer.encode(almost + "b" + almost + "c", false), (Ids{300, 301}));
}

// Against the definition: leftmost, then longest.
RC_GTEST_PROP(ManyAddedTokens, AreFoundAsByTryingEachAtEachPlace, ()) {
    const auto word = [](int most) {
        return *rc::gen::resize(most, rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab"))));
    };
    std::map<std::string, int32_t> tokens;
    for (int i = *rc::gen::inRange(1, 12); i > 0; --i) tokens.emplace(word(6) + "ab", 300 + i);
    Json json = tiny_tokenizer();
    for (const auto& [content, id] : tokens)
        json["added_tokens"].push_back({{"id", id}, {"content", content}});
    const std::string text = word(40);
    Ids wanted;
    for (size_t at = 0; at < text.size();) {
        std::string longest;
        for (const auto& [content, id] : tokens)
            if (text.compare(at, content.size(), content) == 0 && content.size() > longest.size())
                longest = content;
        wanted.push_back(longest.empty() ? text[at] : tokens[longest]);
        at += std::max<size_t>(longest.size(), 1);
    }
    RC_ASSERT(load(json).encode(text, false) == wanted);
}

TEST(Bpe, IgnoreMergesTakesAWholePieceFromTheVocabulary) {
    Json json = tiny_tokenizer({{"a", "b"}});
    json["model"]["vocab"]["\u0120xyz"] = 300;
    EXPECT_EQ(load(json).encode(" xyz", false), (Ids{' ', 'x', 'y', 'z'}));
    json["model"]["ignore_merges"] = true;
    EXPECT_EQ(load(json).encode(" xyz", false), (Ids{300}));
    EXPECT_EQ(load(json).encode(" xyzab", false), (Ids{' ', 'x', 'y', 'z', 256}));
}

TEST(Bpe, MissingBytesBecomeUnknownFusedOrNothing) {
    Json json = tiny_tokenizer({{"a", "b"}});
    json["model"]["vocab"].erase("x");
    json["model"]["vocab"].erase("y");
    json["model"]["vocab"]["<unk>"] = 300;
    EXPECT_EQ(load(json).encode("xyabx", false), (Ids{256}));  // no unknown token: dropped
    json["model"]["unk_token"] = "<unk>";
    EXPECT_EQ(load(json).encode("xyabx", false), (Ids{300, 300, 256, 300}));
    json["model"]["fuse_unk"] = true;
    EXPECT_EQ(load(json).encode("xyabx", false), (Ids{300, 256, 300}));
    EXPECT_EQ(load(json).encode("xxyyxy", false), (Ids{300}));
}

TEST(Bpe, ByteFallbackSpellsAMissingByteIfAllItsTokensExist) {
    Json json = tiny_tokenizer();
    json["model"]["vocab"].erase("x");
    json["model"]["vocab"].erase("\u0120");  // the space: its spelling is the bytes C4 A0
    json["model"]["vocab"]["<unk>"] = 300;
    json["model"]["vocab"]["<0x78>"] = 301;
    json["model"]["vocab"]["<0xC4>"] = 302;
    json["model"]["unk_token"] = "<unk>";
    json["model"]["byte_fallback"] = true;
    json["decoder"] = {
        {"type", "Sequence"},
        {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}, {{"type", "ByteLevel"}}}}};
    EXPECT_EQ(load(json).encode("x a", false), (Ids{301, 300, 'a'}));
    json["model"]["vocab"]["<0xA0>"] = 303;
    EXPECT_EQ(load(json).encode("x a", false), (Ids{301, 302, 303, 'a'}));
    EXPECT_EQ(load(json).decode(Ids{301, 302, 303, 'a'}), "x a");
    EXPECT_EQ(load(json).decode(Ids{302, 'a'}),
              "\xC4"
              "a");
}

// With every part of a text in the vocabulary, the ids show where it was cut.
class PreTokenizers : public testing::Test {
  protected:
    static std::vector<std::string> pieces(const Json& pre_tokenizer, const std::string& text) {
        Json json = tiny_tokenizer();
        json["pre_tokenizer"] = pre_tokenizer;
        json["model"]["ignore_merges"] = true;
        int id = 1000;
        for (size_t begin = 0; begin < text.size(); ++begin) {
            for (size_t end = begin + 1; end <= text.size(); ++end) {
                for (const char* prefix : {"", " "}) {
                    auto& entry =
                        json["model"]["vocab"][byte_level(prefix + text.substr(begin, end - begin))];
                    if (entry.is_null()) entry = id++;
                }
            }
        }
        const Tokenizer tokenizer = load(json);
        std::vector<std::string> out;
        for (const int32_t piece : tokenizer.encode(text, false)) out.push_back(tokenizer.decode(Ids{piece}));
        return out;
    }
    using Pieces = std::vector<std::string>;
};

TEST_F(PreTokenizers, ByteLevel) {
    EXPECT_EQ(pieces(byte_level_step(true), "it's  a 12b\n\n"),
              (Pieces{"it", "'s", " ", " a", " 12", "b", "\n\n"}));
    EXPECT_EQ(pieces(byte_level_step(false), "it's  a"), (Pieces{"it's  a"}));
    EXPECT_EQ(pieces(byte_level_step(false, true), "ab"), (Pieces{" ab"}));
    EXPECT_EQ(pieces(byte_level_step(true, true), " ab c"), (Pieces{" ab", " c"}));
}

TEST_F(PreTokenizers, SplitBehaviors) {
    const auto cut = [](const char* behavior, bool invert = false) {
        return pieces(sequence({split({{"Regex", "-"}}, behavior, invert), byte_level_step(false)}),
                      "-ab--c-d");
    };
    EXPECT_EQ(cut("Isolated"), (Pieces{"-", "ab", "-", "-", "c", "-", "d"}));
    EXPECT_EQ(cut("Removed"), (Pieces{"ab", "c", "d"}));
    EXPECT_EQ(cut("Removed", true), (Pieces{"-", "-", "-", "-"}));
    EXPECT_EQ(cut("MergedWithPrevious"), (Pieces{"-", "ab-", "-", "c-", "d"}));
    EXPECT_EQ(cut("MergedWithNext"), (Pieces{"-ab", "-", "-c", "-d"}));
    EXPECT_EQ(cut("Contiguous"), (Pieces{"-", "ab", "--", "c", "-", "d"}));
}

TEST_F(PreTokenizers, SplitByAStringAndSequence) {
    EXPECT_EQ(pieces(sequence({split({{"String", "a+"}}), byte_level_step(false)}), "ba+a+c"),
              (Pieces{"b", "a+", "a+", "c"}));
    EXPECT_EQ(pieces(sequence({split({{"String", "b"}}, "Removed"), byte_level_step(false, true)}), "abc"),
              (Pieces{" a", " c"}));  // every piece gets the prefix
}

TEST_F(PreTokenizers, Digits) {
    const auto digits = [](bool individual) {
        return sequence({{{"type", "Digits"}, {"individual_digits", individual}}, byte_level_step(false)});
    };
    EXPECT_EQ(pieces(digits(true), "a12\u00BD"), (Pieces{"a", "1", "2", "\u00BD"}));
    EXPECT_EQ(pieces(digits(false), "12a\u0661"), (Pieces{"12", "a", "\u0661"}));
}

TEST_F(PreTokenizers, OthersAreRefusedByName) {
    const auto refused = [](const Json& pre_tokenizer, const char* name,
                            ErrorKind kind = ErrorKind::unsupported) {
        Json json = tiny_tokenizer();
        json["pre_tokenizer"] = pre_tokenizer;
        return test::throws(kind, name, [&] { load(json); });
    };
    for (const char* name : {"Metaspace", "Whitespace", "BertPreTokenizer", "Punctuation", "UnicodeScripts"})
        EXPECT_TRUE(refused({{"type", name}}, name));
    EXPECT_TRUE(refused({{"type", "Metaspace"}}, "SentencePiece"));
    EXPECT_TRUE(refused(nullptr, "SentencePiece"));
    EXPECT_TRUE(refused(sequence({split({{"Regex", "a"}})}), "no ByteLevel"));
    EXPECT_TRUE(refused(sequence({}), "no ByteLevel"));
    EXPECT_TRUE(refused(sequence({byte_level_step(false), byte_level_step(false)}), "behind ByteLevel"));
    EXPECT_TRUE(refused(sequence({byte_level_step(false), {{"type", "Digits"}, {"individual_digits", true}}}),
                        "Digits"));
    EXPECT_TRUE(refused(split({{"String", ""}}), "empty string"));
    std::vector<Json> many(65, split({{"String", "a"}}));
    EXPECT_TRUE(refused(sequence(many), "more than 64 pre_tokenizers"));
    EXPECT_TRUE(refused(split({{"Regex", "\\h"}}), "\\\\h"));
    EXPECT_TRUE(refused(split({{"Regex", "("}}), "cannot be compiled", ErrorKind::malformed));
    EXPECT_TRUE(refused(split({{"Regex", "a"}}, "Sideways"), "Sideways", ErrorKind::malformed));
    EXPECT_TRUE(refused(split({{"Neither", "a"}}), "no member String", ErrorKind::malformed));
    EXPECT_TRUE(refused({{"type", "ByteLevel"}}, "add_prefix_space", ErrorKind::malformed));
    EXPECT_TRUE(refused("ByteLevel", "needed is an object", ErrorKind::malformed));
}

TEST(Normalizers, ChangeTheTextBetweenAddedTokens) {
    const auto normalized = [](const Json& normalizer, const std::string& text) {
        Json json = tiny_tokenizer();
        json["normalizer"] = normalizer;
        const Tokenizer tokenizer = load(json);
        return tokenizer.decode(tokenizer.encode(text, false));
    };
    const std::string text = "\uFB01 e\u0301 \u00E9";
    EXPECT_EQ(normalized({{"type", "NFC"}}, text), "\uFB01 \u00E9 \u00E9");
    EXPECT_EQ(normalized({{"type", "NFD"}}, text), "\uFB01 e\u0301 e\u0301");
    EXPECT_EQ(normalized({{"type", "NFKC"}}, text), "fi \u00E9 \u00E9");
    EXPECT_EQ(normalized({{"type", "NFKD"}}, text), "fi e\u0301 e\u0301");
    EXPECT_EQ(normalized({{"type", "NFC"}}, std::string("a\0e\u0301", 5)), std::string("a\0\u00E9", 4));
    EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "x"}}, "ab"), "xab");
    EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "x"}}, ""), "");
    const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "aa"}}}, {"content", "ab"}};
    EXPECT_EQ(normalized(replace, "aaaxaa"), "abaxab");
    EXPECT_EQ(normalized({{"type", "Sequence"},
                          {"normalizers", {replace, {{"type", "Prepend"}, {"prepend", "aa"}}}}},
                         "aa"),
              "aaab");
    EXPECT_EQ(normalized({{"type", "Sequence"}, {"normalizers", Json::array()}}, "aa"), "aa");
}

TEST(Normalizers, ThatMakeATextManyTimesAsLongGiveUp) {
    const auto apply = [](const std::vector<Json>& steps, const std::string& text) {
        Json json = tiny_tokenizer();
        json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
        return load(json).encode(text, false).size();
    };
    const auto replace = [](size_t times) {
        return Json{
            {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(times, 'a')}};
    };
    EXPECT_EQ(apply({replace(60)}, std::string(1000, 'a')), 60'000u);
    EXPECT_EQ(apply({{{"type", "NFKD"}}}, std::string("\uFDFA")), 33u);  // the longest there is
    for (const auto& steps : {std::vector<Json>(60, replace(2)),
                              {replace(100'000)},
                              {{{"type", "Prepend"}, {"prepend", std::string(100'000, 'a')}}}})
        EXPECT_TRUE(test::throws(ErrorKind::failure, "times as much", [&] { apply(steps, "aaaa"); }));
    EXPECT_TRUE(test::throws(ErrorKind::unsupported, "more than 64 normalizers",
                             [&] { apply(std::vector<Json>(65, replace(1)), ""); }));
    Json json = tiny_tokenizer();  // an added token is normalised too
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<Json>(60, replace(2))}};
    json["added_tokens"] = {{{"id", 300}, {"content", "ba"}, {"normalized", true}}};
    EXPECT_TRUE(test::throws(ErrorKind::failure, "times as much", [&] { load(json); }));
}

TEST(Normalizers, OthersAreRefusedByName) {
    for (const char* name : {"BertNormalizer", "Lowercase", "Precompiled", "Strip", "Nmt"}) {
        Json json = tiny_tokenizer();
        json["normalizer"] = {{"type", name}};
        EXPECT_TRUE(test::throws(ErrorKind::unsupported, name, [&] { load(json); }));
    }
    Json json = tiny_tokenizer();
    json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "b"}};
    EXPECT_TRUE(test::throws(ErrorKind::unsupported, "Regex", [&] { load(json); }));
}

class AddedTokens : public testing::Test {
  protected:
    // Tokens with ids from 1000.
    static Ids ids(const std::vector<Json>& tokens, const std::string& text,
                   const Json& normalizer = nullptr) {
        Json json = tiny_tokenizer();
        json["normalizer"] = normalizer;
        for (const Json& token : tokens) {
            json["added_tokens"].push_back({{"special", false}, {"normalized", false}});
            json["added_tokens"].back().update(token);
            json["added_tokens"].back()["id"] = 999 + json["added_tokens"].size();
        }
        return load(json).encode(text, false);
    }
};

TEST_F(AddedTokens, TheLeftmostThenTheLongestIsTaken) {
    const std::vector<Json> tokens = {
        {{"content", "<a>"}}, {{"content", "<a><"}}, {{"content", "bc"}}, {{"content", "abcd"}}};
    EXPECT_EQ(ids(tokens, "<a>x<a><a>"), (Ids{1000, 'x', 1001, 'a', '>'}));
    EXPECT_EQ(ids(tokens, "abcx"), (Ids{'a', 1002, 'x'}));
    EXPECT_EQ(ids(tokens, "abcd<a>"), (Ids{1003, 1000}));
    EXPECT_EQ(ids(tokens, "<a"), (Ids{'<', 'a'}));
}

TEST_F(AddedTokens, StripTakesTheWhiteSpaceBeside) {
    EXPECT_EQ(ids({{{"content", "<a>"}, {"lstrip", true}}}, "x \u3000\n<a> y"), (Ids{'x', 1000, ' ', 'y'}));
    EXPECT_EQ(ids({{{"content", "<a>"}, {"rstrip", true}}}, "x <a> \u3000\ny"), (Ids{'x', ' ', 1000, 'y'}));
    EXPECT_EQ(ids({{{"content", "<a>"}, {"lstrip", true}, {"rstrip", true}}}, " <a> <a> "),
              (Ids{1000, 1000}));
    EXPECT_EQ(ids({{{"content", "<a>"}, {"rstrip", true}}, {{"content", "  "}}}, "<a>  x"),
              (Ids{1000, 1001, 'x'}));
}

TEST_F(AddedTokens, SingleWordsStandApart) {
    const std::vector<Json> tokens = {{{"content", "ab"}, {"single_word", true}}};
    EXPECT_EQ(ids(tokens, "ab ab, xab"), (Ids{1000, ' ', 1000, ',', ' ', 'x', 'a', 'b'}));
    EXPECT_EQ(ids(tokens, "ab_"), (Ids{'a', 'b', '_'}));
    EXPECT_EQ(ids(tokens, "ab\u00E9"), (Ids{'a', 'b', 0xC3, 0xA9}));
    EXPECT_EQ(ids(tokens, "\u2014ab"), (Ids{0xE2, 0x80, 0x94, 1000}));
    EXPECT_EQ(ids(tokens, "abab"), (Ids{'a', 'b', 'a', 'b'}));
}

TEST_F(AddedTokens, NormalizedOnesAreFoundInTheNormalisedText) {
    const Json nfc = {{"type", "NFC"}};
    const std::vector<Json> tokens = {{{"content", "e\u0301"}, {"normalized", true}},
                                      {{"content", "o\u0301"}}};
    EXPECT_EQ(ids(tokens, "\u00E9e\u0301", nfc), (Ids{1000, 1000}));
    EXPECT_EQ(ids(tokens, "\u00F3o\u0301", nfc), (Ids{0xC3, 0xB3, 1001}));
    EXPECT_EQ(ids(tokens, "\u00E9e\u0301"), (Ids{0xC3, 0xA9, 1000}));
}

TEST_F(AddedTokens, DecodeAsTheyAreSpelled) {
    Json json = tiny_tokenizer();
    json["added_tokens"] = {{{"id", 300}, {"content", "<\uFF5Ca b\u00E9\uFF5C>"}, {"special", false}},
                            {{"id", 5'000'000}, {"content", "<s>"}, {"special", true}}};
    const Tokenizer tokenizer = load(json);
    EXPECT_EQ(tokenizer.decode(Ids{'x', 300, 5'000'000}), "x<\uFF5Ca b\u00E9\uFF5C><s>");
    EXPECT_EQ(tokenizer.decode(Ids{'x', 300, 5'000'000}, true), "x<\uFF5Ca b\u00E9\uFF5C>");
    EXPECT_EQ(tokenizer.size(), 5'000'001);
    EXPECT_TRUE(test::throws(ErrorKind::usage, "301", [&] { tokenizer.decode(Ids{301}); }));
}

TEST(PostProcessors, TemplatesPutIdsAround) {
    Json json = tiny_tokenizer();
    json["added_tokens"] = {{{"id", 300}, {"content", "<s>"}, {"special", true}},
                            {{"id", 301}, {"content", "</s>"}, {"special", true}}};
    const Json special = {{"S", {{"id", "S"}, {"ids", {300, 301}}}},
                          {"E", {{"id", "E"}, {"ids", Json::array({301})}}}};
    const auto part = [](const char* name) { return Json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; };
    const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const auto process = [&](std::vector<Json> single) {
        json["post_processor"] = {
            {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", special}};
        return load(json).encode("a", true);
    };
    EXPECT_EQ(process({text}), (Ids{'a'}));
    EXPECT_EQ(process({part("S"), text}), (Ids{300, 301, 'a'}));
    EXPECT_EQ(process({text, part("E"), part("S")}), (Ids{'a', 301, 300, 301}));
    EXPECT_EQ(process({part("E"), text, part("E")}), (Ids{301, 'a', 301}));
    EXPECT_EQ(load(json).encode("a", false), (Ids{'a'}));
    EXPECT_EQ(load(json).encode("", true), (Ids{301, 301}));
    json["post_processor"] = {{"type", "Sequence"},
                              {"processors", {{{"type", "ByteLevel"}}, json["post_processor"]}}};
    EXPECT_EQ(load(json).encode("a", true), (Ids{301, 'a', 301}));

    const auto wrong = [&](std::vector<Json> single, ErrorKind kind, const char* name) {
        return test::throws(kind, name, [&] { process(single); });
    };
    EXPECT_TRUE(wrong({part("S")}, ErrorKind::malformed, "Sequence A"));
    EXPECT_TRUE(wrong({text, text}, ErrorKind::unsupported, "once"));
    EXPECT_TRUE(wrong({text, part("X")}, ErrorKind::malformed, "names \"X\", which"));
    EXPECT_TRUE(wrong({{{"Nothing", 1}}}, ErrorKind::malformed, "SpecialToken"));
}

TEST(PostProcessors, AListOfIdsThatIsNamedManyTimesIsRefused) {
    const Json part = {{"SpecialToken", {{"id", "S"}}}}, text = {{"Sequence", {{"id", "A"}}}};
    const auto process = [&](size_t parts, size_t ids) {
        std::vector<Json> single(parts, part);
        single.push_back(text);
        Json json = tiny_tokenizer();
        json["post_processor"] = {{"type", "TemplateProcessing"},
                                  {"single", single},
                                  {"special_tokens", {{"S", {{"ids", std::vector<int>(ids, 97)}}}}}};
        return load(json).encode("", true).size();
    };
    EXPECT_EQ(process(10, 20), 200u);
    for (const auto& [parts, ids] : {std::pair(2000, 20000), {1, 2000}, {2000, 0}})
        EXPECT_TRUE(
            test::throws(ErrorKind::unsupported, "more than 1000 tokens", [&] { process(parts, ids); }));
}

TEST(PostProcessors, OthersAndOtherDecodersAreRefusedByName) {
    Json json = tiny_tokenizer();
    for (const char* name : {"BertProcessing", "RobertaProcessing"}) {
        json["post_processor"] = {{"type", name}};
        EXPECT_TRUE(test::throws(ErrorKind::unsupported, name, [&] { load(json); }));
    }
    json = tiny_tokenizer();
    for (const char* name : {"WordPiece", "Metaspace", "CTC", "BPEDecoder", "Strip"}) {
        json["decoder"] = {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, {{"type", name}}}}};
        EXPECT_TRUE(test::throws(ErrorKind::unsupported, name, [&] { load(json); }));
    }
    json["decoder"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "b"}};
    EXPECT_TRUE(test::throws(ErrorKind::unsupported, "Replace", [&] { load(json); }));
}

TEST(TokenizerFile, OtherModelsAreRefusedByName) {
    for (const char* name : {"Unigram", "WordPiece", "WordLevel"}) {
        Json json = tiny_tokenizer();
        json["model"]["type"] = name;
        EXPECT_TRUE(test::throws(ErrorKind::unsupported, name, [&] { load(json); }));
    }
    Json json = tiny_tokenizer();  // as Llama 2's: BPE over characters
    json["pre_tokenizer"] = nullptr;
    json["normalizer"] = {{"type", "Prepend"}, {"prepend", "\u2581"}};
    EXPECT_TRUE(test::throws(ErrorKind::unsupported, "SentencePiece", [&] { load(json); }));
    for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{
             {"dropout", 0.1}, {"continuing_subword_prefix", "##"}, {"end_of_word_suffix", "</w>"}}) {
        Json changed = tiny_tokenizer();
        changed["model"][key] = value;
        EXPECT_TRUE(test::throws(ErrorKind::unsupported, key, [&, &changed = changed] { load(changed); }))
            << key;
    }
}

TEST(TokenizerFile, AcceptsTheSpellingsThatFilesUse) {
    Json json = tiny_tokenizer({{"a", "b"}});
    json["model"]["merges"] = {"a b"};
    json["model"].erase("type");
    json["model"]["dropout"] = 0.0;
    json["model"]["continuing_subword_prefix"] = "";
    json["model"]["end_of_word_suffix"] = nullptr;
    for (const char* key : {"added_tokens", "normalizer", "post_processor", "decoder"}) json.erase(key);
    EXPECT_EQ(load(json).encode("ab", true), (Ids{256}));
}

TEST(TokenizerFile, AClaimOf1e18TakesNoMemory) {
    for (const int64_t id : {int64_t(1'000'000'000'000'000'000), int64_t(1) << 24}) {
        test::with_little_memory([&] {
            Json json = tiny_tokenizer();
            json["model"]["vocab"]["zz"] = id;
            EXPECT_TRUE(test::throws(ErrorKind::malformed, std::to_string(id), [&] { load(json); }));
            json = tiny_tokenizer();
            json["added_tokens"] = {{{"id", id}, {"content", "<x>"}}};
            EXPECT_TRUE(test::throws(ErrorKind::malformed, std::to_string(id), [&] { load(json); }));
        });
    }
    test::with_little_memory([] {  // the largest that is allowed
        Json json = tiny_tokenizer();
        json["added_tokens"] = {{{"id", (1 << 24) - 1}, {"content", "<x>"}}};
        EXPECT_EQ(load(json).size(), 1 << 24);
    });
}

TEST(TokenizerFile, MalformedOnesAreErrorsThatNameTheFile) {
    const auto malformed = [](const char* name, auto&& change) {
        Json json = tiny_tokenizer({{"a", "b"}});
        change(json);
        const auto result = test::throws(ErrorKind::malformed, name, [&] { load(json); });
        return result ? test::throws(ErrorKind::malformed, "t.json", [&] { load(json); }) : result;
    };
    EXPECT_TRUE(malformed("no member model", [](Json& j) { j.erase("model"); }));
    EXPECT_TRUE(malformed("no member vocab", [](Json& j) { j["model"].erase("vocab"); }));
    EXPECT_TRUE(malformed("no member merges", [](Json& j) { j["model"].erase("merges"); }));
    EXPECT_TRUE(malformed("type", [](Json& j) { j["model"]["type"] = 3; }));
    EXPECT_TRUE(malformed("vocab", [](Json& j) { j["model"]["vocab"] = Json::array(); }));
    for (const Json& id : std::vector<Json>{-1, 1 << 24, int64_t(1) << 40, UINT64_MAX, 1.5, "1", nullptr})
        EXPECT_TRUE(malformed("has the id", [&](Json& j) { j["model"]["vocab"]["zz"] = id; })) << id;
    EXPECT_TRUE(malformed("have one id, 97", [](Json& j) { j["model"]["vocab"]["zz"] = 97; }));
    EXPECT_TRUE(
        malformed("merge 1 names the token \"zz\"", [](Json& j) { j["model"]["merges"].push_back("zz a"); }));
    EXPECT_TRUE(
        malformed("merge 1 names the token \"ac\"", [](Json& j) { j["model"]["merges"].push_back("a c"); }));
    for (const Json& merge : std::vector<Json>{"ab", "a b c", {"a"}, {"a", "b", "c"}, {"a", 1}, 7, nullptr})
        EXPECT_TRUE(malformed("merge 1 is", [&](Json& j) { j["model"]["merges"].push_back(merge); }))
            << merge;
    EXPECT_TRUE(malformed("unk_token", [](Json& j) { j["model"]["unk_token"] = "<none>"; }));
    EXPECT_TRUE(malformed("fuse_unk", [](Json& j) { j["model"]["fuse_unk"] = "yes"; }));
    const auto added = [&](const char* name, Json tokens) {
        return malformed(name, [&](Json& j) { j["added_tokens"] = tokens; });
    };
    EXPECT_TRUE(added("an array", Json::object()));
    EXPECT_TRUE(added("no member content", {{{"id", 300}}}));
    EXPECT_TRUE(added("no member id", {{{"content", "x!"}}}));
    EXPECT_TRUE(added("added_tokens[0] is empty", {{{"id", 300}, {"content", ""}}}));
    EXPECT_TRUE(added("has the id -3", {{{"id", -3}, {"content", "x!"}}}));
    EXPECT_TRUE(added("has the id 97, which is that of \"a\"", {{{"id", 97}, {"content", "x!"}}}));
    EXPECT_TRUE(added("has the id 300, but 97", {{{"id", 300}, {"content", "a"}}}));
    EXPECT_TRUE(added("appears twice", {{{"id", 300}, {"content", "x!"}}, {{"id", 301}, {"content", "x!"}}}));
    EXPECT_TRUE(
        added("which is that of", {{{"id", 300}, {"content", "x!"}}, {{"id", 300}, {"content", "y!"}}}));
    EXPECT_TRUE(added("lstrip", {{{"id", 300}, {"content", "x!"}, {"lstrip", 1}}}));
    EXPECT_TRUE(malformed("id 999", [](Json& j) {
        j["post_processor"] = {{"type", "TemplateProcessing"},
                               {"single", {{{"SpecialToken", {{"id", "S"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                               {"special_tokens", {{"S", {{"ids", Json::array({999})}}}}}};
    }));
    for (const char* text :
         {"", "{", "[]", "{\"model\":{}}", "{\"model\":{\"type\":\"BPE\",\"type\":\"BPE\"}}",
          "{\"model\":\"\xFF\"}", "null"})
        EXPECT_TRUE(test::throws(ErrorKind::malformed, "t.json", [&] { Tokenizer(text, "t.json"); })) << text;
    EXPECT_TRUE(test::throws(ErrorKind::unsupported, "5000 bytes", [] {
        Json json = tiny_tokenizer();
        json["added_tokens"] = {{{"id", 300}, {"content", std::string(5000, 'x')}}};
        load(json);
    }));
}

}  // namespace
}  // namespace halfbyte::model
