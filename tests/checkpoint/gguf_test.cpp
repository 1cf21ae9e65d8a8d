#include "checkpoint/gguf.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "checkpoint/gguf_builder.h"
#include "core/float16.h"
#include "support/little_memory.h"

namespace halfbyte::checkpoint {
using test::bytes_of;
using test::expect_error;
using test::gguf_text;
using test::GgufBuilder;
using test::TemporaryFolder;
using test::write_file;

constexpr uint32_t f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q8_0 = 8, bf16 = 30;

static std::string half(float value) {
    return bytes_of(round_to<Float16>(value).bits);
}

// 16 bytes of nibbles: element i is i mod 16 for i < 16, and 15 - i mod 16 above.
static std::string nibbles() {
    std::string bytes;
    for (int i = 0; i < 16; ++i) bytes += char(i | (15 - i) << 4);
    return bytes;
}

static std::vector<float> values_of(const GgufTensor& tensor, int64_t first, int64_t count) {
    std::vector<float> values(count);
    dequantize_gguf(tensor, first, count, values.data());
    return values;
}

TEST(GgufFile, ReadsMetadataOfEveryType) {
    const TemporaryFolder folder;
    GgufBuilder builder;
    builder.raw("u8", 0, bytes_of(uint8_t(200))).raw("i8", 1, bytes_of(int8_t(-100)));
    builder.raw("u16", 2, bytes_of(uint16_t(60000))).raw("i16", 3, bytes_of(int16_t(-30000)));
    builder.u32("u32", 4000000000u).raw("i32", 5, bytes_of(int32_t(-2000000000)));
    builder.f32("f32", 0.1f).flag("yes", true).flag("no", false).text("text", "h\xC3\xA9").text("empty", "");
    builder.raw("u64", 10, bytes_of(uint64_t(1) << 62)).raw("i64", 11, bytes_of(int64_t(-5)));
    builder.raw("f64", 12, bytes_of(0.1)).raw("huge", 10, bytes_of(~uint64_t(0)));
    builder.array("words", 8, 3, gguf_text("a") + gguf_text("") + gguf_text("ccc"));
    builder.array("numbers", 5, 2, bytes_of(int32_t(-1)) + bytes_of(int32_t(7)));
    builder.array("nothing", 8, 0, "");
    builder.array("nested", 9, 1, bytes_of(uint32_t(0)) + bytes_of(uint64_t(2)) + "ab");
    builder.text("bad", "\xFF").array("worse", 8, 1, gguf_text("\xED\xA0\x80"));
    for (const uint32_t version : {2u, 3u}) {
        builder.version = version;
        const GgufFile gguf(write_file(folder / "a.gguf", builder.build()));
        EXPECT_EQ(gguf.integer("u8"), 200);
        EXPECT_EQ(gguf.integer("i8"), -100);
        EXPECT_EQ(gguf.integer("u16"), 60000);
        EXPECT_EQ(gguf.integer("i16"), -30000);
        EXPECT_EQ(gguf.integer("u32"), 4000000000);
        EXPECT_EQ(gguf.integer("i32"), -2000000000);
        EXPECT_EQ(gguf.integer("u64"), int64_t(1) << 62);
        EXPECT_EQ(gguf.integer("i64"), -5);
        EXPECT_EQ(gguf.number("f32"), double(0.1f));
        EXPECT_EQ(gguf.number("f64"), 0.1);
        EXPECT_EQ(gguf.number("u8"), 200);
        EXPECT_TRUE(gguf.flag("yes"));
        EXPECT_FALSE(gguf.flag("no"));
        EXPECT_EQ(gguf.text("text"), "h\xC3\xA9");
        EXPECT_EQ(gguf.text("empty"), "");
        EXPECT_EQ(gguf.texts("words"), (std::vector<std::string>{"a", "", "ccc"}));
        EXPECT_EQ(gguf.texts("nothing"), std::vector<std::string>());
        EXPECT_EQ(gguf.integers("numbers"), (std::vector<int64_t>{-1, 7}));
        EXPECT_TRUE(gguf.has("nested"));
        EXPECT_FALSE(gguf.has("absent"));
        const auto malformed = [](std::string_view part, const std::function<void()>& action) {
            expect_error(ErrorKind::malformed, part, action);
        };
        malformed("key absent is missing", [&] { gguf.text("absent"); });
        malformed("u8 holds U8; text is needed", [&] { gguf.text("u8"); });
        malformed("words is an array", [&] { gguf.text("words"); });
        malformed("text is no array", [&] { gguf.texts("text"); });
        malformed("numbers holds I32; text is needed", [&] { gguf.texts("numbers"); });
        malformed("words holds text; whole numbers are needed", [&] { gguf.integers("words"); });
        malformed("nested holds arrays; whole numbers", [&] { gguf.integers("nested"); });
        malformed("f32 holds F32; whole numbers", [&] { gguf.integer("f32"); });
        malformed("huge: 18446744073709551615 is too large", [&] { gguf.integer("huge"); });
        malformed("u8 holds U8; true or false is needed", [&] { gguf.flag("u8"); });
        malformed("text holds text; whole numbers", [&] { gguf.number("text"); });
        malformed("not valid UTF-8", [&] { gguf.text("bad"); });
        malformed("not valid UTF-8", [&] { gguf.texts("worse"); });
    }
}

TEST(GgufFile, DequantisesEveryTypeAsGgmlDefinesIt) {
    const TemporaryFolder folder;
    std::string bytes;
    for (int i = 0; i < 32; ++i) bytes += char(int8_t(i * 8 - 128));
    GgufBuilder builder;
    builder.tensor("f32", {3}, f32, bytes_of(0.1f) + bytes_of(-2.0f) + bytes_of(3e38f));
    builder.tensor("f16", {2}, f16, half(0.1f) + half(-65504.0f));
    builder.tensor("bf16", {1, 2}, bf16, bytes_of(uint16_t(0x3F80)) + bytes_of(uint16_t(0xC049)));
    builder.tensor("q8_0", {32, 2}, q8_0, half(0.5f) + bytes + half(-3.0f) + std::string(32, '\x01'));
    builder.tensor("q4_0", {64}, q4_0, half(0.25f) + nibbles() + half(1.0f) + nibbles());
    builder.tensor("q4_1", {32, 1, 2}, q4_1,
                   half(0.1f) + half(-0.7f) + nibbles() + half(2.0f) + half(1.0f) + nibbles());
    const GgufFile gguf(write_file(folder / "a.gguf", builder.build()));
    const auto& tensors = gguf.tensors();
    ASSERT_EQ(tensors.size(), 6u);
    EXPECT_EQ(tensors.at("q8_0").shape, (std::vector<int64_t>{2, 32}));
    EXPECT_EQ(tensors.at("q4_1").shape, (std::vector<int64_t>{2, 1, 32}));
    EXPECT_EQ(values_of(tensors.at("f32"), 0, 3), (std::vector<float>{0.1f, -2.0f, 3e38f}));
    EXPECT_EQ(values_of(tensors.at("f32"), 1, 1), std::vector<float>{-2.0f});
    EXPECT_EQ(values_of(tensors.at("f16"), 0, 2), (std::vector<float>{0.0999755859375f, -65504.0f}));
    EXPECT_EQ(values_of(tensors.at("bf16"), 0, 2), (std::vector<float>{1.0f, -3.140625f}));
    const auto q8 = values_of(tensors.at("q8_0"), 0, 64);
    for (int i = 0; i < 32; ++i) {
        EXPECT_EQ(q8[i], 0.5f * float(i * 8 - 128)) << i;
        EXPECT_EQ(q8[32 + i], -3.0f) << i;
    }
    const auto q4 = values_of(tensors.at("q4_0"), 0, 64);
    const auto second = values_of(tensors.at("q4_0"), 32, 32);
    // d = fp16(0.1) and m = fp16(-0.7) have long products: one rounding after d * q, one after + m.
    const float d = 0.0999755859375f, m = -0.7001953125f;
    const auto q41 = values_of(tensors.at("q4_1"), 0, 64);
    for (int i = 0; i < 32; ++i) {
        const int q = i < 16 ? i : 15 - (i - 16);
        EXPECT_EQ(q4[i], 0.25f * float(q - 8)) << i;
        EXPECT_EQ(second[i], float(q - 8)) << i;
        const volatile float product = d * float(q);
        EXPECT_EQ(q41[i], product + m) << i;
        EXPECT_EQ(q41[32 + i], 2.0f * float(q) + 1.0f) << i;
    }
}

TEST(GgufFile, RefusesEveryBrokenRule) {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& content, std::string_view part,
                             ErrorKind kind = ErrorKind::malformed) {
        SCOPED_TRACE(part);
        const auto path = write_file(folder / "bad.gguf", content);
        expect_error(kind, part, [&] { GgufFile file(path); });
        expect_error(kind, "bad.gguf: ", [&] { GgufFile file(path); });
    };
    const auto unsupported = ErrorKind::unsupported;
    constexpr uint64_t most = ~uint64_t(0);
    using B = GgufBuilder;

    refused("", "the magic at byte 0 needs 4 bytes");
    refused("GGML" + std::string(40, '\0'), "starts with \"GGML\", a GGUF file with \"GGUF\"");
    refused(B{.version = 0}.build(), "version 0");
    refused(B{.version = 1}.build(), "version 1; versions 2 and 3", unsupported);
    refused(B{.version = 4}.build(), "version 4; versions 2 and 3", unsupported);
    refused(B{.version = 0x03000000}.build(), "big-endian", unsupported);

    // Counts and lengths far beyond the file, before anything is allocated for them.
    for (const uint64_t count : {uint64_t(300), uint64_t(1) << 40, most}) {
        refused(B{.claimed_values = count}.build(), "metadata entries do not fit");
        refused(B{.claimed_tensors = count}.build(), "tensors do not fit");
        refused(B().raw("k", 8, bytes_of(count) + "ab").build(), "a text at byte");
        refused(B().array("k", 8, count, "").build(), "is the file cut off?");
        refused(B().array("k", 12, count * 2, "").build(), "do not fit");
    }
    refused(B().raw("k", 9, bytes_of(uint32_t(4)) + bytes_of(most / 4 + 1) + "aaaa").build(), "do not fit");
    refused(B().raw("k", 13, "").build(), "unknown value type 13");
    refused(B().array("k", 99, 0, "").build(), "unknown value type 99");
    refused(B().raw("k", 7, "\2").build(), "neither 0 nor 1");
    refused(B().array("k", 7, 2, "\1\2").build(), "neither 0 nor 1");
    refused(B().u32("k", 1).u32("k", 2).build(), "key \"k\" is there twice");
    refused(B().u32("", 1).build(), "is not 1 to 65535 bytes");
    refused(B().u32("\xFF", 1).build(), "bytes of UTF-8");
    refused(B().u32(std::string(65536, 'k'), 1).build(), "1 to 65535 bytes");
    std::string nested;
    for (int i = 0; i < 10; ++i) nested += bytes_of(uint32_t(9)) + bytes_of(uint64_t(1));
    refused(B().raw("k", 9, nested).build(), "nested deeper than 4");

    // Tensors.
    const auto one = [](B::Tensor tensor) {
        B builder;
        builder.tensors.push_back(std::move(tensor));
        return builder.build();
    };
    refused(B().tensor("t", {1}, f32, "aaaa").tensor("t", {1}, f32, "aaaa").build(),
            "tensor \"t\" is there twice");
    refused(one({"", {1}, f32, "aaaa"}), "tensor name");
    refused(one({"t", {1, 1, 1, 1, 1}, f32, "aaaa"}), "5 dimensions");
    refused(one({"t", std::vector<uint64_t>(100, 1), f32, "aaaa"}), "100 dimensions");
    refused(one({"t", {0}, f32, "aaaa"}), "a dimension of 0");
    refused(one({"t", {most}, f32, "aaaa"}), "a dimension of 18446744073709551615");
    refused(one({"t", {uint64_t(1) << 62}, f32, "aaaa"}), "overflows");
    refused(one({"t", {4, uint64_t(1) << 32, uint64_t(1) << 31}, f32, "aaaa"}), "overflows");
    refused(one({"t", {uint64_t(1) << 62, 4}, q4_1, "aaaa"}), "overflows");
    refused(one({"t", {33, 32}, q8_0, "aaaa"}), "rows of 33 elements are not whole Q8_0 blocks of 32");
    refused(one({"t", {}, q4_0, "aaaa"}), "rows of 1 elements are not whole");
    refused(one({"t", {2}, f32, "aaaa"}), "8 bytes at offset 0 leave the 4 bytes");
    refused(one({"t", {1}, f32, "aaaa", 32}), "leave the 4 bytes");
    refused(one({"t", {1}, f32, "aaaa", most - 31}), "leave the 4 bytes");
    refused(one({"t", {1}, f32, "aaaaaaaa", 4}), "offset 4 is not a multiple of the alignment 32");
    const B overlap =
        B().tensor("a", {16}, f32, std::string(64, 'a')).tensor("b", {16}, f32, std::string(64, 'b'));
    for (const uint64_t offset : {0, 32}) {
        B bad = overlap;
        bad.tensors[1].offset = offset;
        refused(bad.build(), "overlap");
    }

    // Types that are not read, by number and name.
    for (const auto& [type, name] : {std::pair(40u, "40 (NVFP4)"),
                                     {39u, "39 (MXFP4)"},
                                     {12u, "12 (Q4_K)"},
                                     {14u, "14 (Q6_K)"},
                                     {6u, "6 (Q5_0)"},
                                     {28u, "28 (F64)"},
                                     {24u, "24 (I8)"},
                                     {34u, "34 (TQ1_0)"},
                                     {41u, "41 (unknown)"},
                                     {~0u, "4294967295 (unknown)"}}) {
        refused(one({"t", {256}, type, std::string(1024, '\0')}), std::string("ggml type ") + name,
                unsupported);
    }

    // Alignment.
    for (const uint32_t alignment : {0u, 3u, 48u, 1u << 21, 1u << 31}) {
        refused(B().u32("general.alignment", alignment).tensor("t", {1}, f32, "aaaa").build(),
                "a power of two");
    }
    refused(B().text("general.alignment", "32").build(),
            "general.alignment holds text; whole numbers are needed");
}

TEST(GgufFile, AClaimOf1e18ElementsTakesNoMemory) {
    const TemporaryFolder folder;
    const auto path = folder / "bad.gguf";
    const auto refused = [&](const GgufBuilder& builder, std::string_view part) {
        write_file(path, builder.build());
        test::with_little_memory(
            [&] { expect_error(ErrorKind::malformed, part, [&] { GgufFile file(path); }); });
    };
    constexpr uint64_t claim = 1'000'000'000'000'000'000;
    refused({.claimed_values = claim}, "metadata entries do not fit");
    refused({.claimed_tensors = claim}, "tensors do not fit");
    for (const uint32_t type : {0, 5, 7, 8, 9, 10, 12})
        refused(GgufBuilder().raw("a", 9, bytes_of(type) + bytes_of(claim)), "values do not fit");
    refused(GgufBuilder().raw("a", 8, bytes_of(claim)), "a text at byte");
    refused(
        GgufBuilder().raw(
            "a", 9, bytes_of(uint32_t(9)) + bytes_of(uint64_t(1)) + bytes_of(uint32_t(0)) + bytes_of(claim)),
        "values do not fit");
    for (const uint32_t type : {f32, f16, bf16, q4_0, q4_1, q8_0}) {
        refused(GgufBuilder().tensor("t", {claim}, type, "data"), "is the file cut off?");
        refused(GgufBuilder().tensor("t", {32, claim / 32}, type, "data"), "is the file cut off?");
        refused(GgufBuilder().tensor("t", {claim, claim}, type, "data"), "overflows");
    }
}

TEST(GgufFile, HonoursTheAlignment) {
    const TemporaryFolder folder;
    for (const uint32_t alignment : {1u, 8u, 64u, 4096u}) {
        GgufBuilder builder{.alignment = alignment};
        builder.u32("general.alignment", alignment)
            .tensor("a", {1}, f32, "aaaa")
            .tensor("b", {1}, f32, "bbbb");
        const GgufFile gguf(write_file(folder / "a.gguf", builder.build()));
        EXPECT_EQ(std::string(gguf.tensors().at("b").bytes.begin(), gguf.tensors().at("b").bytes.end()),
                  "bbbb");
        EXPECT_EQ(gguf.tensors().at("b").bytes.data() - gguf.tensors().at("a").bytes.data(),
                  std::max(4u, alignment));
    }
}

TEST(GgufFile, RefusesEveryTruncation) {
    const TemporaryFolder folder;
    const std::string whole = GgufBuilder()
                                  .text("general.architecture", "llama")
                                  .array("words", 8, 2, gguf_text("ab") + gguf_text("c"))
                                  .array("numbers", 4, 2, bytes_of(uint64_t(1)))
                                  .tensor("a", {32}, q4_1, std::string(20, 'a'))
                                  .tensor("b", {2}, f32, std::string(8, 'b'))
                                  .build();
    const auto path = folder / "cut.gguf";
    EXPECT_EQ(GgufFile(write_file(path, whole)).tensors().size(), 2u);
    for (size_t size = 0; size < whole.size(); ++size) {
        SCOPED_TRACE(size);
        write_file(path, whole.substr(0, size));
        expect_error(ErrorKind::malformed, "cut.gguf: ", [&] { GgufFile file(path); });
    }
}

RC_GTEST_PROP(GgufFile, AnyChangedByteOpensOrThrowsError, (uint8_t byte)) {
    static const TemporaryFolder folder;
    std::string content = GgufBuilder()
                              .u32("general.alignment", 32)
                              .array("words", 8, 2, gguf_text("ab") + gguf_text("c"))
                              .tensor("a", {32, 1}, q8_0, std::string(34, 'a'))
                              .tensor("b", {2}, f32, std::string(8, 'b'))
                              .build();
    content[*rc::gen::inRange<size_t>(0, content.size())] = char(byte);
    try {
        const GgufFile gguf(write_file(folder / "fuzzed.gguf", content));
        for (const auto& [name, tensor] : gguf.tensors()) {
            const int64_t count =
                std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t(1), std::multiplies<>());
            values_of(tensor, 0, count);
        }
        if (gguf.has("words")) gguf.texts("words");
    } catch (const Error& error) {
        RC_ASSERT(error.kind() == ErrorKind::malformed || error.kind() == ErrorKind::unsupported);
    }
}

}  // namespace halfbyte::checkpoint
