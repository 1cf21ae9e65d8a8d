// RMSNorm, SiLU-and-mul, softmax and RoPE at every level against the reference.
#include "cpu/every_level.h"
#include "reference/reference.h"
#include "reference/rope_scaling.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte::test {
namespace {

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
constexpr int64_t sizes[][2] = {{0, 16},   {3, 0},    {1, 1},    {15, 15},   {16, 16}, {17, 17},
                                {3, 31},   {2, 32},   {33, 33},  {63, 63},   {9, 65},  {7, 1000},
                                {5, 1024}, {2, 1040}, {1040, 3}, {300, 1040}};

// Random numbers among which are zeros, subnormals, infinities and NaN.
OwnedMatrix hard_matrix(int64_t rows, int64_t cols, uint64_t seed, float scale = 30.0f) {
    OwnedMatrix x = random_matrix(rows, cols, DType::f32, seed, scale);
    constexpr float hard[] = {0.0f,    -0.0f,  1e-42f, -1e-42f, 88.7228f, 88.73f,    -104.0f,
                              -103.9f, -87.5f, 1e30f,  -1e30f,  INFINITY, -INFINITY, NAN};
    Random random(seed + 1);
    for (int64_t row = 1; row < rows; row += 2)
        for (int64_t k = 0; k < cols; k += 1 + random.below(9))
            x.set(row, k, hard[random.below(row % 4 == 1 ? 11 : 14)]);
    return x;
}

}  // namespace

TEST(RmsNorm, HasTheReferencesBits) {
    uint64_t seed = 1;
    for (const DType type : types)
        for (const auto& [rows, k] : sizes)
            for (const bool with_residual : {false, true}) {
                SCOPED_TRACE(testing::Message() << rows << " x " << k << " " << name_of(type));
                const OwnedMatrix x = random_matrix(rows, k, type, seed, 2.0f, k + 1);
                const OwnedMatrix weight = random_matrix(1, k, types[seed % 3], seed + 1);
                const OwnedMatrix before = random_matrix(rows, k, type, seed + 2, 1.0f, k + 2);
                seed += 10;
                const auto args = [&](OwnedMatrix& residual, OwnedMatrix& y) {
                    return RmsNormArgs{.x = x.view(),
                                       .residual = with_residual ? residual.view() : Matrix{},
                                       .weight = weight.view(),
                                       .epsilon = 1e-5f,
                                       .y = y.view()};
                };
                OwnedMatrix expected_residual = before, expected(rows, k, type);
                by_reference(reference::rms_norm, args(expected_residual, expected));
                on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
                    OwnedMatrix residual = before, y(rows, k, type, k + 3, 0x7F);
                    kernels.rms_norm(pool, args(residual, y));
                    EXPECT_TRUE(same_values(y.values(), expected.values(), std::max<int64_t>(1, k)));
                    EXPECT_TRUE(
                        same_values(residual.values(), expected_residual.values(), std::max<int64_t>(1, k)));
                    EXPECT_TRUE(y.gaps_intact() && residual.gaps_intact());
                });
            }
}

TEST(RmsNorm, MayWriteOverItsInput) {
    const OwnedMatrix x = random_matrix(5, 100, DType::f32, 1),
                      weight = random_matrix(1, 100, DType::bf16, 2);
    OwnedMatrix expected(5, 100);
    by_reference(
        reference::rms_norm,
        {.x = x.view(), .residual = {}, .weight = weight.view(), .epsilon = 1e-6f, .y = expected.view()});
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix y = x;
        kernels.rms_norm(
            pool, {.x = y.input(), .residual = {}, .weight = weight.view(), .epsilon = 1e-6f, .y = y.view()});
        EXPECT_TRUE(same_values(y.values(), expected.values(), 100));
    });
}

TEST(SiluMul, HasTheReferencesBits) {
    uint64_t seed = 1;
    for (const DType type : types)
        for (const auto& [rows, k] : sizes) {
            SCOPED_TRACE(testing::Message() << rows << " x " << k << " " << name_of(type));
            const OwnedMatrix gate = random_matrix(rows, k, type, seed++, 20.0f, k + 1),
                              up = random_matrix(rows, k, type, seed++, 1.0f, k + 2);
            OwnedMatrix expected(rows, k, type);
            by_reference(reference::silu_mul, {.gate = gate.view(), .up = up.view(), .y = expected.view()});
            on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
                OwnedMatrix y(rows, k, type, k + 3, 0x7F);
                kernels.silu_mul(pool, {.gate = gate.view(), .up = up.view(), .y = y.view()});
                EXPECT_TRUE(same_values(y.values(), expected.values(), std::max<int64_t>(1, k)));
                EXPECT_TRUE(y.gaps_intact());
            });
        }
}

// SiLU runs the exponential over its whole domain: every binade, both limits, NaN and the infinities.
TEST(SiluMul, TakesEveryExponentOfTheGate) {
    OwnedMatrix gate(2 * 256, 64), up(2 * 256, 64);
    Random random(3);
    for (int64_t row = 0; row < gate.rows(); row++)
        for (int64_t k = 0; k < 64; k++) {
            gate.set(row, k, std::bit_cast<float>(uint32_t(row) << 23 | (random.bits() & 0x7FFFFF)));
            up.set(row, k, 1.0f);
        }
    OwnedMatrix expected(gate.rows(), 64);
    by_reference(reference::silu_mul, {.gate = gate.input(), .up = up.input(), .y = expected.view()});
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix y = gate;  // may be the memory of gate
        kernels.silu_mul(pool, {.gate = y.input(), .up = up.input(), .y = y.view()});
        EXPECT_TRUE(same_values(y.values(), expected.values(), 64));
    });
}

TEST(Softmax, HasTheReferencesBits) {
    uint64_t seed = 1;
    for (const auto& [rows, k] : sizes) {
        SCOPED_TRACE(testing::Message() << rows << " x " << k);
        const OwnedMatrix x = hard_matrix(rows, k, seed += 10);
        OwnedMatrix expected(rows, k);
        by_reference(reference::softmax, {.x = x.view(), .y = expected.view()});
        on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
            OwnedMatrix y(rows, k, DType::f32, k + 3, 0x7F), in_place = x;
            kernels.softmax(pool, {.x = x.view(), .y = y.view()});
            kernels.softmax(pool, {.x = in_place.input(), .y = in_place.view()});
            EXPECT_TRUE(same_values(y.values(), expected.values(), std::max<int64_t>(1, k)));
            EXPECT_TRUE(same_values(in_place.values(), expected.values(), std::max<int64_t>(1, k)));
            EXPECT_TRUE(y.gaps_intact());
        });
    }
}

TEST(Rope, HasTheReferencesBits) {
    for (const int64_t head_dim : {2, 6, 34, 64, 80, 128}) {
        constexpr int64_t positions = 40, heads = 3;
        std::vector<float> cos(size_t(positions * head_dim / 2)), sin(cos.size());
        reference::rope_table(10000.0, {}, head_dim, positions, cos.data(), sin.data());
        for (const int64_t rows : {0, 1, 33}) {
            const int64_t cols = heads * head_dim;
            const OwnedMatrix x = random_matrix(rows, cols, DType::f32, uint64_t(head_dim), 1.0f, cols + 5);
            const auto args = [&](OwnedMatrix& y) {
                return RopeArgs{.x = y.view(),
                                .heads = heads,
                                .head_dim = head_dim,
                                .first_position = 7,
                                .cos = cos.data(),
                                .sin = sin.data()};
            };
            OwnedMatrix expected = x;
            by_reference(reference::rope, args(expected));
            on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
                OwnedMatrix y = x;
                kernels.rope(pool, args(y));
                EXPECT_TRUE(same_values(y.values(), expected.values(), cols));
                EXPECT_TRUE(y.gaps_intact());
            });
        }
    }
}

}  // namespace halfbyte::test
