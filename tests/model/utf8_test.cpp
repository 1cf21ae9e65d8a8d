#include "model/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

namespace halfbyte::model {
namespace {

constexpr size_t valid = std::string_view::npos;

std::string streamed(const std::vector<std::string>& parts) {
    Utf8Stream stream;
    std::string out;
    for (const std::string& part : parts) out += stream.add(part);
    return out + stream.finish();
}

TEST(InvalidUtf8, AcceptsTheEndsOfEveryLength) {
    for (const char* text : {"", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF",
                             "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
        EXPECT_EQ(invalid_utf8(text), valid) << text;
    EXPECT_EQ(invalid_utf8(std::string_view("\0", 1)), valid);
}

TEST(InvalidUtf8, GivesTheOffsetOfTheFirstWrongByte) {
    for (const char* wrong :
         {"\x80", "\xBF", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",  // overlong
          "\xED\xA0\x80", "\xED\xBF\xBF",                                              // surrogates
          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xFE",                      // above U+10FFFF
          "\xC3", "\xE2\x82", "\xF0\x9F\x98",                                          // cut off
          "\xC3(", "\xE2(\xA1", "\xE2\x82(", "\xF0\x9F\x98("}) {
        const std::string text = wrong;
        EXPECT_EQ(invalid_utf8(text), 0u) << testing::PrintToString(text);
        EXPECT_EQ(invalid_utf8("\xC3\xA9" + text), 2u) << testing::PrintToString(text);
    }
}

TEST(InvalidUtf8, AcceptsExactlyTheScalarValues) {
    for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
        std::string text;
        if (code < 0x80) {
            text = {char(code)};
        } else if (code < 0x800) {
            text = {char(0xC0 | code >> 6), char(0x80 | (code & 63))};
        } else if (code < 0x10000) {
            text = {char(0xE0 | code >> 12), char(0x80 | (code >> 6 & 63)), char(0x80 | (code & 63))};
        } else {
            text = {char(0xF0 | code >> 18), char(0x80 | (code >> 12 & 63)), char(0x80 | (code >> 6 & 63)),
                    char(0x80 | (code & 63))};
        }
        const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        ASSERT_EQ(invalid_utf8(text) == valid, !surrogate) << code;
        if (surrogate) continue;
        ASSERT_EQ(utf8(code), text);
        ASSERT_EQ(utf8_at(text, 0).code, code);
        ASSERT_EQ(last_utf8("x" + text).code, code);
    }
}

TEST(Utf8Stream, GivesACharacterOnceItIsWhole) {
    Utf8Stream stream;
    EXPECT_EQ(stream.add("a\xF0"), "a");
    EXPECT_EQ(stream.add("\x9F"), "");
    EXPECT_EQ(stream.add("\x98"), "");
    EXPECT_EQ(stream.add("\x80z"), "\xF0\x9F\x98\x80z");
    EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, ReplacesEachMaximalPartOfACharacter) {
    const std::string r = "\xEF\xBF\xBD";
    EXPECT_EQ(streamed({"a\xF0\x9F\x98"}), "a" + r);        // cut off: one
    EXPECT_EQ(streamed({"\xF0\x9F\x98(", "b"}), r + "(b");  // never completed: one
    EXPECT_EQ(streamed({"\xF0\x80\x80\x80"}),
              r + r + r + r);                          // overlong: no part of it can start a character
    EXPECT_EQ(streamed({"\xED\xA0\x80"}), r + r + r);  // a surrogate
    EXPECT_EQ(streamed({"\xF4\x90\x80\x80"}), r + r + r + r);  // above U+10FFFF
    EXPECT_EQ(streamed({"\xC3", "\xC3\xA9"}), r + "\xC3\xA9");
    EXPECT_EQ(streamed({"\xFF\xFE"}), r + r);
}

TEST(Utf8Stream, StartsAfreshAfterFinish) {
    Utf8Stream stream;
    stream.add("\xE2\x82");
    EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
    EXPECT_EQ(stream.finish(), "");
    EXPECT_EQ(stream.add("\xAC"), "\xEF\xBF\xBD");
}

RC_GTEST_PROP(Utf8Stream, GivesTheSameHoweverTheBytesAreCut, (const std::vector<uint8_t>& random)) {
    // Bytes that meet each other's limits more often than uniform ones do.
    static constexpr uint8_t interesting[] = {0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1,
                                              0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF4, 0xF5};
    std::string bytes;
    for (const uint8_t value : random) bytes += char(interesting[value % sizeof interesting]);
    const std::string whole = streamed({bytes});
    RC_ASSERT(invalid_utf8(whole) == valid);
    for (size_t cut = 0; cut <= bytes.size(); ++cut)
        RC_ASSERT(streamed({bytes.substr(0, cut), bytes.substr(cut)}) == whole);
    std::vector<std::string> single;
    for (const char c : bytes) single.emplace_back(1, c);
    RC_ASSERT(streamed(single) == whole);
    if (invalid_utf8(bytes) == valid) RC_ASSERT(whole == bytes);
}

TEST(CharacterClasses, WhiteSpaceHasTwentyFiveMembers) {
    int count = 0;
    for (uint32_t code = 0; code <= 0x10FFFF; ++code) count += is_white_space(code);
    EXPECT_EQ(count, 25);
    EXPECT_FALSE(is_white_space(0x180E));
    EXPECT_FALSE(is_white_space(0x200B));
}

TEST(CharacterClasses, NumericAndWord) {
    for (const uint32_t code : {0x31, 0xB2, 0xBD, 0x661, 0x2167, 0x2460})
        EXPECT_TRUE(is_numeric(code)) << code;
    for (const uint32_t code : {0x41, 0x20, 0x4E00}) EXPECT_FALSE(is_numeric(code)) << code;
    for (const uint32_t code : {0x41, 0x31, 0x5F, 0xE9, 0x301, 0x4E00, 0x2167, 0x24B6, 0x200D})
        EXPECT_TRUE(is_word(code)) << code;
    for (const uint32_t code : {0x20, 0x2D, 0xB2, 0x2460, 0x1F600}) EXPECT_FALSE(is_word(code)) << code;
}

}  // namespace
}  // namespace halfbyte::model
