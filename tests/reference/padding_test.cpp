// Padding: every producer defines every byte of it, whatever was there before, and no consumer's result
// depends on it.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/quantized.h"
#include "support/compare.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::Quantized;

constexpr ScaleLayout layouts[] = {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4};

// Shapes of reported failures, sizes around a block, and the empty ones.
constexpr struct {
    int64_t rows, k;
} shapes[] = {{128, 48}, {128, 80}, {150, 48}, {150, 80}, {64, 7152}, {33, 16}, {1, 16}, {0, 64},  {17, 1856},
              {1, 1},    {3, 15},   {8, 17},   {9, 33},   {2, 63},    {5, 65},  {3, 0},  {4, 1000}};

// The shape with no padding, with K padded to 64 and rows to 128, and with an odd choice.
std::vector<NvFp4Shape> padded_forms(int64_t rows, int64_t k, ScaleLayout layout) {
    return {NvFp4Shape::of(rows, k, layout),
            {rows, k, round_up(rows, 128), round_up(k, 64), layout},
            {rows, k, rows + 5, round_up(k, 16) + 48, layout}};
}

// Calls visit(code place, nibble) and visit_scale(place) for everything that belongs to the logical matrix.
std::vector<uint8_t> live_nibbles(const Quantized& q) {
    std::vector<uint8_t> mask(q.codes.bytes().size());
    for (int64_t row = 0; row < q.shape.rows; row++)
        for (int64_t k = 0; k < q.shape.k; k++)
            mask[size_t(q.code_place(row, k))] |= uint8_t(15 << (k % 2 * 4));
    return mask;
}
std::vector<uint8_t> live_scales(const Quantized& q) {
    std::vector<uint8_t> mask(q.scales.bytes().size());
    for (int64_t row = 0; row < q.shape.rows; row++)
        for (int64_t block = 0; block < q.shape.blocks(); block++)
            mask[size_t(q.scale_place(row, block))] = 0xFF;
    return mask;
}

// Random bytes, mostly NaN scales, wherever nothing lives.
void fill_padding_with_garbage(Quantized& q, uint64_t seed) {
    test::Random random(seed);
    const auto nibbles = live_nibbles(q), scales = live_scales(q);
    for (size_t i = 0; i < nibbles.size(); i++)
        q.codes[int64_t(i)] = uint8_t((q.codes[int64_t(i)] & nibbles[i]) | (random.bits() & ~nibbles[i]));
    for (size_t i = 0; i < scales.size(); i++)
        if (scales[i] == 0) q.scales[int64_t(i)] = random.below(2) ? 0x7F : uint8_t(random.bits());
}

TEST(Padding, EveryByteIsDefinedInEveryLayoutWhateverWasThere) {
    for (const auto& [rows, k] : shapes) {
        const OwnedMatrix x = test::random_matrix(rows, k, DType::bf16, 7, 1.0f, k + 3);
        const Quantized plain = test::quantize(x, 500.0f);
        for (const ScaleLayout layout : layouts) {
            for (const NvFp4Shape& shape : padded_forms(rows, k, layout)) {
                for (const uint8_t poison : {uint8_t(0x7F), uint8_t(0xFF)}) {
                    const Quantized q = test::quantize_to(shape, x, 500.0f, Rounding::contract, poison);
                    Quantized expected(shape, 0);
                    for (int64_t row = 0; row < rows; row++) {
                        for (int64_t i = 0; i < k; i++) expected.set_code(row, i, plain.code(row, i));
                        for (int64_t block = 0; block < shape.blocks(); block++)
                            expected.scales[expected.scale_place(row, block)] = plain.scale(row, block);
                    }
                    SCOPED_TRACE(testing::Message()
                                 << rows << " x " << k << ", layout " << int(layout) << ", padded "
                                 << shape.padded_rows << " x " << shape.padded_k);
                    ASSERT_TRUE(test::same_bytes(q.codes.bytes(), expected.codes.bytes(),
                                                 std::max<int64_t>(shape.padded_k / 2, 1)));
                    ASSERT_TRUE(test::same_bytes(q.scales.bytes(), expected.scales.bytes(),
                                                 std::max<int64_t>(shape.padded_blocks(), 1)));
                    ASSERT_TRUE(q.codes.guards_intact() && q.scales.guards_intact());
                }
            }
        }
    }
}

// The weight with -6 and NaN scales wherever no element lies.
PackedWeight with_garbage(const PackedWeight& clean) {
    PackedWeight w{.n = clean.n,
                   .k = clean.k,
                   .codes = std::pmr::vector<uint8_t>(clean.codes.size(), 0xFF),
                   .block_scales = std::pmr::vector<uint8_t>(clean.block_scales.size(), 0x7F)};
    for (int64_t n = 0; n < w.n; n++) {
        for (int64_t k = 0; k < w.k; k++) {
            const int shift = int(k % 2 * 4);
            uint8_t& pair = w.codes[size_t(packed_code_byte(w.blocks(), n, k))];
            pair = uint8_t((pair & ~(15 << shift)) | packed_code(clean, n, k) << shift);
        }
        for (int64_t block = 0; block < w.blocks(); block++)
            w.block_scales[size_t(packed_scale_byte(w.blocks(), n, block))] = packed_scale(clean, n, block);
    }
    return w;
}

TEST(Padding, GarbageInItChangesNeitherDequantizeNorMatmul) {
    for (const auto& [rows, k] :
         {shapes[0], shapes[1], shapes[2], shapes[3], shapes[9], shapes[10], shapes[12], shapes[14]}) {
        const OwnedMatrix x = test::random_matrix(rows, k, DType::bf16, 8);
        const PackedWeight w = test::pack(test::random_quantized(NvFp4Shape::of(5, k), 9));
        const float Da = 0.5f;
        const std::vector<float> Dw(5, 0.25f);
        const PackedWeight spoilt = with_garbage(w);
        const auto multiply = [&](const Quantized& a, const PackedWeight& weight) {
            OwnedMatrix d(rows, 5);
            reference::matmul_w4a4(
                {.a = a.view(), .w = &weight, .row_decode = &Da, .column_decode = Dw.data(), .d = d.view()});
            return d.values();
        };
        const Quantized clean = test::quantize(x, 500.0f);
        const auto values = test::dequantize(clean, 0.002f).values(), product = multiply(clean, w);
        for (const ScaleLayout layout : layouts) {
            for (const NvFp4Shape& shape : padded_forms(rows, k, layout)) {
                Quantized q = test::quantize_to(shape, x, 500.0f);
                fill_padding_with_garbage(q, 10);
                ASSERT_TRUE(test::same_values(test::dequantize(q, 0.002f).values(), values, k))
                    << rows << " x " << k;
                ASSERT_TRUE(test::same_values(multiply(q, spoilt), product, 5)) << rows << " x " << k;
                std::vector<int64_t> sums(size_t(rows * 5)), expected(size_t(rows * 5));
                reference::exact_product(q.view(), spoilt, sums.data(), nullptr);
                reference::exact_product(clean.view(), w, expected.data(), nullptr);
                ASSERT_EQ(sums, expected);
            }
        }
    }
}

TEST(Padding, GarbageInThePaddingOfAPackedWeightChangesNothing) {
    for (const int64_t k : {1, 15, 16, 17, 33, 80}) {
        const PackedWeight clean = test::pack(test::random_quantized(NvFp4Shape::of(19, k), 11));
        const PackedWeight w = with_garbage(clean);
        const OwnedMatrix x = test::random_matrix(3, k, DType::bf16, 12);
        const Quantized a = test::quantize(x, 500.0f);
        const float Da = 0.5f;
        const std::vector<float> Dw(19, 0.25f);
        const auto multiply = [&](const PackedWeight& weight) {
            OwnedMatrix d(3, 38);
            Matrix left = d.view(), right = d.view();
            left.cols = right.cols = 19;
            right.data = static_cast<float*>(d.data()) + 19;
            reference::matmul_w4a4(
                {.a = a.view(), .w = &weight, .row_decode = &Da, .column_decode = Dw.data(), .d = left});
            reference::matmul_w4a16({.x = x.input(), .w = &weight, .column_decode = Dw.data(), .d = right});
            return d.values();
        };
        EXPECT_TRUE(test::same_values(multiply(w), multiply(clean), 38)) << k;
    }
}

// A partial block is the block with zeros in place of what is missing.
TEST(Padding, MissingElementsOfTheLastBlockAreZeros) {
    for (const int64_t k : {1, 15, 17, 33, 63, 65, 1000}) {
        const OwnedMatrix x = test::random_matrix(3, k, DType::f32, 13);
        OwnedMatrix extended(3, round_up(k, 16));
        for (int64_t row = 0; row < 3; row++)
            for (int64_t i = 0; i < extended.cols(); i++) extended.set(row, i, i < k ? x.at(row, i) : 0.0f);
        QuantizeStats stats, extended_stats;
        const Quantized a =
            test::quantize_to(NvFp4Shape::of(3, k), x, 500.0f, Rounding::contract, 0xFF, &stats);
        const Quantized b = test::quantize_to(NvFp4Shape::of(3, extended.cols()), extended, 500.0f,
                                              Rounding::contract, 0xFF, &extended_stats);
        EXPECT_TRUE(test::same_bytes(a.codes.bytes(), b.codes.bytes(), extended.cols() / 2)) << k;
        EXPECT_TRUE(test::same_bytes(a.scales.bytes(), b.scales.bytes(), extended.cols() / 16)) << k;
        EXPECT_EQ(stats.values, 3 * k);
        EXPECT_EQ(stats.blocks, extended_stats.blocks);
    }
}

// With a missing element as its largest a block would change: what lies behind a row must not be read.
TEST(Padding, WhatLiesBetweenRowsIsNeitherReadNorWritten) {
    OwnedMatrix x(4, 17, DType::bf16, 40, 0xFF);  // the gaps hold NaNs
    OwnedMatrix tight(4, 17, DType::bf16);
    test::Random random(14);
    for (int64_t i = 0; i < 4 * 17; i++) {
        x.set(i / 17, i % 17, random.normal());
        tight.set(i / 17, i % 17, x.at(i / 17, i % 17));
    }
    const Quantized a = test::quantize(x, 500.0f), b = test::quantize(tight, 500.0f);
    EXPECT_TRUE(test::same_bytes(a.codes.bytes(), b.codes.bytes(), 16));
    EXPECT_TRUE(test::same_bytes(a.scales.bytes(), b.scales.bytes(), 2));
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        const float D = 0.002f;
        OwnedMatrix y(4, 17, type, 25, 0x7F);
        reference::dequantize({.a = a.view(), .decode_scale = &D, .y = y.view()});
        EXPECT_TRUE(y.gaps_intact());
        EXPECT_FALSE(std::isnan(y.at(3, 16)));
    }
}

}  // namespace
}  // namespace halfbyte
