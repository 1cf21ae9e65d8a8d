// transform and transform_quantize through the door: the reference's bytes, and errors that say what is
// needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "core/float_environment.h"
#include "halfbyte/context.h"
#include "halfbyte/error.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"
#include "transform/hadamard.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;

enum class Scale { one, per_row, dynamic, dynamic_per_row };

struct Result {
    test::Quantized q;
    std::vector<float> encode, decode;
    QuantizeStats stats;

    Result(const NvFp4Shape& shape, Scale scale, uint8_t poison)
        : q(shape, poison),
          encode(scale == Scale::one || scale == Scale::dynamic ? 1 : size_t(shape.rows), -1.0f),
          decode(encode) {}
    TransformQuantizeArgs args(const OwnedMatrix& x, const BlockTransform& t, Scale scale,
                               const std::vector<float>& G, bool with_stats) {
        const bool dynamic = scale == Scale::dynamic || scale == Scale::dynamic_per_row;
        return {.x = x.input(),
                .transform = t,
                .quantize = {.x = {},
                             .encode_scale = dynamic ? nullptr : G.data(),
                             .scale_per_row = scale == Scale::per_row || scale == Scale::dynamic_per_row,
                             .dynamic_encode_scale = dynamic ? encode.data() : nullptr,
                             .dynamic_decode_scale = dynamic ? decode.data() : nullptr,
                             .shape = q.shape,
                             .codes = q.codes.data(),
                             .block_scales = q.scales.data(),
                             .stats = with_stats ? &stats : nullptr}};
    }
};

void expect_reference(const OwnedMatrix& x, const BlockTransform& t, const NvFp4Shape& shape, Scale scale,
                      bool with_stats = false) {
    SCOPED_TRACE(testing::Message() << x.rows() << " x " << x.cols() << ", n = " << t.n << ", scale "
                                    << int(scale));
    std::vector<float> G;
    for (int64_t row = 0; row <= x.rows(); row++) G.push_back(std::ldexp(3.0f, int(row % 5)));
    Result expected(shape, scale, 0);
    {
        const FloatEnvironment environment;
        reference::transform_quantize(expected.args(x, t, scale, G, with_stats));
    }
    for (const CpuLevelStatus& status : cpu_levels()) {
        if (!status.unsupported_reason.empty()) continue;
        for (const int threads : {1, 3}) {
            SCOPED_TRACE(testing::Message() << name_of(status.level) << ", threads " << threads);
            const Context context(threads, status.level);
            Result result(shape, scale, 0x7F);
            transform_quantize(context, result.args(x, t, scale, G, with_stats));
            EXPECT_EQ(result.encode, expected.encode);
            EXPECT_EQ(result.decode, expected.decode);
            EXPECT_TRUE(test::same_bytes(result.q.codes.bytes(), expected.q.codes.bytes(),
                                         std::max<int64_t>(1, shape.padded_k / 2)));
            EXPECT_TRUE(test::same_bytes(result.q.scales.bytes(), expected.q.scales.bytes(),
                                         std::max<int64_t>(1, shape.padded_blocks())));
            EXPECT_TRUE(result.q.codes.guards_intact() && result.q.scales.guards_intact());
            EXPECT_EQ(result.stats.values, expected.stats.values);
            EXPECT_EQ(result.stats.blocks, expected.stats.blocks);
            EXPECT_EQ(result.stats.non_finite, expected.stats.non_finite);
            EXPECT_EQ(result.stats.clipped, expected.stats.clipped);
            EXPECT_EQ(result.stats.flushed, expected.stats.flushed);
        }
    }
}

}  // namespace

TEST(TransformQuantize, HasTheReferencesBytes) {
    constexpr ScaleLayout layouts[] = {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4};
    constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
    uint64_t seed = 0;
    for (const int64_t k : {20, 80, 464, 704, 1856})
        for (const int64_t n : {4, 5, 16, 29, 32, 64, 80, 116, 464})
            for (const int64_t rows : {0, 1, 33}) {
                if (k % n != 0) continue;
                const OwnedMatrix T = test::random_matrix(n, n, DType::f32, ++seed);
                OwnedMatrix x = test::random_matrix(rows, k, types[seed % 3], seed, 2.0f, k + 3);
                if (rows > 1) x.set(1, 3, NAN), x.set(rows - 1, k - 1, INFINITY);
                NvFp4Shape shape = NvFp4Shape::of(rows, k, layouts[seed % 3]);
                if (seed % 2 == 0) shape.padded_k += 64, shape.padded_rows += 3;
                const bool hadamard = std::has_single_bit(uint64_t(n)) && seed % 2 == 0;
                expect_reference(x, {.n = n, .matrix = hadamard ? nullptr : T.data(), .scale = 0.25f}, shape,
                                 Scale(seed % 4), seed % 5 == 0);
            }
}

// More than one part of 2^20 values: the scale of all rows is found first.
TEST(TransformQuantize, TakesManyRowsInParts) {
    const OwnedMatrix x = test::random_matrix(2700, 400, DType::bf16, 1);
    for (const Scale scale : {Scale::one, Scale::per_row, Scale::dynamic, Scale::dynamic_per_row})
        expect_reference(x, {.n = 16, .scale = 0.25f}, NvFp4Shape::of(2700, 400, ScaleLayout::tiled_128x4),
                         scale, true);
}

TEST(TransformQuantize, IsTheTwoOperationsOneAfterTheOther) {
    const OwnedMatrix x = test::random_matrix(7, 192, DType::bf16, 1);
    const OwnedMatrix T = test::random_matrix(48, 48, DType::bf16, 2);
    const BlockTransform t = {.n = 48, .matrix = T.data(), .matrix_type = DType::bf16, .scale = 0.3f};
    const Context context;
    OwnedMatrix y(7, 192);
    transform(context, {.x = x.input(), .transform = t, .y = y.view()});
    const float G = 50;
    const NvFp4Shape shape = NvFp4Shape::of(7, 192);
    test::Quantized two(shape), one(shape);
    quantize(context, {.x = y.input(),
                       .encode_scale = &G,
                       .shape = shape,
                       .codes = two.codes.data(),
                       .block_scales = two.scales.data()});
    transform_quantize(context, {.x = x.input(),
                                 .transform = t,
                                 .quantize = {.encode_scale = &G,
                                              .shape = shape,
                                              .codes = one.codes.data(),
                                              .block_scales = one.scales.data()}});
    EXPECT_TRUE(test::same_bytes(one.codes.bytes(), two.codes.bytes(), 96));
    EXPECT_TRUE(test::same_bytes(one.scales.bytes(), two.scales.bytes(), 12));
}

namespace {

std::string message(const ConstMatrix& x, const BlockTransform& t, ErrorKind kind = ErrorKind::usage) {
    const Context context(1);
    std::vector<float> memory(size_t(x.rows * x.stride) + 1, 7.0f);
    try {
        transform(context,
                  {.x = x, .transform = t, .y = {memory.data(), DType::f32, x.rows, x.cols, x.stride}});
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), kind);
        EXPECT_EQ(std::count(memory.begin(), memory.end(), 7.0f), int64_t(memory.size()));
        return error.what();
    }
    return "";
}

}  // namespace

TEST(Transform, RefusesWhatDoesNotDivideWithTheSizesThatWould) {
    const std::vector<float> numbers(64 * 64);
    const auto x = [&](int64_t k) { return ConstMatrix{numbers.data(), DType::f32, 1, k, k}; };
    EXPECT_EQ(message(x(704), {.n = 48, .matrix = numbers.data()}),
              "transform: x has K = 704, which transform.n = 48 does not divide; of the sizes from 16 on, "
              "these do: 16, 22, 32, 44, "
              "64, 88, 176, 352, 704");
    EXPECT_EQ(message(x(704), {.n = 128}),
              "transform: x has K = 704, which transform.n = 128 does not divide; of the powers of two from "
              "16 on, these do: 16, 32, "
              "64");
    EXPECT_EQ(message(x(40), {.n = 16}),
              "transform: x has K = 40, which transform.n = 16 does not divide; no power of two from 16 on "
              "does: pad x");
    EXPECT_EQ(
        message(x(7), {.n = 2, .matrix = numbers.data()}),
        "transform: x has K = 7, which transform.n = 2 does not divide; no size from 16 on does: pad x");
    EXPECT_NE(message({numbers.data(), DType::f32, 0, 0x30000, 0x30000}, {.n = 5, .matrix = numbers.data()})
                  .find("49152, 65536, 196608"),
              std::string::npos);
    EXPECT_EQ(message(x(48), {.n = 0}), "transform: transform.n = 0; at least 1 is needed");
    EXPECT_EQ(message(x(48), {.n = -16, .matrix = numbers.data()}),
              "transform: transform.n = -16; at least 1 is needed");
    EXPECT_EQ(message(x(48), {.n = 12}),
              "transform: transform.n = 12 without a matrix; the Hadamard transform by butterflies needs a "
              "power of two: give the "
              "matrix for another size");
    EXPECT_EQ(message(x(48), {.n = 12, .matrix = numbers.data(), .matrix_type = DType::f16}),
              "transform: transform.matrix_type is F16; BF16 and F32 are possible");
    EXPECT_EQ(message(x(48), {.n = 48, .matrix = numbers.data()}), "");
}

TEST(Transform, HasTheContractsArithmeticOnly) {
    const std::vector<uint16_t> numbers(256);
    const ConstMatrix x = {numbers.data(), DType::bf16, 1, 16, 16};
    EXPECT_EQ(message(x,
                      {.n = 16,
                       .matrix = numbers.data(),
                       .matrix_type = DType::bf16,
                       .accumulation = Accumulation::tensor_core},
                      ErrorKind::unsupported),
              "transform: transform.accumulation is tensor_core, the arithmetic of a GPU's matrix unit; on "
              "the CPU contract is "
              "needed");
}

}  // namespace halfbyte
