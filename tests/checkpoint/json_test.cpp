#include "checkpoint/json.h"

#include "checkpoint/files.h"

namespace halfbyte::checkpoint {
using test::expect_error;

TEST(Json, KeepsOrderAndValues) {
    const Json json = parse_json(R"({"b": [1, -2, 3.5, "x", null, true], "a": {"c": {}}})", "f");
    EXPECT_EQ(json.dump(), R"({"b":[1,-2,3.5,"x",null,true],"a":{"c":{}}})");
    EXPECT_EQ(parse_json(" 7 ", "f"), 7);
}

TEST(Json, RefusesWhatIsNotStrict) {
    const auto refused = [](std::string_view text, std::string_view part) {
        SCOPED_TRACE(text);
        expect_error(ErrorKind::malformed, part, [&] { parse_json(text, "file.json"); });
    };
    refused("", "file.json: not valid JSON");
    refused("{", "line 1");
    refused("{\"a\":1,}", "not valid JSON");
    refused("[1] 2", "not valid JSON");
    refused("[1e999]", "not valid JSON");
    refused("[NaN]", "not valid JSON");
    refused("[\"\xC0\x80\"]", "not valid JSON");
    refused("[\"\xED\xA0\x80\"]", "not valid JSON");
    refused("[\"\x01\"]", "not valid JSON");
    refused(R"({"a":1,"b":2,"a":3})", "the key \"a\" twice");
    refused(R"([{"x":{"a":1,"\u0061":3}}])", "the key \"a\" twice");
    refused(R"({"":1,"":3})", "the key \"\" twice");
    EXPECT_NO_THROW(parse_json(std::string(128, '[') + std::string(128, ']'), "f"));
    refused(std::string(129, '[') + std::string(129, ']'), "deeper than 128");
    refused(std::string(1 << 20, '['), "deeper than 128");
}

TEST(Json, ReadsLargeObjectsInReasonableTime) {
    std::string text = "{";
    for (int i = 0; i < 300'000; ++i)
        text += (i ? ",\"" : "\"") + std::to_string(i) + "\":" + std::to_string(i);
    EXPECT_EQ(parse_json(text + "}", "f").size(), 300'000u);
}

TEST(Json, ReadsFilesUpToALimit) {
    const test::TemporaryFolder folder;
    const auto path = test::write_file(folder / "a.json", "{\"a\": 1}");
    EXPECT_EQ(read_json(path)["a"], 1);
    EXPECT_EQ(read_text(path, 8), "{\"a\": 1}");
    expect_error(ErrorKind::malformed, "8 bytes; at most 7", [&] { read_json(path, 7); });
    expect_error(ErrorKind::failure, "missing.json", [&] { read_json(folder / "missing.json"); });
}

TEST(Json, QuotesNamesForMessages) {
    EXPECT_EQ(quote("plain.name"), "\"plain.name\"");
    EXPECT_EQ(quote("\x1b[31m\xC2\x9B\xFF"), "\"\\u001b[31m\\u009b\\ufffd\"");
    EXPECT_EQ(quote(std::string(300, 'a')), '"' + std::string(200, 'a') + "\"...");
}

}  // namespace halfbyte::checkpoint
