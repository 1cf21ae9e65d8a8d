#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "format/e4m3.h"
#include "reference/quantized.h"
#include "support/compare.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::Quantized;

TEST(Quantize, ARowHasTheSameBytesAloneAndInABatch) {
    const OwnedMatrix x = test::random_matrix(37, 80, DType::bf16, 1);
    const Quantized all = test::quantize(x, 700.0f);
    for (int64_t row = 0; row < 37; row++) {
        const Quantized one = test::quantize(x.row(row), 700.0f);
        EXPECT_TRUE(test::same_bytes(one.codes.bytes(), all.codes.bytes().subspan(size_t(row * 40), 40), 40))
            << row;
        EXPECT_TRUE(test::same_bytes(one.scales.bytes(), all.scales.bytes().subspan(size_t(row * 5), 5), 5))
            << row;
    }
}

TEST(Quantize, NonFiniteRowsLeaveOtherRowsAlone) {
    const OwnedMatrix x = test::random_matrix(3, 48, DType::f32, 2);
    OwnedMatrix spoilt = test::random_matrix(3, 48, DType::f32, 2);
    for (int64_t k = 0; k < 48; k++)
        spoilt.set(0, k, NAN), spoilt.set(2, k, k % 2 == 0 ? INFINITY : -INFINITY);
    spoilt.set(1, 20, NAN);  // and a NaN leaves the other blocks of its row alone
    QuantizeStats stats;
    const Quantized a = test::quantize(x, 700.0f);
    const Quantized b =
        test::quantize_to(NvFp4Shape::of(3, 48), spoilt, 700.0f, Rounding::contract, 0xFF, &stats);
    for (int64_t k = 0; k < 48; k++)
        if (k / 16 != 1) {
            EXPECT_EQ(a.code(1, k), b.code(1, k)) << k;
        }
    EXPECT_EQ(a.scale(1, 0), b.scale(1, 0));
    EXPECT_EQ(a.scale(1, 2), b.scale(1, 2));
    EXPECT_EQ(stats.non_finite, 97);
    EXPECT_EQ(stats.values, 144);
    EXPECT_EQ(stats.blocks, 9);
}

TEST(Quantize, AScalePerRowIsThatRowsOwn) {
    const OwnedMatrix x = test::random_matrix(4, 32, DType::f16, 3);
    const std::vector<float> G = {100, 200, 300.5f, 1};
    const NvFp4Shape shape = NvFp4Shape::of(4, 32);
    Quantized q(shape);
    reference::quantize({.x = x.input(),
                         .encode_scale = G.data(),
                         .scale_per_row = true,
                         .shape = shape,
                         .codes = q.codes.data(),
                         .block_scales = q.scales.data()});
    for (int64_t row = 0; row < 4; row++) {
        const Quantized one = test::quantize(x.row(row), G[size_t(row)]);
        EXPECT_TRUE(test::same_bytes(one.codes.bytes(), q.codes.bytes().subspan(size_t(row * 16), 16), 16))
            << row;
        EXPECT_TRUE(test::same_bytes(one.scales.bytes(), q.scales.bytes().subspan(size_t(row * 2), 2), 2))
            << row;
    }
}

TEST(Quantize, ReadsAColumnSliceByItsStride) {
    const OwnedMatrix wide = test::random_matrix(6, 96, DType::bf16, 4);
    OwnedMatrix slice(6, 48, DType::bf16);
    for (int64_t i = 0; i < 6 * 48; i++) slice.set(i / 48, i % 48, wide.at(i / 48, i % 48 + 1));
    ConstMatrix view = wide.input();
    view.cols = 48;
    view.data = static_cast<const uint16_t*>(view.data) + 1;  // an odd start
    const NvFp4Shape shape = NvFp4Shape::of(6, 48);
    Quantized q(shape);
    const float G = 700;
    reference::quantize({.x = view,
                         .encode_scale = &G,
                         .shape = shape,
                         .codes = q.codes.data(),
                         .block_scales = q.scales.data()});
    const Quantized expected = test::quantize(slice, G);
    EXPECT_TRUE(test::same_bytes(q.codes.bytes(), expected.codes.bytes(), 24));
    EXPECT_TRUE(test::same_bytes(q.scales.bytes(), expected.scales.bytes(), 3));
}

TEST(Quantize, OneOutlierFlushesTheBlocksItDwarfs) {
    OwnedMatrix x(1, 48);
    for (int64_t k = 0; k < 48; k++) x.set(0, k, 1e-3f);
    x.set(0, 0, 2688.0f);  // G = 1
    QuantizeStats stats;
    const Quantized q = test::quantize_to(NvFp4Shape::of(1, 48), x, EncodeScale::from_amax(2688.0f).encode(),
                                          Rounding::contract, 0xFF, &stats);
    EXPECT_EQ(q.scale(0, 0), 0x7E);
    EXPECT_EQ(q.scale(0, 1), 0);
    EXPECT_EQ(stats, (QuantizeStats{.values = 48, .blocks = 3, .flushed = 2}));
}

std::vector<float> block_of_values() {
    const int exponent = *rc::gen::inRange(-3, 4);
    std::vector<float> values;
    for (int i = 0; i < 16; i++)
        values.push_back(std::ldexp(float(*rc::gen::inRange(-4096, 4097)) / 1024.0f, exponent));
    return values;
}

// With G a power of two, code * SF / G is exact. From scale byte 4 on the largest value of a block has code
// 7, so the scale is found again; below, the step of E4M3 is so coarse that the largest code may be less and
// the scale may shrink.
RC_GTEST_PROP(QuantizeProperty, WhatWasQuantisedQuantisesToItself, ()) {
    const OwnedMatrix x = test::matrix_of(block_of_values(), 1, 16);
    const float G = std::ldexp(1.0f, *rc::gen::inRange(-2, 8));
    const Quantized once = test::quantize(x, G);
    RC_PRE(once.scale(0, 0) == 0 || once.scale(0, 0) >= 4);
    const Quantized twice = test::quantize(test::dequantize(once, 1.0f / G), G);
    RC_ASSERT(twice.scale(0, 0) == once.scale(0, 0));
    for (int64_t k = 0; k < 16; k++) RC_ASSERT(twice.code(0, k) == once.code(0, k));
}

RC_GTEST_PROP(QuantizeProperty, APowerOfTwoMayMoveBetweenXAndG, ()) {
    const std::vector<float> values = block_of_values();
    const int shift = *rc::gen::inRange(-30, 31);
    std::vector<float> shifted;
    for (const float value : values) shifted.push_back(std::ldexp(value, shift));
    const float G = float(*rc::gen::inRange(1, 100000)) / 37.0f;
    const Quantized a = test::quantize(test::matrix_of(values, 1, 16), G);
    const Quantized b = test::quantize(test::matrix_of(shifted, 1, 16), std::ldexp(G, -shift));
    RC_ASSERT(a.scale(0, 0) == b.scale(0, 0));
    for (int64_t k = 0; k < 16; k++) RC_ASSERT(a.code(0, k) == b.code(0, k));
}

RC_GTEST_PROP(QuantizeProperty, TheNegativeHasTheSameScaleAndTheOppositeSigns, ()) {
    const std::vector<float> values = block_of_values();
    std::vector<float> negative;
    for (const float value : values) negative.push_back(-value);
    const float G = float(*rc::gen::inRange(1, 100000)) / 37.0f;
    const Quantized a = test::quantize(test::matrix_of(values, 1, 16), G);
    const Quantized b = test::quantize(test::matrix_of(negative, 1, 16), G);
    RC_ASSERT(a.scale(0, 0) == b.scale(0, 0));
    for (int64_t k = 0; k < 16; k++) RC_ASSERT((a.code(0, k) ^ 8) == b.code(0, k));
}

// Between two neighbouring codes of one scale lies at most 1 (4 to 6: 2/2), so a value that is not clipped
// moves by at most SF, times D; v * G, 1/G and the decoding add four roundings of a value of at most 7 SF.
RC_GTEST_PROP(QuantizeProperty, AValueMovesByAtMostOneScaleStep, ()) {
    const std::vector<float> values = block_of_values();
    const float G = float(*rc::gen::inRange(100, 100000)) / 1000.0f, D = 1.0f / G;
    const Quantized q = test::quantize(test::matrix_of(values, 1, 16), G);
    RC_PRE(q.scale(0, 0) >= 8 && q.scale(0, 0) < e4m3_max);
    const OwnedMatrix y = test::dequantize(q, D);
    const double SF = decode_e4m3(q.scale(0, 0));
    for (int64_t k = 0; k < 16; k++)
        RC_ASSERT(std::fabs(double(y.at(0, k)) - double(values[size_t(k)])) <=
                  (SF + test::gamma(4.01) * 7 * SF) / double(G));
}

}  // namespace
}  // namespace halfbyte
