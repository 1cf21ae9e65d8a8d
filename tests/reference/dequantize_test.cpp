#include <gtest/gtest.h>

#include <cmath>

#include "format/e2m1.h"
#include "format/e4m3.h"
#include "reference/quantized.h"
#include "support/compare.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::Quantized;

// All 127 scales x 16 codes: the product is exact in all three types (at most 6 significant bits, 2^-10 to
// 2688).
TEST(Dequantize, CodeTimesScaleIsExactInEveryType) {
    Quantized q(NvFp4Shape::of(127, 16));
    for (int64_t byte = 0; byte < 127; byte++) {
        for (int64_t code = 0; code < 16; code++) q.set_code(byte, code, uint8_t(code));
        q.scales[q.scale_place(byte, 0)] = uint8_t(byte);
    }
    std::vector<double> exact;
    for (int byte = 0; byte < 127; byte++)
        for (int code = 0; code < 16; code++)
            exact.push_back(double(decode_e4m3(uint8_t(byte))) * double(decode_e2m1(uint8_t(code))));
    const std::vector<double> nothing(exact.size(), 0.0);
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
        EXPECT_TRUE(test::within(test::dequantize(q, 1.0f, type).values(), exact, nothing, 16))
            << name_of(type);
}

TEST(Dequantize, RoundsOnceAfterTheDecodeScaleAndOnceToTheType) {
    const Quantized q = test::random_quantized(NvFp4Shape::of(9, 48, ScaleLayout::tiled_8x4), 1);
    const float D = 0.00123f;
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        std::vector<float> expected;
        for (int64_t row = 0; row < 9; row++) {
            for (int64_t k = 0; k < 48; k++) {
                const double exact =
                    double(decode_e2m1(q.code(row, k))) * double(decode_e4m3(q.scale(row, k / 16)));
                expected.push_back(round_to_type(float(exact * double(D)), type));
            }
        }
        EXPECT_TRUE(test::same_values(test::dequantize(q, D, type).values(), expected, 48)) << name_of(type);
    }
}

TEST(Dequantize, AScalePerRowIsThatRowsOwn) {
    const Quantized q = test::random_quantized(NvFp4Shape::of(4, 33), 2);
    const std::vector<float> D = {0.5f, 0.013f, 3.0f, 1e-30f};
    OwnedMatrix y(4, 33);
    reference::dequantize({.a = q.view(), .decode_scale = D.data(), .scale_per_row = true, .y = y.view()});
    for (int64_t row = 0; row < 4; row++)
        EXPECT_TRUE(
            test::same_values(y.row(row).values(), test::dequantize(q, D[size_t(row)]).row(row).values(), 33))
            << row;
}

TEST(Dequantize, ByteFFIsThePairOfMinus6AndTheLowNibbleComesFirst) {
    Quantized q(NvFp4Shape::of(1, 4), 0);
    q.scales[0] = 0x38;
    q.codes[0] = 0xFF;
    q.codes[1] = 0xA1;
    EXPECT_EQ(test::dequantize(q, 1.0f).values(), (std::vector<float>{-6, -6, 0.5f, -1}));
}

TEST(Dequantize, AnAllZeroTensorIsExactlyZero) {
    const Quantized q = test::quantize(test::matrix_of(std::vector<float>(32 * 64), 32, 64),
                                       EncodeScale::from_amax(0).encode());
    for (const float value : test::dequantize(q, EncodeScale::from_amax(0).decode()).values())
        ASSERT_EQ(value, 0.0f);
}

}  // namespace
}  // namespace halfbyte
