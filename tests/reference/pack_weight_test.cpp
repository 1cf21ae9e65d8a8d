#include <gtest/gtest.h>

#include "format/gpu_weight.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte {
namespace {

using test::PoisonedBuffer;
using test::Quantized;

// Random codes and scales in padding and all: 256 scales, or only those that are positive and normal.
Quantized random_part(const NvFp4Shape& shape, uint64_t seed, bool special) {
    Quantized q(shape);
    test::Random random(seed);
    for (int64_t i = 0; i < shape.code_bytes(); i++) q.codes[i] = uint8_t(random.below(256));
    for (int64_t row = 0; row < shape.rows; row++)
        for (int64_t block = 0; block < shape.blocks(); block++)
            q.scales[q.scale_place(row, block)] =
                uint8_t(special ? random.below(256) : 8 + random.below(119));
    return q;
}

PoisonedBuffer packed(const std::vector<Quantized>& parts, uint8_t poison) {
    cuda::PackWeightArgs args = {.part_count = int(parts.size())};
    int64_t n = 0;
    for (size_t i = 0; i < parts.size(); i++) args.parts[i] = parts[i].view(), n += parts[i].shape.rows;
    PoisonedBuffer buffer(gpu_weight_bytes(n, parts[0].shape.k), poison);
    args.packed = buffer.data();
    reference::pack_weight(args);
    EXPECT_TRUE(buffer.guards_intact());
    return buffer;
}

TEST(PackWeight, UnpackingGivesTheCodesAndScalesBack) {
    uint64_t seed = 1;
    for (const int64_t k : {0, 1, 15, 16, 17, 64, 65, 80, 200})
        for (const ScaleLayout layout :
             {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4})
            for (const std::vector<int64_t>& rows :
                 {std::vector<int64_t>{0}, {1}, {16}, {17, 1}, {5, 0, 40, 3}, {1, 2, 3, 4, 5, 6, 7, 8}}) {
                std::vector<Quantized> parts;
                for (const int64_t one : rows) {
                    seed++;
                    parts.push_back(
                        random_part({one, k, one + 3, round_up(k, 16) + 32, layout}, seed, seed % 2 == 0));
                }
                const PoisonedBuffer w = packed(parts, 0xFF);
                ASSERT_TRUE(test::same_bytes(w.bytes(), packed(parts, 0x00).bytes(), 16));
                int64_t n = 0;
                for (const int64_t one : rows) n += one;
                const NvFp4Shape shape = NvFp4Shape::of(n, k);
                Quantized back(shape);
                reference::unpack_weight({{w.data(), n, k}, back.codes.data(), back.scales.data()});
                EXPECT_TRUE(back.codes.guards_intact() && back.scales.guards_intact());
                int64_t row = 0;
                std::vector<uint8_t> flags(size_t(gpu_strips(n)));
                for (const Quantized& part : parts)
                    for (int64_t own = 0; own < part.shape.rows; own++, row++) {
                        for (int64_t e = 0; e < shape.padded_k; e++)
                            ASSERT_EQ(back.code(row, e), e < k ? part.code(own, e) : 0) << row << " " << e;
                        for (int64_t block = 0; block < shape.blocks(); block++) {
                            ASSERT_EQ(back.scale(row, block), part.scale(own, block)) << row << " " << block;
                            if (gpu_scale_is_special(part.scale(own, block))) flags[size_t(row / 16)] = 1;
                        }
                    }
                for (int64_t strip = 0; strip < gpu_strips(n); strip++)
                    EXPECT_EQ(w[gpu_weight_flags(n, k) + strip], flags[size_t(strip)]) << strip;
            }
}

TEST(PackWeight, WhatIsNotThereIsCode0WithScale1) {
    const PoisonedBuffer w = packed({random_part({3, 20, 3, 32, ScaleLayout::linear}, 1, false)}, 0xFF);
    // As if [16, 64]: rows from 3 on and blocks from 2 on.
    Quantized whole(NvFp4Shape::of(16, 64));
    reference::unpack_weight({{w.data(), 16, 64}, whole.codes.data(), whole.scales.data()});
    for (int64_t row = 0; row < 16; row++)
        for (int64_t k = 0; k < 64; k++) {
            if (row >= 3 || k >= 20) {
                EXPECT_EQ(whole.code(row, k), 0) << row << " " << k;
            }
            if (row >= 3 || k >= 32) {
                EXPECT_EQ(whole.scale(row, k / 16), 0x38) << row << " " << k;
            }
        }
}

// The contract's numbers, whether the weight is packed for a CPU or for a GPU, and whether x is quantised
// before or on the way.
TEST(GpuMatmul, W4A4HasTheBytesOfTheOtherReference) {
    uint64_t seed = 100;
    for (const int64_t m : {1, 5, 17})
        for (const int64_t n : {1, 16, 37})
            for (const int64_t k : {1, 15, 80, 1008, 1040, 2100}) {
                const test::OwnedMatrix x = test::random_matrix(m, k, DType::bf16, ++seed);
                const NvFp4Shape shape = NvFp4Shape::of(m, k, ScaleLayout(seed % 3));
                Quantized a(shape);
                const std::vector<float> G(size_t(m), 37.5f);
                reference::quantize({.x = x.input(),
                                     .encode_scale = G.data(),
                                     .shape = shape,
                                     .codes = a.codes.data(),
                                     .block_scales = a.scales.data()});
                const Quantized weight = random_part(NvFp4Shape::of(n, k), ++seed, true);
                const PackedWeight cpu = test::pack(weight);
                const PoisonedBuffer gpu = packed({weight}, 0xFF);
                const test::OwnedMatrix Da = test::random_matrix(m, 1, DType::f32, ++seed),
                                        Dw = test::random_matrix(n, 1, DType::f32, ++seed),
                                        bias = test::random_matrix(1, n, DType::f16, ++seed, 1e3f);
                test::OwnedMatrix expected(m, n, DType::bf16), given = expected, fused = expected;
                const auto numbers = [](const test::OwnedMatrix& matrix) {
                    return static_cast<const float*>(matrix.data());
                };
                reference::matmul_w4a4(MatmulW4A4Args{.a = a.view(),
                                                      .w = &cpu,
                                                      .row_decode = numbers(Da),
                                                      .row_decode_per_row = true,
                                                      .column_decode = numbers(Dw),
                                                      .bias = bias.data(),
                                                      .bias_type = DType::f16,
                                                      .d = expected.view()});
                cuda::MatmulW4A4Args args = {.a = a.view(),
                                             .w = {gpu.data(), n, k},
                                             .row_decode = numbers(Da),
                                             .row_decode_per_row = true,
                                             .column_decode = numbers(Dw),
                                             .bias = bias.data(),
                                             .bias_type = DType::f16,
                                             .d = given.view()};
                reference::matmul_w4a4_packed(args);
                args.a = {}, args.x = x.input(), args.encode_scale = G.data(), args.d = fused.view();
                reference::matmul_w4a4_packed(args);
                for (int64_t row = 0; row < m; row++)
                    for (int64_t column = 0; column < n; column++) {
                        const float right = expected.at(row, column);
                        for (const float value : {given.at(row, column), fused.at(row, column)})
                            ASSERT_TRUE(value == right || (std::isnan(value) && std::isnan(right)))
                                << m << " " << n << " " << k << ": " << value << ", not " << right;
                    }
            }
}

}  // namespace
}  // namespace halfbyte
