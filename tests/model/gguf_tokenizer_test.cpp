#include "checkpoint/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "checkpoint/files.h"
#include "checkpoint/gguf_builder.h"
#include "checkpoint/json.h"
#include "model/bpe.h"
#include "model/tokenizer.h"
#include "support/throws.h"

namespace halfbyte::model {
namespace {

using checkpoint::Json;
using Ids = std::vector<int32_t>;

// The 256 bytes (id = byte), "<s>" 256 (control), "<u>" 257 (user defined), "ab" 258, "\n\n" 259, "it's" 260.
struct Metadata {
    std::optional<std::string> model = "gpt2", pre = "gpt-2";
    std::vector<std::string> extra = {"<s>", "<u>", "ab", "\u010A\u010A", "it's"};
    std::vector<std::string> tokens = {};  // all of them, instead of these
    std::vector<std::string> merges = {"a b", "\u010A \u010A"};
    std::map<int, int32_t> types = {{256, 3}, {257, 4}};
    std::optional<size_t> type_count = {};
    std::map<std::string, uint32_t> ids = {};
    std::map<std::string, bool> flags = {};

    checkpoint::GgufTokenizer convert() const {
        const std::string prefix = "tokenizer.ggml.";
        test::GgufBuilder builder;
        builder.text("general.architecture", "llama").u32("llama.context_length", 4096);
        if (model) builder.text(prefix + "model", *model);
        if (pre) builder.text(prefix + "pre", *pre);
        std::vector<std::string> all = tokens;
        for (int byte = 0; byte < 256 && tokens.empty(); ++byte)
            all.push_back(byte_level(std::string(1, char(byte))));
        if (tokens.empty()) all.insert(all.end(), extra.begin(), extra.end());
        std::string token_texts, merge_texts, token_types;
        const size_t count = all.size();
        for (const std::string& token : all) token_texts += test::gguf_text(token);
        for (const std::string& merge : merges) merge_texts += test::gguf_text(merge);
        for (size_t id = 0; id < type_count.value_or(count); ++id)
            token_types += test::bytes_of(types.contains(int(id)) ? types.at(int(id)) : 1);
        builder.array(prefix + "tokens", 8, count, token_texts);
        builder.array(prefix + "merges", 8, merges.size(), merge_texts);
        builder.array(prefix + "token_type", 5, type_count.value_or(count), token_types);
        for (const auto& [name, id] : ids) builder.u32(prefix + name, id);
        for (const auto& [name, value] : flags) builder.flag(prefix + name, value);
        const test::TemporaryFolder folder;
        test::write_file(folder / "m.gguf", builder.build());
        return checkpoint::tokenizer_from_gguf(checkpoint::GgufFile(folder / "m.gguf"));
    }
    Ids encode(const std::string& text, bool add_special = false) const {
        return Tokenizer(convert().tokenizer, "t.json").encode(text, add_special);
    }
};

Metadata of_kind(const char* pre) {
    Metadata metadata;
    metadata.pre = pre;
    return metadata;
}

TEST(GgufTokenizer, GoldenIdsOfTheDemoModel) {
    const auto file = std::filesystem::path(HALFBYTE_BUILD_DIR) / "../model/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(file)) GTEST_SKIP() << "no model at " << file << " (demo.sh puts it there)";
    const auto texts = checkpoint::tokenizer_from_gguf(checkpoint::GgufFile(file));
    const Tokenizer tokenizer(texts.tokenizer, "tokenizer.json");
    EXPECT_EQ(tokenizer.size(), 49152);

    // The golden ids are those of the GPT-2 pattern. "smollm" cuts every numeric character off its neighbours
    // first.
    const std::map<std::string, Ids> digits = {
        {"\u0645\u0631\u062D\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0661\u0662\u0663",
         {21706, 20602, 44626, 31462, 10805, 45726, 22208, 34966, 22208, 21706, 216, 164, 111, 164, 112, 164,
          113}},
        {"\u2211\u222B\u221A\u2260 \u2190\u2192 \u00B2\u00B3\u00BD \u2167 \u2460",
         {22052, 235,   22052, 121, 22052, 244, 40533, 250, 9943, 234, 35132, 216,
          19133, 39050, 16738, 216, 173,   223, 117,   216, 173,  235, 250}},
        {"a  1   22\n\n  3 44", {81, 256, 33, 333, 34, 34, 39892, 35, 216, 36, 36}}};
    size_t differing = 0;
    const Json golden =
        checkpoint::read_json(std::filesystem::path(HALFBYTE_TEST_DATA) / "tokenizer_golden.json");
    for (const Json& example : golden["cases"]) {
        const std::string text = example["text"];
        SCOPED_TRACE(text);
        const Ids ids = tokenizer.encode(text, true);
        const Ids gpt2_ids = example["ids_with_special"].get<Ids>();
        if (const auto known = digits.find(text); known != digits.end()) {
            EXPECT_EQ(ids, known->second);
            EXPECT_NE(ids, gpt2_ids);
            ++differing;
        } else {
            EXPECT_EQ(ids, gpt2_ids);
        }
        Utf8Stream stream;
        std::string decoded = stream.add(tokenizer.decode(ids));
        EXPECT_EQ(decoded + stream.finish(), example["decoded"].get<std::string>());
    }
    EXPECT_EQ(differing, digits.size());
}

TEST(GgufTokenizer, PreDecidesThePattern) {
    EXPECT_EQ(of_kind("gpt-2").encode("it's 12\n\n ab"),
              (Ids{'i', 't', '\'', 's', ' ', '1', '2', 259, ' ', 258}));
    // "  34" is cut into " ", " 34" by GPT-2, into "  ", "3", "4" by smollm.
    const std::map<std::string, Ids> wanted = {{"gpt-2", {261, '2', ' ', ' ', '3', '4'}},
                                               {"smollm", {' ', '1', '2', 262, '3', '4'}}};
    for (const auto& [pre, ids] : wanted) {
        Metadata metadata = of_kind(pre.c_str());
        metadata.extra.insert(metadata.extra.end(), {"\u01201", "\u0120\u0120"});
        metadata.merges.insert(metadata.merges.end(), {"\u0120 1", "\u0120 \u0120"});
        EXPECT_EQ(metadata.encode(" 12  34"), ids) << pre;
    }
    Metadata llama =
        of_kind("llama-bpe");  // three digits at most, and a whole piece of the vocabulary is taken as it is
    llama.flags["add_bos_token"] = false;
    llama.extra.insert(llama.extra.end(), {"1234", "123", "IT"});
    EXPECT_EQ(llama.encode("1234 IT"), (Ids{262, '4', ' ', 'I', 'T'}));
    EXPECT_EQ(llama.encode("IT"), (Ids{263}));
    for (const char* name : {"llama3", "llama-v3"}) {
        llama.pre = name;
        EXPECT_EQ(llama.encode("1234 IT"), (Ids{262, '4', ' ', 'I', 'T'})) << name;
    }
}

TEST(GgufTokenizer, GoldenIdsOfLlama3) {
    const Json golden =
        checkpoint::read_json(std::filesystem::path(HALFBYTE_TEST_DATA) / "llama3_tokenizer_golden.json");
    const Json& json = golden["tokenizer"];
    Metadata metadata = of_kind("llama-bpe");
    metadata.types.clear();
    metadata.tokens.resize(json["model"]["vocab"].size() + json["added_tokens"].size());
    for (const auto& [token, id] : json["model"]["vocab"].items()) metadata.tokens.at(id) = token;
    for (const Json& token : json["added_tokens"]) {
        metadata.tokens.at(token["id"]) = token["content"];
        metadata.types[token["id"]] = 3;
    }
    metadata.merges = json["model"]["merges"].get<std::vector<std::string>>();
    metadata.ids["bos_token_id"] = json["added_tokens"][0]["id"];
    const Tokenizer tokenizer(metadata.convert().tokenizer, "t.json");
    for (const Json& example : golden["cases"]) {
        const std::string text = example["text"];
        EXPECT_EQ(tokenizer.encode(text, false), example["ids"].get<Ids>()) << text;
        EXPECT_EQ(tokenizer.encode(text, true), example["ids_with_special"].get<Ids>()) << text;
    }
}

TEST(GgufTokenizer, ControlAndUserDefinedTokensAreAdded) {
    const auto texts = Metadata().convert();
    const Tokenizer tokenizer(texts.tokenizer, "t.json");
    EXPECT_EQ(tokenizer.encode("x<s><u>ab", false), (Ids{'x', 256, 257, 258}));
    EXPECT_EQ(tokenizer.decode(Ids{256, 257}, true), "<u>");
}

TEST(GgufTokenizer, MissingBytesGiveTheUnknownTokenFused) {
    Metadata metadata;
    metadata.ids = {{"unknown_token_id", 256}};
    const Json json = checkpoint::parse_json(metadata.convert().tokenizer, "t");
    EXPECT_EQ(json["model"]["unk_token"], "<s>");
    EXPECT_EQ(json["model"]["fuse_unk"], true);
    EXPECT_EQ(checkpoint::parse_json(Metadata().convert().tokenizer, "t")["model"]["unk_token"], nullptr);
}

TEST(GgufTokenizer, BosAndEosAroundTheText) {
    const auto around = [](const char* pre, std::map<std::string, bool> flags) {
        Metadata metadata = of_kind(pre);
        metadata.ids = {{"bos_token_id", 256}, {"eos_token_id", 257}};
        metadata.flags = std::move(flags);
        EXPECT_EQ(metadata.encode("x", false), (Ids{'x'}));
        return metadata.encode("x", true);
    };
    EXPECT_EQ(around("gpt-2", {}), (Ids{'x'}));
    EXPECT_EQ(around("smollm", {}), (Ids{'x'}));
    EXPECT_EQ(around("llama-bpe", {}), (Ids{256, 'x'}));
    EXPECT_EQ(around("llama-bpe", {{"add_bos_token", false}}), (Ids{'x'}));
    EXPECT_EQ(around("smollm", {{"add_bos_token", true}, {"add_eos_token", true}}), (Ids{256, 'x', 257}));
    EXPECT_TRUE(
        test::throws(ErrorKind::malformed, "bos_token_id is absent", [] { of_kind("llama-bpe").convert(); }));
}

TEST(GgufTokenizer, TheConfigNamesTheTokens) {
    Metadata metadata;
    metadata.ids = {{"bos_token_id", 256}, {"eos_token_id", 257}, {"padding_token_id", 258}};
    const Json config = checkpoint::parse_json(metadata.convert().tokenizer_config, "t");
    EXPECT_EQ(config, (Json{{"add_bos_token", false},
                            {"add_eos_token", false},
                            {"add_prefix_space", false},
                            {"bos_token", "<s>"},
                            {"eos_token", "<u>"},
                            {"pad_token", "ab"},
                            {"clean_up_tokenization_spaces", false},
                            {"model_max_length", 4096},
                            {"tokenizer_class", "PreTrainedTokenizerFast"}}));
}

TEST(GgufTokenizer, OtherKindsAreRefusedByName) {
    Metadata metadata;
    metadata.model = "llama";
    EXPECT_TRUE(
        test::throws(ErrorKind::unsupported, "\"llama\" (SentencePiece)", [&] { metadata.convert(); }));
    metadata.model = "bert";
    EXPECT_TRUE(test::throws(ErrorKind::unsupported, "\"bert\"", [&] { metadata.convert(); }));
    metadata.model.reset();
    EXPECT_TRUE(test::throws(ErrorKind::malformed, "tokenizer.ggml.model", [&] { metadata.convert(); }));
    EXPECT_TRUE(test::throws(ErrorKind::unsupported, "\"qwen2\"", [] { of_kind("qwen2").convert(); }));
    metadata = Metadata();
    metadata.pre.reset();
    EXPECT_TRUE(
        test::throws(ErrorKind::unsupported, "tokenizer.ggml.pre is absent", [&] { metadata.convert(); }));
}

TEST(GgufTokenizer, MalformedMetadataIsAnError) {
    const auto malformed = [](const char* name, auto&& change) {
        Metadata metadata;
        change(metadata);
        return test::throws(ErrorKind::malformed, name, [&] { metadata.convert(); });
    };
    EXPECT_TRUE(malformed("holds \"ab\" twice", [](Metadata& m) { m.extra.push_back("ab"); }));
    EXPECT_TRUE(malformed("token_type has 3 entries", [](Metadata& m) { m.type_count = 3; }));
    for (const char* merge : {"", "ab", " b", "a ", "a b c", " "})
        EXPECT_TRUE(malformed("merges[2]", [&](Metadata& m) { m.merges.push_back(merge); })) << merge;
    for (const char* name : {"bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"})
        EXPECT_TRUE(malformed(name, [&](Metadata& m) { m.ids[name] = 1000; })) << name;
    EXPECT_TRUE(malformed("merges", [](Metadata& m) { m.merges.push_back("\xFF a"); }));
}

}  // namespace
}  // namespace halfbyte::model
