// amax and the scales that follow from it, and quantising with them.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "reference/quantized.h"
#include "support/compare.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::Quantized;

struct Scales {
    std::vector<float> amax, encode, decode;
};

Scales scales_of(const ConstMatrix& x, bool per_row) {
    const size_t count = per_row ? size_t(x.rows) : 1;
    Scales s{std::vector<float>(count, -1), std::vector<float>(count, -1), std::vector<float>(count, -1)};
    reference::amax({.x = x,
                     .per_row = per_row,
                     .amax = s.amax.data(),
                     .encode_scale = s.encode.data(),
                     .decode_scale = s.decode.data()});
    return s;
}

// Rows of one kind each: numbers, zeros, NaN only, infinities beside a number, subnormals, the largest.
OwnedMatrix kinds(DType type = DType::f32) {
    OwnedMatrix x(6, 17, type, 20);
    for (int64_t k = 0; k < 17; k++) {
        x.set(0, k, float(k) - 8.5f);
        x.set(1, k, k % 2 == 0 ? 0.0f : -0.0f);
        x.set(2, k, NAN);
        x.set(3, k, k == 3 ? INFINITY : k == 4 ? -INFINITY : k == 16 ? -0.75f : 0.5f);
        x.set(4, k, k == 9 ? -0x1p-140f : 0x1p-141f);
        x.set(5, k, k == 0 ? FLT_MAX : 1.0f);
    }
    return x;
}

TEST(Amax, CountsFiniteValuesOnlyOfEachRow) {
    const OwnedMatrix x = kinds();
    const Scales s = scales_of(x.input(), true);
    EXPECT_EQ(s.amax, (std::vector<float>{8.5f, 0, 0, 0.75f, 0x1p-140f, FLT_MAX}));
    EXPECT_EQ(s.encode,
              (std::vector<float>{2688.0f / 8.5f, 1, 1, 3584, FLT_MAX, float(2688.0 / double(FLT_MAX))}));
    for (size_t row = 0; row < 6; row++) EXPECT_EQ(s.decode[row], float(1 / double(s.encode[row]))) << row;
    EXPECT_EQ(s.decode[4], 0x1p-128f);
}

TEST(Amax, OfAllRowsIsTheLargestOfEach) {
    OwnedMatrix x = kinds();
    EXPECT_EQ(scales_of(x.input(), false).amax, std::vector<float>{FLT_MAX});
    ConstMatrix first = x.input();
    first.rows = 5;
    const Scales s = scales_of(first, false);
    EXPECT_EQ(s.amax, std::vector<float>{8.5f});
    EXPECT_EQ(s.encode, std::vector<float>{2688.0f / 8.5f});
}

TEST(Amax, ReadsEveryElementAndNothingElse) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        for (const int64_t k : {1, 15, 16, 17, 33}) {
            OwnedMatrix x(3, k, type, k + 2);
            for (int64_t i = 0; i < 3 * k; i++) x.set(i / k, i % k, 0.25f);
            Matrix gaps = x.view();  // a large number behind every row
            for (int64_t row = 0; row < 3; row++)
                store_element(gaps.data, type, row * gaps.stride + k, 99.0f);
            for (int64_t i = 0; i < 3 * k; i++) {
                x.set(i / k, i % k, -2.0f);
                EXPECT_EQ(scales_of(x.input(), false).amax[0], 2.0f) << i;
                x.set(i / k, i % k, 0.25f);
            }
            EXPECT_EQ(scales_of(x.input(), false).amax[0], 0.25f);
        }
    }
}

TEST(Amax, OfNothingIsZeroAndGIs1) {
    for (const auto& [rows, k] : {std::pair(0, 16), {3, 0}, {0, 0}}) {
        const OwnedMatrix x(rows, k);
        const Scales all = scales_of(x.input(), false), each = scales_of(x.input(), true);
        EXPECT_EQ(all.amax, std::vector<float>{0});
        EXPECT_EQ(all.encode, std::vector<float>{1});
        EXPECT_EQ(all.decode, std::vector<float>{1});
        EXPECT_EQ(each.encode, std::vector<float>(size_t(rows), 1.0f));
    }
}

TEST(Amax, EveryResultMayBeLeftOut) {
    const OwnedMatrix x = kinds();
    float encode = -1;
    reference::amax({.x = x.input()});
    reference::amax({.x = x.input(), .encode_scale = &encode});
    EXPECT_EQ(encode, float(2688.0 / double(FLT_MAX)));
}

TEST(QuantizeDynamic, IsQuantisingWithTheScaleFound) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        for (const bool per_row : {false, true}) {
            for (const auto& [rows, k] : {std::pair(0, 16), {1, 0}, {1, 1}, {3, 15}, {2, 17}, {5, 33}}) {
                const OwnedMatrix x = test::random_matrix(rows, k, type, uint64_t(k + 1), 3.0f, k + 1);
                const Scales s = scales_of(x.input(), per_row);
                const size_t count = s.encode.size();
                const NvFp4Shape shape = NvFp4Shape::of(rows, k, ScaleLayout::tiled_8x4);
                Quantized expected(shape), q(shape, 0x7F);
                QuantizeStats expected_stats, stats;
                reference::quantize({.x = x.input(),
                                     .encode_scale = s.encode.data(),
                                     .scale_per_row = per_row,
                                     .shape = shape,
                                     .codes = expected.codes.data(),
                                     .block_scales = expected.scales.data(),
                                     .stats = &expected_stats});
                std::vector<float> encode(count + 1, -1), decode(count + 1, -1);
                QuantizeArgs args{.x = x.input(),
                                  .scale_per_row = per_row,
                                  .dynamic_encode_scale = encode.data(),
                                  .dynamic_decode_scale = decode.data(),
                                  .shape = shape,
                                  .codes = q.codes.data(),
                                  .block_scales = q.scales.data(),
                                  .stats = &stats};
                reference::quantize(args);
                EXPECT_TRUE(test::same_bytes(q.codes.bytes(), expected.codes.bytes(),
                                             std::max<int64_t>(1, shape.padded_k / 2)));
                EXPECT_TRUE(test::same_bytes(q.scales.bytes(), expected.scales.bytes(),
                                             std::max<int64_t>(1, shape.padded_blocks())));
                EXPECT_EQ(stats, expected_stats);
                EXPECT_TRUE(std::equal(s.encode.begin(), s.encode.end(), encode.begin()));
                EXPECT_TRUE(std::equal(s.decode.begin(), s.decode.end(), decode.begin()));
                EXPECT_EQ(encode[count], -1);  // nothing behind the last
                EXPECT_EQ(decode[count], -1);
                args.dynamic_decode_scale = nullptr;
                reference::quantize(args);
            }
        }
    }
}

TEST(QuantizeDynamic, PutsTheLargestFiniteValueOn448Times6) {
    const OwnedMatrix x = kinds();
    std::vector<float> encode(6);
    Quantized q(NvFp4Shape::of(6, 17));
    reference::quantize({.x = x.input(),
                         .scale_per_row = true,
                         .dynamic_encode_scale = encode.data(),
                         .shape = q.shape,
                         .codes = q.codes.data(),
                         .block_scales = q.scales.data()});
    EXPECT_EQ(q.scale(0, 0), 0x7E);
    EXPECT_EQ(q.code(0, 0), 15);
    for (int64_t k = 0; k < 17; k++) {
        EXPECT_EQ(q.code(1, k), k % 2 == 0 ? 0 : 8) << k;  // zeros keep their signs
        EXPECT_EQ(q.code(2, k), 7) << k;                   // NaN
    }
    EXPECT_EQ(q.scale(1, 0), 0);
    EXPECT_EQ(q.scale(2, 0), 0);
    EXPECT_EQ(q.scale(3, 0), 0x7E);  // the infinities' block
    EXPECT_EQ(q.code(3, 3), 7);
    EXPECT_EQ(q.code(3, 4), 15);
    EXPECT_EQ(q.scale(3, 1), 0x7E);  // -0.75 alone: the row's amax
    EXPECT_EQ(q.code(3, 16), 15);
    // G = FLT_MAX; s = FLT_MAX * 2^-140 / 6 is about 2^-14.6 and rounds to 0.
    EXPECT_EQ(q.scale(4, 0), 0);
    EXPECT_EQ(q.code(4, 9), 8);
    EXPECT_EQ(q.scale(5, 0), 0x7E);
    EXPECT_EQ(q.code(5, 0), 7);
}

}  // namespace
}  // namespace halfbyte
