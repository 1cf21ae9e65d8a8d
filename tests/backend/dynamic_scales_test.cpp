// Quantising with dynamic scales through a Context: the reference's bytes and scales at every level, and the
// argument errors.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "core/float_environment.h"
#include "halfbyte/context.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"
#include "support/throws.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::Quantized;

struct Result {
    Quantized q;
    std::vector<float> encode, decode;

    Result(const NvFp4Shape& shape, bool per_row, uint8_t poison)
        : q(shape, poison), encode(per_row ? size_t(shape.rows) : 1, -1), decode(encode) {}
    QuantizeArgs args(const OwnedMatrix& x, bool per_row) {
        return {.x = x.input(),
                .scale_per_row = per_row,
                .dynamic_encode_scale = encode.data(),
                .dynamic_decode_scale = decode.data(),
                .shape = q.shape,
                .codes = q.codes.data(),
                .block_scales = q.scales.data()};
    }
};

void expect_reference(const OwnedMatrix& x, bool per_row) {
    const NvFp4Shape shape = NvFp4Shape::of(x.rows(), x.cols(), ScaleLayout::tiled_128x4);
    Result expected(shape, per_row, 0);
    {
        const FloatEnvironment environment;
        reference::quantize(expected.args(x, per_row));
    }
    for (const CpuLevelStatus& status : cpu_levels()) {
        if (!status.unsupported_reason.empty()) continue;
        for (const int threads : {1, 3}) {
            SCOPED_TRACE(testing::Message() << name_of(status.level) << ", threads " << threads << ": "
                                            << x.rows() << " x " << x.cols() << ", per row " << per_row);
            const Context context(threads, status.level);
            Result result(shape, per_row, 0x7F);
            quantize(context, result.args(x, per_row));
            EXPECT_EQ(result.encode, expected.encode);
            EXPECT_EQ(result.decode, expected.decode);
            EXPECT_TRUE(test::same_bytes(result.q.codes.bytes(), expected.q.codes.bytes(),
                                         std::max<int64_t>(1, shape.padded_k / 2)));
            EXPECT_TRUE(test::same_bytes(result.q.scales.bytes(), expected.q.scales.bytes(),
                                         std::max<int64_t>(1, shape.padded_blocks())));
        }
    }
}

TEST(DynamicScales, HaveTheReferencesBits) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
        for (const bool per_row : {false, true})
            for (const auto& [rows, k] :
                 {std::pair<int64_t, int64_t>(0, 16), {3, 0}, {1, 1}, {15, 17}, {70, 33}})
                expect_reference(test::random_matrix(rows, k, type, uint64_t(rows + k), 3.0f, k + 3),
                                 per_row);
}

TEST(DynamicScales, SkipWhatIsNotFinite) {
    OwnedMatrix x(40, 20);
    for (int64_t i = 0; i < 40 * 20; i++) {
        const int64_t row = i / 20, k = i % 20;
        x.set(row, k, row % 4 == 0 ? 0.0f : row % 4 == 1 ? NAN : row % 4 == 2 ? 0x1p-140f : 0.5f);
        if (k == 7) x.set(row, k, row % 2 == 0 ? INFINITY : -INFINITY);
    }
    for (const bool per_row : {false, true}) expect_reference(x, per_row);
    const OwnedMatrix zeros = test::matrix_of(std::vector<float>(64), 4, 16);
    for (const bool per_row : {false, true}) expect_reference(zeros, per_row);
}

TEST(DynamicScales, ExactlyOneEncodeScaleIsNeeded) {
    const Context context(1);
    const OwnedMatrix x = test::random_matrix(2, 16, DType::f32, 1);
    Result result(NvFp4Shape::of(2, 16), true, 0x7F);
    const float G = 1;
    QuantizeArgs args = result.args(x, true);
    args.encode_scale = &G;
    EXPECT_TRUE(test::throws(ErrorKind::usage, "give one of the two", [&] { quantize(context, args); }));
    args.dynamic_encode_scale = nullptr;
    EXPECT_TRUE(test::throws(ErrorKind::usage, "give one of the two", [&] { quantize(context, args); }));
    args.encode_scale = nullptr;
    EXPECT_TRUE(test::throws(ErrorKind::usage, "no encode scale", [&] { quantize(context, args); }));
    EXPECT_EQ(result.q.codes[0], 0x7F);  // nothing was written
    EXPECT_EQ(result.decode[0], -1);
}

TEST(Dequantize, TheDecodeScaleIsNeededAndMayBeOnePerRow) {
    const Context context(1);
    const Quantized q = test::random_quantized(NvFp4Shape::of(3, 20), 2);
    OwnedMatrix y(3, 20), expected(3, 20);
    EXPECT_TRUE(test::throws(ErrorKind::usage, "no decode scale",
                             [&] { dequantize(context, {.a = q.view(), .y = y.view()}); }));
    const float D[] = {0.5f, 0.013f, 3.0f};
    const DequantizeArgs args{.a = q.view(), .decode_scale = D, .scale_per_row = true, .y = y.view()};
    dequantize(context, args);
    for (int64_t row = 0; row < 3; row++) {
        OwnedMatrix all(3, 20);
        reference::dequantize({.a = q.view(), .decode_scale = &D[row], .y = all.view()});
        for (int64_t k = 0; k < 20; k++) expected.set(row, k, all.at(row, k));
    }
    EXPECT_TRUE(test::same_values(y.values(), expected.values(), 20));
}

}  // namespace
}  // namespace halfbyte
