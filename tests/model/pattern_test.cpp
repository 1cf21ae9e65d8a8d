#include "model/pattern.h"

#include <gtest/gtest.h>

#include <vector>

#include "model/utf8.h"
#include "support/throws.h"

namespace halfbyte::model {
namespace {

std::vector<std::string> matches(const char* expression, std::string_view text) {
    const Pattern pattern(expression, "f.json");
    std::vector<std::string> out;
    Matcher(pattern).for_each_match(
        text, [&](size_t begin, size_t end) { out.emplace_back(text.substr(begin, end - begin)); });
    return out;
}
using Strings = std::vector<std::string>;

TEST(Pattern, WhiteSpaceIsThatOfUnicode) {
    const Pattern in("\\s", "f"), out("\\S", "f"), in_class("[\\s]", "f"), out_class("[\\S]", "f"),
        neither("[^\\s]", "f");
    const Matcher in_matcher(in), out_matcher(out), in_class_matcher(in_class), out_class_matcher(out_class),
        neither_matcher(neither);
    for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
        if (code >= 0xD800 && code <= 0xDFFF) continue;
        const std::string text = utf8(code);
        const auto matched = [&](const Matcher& matcher) {
            bool any = false;
            matcher.for_each_match(text, [&](size_t, size_t) { any = true; });
            return any;
        };
        const bool space = is_white_space(code);
        ASSERT_EQ(matched(in_matcher), space) << code;
        ASSERT_EQ(matched(in_class_matcher), space) << code;
        ASSERT_NE(matched(out_matcher), space) << code;
        ASSERT_NE(matched(out_class_matcher), space) << code;
        ASSERT_NE(matched(neither_matcher), space) << code;
    }
}

TEST(Pattern, MeansWhatItMeansToOniguruma) {
    EXPECT_EQ(matches("\\w+", "e\u0301_1\u00B2 \u24B6-"), (Strings{"e\u0301_1\u00B2", "\u24B6"}));
    EXPECT_EQ(matches("\\W", "a-b"), (Strings{"-"}));
    EXPECT_EQ(matches("^.|.$", "ab\ncd"), (Strings{"a", "b", "c", "d"}));
    EXPECT_EQ(matches("\\p{Han}", "\u4E00\u3001"),
              (Strings{"\u4E00"}));  // U+3001 is Han by Script_Extensions only
    EXPECT_EQ(matches("\\p{^L}\\P{L}", "a12b"), (Strings{"12"}));
    EXPECT_EQ(matches("\\x41\\u0042\\x{43}", "ABC"), (Strings{"ABC"}));
    EXPECT_EQ(matches("(?i:'s)", "'S '\u017F"), (Strings{"'S", "'\u017F"}));
    EXPECT_EQ(matches("(?i)a|b", "AB"), (Strings{"A", "B"}));
    EXPECT_EQ(matches("[\\]\\-\\\\{}]+", "]-\\{}a"), (Strings{"]-\\{}"}));
    EXPECT_EQ(matches("{|a{2}", "{aa"), (Strings{"{", "aa"}));
    EXPECT_EQ(matches("a(?=b)|(?<=b)c|(?<!b)d(?!e)|(?>f)", "abcdbdfde"), (Strings{"a", "c", "d", "f"}));
}

TEST(Pattern, EmptyMatchesCutOnceEach) {
    EXPECT_EQ(matches("a*", "baac"), (Strings{"", "aa", ""}));
    EXPECT_EQ(matches("", "\u00E9x"), (Strings{"", "", ""}));
    EXPECT_EQ(matches("x", ""), Strings{});
}

TEST(Pattern, WhatMeansSomethingElseIsRefusedByName) {
    const std::pair<const char*, const char*> refused[] = {{"\\h", "\\\\h"},
                                                           {"a\\b", "\\\\b"},
                                                           {"\\v", "\\\\v"},
                                                           {"\\R", "\\\\R"},
                                                           {"\\X", "\\\\X"},
                                                           {"\\K", "\\\\K"},
                                                           {"\\G", "\\\\G"},
                                                           {"(a)\\1", "\\\\1"},
                                                           {"\\pL", "\\\\pL"},
                                                           {"\\p{L", "\\\\p{"},
                                                           {"\\p{L&}", "\\\\p{L&}"},
                                                           {"[\\W]", "\\\\W"},
                                                           {"[a[b]]", "\"[b\""},
                                                           {"[a&&b]", "\"&&\""},
                                                           {"[[:alpha:]]", "\"[:\""},
                                                           {"[]a]", "\"[]\""},
                                                           {"(?m)a", "(?m)"},
                                                           {"(?x)a", "(?x)"},
                                                           {"a(?i)b|c", "(?i)"},
                                                           {"(?<n>a)", "(?<n"},
                                                           {"(?R)", "(?R)"},
                                                           {"(*LIMIT_MATCH=1)a", "(*LI"},
                                                           {"(?C1)a", "(?C1"},
                                                           {"a{,2}", "{,2}"},
                                                           {"a{1,2}+", "{1,2}+"},
                                                           {"a{2}?", "{2}?"},
                                                           {"\\xE9", "\\\\xE9"},
                                                           {"\\u12", "\\\\u12"},
                                                           {"\\x{}", "\\\\x{}"},
                                                           {"a\\", "\\\\"},
                                                           {"\\\u00E9", "not supported"}};
    for (const auto& [expression, name] : refused)
        EXPECT_TRUE(test::throws(ErrorKind::unsupported, name, [&] { Pattern(expression, "f.json"); }))
            << expression;
}

TEST(Pattern, WhatIsNoExpressionIsMalformed) {
    for (const char* expression : {"(", "a)", "[a", "[b-a]", "*", "\\p{Nonsense}", "\\x{110000}", "(?<=a*)b"})
        EXPECT_TRUE(test::throws(ErrorKind::malformed, "f.json", [&] { Pattern(expression, "f.json"); }))
            << expression;
    EXPECT_TRUE(test::throws(ErrorKind::unsupported, "10001 bytes",
                             [] { Pattern(std::string(10001, 'a'), "f.json"); }));
    EXPECT_TRUE(
        test::throws(ErrorKind::malformed, "f.json", [] { Pattern(std::string(5000, '('), "f.json"); }));
}

TEST(Pattern, AnExplosivePatternIsAFailureNotAHang) {
    const std::string text(100, 'a');
    EXPECT_TRUE(test::throws(ErrorKind::failure, "gave up at byte 0 of a text of 103",
                             [&] { matches("(a|aa)+[bc]d", text + "bxd"); }));
}

// Each of 100,000 places would take up to the limit of a whole text.
TEST(Pattern, ALongTextTakesNoMoreStepsThanItsLengthAllows) {
    const std::string text(100'000, 'a');
    EXPECT_TRUE(
        test::throws(ErrorKind::failure, "gave up at byte", [&] { matches("(?:a|aa){1,25}b|a", text); }));
    EXPECT_EQ(matches("(?:a|aa){1,5}b|a", text.substr(0, 1000)).size(), 1000u);  // 13 steps or so a place
    std::string words;
    for (int i = 0; i < 10; ++i) words += std::string(i == 7 ? 2000 : 5, 'a') + "b ";
    EXPECT_EQ(matches("a+(?=a*b )a*b", words).size(), 10u);  // one match beyond the limit of a place
}

TEST(Pattern, LongRunsAreNoProblem) {
    const std::string text(1'000'000, 'a');
    EXPECT_EQ(matches("(?:a|b)+", text), Strings{text});
    const std::string spaces(1'000'000, ' ');
    EXPECT_EQ(matches("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", spaces), Strings{spaces});
}

}  // namespace
}  // namespace halfbyte::model
