// Quantise and dequantise at every level against the reference, byte by byte.
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "cpu/every_level.h"
#include "format/e4m3.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte::test {
namespace {

constexpr ScaleLayout layouts[] = {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4};
constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

void expect_reference_bytes(const ConstMatrix& x, const NvFp4Shape& shape, const std::vector<float>& G,
                            Rounding rounding = Rounding::contract, bool with_stats = false) {
    QuantizeArgs args{.x = x,
                      .encode_scale = G.data(),
                      .scale_per_row = G.size() > 1,
                      .rounding = rounding,
                      .shape = shape};
    Quantized expected(shape, 0x7F);
    QuantizeStats expected_stats;
    args.codes = expected.codes.data();
    args.block_scales = expected.scales.data();
    args.stats = &expected_stats;
    by_reference(reference::quantize, args);
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        for (const uint8_t poison : {uint8_t(0x7F), uint8_t(0xFF)}) {
            Quantized q(shape, poison);
            QuantizeStats stats;
            args.codes = q.codes.data();
            args.block_scales = q.scales.data();
            args.stats = with_stats ? &stats : nullptr;
            kernels.quantize(pool, args);
            EXPECT_TRUE(same_bytes(q.codes.bytes(), expected.codes.bytes(),
                                   std::max<int64_t>(1, shape.padded_k / 2)));
            EXPECT_TRUE(same_bytes(q.scales.bytes(), expected.scales.bytes(),
                                   std::max<int64_t>(1, shape.padded_blocks())));
            EXPECT_TRUE(q.codes.guards_intact() && q.scales.guards_intact());
            EXPECT_EQ(stats, with_stats ? expected_stats : QuantizeStats{});
        }
    });
}

// Values that fall on and beside every midpoint of a block whose scale byte is `scale`: y = SF * m +- ulps, G
// = 1.
OwnedMatrix midpoints() {
    constexpr float middles[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    OwnedMatrix x(126, 16 * 7);
    for (int scale = 1; scale <= 126; scale++) {
        const float SF = decode_e4m3(uint8_t(scale));
        for (int m = 0; m < 7; m++) {
            x.set(scale - 1, m * 16, 6 * SF);
            for (int i = 1; i < 16; i++) {
                const float middle = SF * middles[m];
                const float v = std::bit_cast<float>(std::bit_cast<uint32_t>(middle) + uint32_t(i / 2 - 3));
                x.set(scale - 1, m * 16 + i, i % 2 == 0 ? v : -v);
            }
        }
    }
    return x;
}

// Blocks that hold every kind of special value.
OwnedMatrix special_values(DType type) {
    const float inf = INFINITY;
    const std::vector<std::vector<float>> blocks = {
        {0.0f, -0.0f},
        {NAN, -NAN},
        {inf, -1.0f, 1e30f},
        {-inf, NAN, 0.0f, -0.0f},
        {NAN, 1.0f, -2.0f},
        {inf, -inf},
        {1e-30f, -1e-30f, NAN},
        {1e-45f, -1e-40f},
        {1e-5f, 1e-6f, -1e-7f},
        {3e38f, -3e38f, 1.0f},
        {448.0f, 2688.0f, 1e6f},
        {6.0f, 5.0f, 2.5f, 3.5f, 1.75f, 1.25f, 0.75f, 0.25f, -6.0f, -5.0f, -2.5f, -3.5f, -1.75f, -1.25f,
         -0.75f, -0.25f}};
    OwnedMatrix x(3, int64_t(blocks.size()) * 16 - 3, type);
    for (int64_t row = 0; row < 3; row++)
        for (int64_t k = 0; k < x.cols(); k++) {
            const auto& block = blocks[size_t(k / 16)];
            x.set(row, k, size_t(k % 16) < block.size() ? block[size_t(k % 16)] : row == 0 ? 0.0f : -0.0f);
        }
    return x;
}

}  // namespace

TEST(Quantize, HasTheReferencesBytesForEverySize) {
    const int64_t sizes[][2] = {{0, 16},   {3, 0},    {1, 1},    {15, 15},   {16, 16},   {17, 17},
                                {33, 33},  {63, 63},  {65, 65},  {1000, 17}, {1024, 16}, {1040, 1},
                                {3, 1000}, {2, 1024}, {5, 1040}, {300, 1040}};
    uint64_t seed = 1;
    for (const DType type : types)
        for (const auto& [rows, k] : sizes) {
            SCOPED_TRACE(testing::Message() << rows << " x " << k << " " << name_of(type));
            const OwnedMatrix x = random_matrix(rows, k, type, seed++, 3.0f, k + 7);
            expect_reference_bytes(x.view(), NvFp4Shape::of(rows, k), {100.0f}, Rounding::contract, true);
        }
}

TEST(Quantize, WritesAllPaddingOfEveryLayout) {
    for (const ScaleLayout layout : layouts)
        for (const auto& [rows, k] : std::vector<std::pair<int64_t, int64_t>>{
                 {128, 48}, {128, 80}, {150, 48}, {150, 80}, {64, 7152}, {5, 37}}) {
            const OwnedMatrix x = random_matrix(rows, k, DType::bf16, uint64_t(rows + k));
            for (const int64_t extra : {0, 1, 2, 3, 4}) {
                SCOPED_TRACE(testing::Message()
                             << rows << " x " << k << " layout " << int(layout) << " padding " << extra);
                NvFp4Shape shape = NvFp4Shape::of(rows, k, layout);
                shape.padded_rows += extra * 3;
                shape.padded_k += extra * 16;
                if (k < 1000 || extra < 2) expect_reference_bytes(x.view(), shape, {50.0f});
            }
        }
}

TEST(Quantize, RoundsEveryMidpointLikeTheReference) {
    const OwnedMatrix x = midpoints();
    for (const Rounding rounding : {Rounding::contract, Rounding::vllm})
        expect_reference_bytes(x.view(), NvFp4Shape::of(x.rows(), x.cols()), {1.0f}, rounding);
}

TEST(Quantize, GivesSpecialValuesTheirDefinedBytes) {
    for (const DType type : types)
        for (const Rounding rounding : {Rounding::contract, Rounding::vllm})
            for (const float G : {1.0f, 0x1p-100f, 1e30f, 3e38f, 1e-38f, 448.0f}) {
                SCOPED_TRACE(testing::Message()
                             << name_of(type) << " G " << G << " rounding " << int(rounding));
                const OwnedMatrix x = special_values(type);
                expect_reference_bytes(x.view(), NvFp4Shape::of(x.rows(), x.cols()), {G}, rounding, true);
            }
}

TEST(Quantize, TakesAScaleForEachRow) {
    const OwnedMatrix x = random_matrix(40, 100, DType::f32, 5);
    std::vector<float> G;
    for (int row = 0; row < 40; row++) G.push_back(std::ldexp(1.1f, row - 20));
    for (const ScaleLayout layout : layouts)
        expect_reference_bytes(x.view(), NvFp4Shape::of(40, 100, layout), G);
}

TEST(Quantize, RoundsRandomBitsLikeTheReference) {
    Random random(6);
    OwnedMatrix x(200, 512);
    for (int64_t row = 0; row < 200; row++)
        for (int64_t k = 0; k < 512; k++) {  // magnitudes of a block within a few binades of each other
            const uint32_t exponent = uint32_t(1 + row + (k / 16) % 40 + random.below(5));
            x.set(row, k, std::bit_cast<float>((random.bits() & 0x807FFFFF) | exponent << 23));
        }
    for (const Rounding rounding : {Rounding::contract, Rounding::vllm})
        expect_reference_bytes(x.input(), NvFp4Shape::of(200, 512), {1.7f}, rounding, true);
}

// The magnitudes at which codes begin, and their neighbours, of BF16 and FP16 and of every block scale, in so
// many rows that thresholds are found for them; G of every kind, so that they are subnormal or infinite too.
TEST(Quantize, ComparesWithTheRightThresholds) {
    constexpr float middles[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    for (const DType type : {DType::bf16, DType::f16}) {
        for (const float G : {1.0f, 1.7f, 26880.0f, 0x1p-13f, 3e38f, 1e-38f}) {
            OwnedMatrix x(int64_t(126) * 80, 16, type);
            Random random(7);
            for (int64_t row = 0; row < x.rows(); row++) {
                const float SF = decode_e4m3(uint8_t(1 + row % 126));
                x.set(row, 0, 6 * SF / G);
                for (int64_t i = 1; i < 16; i++) {
                    x.set(row, i, middles[random.below(7)] * SF / G);
                    auto* bits = static_cast<uint16_t*>(x.data()) + row * 16 + i;
                    const int moved = (*bits & 0x7FFF) + int(random.below(5)) - 2;
                    *bits = uint16_t(std::clamp(moved, 0, 0x7FFF) | int(random.below(2)) << 15);
                }
            }
            SCOPED_TRACE(testing::Message() << name_of(type) << " G " << G);
            for (const bool with_stats : {false, true})
                expect_reference_bytes(x.input(), NvFp4Shape::of(x.rows(), 16), {G}, Rounding::contract,
                                       with_stats);
        }
    }
}

// Stores past the caches begin at 2^24 values; what is at no multiple of 64 bytes is stored as usual.
TEST(Quantize, LargeResultsAreWholeWhereverTheyLie) {
    const int64_t rows = 4097, k = 4096;
    OwnedMatrix x(rows, k, DType::bf16);
    Random random(8);
    for (int64_t i = 0; i < rows * k; i++)
        static_cast<uint16_t*>(x.data())[i] = uint16_t((random.bits() & 0x81FF) | 0x3D00);
    const NvFp4Shape shape = NvFp4Shape::of(rows, k);
    const float G = 100;
    std::vector<uint8_t> expected, expected_scales;
    std::vector<uint8_t> codes(size_t(shape.code_bytes()) + 128), scales(size_t(shape.scale_bytes()));
    for (const cpu::Level level : cpu::levels()) {
        if (!cpu::unsupported_reason(level).empty()) continue;
        for (const uintptr_t offset : {0, 8}) {
            std::fill(codes.begin(), codes.end(), uint8_t(0xFF));
            std::fill(scales.begin(), scales.end(), uint8_t(0xFF));
            uint8_t* const at =
                codes.data() + (64 - reinterpret_cast<uintptr_t>(codes.data()) % 64) % 64 + offset;
            cpu::kernels(level).quantize(pool_of(2), {.x = x.input(),
                                                      .encode_scale = &G,
                                                      .shape = shape,
                                                      .codes = at,
                                                      .block_scales = scales.data()});
            const std::vector<uint8_t> found(at, at + shape.code_bytes());
            if (expected.empty()) expected = found, expected_scales = scales;  // the scalar level's
            EXPECT_TRUE(found == expected) << cpu::name_of(level) << ", offset " << offset;
            EXPECT_TRUE(same_bytes(scales, expected_scales, shape.padded_blocks()))
                << cpu::name_of(level) << ", offset " << offset;
        }
    }
}

#if defined(__x86_64__)
TEST(Quantize, IgnoresTheCallersFlushToZero) {
    const OwnedMatrix x = special_values(DType::f32);
    const unsigned before = _mm_getcsr();
    Quantized expected(NvFp4Shape::of(x.rows(), x.cols()));
    const float G = 3e38f;
    QuantizeArgs args{.x = x.view(), .encode_scale = &G, .shape = expected.shape};
    args.codes = expected.codes.data();
    args.block_scales = expected.scales.data();
    by_reference(reference::quantize, args);
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        Quantized q(expected.shape);
        args.codes = q.codes.data();
        args.block_scales = q.scales.data();
        _mm_setcsr(before | 0x8040 | 0x6000);  // flush-to-zero, denormals-are-zero, rounding towards zero
        kernels.quantize(pool, args);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        EXPECT_EQ(after & 0xE040, 0xE040u);
        EXPECT_TRUE(same_bytes(q.codes.bytes(), expected.codes.bytes(), x.cols() / 2));
        EXPECT_TRUE(same_bytes(q.scales.bytes(), expected.scales.bytes(), x.cols() / 16));
    });
}
#endif

TEST(Dequantize, HasTheReferencesBitsForEveryTypeLayoutAndSize) {
    uint64_t seed = 1;
    for (const ScaleLayout layout : layouts)
        for (const DType type : types)
            for (const auto& [rows, k] : std::vector<std::pair<int64_t, int64_t>>{{0, 16},
                                                                                  {3, 0},
                                                                                  {1, 1},
                                                                                  {15, 15},
                                                                                  {16, 16},
                                                                                  {17, 17},
                                                                                  {33, 63},
                                                                                  {150, 80},
                                                                                  {5, 1040},
                                                                                  {300, 1000}}) {
                NvFp4Shape shape = NvFp4Shape::of(rows, k, layout);
                shape.padded_k += 32;
                const Quantized q = random_quantized(shape, seed++);
                const float D = 0.0371f;
                OwnedMatrix expected(rows, k, type);
                by_reference(reference::dequantize,
                             {.a = q.view(), .decode_scale = &D, .y = expected.view()});
                on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
                    OwnedMatrix y(rows, k, type, k + 3, 0x7F);
                    kernels.dequantize(pool, {.a = q.view(), .decode_scale = &D, .y = y.view()});
                    EXPECT_TRUE(same_values(y.values(), expected.values(), std::max<int64_t>(1, k)));
                    EXPECT_TRUE(y.gaps_intact());
                });
            }
}

TEST(Dequantize, TakesAScaleForEachRow) {
    const Quantized q = random_quantized(NvFp4Shape::of(40, 100), 7);
    std::vector<float> D;
    for (int row = 0; row < 40; row++) D.push_back(std::ldexp(1.1f, row - 20));
    for (const DType type : types) {
        OwnedMatrix expected(40, 100, type), y(40, 100, type);
        DequantizeArgs args{
            .a = q.view(), .decode_scale = D.data(), .scale_per_row = true, .y = expected.view()};
        by_reference(reference::dequantize, args);
        on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
            args.y = y.view();
            kernels.dequantize(pool, args);
            EXPECT_TRUE(same_values(y.values(), expected.values(), 100));
        });
    }
}

TEST(Dequantize, DecodesEveryCodeWithEveryScale) {
    Quantized q(NvFp4Shape::of(256, 16), 0);
    for (int64_t row = 0; row < 256; row++) {
        for (int64_t k = 0; k < 16; k++) q.set_code(row, k, uint8_t(k));
        q.scales[row] = uint8_t(row);
    }
    for (const DType type : types)
        for (const float D : {1.0f, 1e-3f, 0x1p-140f, 1e38f}) {
            OwnedMatrix expected(256, 16, type), y(256, 16, type);
            by_reference(reference::dequantize, {.a = q.view(), .decode_scale = &D, .y = expected.view()});
            on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
                kernels.dequantize(pool, {.a = q.view(), .decode_scale = &D, .y = y.view()});
                EXPECT_TRUE(same_values(y.values(), expected.values(), 16));
            });
        }
}

}  // namespace halfbyte::test
