// MXFP4 matrices: places of codes and scales, padding, decoding. The rule of a block:
// tests/format/mxfp4_block_test.cpp.
#include <gtest/gtest.h>

#include <cmath>

#include "format/e2m1.h"
#include "format/mxfp4_block.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::PoisonedBuffer;

constexpr ScaleLayout layouts[] = {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4};
constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

struct MxQuantized {
    MxFp4Shape shape;
    PoisonedBuffer codes, scales;

    explicit MxQuantized(const MxFp4Shape& s, uint8_t poison = 0xFF)
        : shape(s), codes(s.code_bytes(), poison), scales(s.scale_bytes(), poison) {}
    uint8_t& pair(int64_t row, int64_t k) { return codes[row * (shape.padded_k / 2) + k / 2]; }
    uint8_t& scale(int64_t row, int64_t block) {
        return scales[scale_offset(shape.layout, row, block, shape.padded_blocks())];
    }
    OwnedMatrix decode(DType type = DType::f32) const {
        OwnedMatrix y(shape.rows, shape.k, type, shape.k + 3, 0x7F);
        reference::mxfp4_dequantize(
            {.codes = codes.data(), .block_scales = scales.data(), .shape = shape, .y = y.view()});
        EXPECT_TRUE(y.gaps_intact());
        return y;
    }
};

MxQuantized quantize(const OwnedMatrix& x, const MxFp4Shape& shape, uint8_t poison) {
    MxQuantized q(shape, poison);
    reference::mxfp4_quantize(
        {.x = x.input(), .shape = shape, .codes = q.codes.data(), .block_scales = q.scales.data()});
    EXPECT_TRUE(q.codes.guards_intact() && q.scales.guards_intact());
    return q;
}

TEST(Mxfp4, EveryByteIsDefinedInEveryLayoutWhateverWasThere) {
    for (const DType type : types) {
        for (const auto& [rows, k] : {std::pair<int64_t, int64_t>(0, 32),
                                      {2, 0},
                                      {1, 1},
                                      {3, 31},
                                      {15, 32},
                                      {17, 33},
                                      {33, 65},
                                      {130, 160}}) {
            OwnedMatrix x = test::random_matrix(rows, k, type, uint64_t(k + 1), 3.0f, k + 3);
            for (const ScaleLayout layout : layouts) {
                for (const MxFp4Shape& shape :
                     {MxFp4Shape::of(rows, k, layout),
                      MxFp4Shape{rows, k, rows + 5, round_up(k, 32) + 64, layout}}) {
                    MxQuantized expected(shape, 0);
                    for (int64_t row = 0; row < rows; row++) {
                        for (int64_t block = 0; block < shape.blocks(); block++) {
                            float values[32] = {};
                            uint8_t codes[32];
                            for (int64_t i = 0; i < 32 && block * 32 + i < k; i++)
                                values[i] = x.at(row, block * 32 + i);
                            expected.scale(row, block) = quantize_mxfp4_block(values, codes);
                            for (int64_t i = 0; i < 32 && block * 32 + i < k; i++)
                                expected.pair(row, block * 32 + i) |= uint8_t(codes[i] << (i % 2 * 4));
                        }
                    }
                    for (const uint8_t poison : {uint8_t(0x7F), uint8_t(0xFF)}) {
                        const MxQuantized q = quantize(x, shape, poison);
                        ASSERT_TRUE(test::same_bytes(q.codes.bytes(), expected.codes.bytes(),
                                                     std::max<int64_t>(1, shape.padded_k / 2)));
                        ASSERT_TRUE(test::same_bytes(q.scales.bytes(), expected.scales.bytes(),
                                                     std::max<int64_t>(1, shape.padded_blocks())));
                    }
                }
            }
        }
    }
}

TEST(Mxfp4, EveryCodeAndEveryByteDecode) {
    MxQuantized q(MxFp4Shape::of(256, 16), 0);
    for (int64_t byte = 0; byte < 256; byte++) {
        for (int64_t code = 0; code < 16; code++) q.pair(byte, code) |= uint8_t(code << (code % 2 * 4));
        q.scale(byte, 0) = uint8_t(byte);
    }
    for (const DType type : types) {
        std::vector<float> expected;
        for (int byte = 0; byte < 256; byte++)
            for (int code = 0; code < 16; code++)
                expected.push_back(
                    byte == 255
                        ? NAN
                        : round_to_type(float(std::ldexp(double(decode_e2m1(uint8_t(code))), byte - 127)),
                                        type));
        EXPECT_TRUE(test::same_values(q.decode(type).values(), expected, 16)) << name_of(type);
    }
}

TEST(Mxfp4, GarbageInPaddingChangesNothing) {
    const OwnedMatrix x = test::random_matrix(9, 65, DType::bf16, 4);
    const std::vector<float> expected = quantize(x, MxFp4Shape::of(9, 65), 0).decode().values();
    for (const ScaleLayout layout : layouts) {
        const MxFp4Shape shape{9, 65, 12, 128, layout};
        MxQuantized q = quantize(x, shape, 0), garbage(shape, 0xFF);  // byte 255 is NaN
        for (int64_t row = 0; row < 9; row++) {
            for (int64_t k = 0; k < 64; k += 2) garbage.pair(row, k) = q.pair(row, k);
            garbage.pair(row, 64) = uint8_t(q.pair(row, 64) | 0xF0);
            for (int64_t block = 0; block < 3; block++) garbage.scale(row, block) = q.scale(row, block);
        }
        EXPECT_TRUE(test::same_values(garbage.decode().values(), expected, 65)) << int(layout);
    }
}

// The widest gap, from 4 to 6, is 2 scales wide: half of it is one scale; a value from 6 to 7 scales moves by
// less.
TEST(Mxfp4, AValueMovesByAtMostOneScale) {
    const OwnedMatrix x = test::random_matrix(20, 96, DType::f32, 5, 10.0f);
    MxQuantized q = quantize(x, MxFp4Shape::of(20, 96), 0xFF);
    const OwnedMatrix y = q.decode();
    for (int64_t row = 0; row < 20; row++)
        for (int64_t k = 0; k < 96; k++)
            ASSERT_LE(std::fabs(double(y.at(row, k)) - double(x.at(row, k))),
                      double(decode_e8m0(q.scale(row, k / 32))))
                << row << ", " << k;
}

}  // namespace
}  // namespace halfbyte
