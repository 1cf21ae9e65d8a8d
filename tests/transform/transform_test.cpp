#include "transform/transform.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/compare.h"
#include "support/safetensors_file.h"
#include "transform/square_matrix.h"

namespace halfbyte {
namespace {

std::vector<double> with_row_signs(const SquareMatrix& H, const std::vector<double>& signs) {
    std::vector<double> values = H.values;
    for (int64_t k = 0; k < H.n; k++)
        for (int64_t j = 0; j < H.n; j++) values[size_t(k * H.n + j)] *= signs[size_t(k)];
    return values;
}

}  // namespace

TEST(MakeTransform, TakesButterfliesForSylvestersMatrixWithSignsOfItsRows) {
    for (const int64_t n : {1, 2, 16, 128, 512}) {
        const SquareMatrix H = *hadamard_matrix(n);
        const Transform plain = make_transform(H.values, n, 1 / std::sqrt(double(n)));
        EXPECT_EQ(plain.n, n);
        EXPECT_TRUE(plain.matrix.empty() && plain.signs.empty()) << n;
        EXPECT_EQ(plain.scale, float(1 / std::sqrt(double(n))));
        EXPECT_EQ(plain.view().matrix, nullptr);
        EXPECT_EQ(plain.view().signs, nullptr);

        std::vector<double> signs = random_signs(n, 3);
        signs[0] = -1;
        const Transform random = make_transform(with_row_signs(H, signs), n, 1);
        EXPECT_TRUE(random.matrix.empty()) << n;
        EXPECT_EQ(random.signs, std::vector<float>(signs.begin(), signs.end()));
        EXPECT_EQ(random.view().signs, random.signs.data());
        EXPECT_EQ(random.view().n, n);
    }
}

// Signs of the columns, a normalised matrix, another order, and any other matrix are used as they stand.
TEST(MakeTransform, KeepsEveryOtherMatrix) {
    const SquareMatrix H = *hadamard_matrix(16);
    const std::vector<double> columns = transpose({16, with_row_signs(H, random_signs(16, 1))}).values;
    std::vector<double> quarter = H.values, wrong = H.values;
    for (double& value : quarter) value /= 4;
    wrong[255] = 0.5;
    for (const std::vector<double>& T : {columns, quarter, wrong}) {
        const Transform kept = make_transform(T, 16, 0.25);
        EXPECT_EQ(kept.matrix, std::vector<float>(T.begin(), T.end()));
        EXPECT_TRUE(kept.signs.empty());
        EXPECT_EQ(kept.scale, 0.25f);
        EXPECT_EQ(kept.view().matrix, kept.matrix.data());
        EXPECT_EQ(kept.view().matrix_type, DType::f32);
        EXPECT_EQ(kept.view().scale, 0.25f);
    }
    EXPECT_FALSE(make_transform(hadamard_matrix(12)->values, 12, 1).matrix.empty());
}

TEST(MakeTransform, RoundsEntriesAndScaleOnce) {
    const std::vector<double> T = {1.0 / 3, 1 + 0x1p-24, 1 + 0x1.8p-23, -1e300};
    const Transform made = make_transform(T, 2, 1 / std::sqrt(2.0));
    EXPECT_EQ(made.matrix, (std::vector<float>{0x1.555556p-2f, 1.0f, 1 + 0x1p-22f, -INFINITY}));
    EXPECT_EQ(made.scale, 0x1.6a09e6p-1f);
}

// The random Hadamard matrices that compressed-tensors made: those of 32 and 96 are not Sylvester's.
TEST(MakeTransform, LooksAtTheEntriesOfAFilesMatrix) {
    const test::SafetensorsFile golden(test::golden_path("transforms.safetensors"));
    for (const auto& [n, butterfly] :
         {std::pair(16, true), {32, false}, {64, true}, {96, false}, {128, true}}) {
        const auto stored = golden["random_hadamard_" + std::to_string(n) + "_seed42"];
        std::vector<double> T;
        if (stored.dtype == "F64") {
            for (const double value : stored.as<double>()) T.push_back(value);
        } else {
            for (const float value : stored.as<float>()) T.push_back(double(value));
        }
        EXPECT_EQ(make_transform(T, n, 1).matrix.empty(), butterfly) << n;
        // The squares of the scale are rounded twice.
        EXPECT_LE(orthogonality_error({n, T}, 1 / std::sqrt(double(n))), 0x1p-51) << n;
    }
}

}  // namespace halfbyte
