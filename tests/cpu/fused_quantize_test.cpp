// Producers that quantise their result, at every level against the reference, byte by byte.
#include "cpu/fused_quantize.h"

#include "cpu/every_level.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte::test {
namespace {

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

enum class Scale { one, per_row, dynamic, dynamic_per_row };
constexpr Scale all_scales[] = {Scale::one, Scale::per_row, Scale::dynamic, Scale::dynamic_per_row};

// What a fused operation writes.
struct Result {
    Quantized q;
    std::vector<float> encode, decode;
    QuantizeStats stats;
};

// operation(kernels or null for the reference, pool, quantize, residual or null): the reference's bytes,
// scales, statistics and residual on every level.
template <typename Operation>
void expect_reference(int64_t rows, int64_t k, DType type, const NvFp4Shape& shape, Scale scale,
                      const OwnedMatrix* residual, const Operation& operation) {
    SCOPED_TRACE(testing::Message() << rows << " x " << k << " " << name_of(type) << ", layout "
                                    << int(shape.layout) << ", scale " << int(scale) << ", residual "
                                    << (residual != nullptr));
    const bool per_row = scale == Scale::per_row || scale == Scale::dynamic_per_row;
    const bool dynamic = scale == Scale::dynamic || scale == Scale::dynamic_per_row;
    std::vector<float> G(per_row ? size_t(rows) : 1);
    for (size_t i = 0; i < G.size(); i++) G[i] = 40.0f + float(i);
    const auto run = [&](uint8_t poison, bool with_stats, const auto& body) {
        Result result{Quantized(shape, poison), std::vector<float>(G.size(), -1), {}, {}};
        result.decode = result.encode;
        body(QuantizeArgs{.x = {.type = type},
                          .encode_scale = dynamic ? nullptr : G.data(),
                          .scale_per_row = per_row,
                          .dynamic_encode_scale = dynamic ? result.encode.data() : nullptr,
                          .dynamic_decode_scale = dynamic ? result.decode.data() : nullptr,
                          .shape = shape,
                          .codes = result.q.codes.data(),
                          .block_scales = result.q.scales.data(),
                          .stats = with_stats ? &result.stats : nullptr});
        return result;
    };
    OwnedMatrix written(0, 0);
    if (residual != nullptr) written = *residual;
    const Result expected = run(0, true, [&](const QuantizeArgs& quantize) {
        const FloatEnvironment environment;
        operation(nullptr, nullptr, quantize, residual == nullptr ? Matrix{} : written.view());
    });
    bool with_stats = false;
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        with_stats = !with_stats;
        OwnedMatrix r(0, 0);
        if (residual != nullptr) r = *residual;
        const Result result = run(with_stats ? 0x7F : 0xFF, with_stats, [&](const QuantizeArgs& quantize) {
            operation(&kernels, &pool, quantize, residual == nullptr ? Matrix{} : r.view());
        });
        ASSERT_TRUE(same_bytes(result.q.codes.bytes(), expected.q.codes.bytes(),
                               std::max<int64_t>(1, shape.padded_k / 2)));
        ASSERT_TRUE(same_bytes(result.q.scales.bytes(), expected.q.scales.bytes(),
                               std::max<int64_t>(1, shape.padded_blocks())));
        ASSERT_TRUE(result.q.codes.guards_intact() && result.q.scales.guards_intact());
        ASSERT_EQ(result.encode, expected.encode);
        ASSERT_EQ(result.decode, expected.decode);
        ASSERT_EQ(result.stats, with_stats ? expected.stats : QuantizeStats{});
        ASSERT_TRUE(same_values(r.values(), written.values(), std::max<int64_t>(1, k)));
        ASSERT_TRUE(r.gaps_intact());
    });
}

// Every size with a shape and a layout of its own; all four kinds of scale.
template <typename Check>
void for_sizes(const Check& check) {
    constexpr ScaleLayout layouts[] = {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4};
    constexpr int64_t sizes[][2] = {{0, 16}, {3, 0},    {1, 1},    {15, 15},  {1, 16},    {2, 576},
                                    {5, 80}, {130, 33}, {33, 600}, {1, 4096}, {300, 1040}};
    uint64_t seed = 0;
    for (const DType type : types) {
        for (const auto& [rows, k] : sizes) {
            for (const Scale scale : all_scales) {
                if (rows == 0 && (scale == Scale::per_row || scale == Scale::dynamic_per_row)) continue;
                NvFp4Shape shape = NvFp4Shape::of(rows, k, layouts[++seed % 3]);
                if (seed % 2 == 0) shape.padded_rows += 3, shape.padded_k += 48;
                check(rows, k, type, shape, scale, seed);
            }
        }
    }
}

// Some of each: NaN, infinities, zeros, a row of zeros.
OwnedMatrix with_specials(int64_t rows, int64_t k, DType type, uint64_t seed) {
    OwnedMatrix x = random_matrix(rows, k, type, seed, 3.0f, k + int64_t(seed % 6));
    if (rows < 2 || k < 20) return x;
    x.set(1, 3, NAN);
    x.set(1, 17, INFINITY);
    for (int64_t i = 0; i < k && seed % 2 == 0; i++) x.set(0, i, i % 2 == 0 ? 0.0f : -0.0f);
    return x;
}

}  // namespace

TEST(FusedQuantize, SiluMulHasTheReferencesBytes) {
    for_sizes([](int64_t rows, int64_t k, DType type, const NvFp4Shape& shape, Scale scale, uint64_t seed) {
        const OwnedMatrix gate = with_specials(rows, k, type, seed),
                          up = with_specials(rows, k, type, seed + 1);
        expect_reference(
            rows, k, type, shape, scale, nullptr,
            [&](const cpu::Kernels* kernels, ThreadPool* pool, const QuantizeArgs& quantize, const Matrix&) {
                const SiluMulQuantizeArgs args{gate.input(), up.input(), quantize};
                kernels == nullptr ? reference::silu_mul_quantize(args)
                                   : cpu::silu_mul_quantize(*kernels, *pool, args);
            });
    });
}

TEST(FusedQuantize, RmsNormHasTheReferencesBytesAndResidual) {
    for_sizes([](int64_t rows, int64_t k, DType type, const NvFp4Shape& shape, Scale scale, uint64_t seed) {
        const OwnedMatrix x = with_specials(rows, k, type, seed),
                          r = random_matrix(rows, k, type, seed + 1, 2.0f, k + 3),
                          weight = random_matrix(1, k, types[seed % 3], seed + 2);
        expect_reference(rows, k, type, shape, scale, seed % 3 == 0 ? nullptr : &r,
                         [&](const cpu::Kernels* kernels, ThreadPool* pool, const QuantizeArgs& quantize,
                             const Matrix& residual) {
                             const RmsNormQuantizeArgs args{.x = x.input(),
                                                            .residual = residual,
                                                            .weight = weight.input(),
                                                            .epsilon = 1e-5f,
                                                            .quantize = quantize};
                             kernels == nullptr ? reference::rms_norm_quantize(args)
                                                : cpu::rms_norm_quantize(*kernels, *pool, args);
                         });
    });
}

// x' in FP32, as products quantise it; rows enough for tiles of a given matrix.
TEST(FusedQuantize, TransformHasTheReferencesBytes) {
    const OwnedMatrix T = random_matrix(16, 16, DType::bf16, 6);
    for (const BlockTransform& t :
         {BlockTransform{.n = 16, .scale = 0.25f}, BlockTransform{.n = 128, .scale = 0.5f},
          BlockTransform{.n = 16, .matrix = T.data(), .matrix_type = DType::bf16}}) {
        uint64_t seed = 0;
        for (const auto& [rows, blocks] : {std::pair<int64_t, int64_t>(0, 1), {1, 5}, {33, 3}, {300, 9}}) {
            for (const Scale scale : all_scales) {
                const int64_t k = blocks * t.n;
                if (rows == 0 && (scale == Scale::per_row || scale == Scale::dynamic_per_row)) continue;
                NvFp4Shape shape = NvFp4Shape::of(rows, k, ScaleLayout(++seed % 3));
                if (seed % 2 == 0) shape.padded_rows += 3, shape.padded_k += 48;
                const OwnedMatrix x = with_specials(rows, k, types[seed % 3], seed);
                expect_reference(rows, k, DType::f32, shape, scale, nullptr,
                                 [&](const cpu::Kernels* kernels, ThreadPool* pool,
                                     const QuantizeArgs& quantize, const Matrix&) {
                                     const TransformQuantizeArgs args{x.input(), t, quantize};
                                     kernels == nullptr ? reference::transform_quantize(args)
                                                        : cpu::transform_quantize(*kernels, *pool, args);
                                 });
            }
        }
    }
}

}  // namespace halfbyte::test
