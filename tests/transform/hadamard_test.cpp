#include "transform/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/compare.h"
#include "support/random.h"
#include "support/safetensors_file.h"

namespace halfbyte {
namespace {

constexpr int orders[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};

std::vector<float> sylvester_matrix(int n, const std::vector<float>& signs = {}) {
    std::vector<float> matrix;
    for (int k = 0; k < n; k++)
        for (int j = 0; j < n; j++)
            matrix.push_back((signs.empty() ? 1.0f : signs[size_t(k)]) * sylvester(k, j));
    return matrix;
}

TEST(Hadamard, TheFormulaIsTheMatrixOfCompressedTensors) {
    const test::SafetensorsFile golden(test::golden_path("transforms.safetensors"));
    for (const int n : {16, 32, 64, 128})
        EXPECT_TRUE(
            test::same_values(sylvester_matrix(n), golden["hadamard_" + std::to_string(n)].as<float>(), n))
            << n;
}

// Sylvester's own construction: S_2n = [[S, S], [S, -S]].
TEST(Hadamard, TheFormulaIsTheRecursion) {
    for (const int n : orders) {
        for (int i = 0; i < n; i++) {
            for (int j = 0; j < n; j++) {
                ASSERT_EQ(sylvester(i + n, j), sylvester(i, j)) << n;
                ASSERT_EQ(sylvester(i, j + n), sylvester(i, j)) << n;
                ASSERT_EQ(sylvester(i + n, j + n), -sylvester(i, j)) << n;
            }
        }
    }
    EXPECT_EQ(sylvester(0, 0), 1.0f);
}

// Integers below 2^10, 256 of them: every sum is exact in any order.
TEST(Hadamard, TheButterflyIsTheProductWithTheMatrix) {
    test::Random random(1);
    for (const int n : orders) {
        for (int round = 0; round < 20; round++) {
            std::vector<float> values, expected;
            for (int k = 0; k < n; k++) values.push_back(float(random.below(2047) - 1023));
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int k = 0; k < n; k++) sum += double(values[size_t(k)]) * double(sylvester(k, j));
                expected.push_back(float(sum));
            }
            hadamard_butterfly(values.data(), n);
            ASSERT_EQ(values, expected) << n;
        }
    }
}

// The order of the contract as a recursion: the last step joins the halves, so each half was finished before.
std::vector<float> by_halves(const std::vector<float>& x) {
    if (x.size() == 1) return x;
    const auto middle = x.begin() + std::ptrdiff_t(x.size() / 2);
    const std::vector<float> low = by_halves({x.begin(), middle}), high = by_halves({middle, x.end()});
    std::vector<float> y;
    for (size_t i = 0; i < low.size(); i++) y.push_back(float(double(low[i]) + double(high[i])));
    for (size_t i = 0; i < low.size(); i++) y.push_back(float(double(low[i]) - double(high[i])));
    return y;
}

TEST(Hadamard, TheButterflyRoundsEveryStepInItsOrder) {
    test::Random random(2);
    for (const int n : orders) {
        for (int round = 0; round < 50; round++) {
            std::vector<float> values;
            for (int k = 0; k < n; k++) values.push_back(std::ldexp(random.normal(), int(random.below(24))));
            const std::vector<float> expected = by_halves(values);
            hadamard_butterfly(values.data(), n);
            ASSERT_TRUE(test::same_values(values, expected, n)) << n;
        }
    }
}

// 1 beside 2^24 is lost; two of them that meet first are not. With h = 2 before h = 1 the sum would be 2^24
// + 2.
TEST(Hadamard, TheOrderIsVisible) {
    float values[] = {0x1p24f, 1, 0, 1};
    hadamard_butterfly(values, 4);
    EXPECT_EQ(values[0], 0x1p24f);
}

TEST(Hadamard, TheScaleIsOneRoundingOfTheInverseRoot) {
    EXPECT_EQ(hadamard_scale(32), std::bit_cast<float>(0x3E3504F3u));
    EXPECT_EQ(hadamard_scale(128), std::bit_cast<float>(0x3DB504F3u));
    for (const int n : orders) EXPECT_EQ(hadamard_scale(n), float(1 / std::sqrt(double(n)))) << n;
}

TEST(SylvesterSigns, RandomHadamardMatricesAreRecognisedWhereTheyAreSylvesters) {
    const test::SafetensorsFile golden(test::golden_path("transforms.safetensors"));
    for (const auto& [n, recognised] :
         {std::pair(16, true), {32, false}, {64, true}, {96, false}, {128, true}}) {
        const auto stored = golden["random_hadamard_" + std::to_string(n) + "_seed42"];
        std::vector<float> matrix;
        if (stored.dtype == "F64") {
            for (const double value : stored.as<double>()) matrix.push_back(float(value));
        } else {
            matrix = stored.as<float>();
        }
        const auto signs = sylvester_signs(matrix.data(), n);
        ASSERT_EQ(signs.has_value(), recognised) << n;
        if (!recognised) continue;
        EXPECT_TRUE(test::same_values(sylvester_matrix(n, *signs), matrix, n)) << n;
        EXPECT_NE(*signs, std::vector<float>(size_t(n), 1.0f)) << n;
    }
}

TEST(SylvesterSigns, EveryEntryCounts) {
    for (const int n : {1, 2, 4, 16, 32}) {
        test::Random random{uint64_t(n)};
        std::vector<float> signs;
        for (int k = 0; k < n; k++) signs.push_back(random.below(2) ? 1.0f : -1.0f);
        std::vector<float> matrix = sylvester_matrix(n, signs);
        EXPECT_EQ(sylvester_signs(matrix.data(), n), signs);
        for (size_t i = 0; i < matrix.size(); i++) {
            const float right = matrix[i];
            for (const float wrong :
                 {-right, 0.0f, 0.5f * right, std::nextafter(right, 2.0f), NAN, INFINITY}) {
                if (n == 1 && wrong == -right) continue;  // the other sign, and right
                matrix[i] = wrong;
                EXPECT_FALSE(sylvester_signs(matrix.data(), n).has_value())
                    << n << ": " << i << ", " << wrong;
            }
            matrix[i] = right;
        }
    }
}

// Signs stand at the rows, T_kj = signs[k] S_kj: the same signs at the columns are another matrix.
TEST(SylvesterSigns, SignsOfTheColumnsAreAnotherMatrix) {
    std::vector<float> matrix = sylvester_matrix(16);
    for (int k = 0; k < 16; k++) matrix[size_t(k * 16 + 3)] *= -1;
    EXPECT_FALSE(sylvester_signs(matrix.data(), 16).has_value());
}

TEST(SylvesterSigns, OrdersThatAreNoPowerOfTwoAreOther) {
    const std::vector<float> ones(144, 1.0f);
    for (const int64_t n : {0, 3, 12, -4}) EXPECT_FALSE(sylvester_signs(ones.data(), n).has_value()) << n;
}

}  // namespace
}  // namespace halfbyte
