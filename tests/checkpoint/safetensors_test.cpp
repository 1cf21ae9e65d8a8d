#include "checkpoint/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>

#include "checkpoint/files.h"
#include "checkpoint/json.h"
#include "support/little_memory.h"

namespace halfbyte::checkpoint {
namespace fs = std::filesystem;
using test::expect_error;
using test::safetensors;
using test::TemporaryFolder;
using test::write_file;

static std::string text_of(std::span<const uint8_t> bytes) {
    return {bytes.begin(), bytes.end()};
}
static std::span<const uint8_t> bytes_in(std::string_view text) {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(SafetensorsFile, ReadsTensorsAndMetadata) {
    const TemporaryFolder folder;
    const auto path =
        write_file(folder / "a.safetensors",
                   safetensors(R"({"__metadata__":{"format":"pt"},)"
                               R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
                               R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                               R"("none":{"dtype":"BF16","shape":[0,7],"data_offsets":[8,8]},)"
                               R"("scalar":{"dtype":"I8","shape":[],"data_offsets":[11,12]}}   )",
                               "01234567abcZ"));
    const SafetensorsFile file(path);
    ASSERT_EQ(file.tensors().size(), 4u);
    EXPECT_EQ(text_of(file.tensors().at("a").bytes), "01234567");
    EXPECT_EQ(file.tensors().at("a").shape_text(), "[1, 2]");
    EXPECT_EQ(file.tensors().at("a").elements(), 2);
    EXPECT_EQ(text_of(file.tensors().at("b").bytes), "abc");
    EXPECT_EQ(file.tensors().at("none").elements(), 0);
    EXPECT_EQ(file.tensors().at("scalar").elements(), 1);
    EXPECT_EQ(file.tensors().at("scalar").shape_text(), "[]");
    EXPECT_EQ(file.tensors().at("b").file->path(), path);
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(SafetensorsFile(write_file(folder / "empty", safetensors("{}"))).tensors().size(), 0u);
}

TEST(SafetensorsFile, RefusesEveryBrokenRule) {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& content, std::string_view part) {
        SCOPED_TRACE(content.substr(0, 300));
        const auto path = write_file(folder / "bad.safetensors", content);
        expect_error(ErrorKind::malformed, part, [&] { SafetensorsFile file(path); });
        expect_error(ErrorKind::malformed, "bad.safetensors", [&] { SafetensorsFile file(path); });
    };
    const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& range) {
        return "{\"x\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + range + "}}";
    };
    // The header's length.
    refused("", "8-byte header length");
    refused("1234567", "8-byte header length");
    refused(test::bytes_of(uint64_t(100'000'001)) + "{}", "at most 100000000");
    refused(test::bytes_of(~uint64_t(0)) + "{}", "at most 100000000");
    refused(test::bytes_of(uint64_t(3)) + "{}", "only 2 bytes follow");
    refused(test::bytes_of(uint64_t(0)) + "{}", "does not start with");
    refused(safetensors(" {}"), "does not start with");
    refused(safetensors("[]"), "does not start with");
    refused("GGUF\3\1\1\1aaaaaaaaaaaaaaaaaaa", "at most");
    // JSON.
    refused(safetensors("{"), "not valid JSON");
    refused(safetensors("{}{}"), "not valid JSON");
    refused(safetensors("{\"x\xFF\":1}"), "not valid JSON");
    refused(safetensors(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                        "ab"),
            "the key \"x\" twice");
    refused(safetensors(R"({"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "a"),
            "twice");
    refused(safetensors(R"({"__metadata__":[]})"), "__metadata__ is []; an object is needed");
    refused(safetensors(R"({"__metadata__":{"a":1}})"), "__metadata__ \"a\" is 1; a text is needed");
    refused(safetensors(R"({"x":3})"), "its header entry is 3; an object is needed");
    // dtype and shape.
    refused(safetensors(R"({"x":{"shape":[1],"data_offsets":[0,1]}})", "a"), "\"dtype\"");
    refused(safetensors(entry("8", "[1]", "[0,1]"), "a"), "\"dtype\"");
    refused(safetensors(entry("\"F99\"", "[1]", "[0,1]"), "a"), "unknown dtype \"F99\"");
    refused(safetensors(entry("\"u8\"", "[1]", "[0,1]"), "a"), "unknown dtype \"u8\"");
    refused(safetensors(R"({"x":{"dtype":"U8","data_offsets":[0,1]}})", "a"), "needs a list \"shape\"");
    refused(safetensors(entry("\"U8\"", "1", "[0,1]"), "a"), "needs a list \"shape\"");
    refused(safetensors(entry("\"U8\"", "[-1]", "[0,1]"), "a"), "shape holds -1;");
    refused(safetensors(entry("\"U8\"", "[1.0]", "[0,1]"), "a"), "shape holds 1.0;");
    refused(safetensors(entry("\"U8\"", "[true]", "[0,1]"), "a"), "shape holds");
    refused(safetensors(entry("\"U8\"", "[18446744073709551615]", "[0,1]"), "a"), "too large");
    refused(safetensors(entry("\"U8\"", "[99999999999999999999999]", "[0,1]"), "a"), "shape holds");
    refused(safetensors(entry("\"U8\"", "[4294967296,4294967296]", "[0,0]")), "overflows");
    refused(safetensors(entry("\"U8\"", "[9223372036854775807,2]", "[0,1]"), "a"), "overflows");
    refused(safetensors(entry("\"F64\"", "[2305843009213693952]", "[0,0]")), "overflows");
    refused(safetensors(entry("\"F32\"", "[2]", "[0,7]"), "1234567"), "needs 8 bytes, data_offsets span 7");
    // Ranges.
    refused(safetensors(R"({"x":{"dtype":"U8","shape":[1]}})", "a"), "needs a list \"data_offsets\"");
    refused(safetensors(entry("\"U8\"", "[1]", "[0]"), "a"), "begin and end");
    refused(safetensors(entry("\"U8\"", "[1]", "[0,1,2]"), "a"), "begin and end");
    refused(safetensors(entry("\"U8\"", "[1]", "[-1,0]"), "a"), "data_offsets holds -1;");
    refused(safetensors(entry("\"U8\"", "[1]", "[0.0,1.0]"), "a"), "data_offsets holds");
    refused(safetensors(entry("\"U8\"", "[1]", "[1,0]"), "a"), "leave the 1 bytes");
    refused(safetensors(entry("\"U8\"", "[2]", "[0,2]"), "a"), "leave the 1 bytes");
    refused(safetensors(entry("\"U8\"", "[2]", "[18446744073709551615,1]"), "a"), "leave the 1 bytes");
    refused(safetensors(entry("\"U8\"", "[1]", "[1,2]"), "ab"), "bytes 0 to 1, before tensor \"x\"");
    refused(safetensors(entry("\"U8\"", "[1]", "[0,1]"), "ab"), "1 bytes after the last tensor");
    const auto two = [](const std::string& first, const std::string& second) {
        return R"({"x":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
               R"(},"y":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
    };
    refused(safetensors(two("[0,2]", "[1,3]"), "abc"), "tensors \"x\" and \"y\" overlap");
    refused(safetensors(two("[0,2]", "[0,2]"), "ab"), "overlap");
    refused(safetensors(two("[0,2]", "[3,5]"), "abcde"), "bytes 2 to 3, before tensor \"y\"");
}

TEST(SafetensorsFile, AClaimOf1e18ElementsTakesNoMemory) {
    const TemporaryFolder folder;
    const auto path = folder / "bad.safetensors";
    const auto refused = [&](const std::string& content, std::string_view part) {
        write_file(path, content);
        test::with_little_memory(
            [&] { expect_error(ErrorKind::malformed, part, [&] { SafetensorsFile file(path); }); });
    };
    const auto claim = [](const std::string& shape, const std::string& end) {
        return safetensors(R"({"x":{"dtype":"U8","shape":)" + shape + R"(,"data_offsets":[0,)" + end + "]}}",
                           "data");
    };
    refused(claim("[1000000000000000000]", "1000000000000000000"), "is the file cut off?");
    refused(claim("[1000000000000000000]", "4"), "needs 1000000000000000000 bytes, data_offsets span 4");
    refused(claim("[1000000000,1000000000,1000000000]", "4"), "overflows");
    refused(test::bytes_of(uint64_t(1'000'000'000'000'000'000)) + "{}", "at most 100000000");
    refused(test::bytes_of(uint64_t(100'000'000)) + "{}", "is the file cut off?");
}

TEST(SafetensorsFile, NamesADtypeThatTheFormatHasAndWeDoNot) {
    const TemporaryFolder folder;
    const auto path = write_file(
        folder / "f4", safetensors(R"({"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", "a"));
    expect_error(ErrorKind::unsupported, "the dtype F4", [&] { SafetensorsFile file(path); });
}

TEST(SafetensorsFile, RefusesEveryTruncation) {
    const TemporaryFolder folder;
    const std::string whole =
        safetensors(R"({"x":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})", "abcde");
    for (size_t size = 0; size < whole.size(); ++size) {
        SCOPED_TRACE(size);
        const auto path = write_file(folder / "cut", whole.substr(0, size));
        expect_error(ErrorKind::malformed, "cut: ", [&] { SafetensorsFile file(path); });
    }
}

RC_GTEST_PROP(SafetensorsFile, AnyChangedHeaderOpensOrThrowsError, (uint8_t byte)) {
    static const TemporaryFolder folder;
    std::string content =
        safetensors(R"({"__metadata__":{"a":"b"},"x":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]},)"
                    R"("y":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})",
                    "abcde");
    content[*rc::gen::inRange<size_t>(0, content.size())] = char(byte);
    try {
        const SafetensorsFile file(write_file(folder / "fuzzed", content));
        for (const auto& [name, view] : file.tensors()) RC_ASSERT(view.bytes.size() <= 5u);
    } catch (const Error& error) {
        RC_ASSERT(error.kind() == ErrorKind::malformed || error.kind() == ErrorKind::unsupported);
    }
}

TEST(SafetensorsFile, OpensTheGoldenFiles) {
    int files = 0;
    for (const auto& entry : fs::directory_iterator(fs::path(HALFBYTE_TEST_DATA) / "golden")) {
        if (entry.path().extension() != ".safetensors") continue;
        EXPECT_GT(SafetensorsFile(entry.path()).tensors().size(), 0u) << entry.path();
        ++files;
    }
    EXPECT_EQ(files, 6);
    const SafetensorsFile file(fs::path(HALFBYTE_TEST_DATA) / "golden/number_formats.safetensors");
    EXPECT_EQ(file.tensors().at("e4m3.decode").shape_text(), "[256]");
}

// ---- folders

static std::string one_byte(const std::string& name, char value) {
    return safetensors("{\"" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                       std::string(1, value));
}

TEST(SafetensorsFolder, ReadsASingleFileAndShards) {
    const TemporaryFolder folder;
    write_file(folder / "model.safetensors", one_byte("a", 'A'));
    EXPECT_EQ(text_of(SafetensorsFolder(folder.path()).tensors().at("a").bytes), "A");
    fs::remove(folder / "model.safetensors");
    write_file(folder / "m-1.safetensors", one_byte("a", 'A'));
    write_file(folder / "m-2.safetensors", one_byte("b", 'B'));
    write_file(folder / "model.safetensors.index.json",
               R"({"metadata":{"total_size":2},"weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors"}})");
    const SafetensorsFolder sharded(folder.path());
    EXPECT_EQ(text_of(sharded.tensors().at("a").bytes), "A");
    EXPECT_EQ(text_of(sharded.tensors().at("b").bytes), "B");
    EXPECT_EQ(sharded.tensors().at("b").file->path().filename(), "m-2.safetensors");
}

TEST(SafetensorsFolder, ChecksTheIndexAgainstTheShards) {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& map, std::string_view part,
                             ErrorKind kind = ErrorKind::malformed) {
        SCOPED_TRACE(map);
        write_file(folder / "model.safetensors.index.json", map);
        expect_error(kind, part, [&] { SafetensorsFolder opened(folder.path()); });
    };
    expect_error(ErrorKind::failure, "has neither model.safetensors nor",
                 [&] { SafetensorsFolder opened(folder.path()); });
    write_file(folder / "m-1.safetensors", one_byte("a", 'A'));
    write_file(folder / "m-2.safetensors", one_byte("b", 'B'));
    write_file(folder / "m-3.safetensors", one_byte("a", 'A'));
    refused("[]", "weight_map");
    refused("{}", "weight_map");
    refused(R"({"weight_map":{}})", "lists no tensor");
    refused(R"({"weight_map":{"a":1}})", "the shard of \"a\" is 1; a file's name is needed");
    refused(R"({"weight_map":{"a":"m-9.safetensors"}})",
            "the shard \"m-9.safetensors\" is listed, but missing");
    refused(R"({"weight_map":{"a":"m-9.safetensors","b":"m-8.safetensors","c":"m-7.safetensors"}})",
            "\"m-7.safetensors\" is listed, but missing, and so are 2 others");
    refused(R"({"weight_map":{"a":")" + std::string(5000, 'm') + R"(.safetensors"}})",
            "is listed, but missing");
    refused(R"({"weight_map":{"a":"../m-1.safetensors"}})", "is not the name of");
    refused(R"({"weight_map":{"a":"..safetensors"}})", "is not the name of");
    refused(R"({"weight_map":{"a":"/etc/passwd"}})", "is not the name of");
    refused(R"({"weight_map":{"a":"sub/m-1.safetensors"}})", "is not the name of");
    refused(R"({"weight_map":{"a":"m-1.bin"}})", "is not the name of");
    refused(R"({"weight_map":{"a":""}})", "is not the name of");
    refused(R"({"weight_map":{"a":"m-1.safetensors\u0000.safetensors"}})", "is not the name of");
    refused(R"({"weight_map":{"a":"m-1.safetensors","c":"m-2.safetensors"}})",
            R"(tensor "b" of "m-2.safetensors" is not listed)");
    refused(R"({"weight_map":{"a":"m-1.safetensors","c":"m-1.safetensors"}})",
            R"("c" is listed in "m-1.safetensors", which lacks it)");
    refused(R"({"weight_map":{"a":"m-1.safetensors","c":"m-3.safetensors"}})",
            R"("a" is listed in "m-1.safetensors", but "m-3)");
    refused(R"({"weight_map":{"a":"m-1.safetensors","a":"m-2.safetensors"}})", "the key \"a\" twice");
    write_file(folder / "model.safetensors", one_byte("a", 'A'));
    refused(R"({"weight_map":{"a":"m-1.safetensors"}})", "remove the one that is left over");
}

TEST(SafetensorsFolder, TakesNumberedNamesAtTheirWord) {
    const TemporaryFolder folder;
    const auto file = [](const std::string& stem, int number, const char* count) {
        return fmt::format("{}-{:05}-of-{}.safetensors", stem, number, count);
    };
    const auto write = [&](const std::string& name, const std::string& tensor) {
        write_file(folder / name, one_byte(tensor, 'x'));
        return name;
    };
    const auto index = [&](const std::map<std::string, std::string>& map) {
        write_file(folder / index_name, Json{{"weight_map", map}}.dump());
    };
    const auto refused = [&](std::string_view part, ErrorKind kind = ErrorKind::malformed) {
        expect_error(kind, part, [&] { SafetensorsFolder opened(folder.path()); });
    };
    const auto opens = [&] { return SafetensorsFolder(folder.path()).tensors().size(); };
    const std::string one = write(file("model", 1, "00002"), "a"),
                      two = write(file("model", 2, "00002"), "b");

    refused("holds \"model-00001-of-00002.safetensors\", but model.safetensors.index.json is missing",
            ErrorKind::failure);
    write("model.safetensors", "a");
    refused("holds model.safetensors and \"model-00001-of-00002.safetensors\", and no");
    fs::remove(folder / "model.safetensors");
    index({{"a", one}, {"b", two}});
    EXPECT_EQ(opens(), 2u);
    index({{"a", one}});
    refused("lists 1 of the 2 files that the name \"model-00001-of-00002.safetensors\" counts");

    // Files beside them: counted with them, or something else.
    index({{"a", one}, {"b", two}});
    const std::string left_over = write(file("model", 3, "00003"), "c");
    refused("\"model-00003-of-00003.safetensors\" is in the folder too, but not listed");
    fs::remove(folder / left_over);
    for (const char* other :
         {"consolidated.safetensors", "adapter_model.safetensors", "consolidated-00001-of-00002.safetensors",
          "model-of-2.safetensors", "model-1-of-.safetensors", "-00001-of-00002.safetensors",
          "model-00001-of-00002.safetensors.partial", "model-99999999999-of-99999999999.safetensors"})
        write(other, "a");
    EXPECT_EQ(opens(), 2u);

    // Shards of two exports.
    index({{"a", one}, {"b", two}, {"c", write(left_over, "c")}});
    refused(
        "lists \"model-00001-of-00002.safetensors\" and \"model-00003-of-00003.safetensors\", which count 2 "
        "and 3");
    fs::remove(folder / left_over);

    // Other spellings in use: without zeros, from 0, with more digits, another stem.
    index({{"a", write("model.safetensors-0-of-2.safetensors", "a")},
           {"b", write("model.safetensors-000001-of-2.safetensors", "b")}});
    EXPECT_EQ(opens(), 2u);
}

TEST(SafetensorsFolder, WarnsOfAWrongTotalSize) {
    const TemporaryFolder folder;
    write_file(folder / "m.safetensors", one_byte("a", 'A'));
    const auto warnings = [&](const std::string& metadata) {
        write_file(folder / index_name,
                   R"({"metadata":)" + metadata + R"(,"weight_map":{"a":"m.safetensors"}})");
        return SafetensorsFolder(folder.path()).warnings();
    };
    for (const char* right :
         {R"({"total_size":1})", R"({"total_size":1.0})", "{}", "null", R"({"total_parameters":7})"})
        EXPECT_TRUE(warnings(right).empty()) << right;
    for (const char* wrong : {"2", "0", "-1", "\"1\"", "null", "1e300"}) {
        const auto found = warnings(std::string(R"({"total_size":)") + wrong + "}");
        ASSERT_EQ(found.size(), 1u) << wrong;
        EXPECT_NE(found[0].find("the tensors have 1 bytes"), std::string::npos) << found[0];
        EXPECT_NE(found[0].find("index.json"), std::string::npos);
    }
}

TEST(SafetensorsFolder, AClaimOf1e18ElementsTakesNoMemory) {
    const TemporaryFolder folder;
    write_file(folder / "m-1.safetensors", safetensors(R"({"a":{"dtype":"F32","shape":[250000000000000000],)"
                                                       R"("data_offsets":[0,1000000000000000000]}})"));
    write_file(folder / "model.safetensors.index.json",
               R"({"metadata":{"total_size":1000000000000000000},"weight_map":{"a":"m-1.safetensors"}})");
    test::with_little_memory([&] {
        expect_error(ErrorKind::malformed, "m-1.safetensors: tensor \"a\": data_offsets",
                     [&] { SafetensorsFolder opened(folder.path()); });
    });
}

// ---- writer

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
    const TemporaryFolder folder;
    const auto path = folder / "out.safetensors";
    const std::vector<TensorDeclaration> tensors = {{"z", DType::f32, {2, 1}},
                                                    {"empty", DType::u8, {0, 4}},
                                                    {"a", DType::u8, {3}},
                                                    {"scalar", DType::bf16, {}},
                                                    {"last", DType::u8, {0}}};
    const auto write = [&] {
        SafetensorsWriter writer(path, tensors, {{"tool", "halfbyte"}, {"format", "pt"}});
        writer.write("z", bytes_in("0123"));
        writer.write("z", bytes_in("4567"));
        writer.write("a", bytes_in("abc"));
        writer.write("scalar", bytes_in("xy"));
        EXPECT_FALSE(fs::exists(path));
        writer.finish();
        EXPECT_EQ(fs::file_size(path), writer.file_bytes());
    };
    write();
    const std::string content = test::read_file(path);
    {
        const SafetensorsFile file(path);
        EXPECT_EQ(text_of(file.tensors().at("z").bytes), "01234567");
        EXPECT_EQ(text_of(file.tensors().at("a").bytes), "abc");
        EXPECT_EQ(text_of(file.tensors().at("scalar").bytes), "xy");
        EXPECT_EQ(file.tensors().at("empty").shape_text(), "[0, 4]");
        EXPECT_EQ(file.metadata().at("tool"), "halfbyte");
        EXPECT_EQ(
            (file.tensors().at("z").bytes.data() - file.tensors().begin()->second.file->bytes().data()) % 8,
            0);
    }
    const uint64_t length = content.size() - 8 - 13;
    EXPECT_EQ(content.substr(0, 8), test::bytes_of(length));
    EXPECT_TRUE(content.substr(8).starts_with(
        R"({"__metadata__":{"format":"pt","tool":"halfbyte"},"z":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"));
    fs::remove(path);
    write();
    EXPECT_EQ(test::read_file(path), content);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(SafetensorsWriter, CopiesARealFileByteForByte) {
    const TemporaryFolder folder;
    const fs::path original = fs::path(HALFBYTE_TEST_DATA) / "llmc-nvfp4-2layer/model.safetensors";
    const SafetensorsFile file(original);
    std::vector<const TensorView*> order;
    for (const auto& [name, view] : file.tensors()) order.push_back(&view);
    std::sort(order.begin(), order.end(), [](auto a, auto b) { return a->bytes.data() < b->bytes.data(); });
    std::vector<TensorDeclaration> declarations;
    for (const auto* view : order) declarations.push_back({view->name, view->dtype, view->shape});
    SafetensorsWriter writer(folder / "copy", declarations, file.metadata());
    for (const auto* view : order) writer.write(view->name, view->bytes);
    writer.finish();
    EXPECT_EQ(test::read_file(folder / "copy") == test::read_file(original), true);
}

TEST(SafetensorsWriter, RefusesWhatWasNotDeclaredAndLeavesNothingBehind) {
    const TemporaryFolder folder;
    const auto path = folder / "out";
    const auto usage = [&](std::string_view part, const std::vector<TensorDeclaration>& tensors,
                           const std::function<void(SafetensorsWriter&)>& action) {
        expect_error(ErrorKind::usage, part, [&] {
            SafetensorsWriter writer(path, tensors, {});
            action(writer);
        });
        EXPECT_TRUE(fs::is_empty(folder.path()));
    };
    const std::vector<TensorDeclaration> ab = {{"a", DType::u8, {2}}, {"b", DType::u8, {1}}};
    const auto nothing = [](SafetensorsWriter&) {};
    usage("\"a\" is taken", {{"a", DType::u8, {}}, {"a", DType::u8, {}}}, nothing);
    usage("\"__metadata__\" is taken", {{"__metadata__", DType::u8, {}}}, nothing);
    usage("overflows", {{"a", DType::f64, {int64_t(1) << 61}}}, nothing);
    usage("overflows", {{"a", DType::u8, {-1}}}, nothing);
    usage("not the next one", ab, [](SafetensorsWriter& w) { w.write("b", bytes_in("x")); });
    usage("not the next one", ab,
          [](SafetensorsWriter& w) { w.write("a", bytes_in("x")), w.write("b", bytes_in("x")); });
    usage("not the next one", ab, [](SafetensorsWriter& w) { w.write("c", {}); });
    usage("3 bytes given, 2 declared", ab, [](SafetensorsWriter& w) { w.write("a", bytes_in("xyz")); });
    usage("\"a\": 1 of 2 bytes", ab, [](SafetensorsWriter& w) { w.write("a", bytes_in("x")), w.finish(); });
    usage("\"b\": 0 of 1 bytes", ab, [](SafetensorsWriter& w) { w.write("a", bytes_in("xx")), w.finish(); });
    expect_error(ErrorKind::failure, "cannot be created",
                 [&] { SafetensorsWriter writer(folder / "no/out", ab, {}); });
}

TEST(SafetensorsWriter,
     ReportsAFullDisk) {  // the limit on file sizes stands for it: write() fails the same way
    const TemporaryFolder folder;
    const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
    rlimit old_limit{};
    ::getrlimit(RLIMIT_FSIZE, &old_limit);
    const rlimit limit{.rlim_cur = 4096, .rlim_max = old_limit.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    expect_error(ErrorKind::failure, "cannot be written", [&] {
        SafetensorsWriter writer(folder / "out", {{"a", DType::u8, {8192}}}, {});
        writer.write("a", bytes_in(std::string(8192, 'x')));
    });
    ::setrlimit(RLIMIT_FSIZE, &old_limit);
    ::signal(SIGXFSZ, old_handler);
    EXPECT_TRUE(fs::is_empty(folder.path()));
}

// ---- several files

using Split = std::vector<std::vector<std::string>>;

static Split split_names(const std::vector<TensorDeclaration>& tensors, uint64_t limit) {
    Split names;
    for (const auto& file : split_into_files(tensors, {}, limit)) {
        names.emplace_back();
        for (const TensorDeclaration& tensor : file) names.back().push_back(tensor.name);
    }
    return names;
}

static uint64_t size_written(const std::vector<TensorDeclaration>& tensors,
                             const std::map<std::string, std::string>& metadata = {}) {
    const TemporaryFolder folder;
    return SafetensorsWriter(folder / "file", tensors, metadata).file_bytes();
}

TEST(SplitIntoFiles, CutsWhereAFileWouldPassTheLimit) {
    const std::vector<TensorDeclaration> tensors = {{"a", DType::u8, {1000}},
                                                    {"b", DType::f32, {250}},
                                                    {"c", DType::u8, {10, 100}},
                                                    {"d", DType::u8, {}}};
    const uint64_t whole = size_written(tensors), two = size_written({tensors[0], tensors[1]});
    EXPECT_EQ(split_names(tensors, whole), (Split{{"a", "b", "c", "d"}}));
    EXPECT_EQ(split_names(tensors, whole - 1), (Split{{"a", "b", "c"}, {"d"}}));
    EXPECT_EQ(split_names(tensors, two), (Split{{"a", "b"}, {"c", "d"}}));
    EXPECT_EQ(split_names(tensors, two - 1), (Split{{"a"}, {"b"}, {"c", "d"}}));
    EXPECT_EQ(split_names(tensors, 1), (Split{{"a"}, {"b"}, {"c"}, {"d"}}));
    EXPECT_EQ(split_names({}, 1), Split{{}});
}

TEST(SplitIntoFiles, KeepsAModuleTogetherWhereAFileCanHoldIt) {
    const std::vector<TensorDeclaration> tensors = {{"m.a.weight", DType::u8, {500}},
                                                    {"m.b.global", DType::f32, {1}},
                                                    {"m.b.packed", DType::u8, {800}},
                                                    {"m.b.scale", DType::u8, {100}},
                                                    {"m.c.weight", DType::u8, {100}}};
    const uint64_t module = size_written({tensors[1], tensors[2], tensors[3]});
    EXPECT_EQ(split_names(tensors, module),
              (Split{{"m.a.weight"}, {"m.b.global", "m.b.packed", "m.b.scale"}, {"m.c.weight"}}));
    // One byte less, and no file holds it: cut as late as possible.
    EXPECT_EQ(split_names(tensors, module - 1),
              (Split{{"m.a.weight", "m.b.global"}, {"m.b.packed", "m.b.scale"}, {"m.c.weight"}}));
    // A tensor beyond the limit is alone.
    EXPECT_EQ(split_names(tensors, 700),
              (Split{{"m.a.weight", "m.b.global"}, {"m.b.packed"}, {"m.b.scale", "m.c.weight"}}));
}

RC_GTEST_PROP(SplitIntoFiles, FilesAreWithinTheLimitAndAsFullAsCanBe, ()) {
    std::vector<TensorDeclaration> tensors;
    const std::map<std::string, std::string> metadata = {{"tool", "\"quoted\""}};
    for (const int64_t size :
         *rc::gen::resize(10, rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 3000))))
        tensors.push_back({fmt::format("\u00e9\n{}", tensors.size()), DType::u8, {size, 1}});
    const uint64_t limit = *rc::gen::inRange<uint64_t>(1, 5000);
    std::vector<std::string> order;
    const auto files = split_into_files(tensors, metadata, limit);
    for (size_t i = 0; i < files.size(); ++i) {
        RC_ASSERT(files[i].size() <= 1u || size_written(files[i], metadata) <= limit);
        if (i + 1 < files.size()) {
            auto more = files[i];
            more.push_back(files[i + 1].front());
            RC_ASSERT(size_written(more, metadata) > limit);
        }
        for (const auto& tensor : files[i]) order.push_back(tensor.name);
    }
    RC_ASSERT(order.size() == tensors.size());
    for (size_t i = 0; i < order.size(); ++i) RC_ASSERT(order[i] == tensors[i].name);
}

TEST(SafetensorsFolderWriter, WritesShardsAndAnIndexThatTheReaderReads) {
    const TemporaryFolder folder;
    SafetensorsFolderWriter writer(folder.path(),
                                   {{{"b", DType::u8, {2}}, {"a", DType::u8, {1}}},
                                    {{"none", DType::f32, {0}}},
                                    {{"c", DType::bf16, {}}}},
                                   {{"tool", "halfbyte"}});
    writer.write("b", bytes_in("B"));
    writer.write("b", bytes_in("b"));
    writer.write("a", bytes_in("A"));
    EXPECT_FALSE(fs::exists(folder / "model-00001-of-00003.safetensors"));
    writer.write("c", bytes_in("CC"));
    EXPECT_TRUE(fs::exists(folder / "model-00002-of-00003.safetensors"));
    writer.finish();
    EXPECT_EQ(
        writer.index(),
        "{\n  \"metadata\": {\n    \"total_size\": 5\n  },\n  \"weight_map\": {\n"
        "    \"a\": \"model-00001-of-00003.safetensors\",\n    \"b\": \"model-00001-of-00003.safetensors\",\n"
        "    \"c\": \"model-00003-of-00003.safetensors\",\n"
        "    \"none\": \"model-00002-of-00003.safetensors\"\n  }\n}\n");
    write_file(folder / index_name, writer.index());
    const SafetensorsFolder read(folder.path());
    EXPECT_EQ(text_of(read.tensors().at("b").bytes), "Bb");
    EXPECT_EQ(text_of(read.tensors().at("c").bytes), "CC");
    ASSERT_EQ(read.files().size(), 3u);
    EXPECT_EQ(read.files()[1].filename(), "model-00002-of-00003.safetensors");
    EXPECT_EQ(SafetensorsFile(read.files()[2]).metadata().at("tool"), "halfbyte");
}

TEST(SafetensorsFolderWriter, ASingleFileHasNoIndex) {
    const TemporaryFolder folder;
    SafetensorsFolderWriter writer(folder.path(), {{{"a", DType::u8, {1}}}}, {});
    writer.write("a", bytes_in("A"));
    writer.finish();
    EXPECT_EQ(writer.index(), "");
    EXPECT_EQ(folder.names(), std::set<std::string>{"model.safetensors"});
}

TEST(SafetensorsFolderWriter, RefusesAnotherOrderAndWhatIsMissing) {
    const std::vector<std::vector<TensorDeclaration>> files = {{{"a", DType::u8, {1}}},
                                                               {{"b", DType::u8, {1}}}};
    const auto usage = [&](std::string_view part,
                           const std::function<void(SafetensorsFolderWriter&)>& action) {
        const TemporaryFolder folder;
        expect_error(ErrorKind::usage, part, [&] {
            SafetensorsFolderWriter writer(folder.path(), files, {});
            action(writer);
        });
        for (const std::string& name : folder.names()) EXPECT_EQ(name.find("partial"), name.npos) << name;
    };
    usage("\"a\": 0 of 1 bytes", [](auto& writer) { writer.write("b", bytes_in("B")); });
    usage("\"a\" is not the next one", [](auto& writer) {
        writer.write("a", bytes_in("A"));
        writer.write("b", bytes_in("B"));
        writer.write("a", bytes_in("A"));
    });
    usage("\"c\" is not the next one", [](auto& writer) { writer.write("c", {}); });
    usage("\"b\": 0 of 1 bytes", [](auto& writer) {
        writer.write("a", bytes_in("A"));
        writer.finish();
    });
    const TemporaryFolder folder;
    expect_error(ErrorKind::usage, "\"a\" is taken", [&] {
        SafetensorsFolderWriter writer(folder.path(), {{{"a", DType::u8, {1}}}, {{"a", DType::u8, {1}}}}, {});
    });
}

}  // namespace halfbyte::checkpoint
