// What quantising lost, and the largest magnitudes, at every level: the same bits as loops over the
// definition.
#include <cmath>

#include "cpu/every_level.h"
#include "reference/reference.h"
#include "support/matrix.h"

namespace halfbyte::test {
namespace {

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
constexpr int64_t sizes[][2] = {{0, 16}, {3, 0},   {1, 1},    {2, 15},  {4, 16},
                                {7, 33}, {9, 576}, {130, 80}, {1, 1040}};

}  // namespace

TEST(DecodeError, AddsInTheOrderOfK) {
    uint64_t seed = 1;
    for (const DType type : types) {
        for (const auto& [rows, k] : sizes) {
            const OwnedMatrix w = random_matrix(rows, k, type, ++seed, 1.0f, k + 5);
            NvFp4Shape shape = NvFp4Shape::of(rows, k, ScaleLayout(seed % 3));
            if (seed % 2 == 0) shape.padded_k += 32, shape.padded_rows += 2;
            const Quantized q = random_quantized(shape, seed);
            const float D = 0.0371f;
            OwnedMatrix y(rows, k);
            by_reference(reference::dequantize, {.a = q.view(), .decode_scale = &D, .y = y.view()});
            std::vector<double> signal(static_cast<size_t>(rows)), noise(signal);
            for (int64_t row = 0; row < rows; row++)
                for (int64_t i = 0; i < k; i++) {
                    const double value = w.at(row, i), error = value - double(y.at(row, i));
                    signal[size_t(row)] += value * value;
                    noise[size_t(row)] += error * error;
                }
            on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
                std::vector<double> s(size_t(rows), -1), n(s);
                kernels.decode_error(pool, {.w = w.input(),
                                            .a = q.view(),
                                            .decode_scale = D,
                                            .signal = s.data(),
                                            .noise = n.data()});
                EXPECT_EQ(s, signal) << rows << " x " << k << " " << name_of(type);
                EXPECT_EQ(n, noise) << rows << " x " << k << " " << name_of(type);
            });
        }
    }
}

TEST(LargestMagnitudes, FollowTheOrderOfTheBits) {
    uint64_t seed = 1;
    for (const DType type : types) {
        for (const auto& [rows, k] : sizes) {
            for (const float special : {0.0f, -INFINITY, NAN}) {
                OwnedMatrix x = random_matrix(rows, k, type, ++seed, 1.0f, k + 5);
                if (k > 0 && rows > 0 && special != 0) x.set(rows / 2, int64_t(seed) % k, special);
                on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
                    std::vector<float> largest(size_t(rows), -1);
                    kernels.largest_magnitudes(pool, x.input(), largest.data());
                    for (int64_t row = 0; row < rows; row++) {
                        float expected = 0;
                        bool nan = false;
                        for (int64_t i = 0; i < k; i++) {
                            nan |= std::isnan(x.at(row, i));
                            expected = std::max(expected, std::fabs(x.at(row, i)));
                        }
                        EXPECT_EQ(std::isnan(largest[size_t(row)]), nan);
                        if (nan) continue;
                        EXPECT_EQ(largest[size_t(row)], expected) << row << " of " << rows << " x " << k;
                    }
                });
            }
        }
    }
}

}  // namespace halfbyte::test
