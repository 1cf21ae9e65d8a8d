// The W4A4 product against golden vectors from an independent implementation.
#include <gtest/gtest.h>

#include <cstring>

#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"
#include "support/safetensors_file.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;
using test::Quantized;

class GoldenProduct : public testing::TestWithParam<const char*> {
  protected:
    const test::SafetensorsFile golden_{test::golden_path("product.safetensors")};
    const std::string name_ = std::string(GetParam()) + ".";
    const int64_t M = golden_[name_ + "accumulator"].shape[0], N = golden_[name_ + "accumulator"].shape[1];
    const int64_t K = golden_[name_ + "a_codes"].shape[1] * 2;
    const Quantized a_ = operand("a", M), w_ = operand("w", N);
    const PackedWeight packed_ = test::pack(w_);
    const std::vector<float> ones_ = std::vector<float>(size_t(N), 1.0f);
    const std::vector<float> alpha_ = golden_[name_ + "alpha"].as<float>(),
                             bias_ = golden_[name_ + "bias"].as<float>();

    Quantized operand(const std::string& which, int64_t rows) const {
        Quantized q(NvFp4Shape::of(rows, K));
        const auto &codes = golden_[name_ + which + "_codes"], &scales = golden_[name_ + which + "_scale"];
        std::memcpy(q.codes.data(), codes.bytes.data(), codes.bytes.size());
        std::memcpy(q.scales.data(), scales.bytes.data(), scales.bytes.size());
        return q;
    }
    OwnedMatrix product(const std::vector<float>& alpha, const float* bias, DType type) const {
        OwnedMatrix d(M, N, type);
        const float one = 1.0f;
        reference::matmul_w4a4({.a = a_.view(),
                                .w = &packed_,
                                .row_decode = &one,
                                .column_decode = alpha.data(),
                                .bias = bias,
                                .d = d.view()});
        return d;
    }
};

TEST_P(GoldenProduct, AccumulatorAndFp32ResultsAreEqual) {
    EXPECT_TRUE(test::same_values(product(ones_, nullptr, DType::f32).values(),
                                  golden_[name_ + "accumulator"].as<float>(), N));
    EXPECT_TRUE(test::same_values(product(alpha_, nullptr, DType::f32).values(),
                                  golden_[name_ + "d_float32"].as<float>(), N));
    EXPECT_TRUE(test::same_values(product(alpha_, bias_.data(), DType::f32).values(),
                                  golden_[name_ + "d_bias_float32"].as<float>(), N));
}

TEST_P(GoldenProduct, TheResultIsRoundedOnceToTheOutputType) {
    const auto as_bytes = [&](const OwnedMatrix& d) {
        return std::span(static_cast<const uint8_t*>(d.data()), size_t(M * N * 2));
    };
    EXPECT_TRUE(test::same_bytes(as_bytes(product(alpha_, bias_.data(), DType::bf16)),
                                 golden_[name_ + "d_bias_bfloat16"].bytes, N * 2));
    EXPECT_TRUE(test::same_bytes(as_bytes(product(alpha_, bias_.data(), DType::f16)),
                                 golden_[name_ + "d_bias_float16"].bytes, N * 2));
}

TEST_P(GoldenProduct, TheOracleIsExactAndBoundsTheAccumulator) {
    std::vector<int64_t> sums(size_t(M * N)), magnitudes(size_t(M * N));
    reference::exact_product(a_.view(), packed_, sums.data(), magnitudes.data());
    EXPECT_EQ(sums, golden_[name_ + "exact_2_20"].as<int64_t>());
    std::vector<double> exact, bound;
    for (size_t i = 0; i < sums.size(); i++) {
        exact.push_back(double(sums[i]) * 0x1p-20);
        bound.push_back(reference::accumulator_bound(K, double(magnitudes[i]) * 0x1p-20));
    }
    EXPECT_TRUE(test::within(product(ones_, nullptr, DType::f32).values(), exact, bound, N));
}

INSTANTIATE_TEST_SUITE_P(Shapes, GoldenProduct,
                         testing::Values("1x1x16", "3x5x32", "5x33x80", "7x17x1088", "4x8x4096"));

}  // namespace
}  // namespace halfbyte
