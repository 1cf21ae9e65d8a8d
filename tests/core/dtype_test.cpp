#include "halfbyte/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "core/check.h"
#include "core/element.h"
#include "core/progress.h"
#include "support/throws.h"

namespace halfbyte {

TEST(DType, HasTheNameAndSizeOfSafetensors) {
    const struct {
        DType type;
        const char* name;
        size_t size;
    } table[] = {{DType::f64, "F64", 8},      {DType::f32, "F32", 4},         {DType::f16, "F16", 2},
                 {DType::bf16, "BF16", 2},    {DType::i64, "I64", 8},         {DType::i32, "I32", 4},
                 {DType::i16, "I16", 2},      {DType::i8, "I8", 1},           {DType::u64, "U64", 8},
                 {DType::u32, "U32", 4},      {DType::u16, "U16", 2},         {DType::u8, "U8", 1},
                 {DType::boolean, "BOOL", 1}, {DType::f8_e4m3, "F8_E4M3", 1}, {DType::f8_e5m2, "F8_E5M2", 1}};
    for (const auto& [type, name, size] : table) {
        EXPECT_EQ(name_of(type), name);
        EXPECT_EQ(size_of(type), size) << name;
    }
}

TEST(Element, IsStoredRoundedAndLeavesItsNeighboursAlone) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        const size_t size = size_of(type);
        std::string memory(1 + 3 * size, '\x5A');  // an odd address is allowed
        store_element(memory.data() + 1, type, 1, 0.1f);
        EXPECT_EQ(load_element(memory.data() + 1, type, 1), round_to_type(0.1f, type)) << name_of(type);
        EXPECT_EQ(memory.substr(0, 1 + size), std::string(1 + size, '\x5A')) << name_of(type);
        EXPECT_EQ(memory.substr(1 + 2 * size), std::string(size, '\x5A')) << name_of(type);
    }
    EXPECT_EQ(round_to_type(0.1f, DType::f32), 0.1f);
    EXPECT_EQ(round_to_type(0.1f, DType::bf16), 0x1.9Ap-4f);
    EXPECT_EQ(round_to_type(0.1f, DType::f16), 0x1.998p-4f);
    EXPECT_EQ(round_to_type(65520.0f, DType::f16), INFINITY);
}

TEST(Check, ThrowsWithKindAndTextOnlyWhenItFails) {
    EXPECT_NO_THROW(check(true, ErrorKind::usage, "{}", 1));
    EXPECT_TRUE(test::throws(ErrorKind::unsupported, "K = 4095 given, 4096 needed", [] {
        check(false, ErrorKind::unsupported, "K = {} given, {} needed", 4095, 4096);
    }));
    EXPECT_EQ(int(ErrorKind::malformed), 4);  // exit codes that scripts rely on
    EXPECT_EQ(int(ErrorKind::interrupted), 130);
}

TEST(Progress, ReachesItsReceiverOrNobody) {
    report(nullptr, "write", 1, 2);
    std::string seen;
    report([&](std::string_view what, int64_t done,
               int64_t total) { seen = fmt::format("{} {}/{}", what, done, total); },
           "write", 1, 2);
    EXPECT_EQ(seen, "write 1/2");
}

}  // namespace halfbyte
