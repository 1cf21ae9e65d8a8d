// The W4A4 product at every level against the reference.
#include "cpu/every_level.h"
#include "cpu/operations.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte::test {
namespace {

struct Problem {
    Quantized a;
    PackedWeight w;
    std::vector<float> row_decode, column_decode;
    OwnedMatrix bias;

    Problem(const NvFp4Shape& shape, int64_t n, uint64_t seed, DType bias_type = DType::f32)
        : a(random_quantized(shape, seed)),
          w(pack(random_quantized(NvFp4Shape::of(n, shape.k), seed + 1))),
          bias(random_matrix(1, n, bias_type, seed + 2)) {
        Random random(seed + 3);
        for (int64_t m = 0; m < std::max<int64_t>(1, shape.rows); m++)
            row_decode.push_back(random.uniform(1e-4f, 1e-3f));
        for (int64_t i = 0; i < n; i++) column_decode.push_back(random.uniform(1e-4f, 1e-3f));
    }

    MatmulW4A4Args args(OwnedMatrix& d, bool per_row = true, bool with_bias = true) const {
        return {.a = a.view(),
                .w = &w,
                .row_decode = row_decode.data(),
                .row_decode_per_row = per_row,
                .column_decode = column_decode.data(),
                .bias = with_bias ? bias.data() : nullptr,
                .bias_type = bias.type(),
                .d = d.view()};
    }
};

void expect_reference_bits(const Problem& problem, DType type, bool per_row = true, bool with_bias = true) {
    const int64_t M = problem.a.shape.rows, n = problem.w.n;
    OwnedMatrix expected(M, n, type);
    by_reference(reference::matmul_w4a4, problem.args(expected, per_row, with_bias));
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix d(M, n, type, n + 3, 0x7F);
        kernels.matmul_w4a4(pool, problem.args(d, per_row, with_bias));
        EXPECT_TRUE(same_values(d.values(), expected.values(), std::max<int64_t>(1, n)));
        EXPECT_TRUE(d.gaps_intact());
        OwnedMatrix plain(M, n, type, n + 3, 0x7F);
        cpu::matmul_w4a4_plain_levels[size_t(kernels.level)](pool, problem.args(plain, per_row, with_bias));
        EXPECT_TRUE(same_values(plain.values(), expected.values(), std::max<int64_t>(1, n)));
    });
}

}  // namespace

TEST(MatmulW4A4, HasTheReferencesBitsForEverySize) {
    const int64_t sizes[][3] = {{0, 16, 16},   {3, 0, 16},     {2, 5, 0},       {1, 1, 1},      {1, 15, 15},
                                {15, 16, 16},  {16, 17, 17},   {17, 33, 33},    {1, 63, 65},    {33, 15, 63},
                                {63, 1, 65},   {65, 17, 1000}, {5, 33, 1024},   {9, 16, 1040},  {2, 65, 1040},
                                {1, 1000, 33}, {1, 1024, 17},  {3, 1040, 16},   {7, 3, 4111},   {131, 20, 47},
                                {1000, 2, 15}, {1040, 1, 1},   {40, 1000, 200}, {130, 17, 2080}};
    uint64_t seed = 1;
    for (const auto& [m, n, k] : sizes) {
        SCOPED_TRACE(testing::Message() << "M " << m << " N " << n << " K " << k);
        expect_reference_bits(Problem(NvFp4Shape::of(m, k), n, seed += 10), DType::f32);
    }
}

TEST(MatmulW4A4, ReadsEveryLayoutAndPadding) {
    uint64_t seed = 1000;
    for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4})
        for (const auto& [m, k] : std::vector<std::pair<int64_t, int64_t>>{
                 {128, 48}, {128, 80}, {150, 48}, {150, 80}, {64, 7152}}) {
            SCOPED_TRACE(testing::Message() << "layout " << int(layout) << " M " << m << " K " << k);
            NvFp4Shape shape = NvFp4Shape::of(m, k, layout);
            shape.padded_rows = round_up(m, 128);
            shape.padded_k = round_up(k, 64) + 64;
            expect_reference_bits(Problem(shape, 3, seed += 10), DType::f32);
        }
}

TEST(MatmulW4A4, RoundsToEveryOutputTypeWithEveryBias) {
    uint64_t seed = 2000;
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
        for (const DType bias : {DType::f32, DType::bf16, DType::f16}) {
            const Problem problem(NvFp4Shape::of(11, 100), 37, seed += 10, bias);
            expect_reference_bits(problem, type);
            expect_reference_bits(problem, type, false);
            expect_reference_bits(problem, type, true, false);
        }
}

TEST(MatmulW4A4, IgnoresGarbageBeyondTheLogicalShape) {
    for (const uint8_t garbage : {uint8_t(0x7F), uint8_t(0xFF)}) {
        NvFp4Shape shape = NvFp4Shape::of(9, 71, ScaleLayout::tiled_128x4);
        shape.padded_k += 32;
        Problem clean(shape, 20, 3000), dirty(shape, 20, 3000);
        dirty.a = Quantized(shape, garbage);
        for (int64_t row = 0; row < shape.rows; row++) {
            for (int64_t k = 0; k < shape.k; k++) dirty.a.set_code(row, k, clean.a.code(row, k));
            for (int64_t block = 0; block < shape.blocks(); block++)
                dirty.a.scales[dirty.a.scale_place(row, block)] = clean.a.scale(row, block);
        }
        OwnedMatrix expected(9, 20);
        by_reference(reference::matmul_w4a4, clean.args(expected));
        on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
            OwnedMatrix d(9, 20);
            kernels.matmul_w4a4(pool, dirty.args(d));
            EXPECT_TRUE(same_values(d.values(), expected.values(), 20));
        });
    }
}

TEST(MatmulW4A4, ReadsEveryScaleByteOfBothOperands) {
    for (const int64_t rows : {1, 2, 3, 4, 8, 16, 17}) {
        Problem problem(NvFp4Shape::of(rows, 16 * 16), 256, 4000);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t block = 0; block < 16; block++)
                problem.a.scales[problem.a.scale_place(row, block)] =
                    uint8_t(row * 16 + block);  // NaN: 0x7F and 0xFF
        for (int64_t n = 0; n < 256; n++)
            for (int64_t block = 0; block < 16; block++)
                problem.w.block_scales[size_t(packed_scale_byte(16, n, block))] =
                    uint8_t(block == n % 16 ? n : 0x38);
        expect_reference_bits(problem, DType::f32);
    }
}

TEST(MatmulW4A4, LargestSumsAreExact) {
    Problem problem(NvFp4Shape::of(10, 2048), 16, 5000);
    for (int64_t row = 0; row < 10; row++)
        for (int64_t k = 0; k < 2048; k++) problem.a.set_code(row, k, row % 2 == 0 ? 7 : 15);
    for (uint8_t& byte : problem.w.codes) byte = 0x77;
    expect_reference_bits(problem, DType::f32);
    for (uint8_t& byte : problem.w.codes) byte = 0xFF;
    expect_reference_bits(problem, DType::f32);
}

TEST(MatmulW4A4, ARowAloneEqualsTheRowInABatch) {
    const Problem problem(NvFp4Shape::of(19, 1072), 40, 6000);
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix batch(19, 40);
        kernels.matmul_w4a4(pool, problem.args(batch));
        for (int64_t row = 0; row < 19; row++) {
            OwnedMatrix alone(1, 40);
            MatmulW4A4Args args = problem.args(alone);
            args.a.codes += row * (1072 / 2);
            args.a.block_scales += row * (1072 / 16);
            args.a.shape = NvFp4Shape::of(1, 1072);
            args.row_decode += row;
            kernels.matmul_w4a4(pool, args);
            EXPECT_TRUE(same_values(alone.values(), batch.row(row).values(), 40));
        }
    });
}

}  // namespace halfbyte::test
