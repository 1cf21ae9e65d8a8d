// A producer and the quantiser in one have the bytes of the two one after the other.
#include <gtest/gtest.h>

#include <functional>

#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"
#include "transform/hadamard.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::Quantized;

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

// Runs `fused` with a quantiser's arguments without x, and the quantiser with y as x; with given and dynamic
// scales, in plain and padded shapes.
void expect_bytes_of(const OwnedMatrix& y, const std::function<void(const QuantizeArgs&)>& fused) {
    const int64_t rows = y.rows(), k = y.cols();
    std::vector<float> G;
    for (int64_t row = 0; row < rows; row++) G.push_back(50.0f + float(row));
    for (const NvFp4Shape& shape :
         {NvFp4Shape::of(rows, k),
          NvFp4Shape{rows, k, rows + 3, round_up(k, 16) + 32, ScaleLayout::tiled_128x4},
          NvFp4Shape{rows, k, rows, round_up(k, 16) + 16, ScaleLayout::tiled_8x4}}) {
        for (const bool dynamic : {false, true}) {
            for (const bool per_row : {false, true}) {
                if (!dynamic && !per_row && rows == 0) continue;
                const size_t count = per_row ? size_t(rows) : 1;
                const auto run = [&](Quantized& q, QuantizeStats& stats, std::vector<float>& scales,
                                     const std::function<void(const QuantizeArgs&)>& operation) {
                    scales.assign(2 * count, -1);
                    operation({.x = {.type = y.type()},
                               .encode_scale = dynamic ? nullptr : G.data(),
                               .scale_per_row = per_row,
                               .dynamic_encode_scale = dynamic ? scales.data() : nullptr,
                               .dynamic_decode_scale = dynamic ? scales.data() + count : nullptr,
                               .shape = shape,
                               .codes = q.codes.data(),
                               .block_scales = q.scales.data(),
                               .stats = &stats});
                };
                Quantized expected(shape, 0x7F), q(shape, 0xFF);
                QuantizeStats expected_stats, stats;
                std::vector<float> expected_scales, scales;
                run(expected, expected_stats, expected_scales, [&](QuantizeArgs args) {
                    args.x = y.input();
                    reference::quantize(args);
                });
                run(q, stats, scales, fused);
                SCOPED_TRACE(testing::Message()
                             << rows << " x " << k << " " << name_of(y.type()) << ", layout "
                             << int(shape.layout) << ", dynamic " << dynamic << ", per row " << per_row);
                ASSERT_TRUE(test::same_bytes(q.codes.bytes(), expected.codes.bytes(),
                                             std::max<int64_t>(1, shape.padded_k / 2)));
                ASSERT_TRUE(test::same_bytes(q.scales.bytes(), expected.scales.bytes(),
                                             std::max<int64_t>(1, shape.padded_blocks())));
                ASSERT_TRUE(q.codes.guards_intact() && q.scales.guards_intact());
                ASSERT_EQ(scales, expected_scales);
                ASSERT_EQ(stats, expected_stats);
            }
        }
    }
}

constexpr int64_t sizes[] = {0, 1, 15, 17, 33};

TEST(FusedQuantize, SiluMul) {
    for (const DType type : types) {
        for (const int64_t rows : sizes) {
            for (const int64_t k : sizes) {
                const OwnedMatrix gate = test::random_matrix(rows, k, type, 1, 3.0f, k + 5),
                                  up = test::random_matrix(rows, k, type, 2, 3.0f, k + 2);
                OwnedMatrix y(rows, k, type);
                reference::silu_mul({.gate = gate.input(), .up = up.input(), .y = y.view()});
                expect_bytes_of(y, [&](const QuantizeArgs& quantize) {
                    reference::silu_mul_quantize(
                        {.gate = gate.input(), .up = up.input(), .quantize = quantize});
                });
            }
        }
    }
}

TEST(FusedQuantize, RmsNorm) {
    for (const DType type : types) {
        for (const int64_t rows : sizes) {
            for (const int64_t k : sizes) {
                const OwnedMatrix x = test::random_matrix(rows, k, type, 3, 3.0f, k + 5),
                                  weight = test::random_matrix(1, k, DType::bf16, 4);
                OwnedMatrix y(rows, k, type);
                RmsNormArgs args{.x = x.input(), .weight = weight.input(), .epsilon = 1e-5f, .y = y.view()};
                reference::rms_norm(args);
                expect_bytes_of(y, [&](const QuantizeArgs& quantize) {
                    reference::rms_norm_quantize(
                        {.x = x.input(), .weight = weight.input(), .epsilon = 1e-5f, .quantize = quantize});
                });
                OwnedMatrix expected = test::random_matrix(rows, k, type, 5, 2.0f, k + 1);
                args.residual = expected.view();
                reference::rms_norm(args);
                expect_bytes_of(y, [&](const QuantizeArgs& quantize) {
                    OwnedMatrix residual = test::random_matrix(rows, k, type, 5, 2.0f, k + 1);
                    reference::rms_norm_quantize({.x = x.input(),
                                                  .residual = residual.view(),
                                                  .weight = weight.input(),
                                                  .epsilon = 1e-5f,
                                                  .quantize = quantize});
                    EXPECT_TRUE(
                        test::same_values(residual.values(), expected.values(), std::max<int64_t>(1, k)));
                    EXPECT_TRUE(residual.gaps_intact());
                });
            }
        }
    }
}

// y has the type that quantize.x asks for: FP32 is x' as it is, BF16 and FP16 are x' rounded once.
TEST(FusedQuantize, Transform) {
    const OwnedMatrix T = test::random_matrix(16, 16, DType::bf16, 6);
    const std::vector<float> signs = {1, -1, -1, 1, 1, 1, -1, 1, -1, -1, -1, 1, 1, -1, 1, 1};
    for (const BlockTransform& t :
         {BlockTransform{.n = 16, .signs = signs.data(), .scale = hadamard_scale(16)},
          BlockTransform{.n = 32, .scale = hadamard_scale(32)}, BlockTransform{.n = 128, .scale = 1.0f},
          BlockTransform{.n = 16, .matrix = T.data(), .matrix_type = DType::bf16, .scale = 0.3f}}) {
        for (const DType type : types) {
            for (const DType result : types) {
                for (const int64_t rows : sizes) {
                    for (const int64_t k : {int64_t(0), t.n, 3 * t.n}) {
                        const OwnedMatrix x = test::random_matrix(rows, k, type, 7, 3.0f, k + 5);
                        OwnedMatrix y(rows, k, result);
                        reference::transform({.x = x.input(), .transform = t, .y = y.view()});
                        expect_bytes_of(y, [&](const QuantizeArgs& quantize) {
                            reference::transform_quantize(
                                {.x = x.input(), .transform = t, .quantize = quantize});
                        });
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace halfbyte
