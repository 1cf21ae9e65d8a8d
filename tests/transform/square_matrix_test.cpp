#include "transform/square_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "support/random.h"
#include "transform/hadamard.h"

namespace halfbyte {
namespace {

SquareMatrix identity(int64_t n) {
    SquareMatrix M{n, std::vector<double>(size_t(n * n))};
    for (int64_t i = 0; i < n; i++) M.values[size_t(i * n + i)] = 1;
    return M;
}

SquareMatrix random_normal(int64_t n, uint64_t seed) {
    test::Random random(seed);
    SquareMatrix M{n, {}};
    for (int64_t i = 0; i < n * n; i++) M.values.push_back(random.normal());
    return M;
}

SquareMatrix product(const SquareMatrix& A, const SquareMatrix& B) {
    SquareMatrix C{A.n, std::vector<double>(A.values.size())};
    for (int64_t i = 0; i < A.n; i++)
        for (int64_t k = 0; k < A.n; k++)
            for (int64_t j = 0; j < A.n; j++) C.values[size_t(i * A.n + j)] += A.at(i, k) * B.at(k, j);
    return C;
}

double largest(const SquareMatrix& M) {
    double most = 0;
    for (const double value : M.values) most = std::max(most, std::fabs(value));
    return most;
}

// FNV-1a over the signs, row after row.
uint64_t hash(const SquareMatrix& M) {
    uint64_t h = 0xCBF29CE484222325;
    for (const double value : M.values) h = (h ^ uint64_t(value < 0)) * 0x100000001B3;
    return h;
}

std::string signs_of_row(const SquareMatrix& M, int64_t i) {
    std::string text;
    for (int64_t j = 0; j < M.n; j++) text += M.at(i, j) == 1 ? '+' : M.at(i, j) == -1 ? '-' : '?';
    return text;
}

// In integers: H H^T = n I, every entry +-1.
void expect_hadamard(const SquareMatrix& H) {
    for (const double value : H.values) ASSERT_EQ(std::fabs(value), 1.0);
    for (int64_t i = 0; i < H.n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t k = 0; k < H.n; k++) sum += H.at(i, k) * H.at(j, k);
            ASSERT_EQ(sum, i == j ? double(H.n) : 0.0) << H.n << ": rows " << i << " and " << j;
        }
    }
}

}  // namespace

TEST(HadamardMatrix, OfEveryOrderThatHasOneUpTo200) {
    std::string without;
    for (int64_t n = 1; n <= 200; n++) {
        const auto H = hadamard_matrix(n);
        ASSERT_EQ(H.has_value(), has_hadamard_matrix(n)) << n;
        if (!H) {
            if (n % 4 == 0) without += std::to_string(n) + " ";
            continue;
        }
        ASSERT_TRUE(n <= 2 || n % 4 == 0) << n;
        ASSERT_EQ(H->n, n);
        expect_hadamard(*H);
    }
    // What Paley's constructions with primes, and Kronecker products, do not give.
    EXPECT_EQ(without, "52 92 100 116 156 172 184 188 ");
}

TEST(HadamardMatrix, OfTheWidthsOfModels) {
    for (const int64_t n : {576, 1536, 1856, 2880})  // 2: the squares of 1 / sqrt(n) as rounded
        EXPECT_LE(orthogonality_error(*hadamard_matrix(n), 1 / std::sqrt(double(n))), 2 * 0x1p-52) << n;
    for (const int64_t n : {3584, 4864, 8960, 10944, 11008, 14336, 18944, 29568})
        EXPECT_TRUE(has_hadamard_matrix(n)) << n;
    for (const int64_t n : {-4, 0, 3, 6, 80 + 1, 29566}) EXPECT_FALSE(hadamard_matrix(n).has_value()) << n;
}

TEST(HadamardMatrix, PowersOfTwoAreSylvesters) {
    for (const int64_t n : {1, 2, 16, 128, 512}) {
        const SquareMatrix H = *hadamard_matrix(n);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) ASSERT_EQ(H.at(i, j), double(sylvester(int(i), int(j))));
    }
}

// Squares modulo 11: 1 3 4 5 9; row i of the lower part is -1 and then the symbols of i - j, plus 1 at i.
TEST(HadamardMatrix, PaleysFirst) {
    const SquareMatrix H = *hadamard_matrix(12);
    EXPECT_EQ(signs_of_row(H, 0), "++++++++++++");
    EXPECT_EQ(signs_of_row(H, 1), "-+-+---+++-+");
    EXPECT_EQ(signs_of_row(H, 2), "-++-+---+++-");
    EXPECT_EQ(signs_of_row(H, 11), "--+---+++-++");
    EXPECT_EQ(signs_of_row(*hadamard_matrix(20), 1), "-+-++----+-+-++++--+");
}

// Squares modulo 13: 1 3 4 9 10 12; pairs of rows: C (x) [1 1; 1 -1] + 1 (x) [1 -1; -1 -1].
TEST(HadamardMatrix, PaleysSecond) {
    const SquareMatrix H = *hadamard_matrix(28);
    EXPECT_EQ(signs_of_row(H, 0), "+-++++++++++++++++++++++++++");
    EXPECT_EQ(signs_of_row(H, 1), "--+-+-+-+-+-+-+-+-+-+-+-+-+-");
    EXPECT_EQ(signs_of_row(H, 2), "+++-++--++++--------++++--++");
}

// The product is the one that the header writes: the smallest factor first, Sylvester's the slowest index.
TEST(HadamardMatrix, TheProductIsTheDocumentedOne) {
    const auto at = [](int64_t i, int64_t j, const std::vector<int64_t>& orders) {
        double value = 1;
        for (size_t f = orders.size(); f-- > 0;) {
            value *= hadamard_matrix(orders[f])->at(i % orders[f], j % orders[f]);
            i /= orders[f], j /= orders[f];
        }
        return value;
    };
    const std::pair<int64_t, std::vector<int64_t>> products[] = {
        {24, {2, 12}},      {80, {4, 20}},     {224, {8, 28}},      {240, {12, 20}},
        {576, {4, 12, 12}}, {1536, {128, 12}}, {2880, {12, 12, 20}}};
    for (const auto& [n, orders] : products) {
        const SquareMatrix H = *hadamard_matrix(n);
        test::Random random{uint64_t(n)};
        for (int round = 0; round < 300; round++) {
            const int64_t i = random.below(n), j = random.below(n);
            ASSERT_EQ(H.at(i, j), at(i, j, orders)) << n << ": " << i << ", " << j;
        }
    }
}

// From a Python program that writes the formulas of the header down once more.
TEST(HadamardMatrix, NeverChanges) {
    EXPECT_EQ(hash(*hadamard_matrix(12)), 0xC86487DE9BDDAA81u);
    EXPECT_EQ(hash(*hadamard_matrix(20)), 0x61F2379A6D18BA79u);
    EXPECT_EQ(hash(*hadamard_matrix(28)), 0x1AC8198321AB1A55u);
    EXPECT_EQ(hash(*hadamard_matrix(576)), 0x3B3BDA2391357825u);
}

TEST(RandomSigns, AreSplitMix64s) {
    // The first numbers from seed 1234567 are published with the generator: 6457827717110365317,
    // 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821.
    EXPECT_EQ(random_signs(5, 1234567), (std::vector<double>{1, 1, -1, 1, -1}));
    EXPECT_TRUE(random_signs(0, 1).empty());
    const std::vector<double> many = random_signs(4096, 7), few = random_signs(64, 7);
    EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
    double sum = 0;
    for (const double sign : many) sum += sign;
    EXPECT_LT(std::fabs(sum), 6 * 64.0);  // six standard deviations
    EXPECT_NE(random_signs(64, 8), few);
}

TEST(Transpose, SwapsRowsAndColumns) {
    for (const int64_t n : {1, 5, 16, 33}) {
        const SquareMatrix M = random_normal(n, uint64_t(n)), T = transpose(M);
        ASSERT_EQ(T.n, n);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) ASSERT_EQ(T.at(i, j), M.at(j, i));
    }
}

// Both sides, of matrices that are far from symmetric. n 2^-52 times |M| |M^-1| n is what elimination with
// partial pivoting leaves unless its entries grow, which those of random matrices do not by more than n.
// One step after the other on M beside the identity, as inverse() says. Panels and tiles change no bit.
TEST(Inverse, IsGaussJordanBitForBit) {
    const auto plain = [](SquareMatrix left) {
        const int64_t n = left.n;
        SquareMatrix right = identity(n);
        const auto at = [n](SquareMatrix& M, int64_t i, int64_t j) -> double& {
            return M.values[size_t(i * n + j)];
        };
        for (int64_t k = 0; k < n; k++) {
            int64_t pivot = k;
            for (int64_t i = k + 1; i < n; i++)
                if (std::fabs(left.at(i, k)) > std::fabs(left.at(pivot, k))) pivot = i;
            for (SquareMatrix* M : {&left, &right})
                for (int64_t j = 0; pivot != k && j < n; j++) std::swap(at(*M, k, j), at(*M, pivot, j));
            const double value = left.at(k, k);
            for (SquareMatrix* M : {&left, &right})
                for (int64_t j = 0; j < n; j++) at(*M, k, j) /= value;
            for (int64_t i = 0; i < n; i++) {
                const double factor = left.at(i, k);
                for (SquareMatrix* M : {&left, &right})
                    for (int64_t j = 0; i != k && j < n; j++) at(*M, i, j) -= factor * at(*M, k, j);
            }
        }
        return right;
    };
    for (const int64_t n : {1, 2, 3, 4, 31, 32, 33, 35, 63, 64, 97, 130}) {
        SquareMatrix sparse = identity(n);  // rows turned round, most entries zero
        for (int64_t i = 0; i < n; i++) {
            std::fill_n(sparse.values.begin() + i * n, n, 0.0);
            sparse.values[size_t(i * n + (i + 1) % n)] = double(i + 2);
            sparse.values[size_t(i * n + i)] = 0.5;
        }
        for (const SquareMatrix& M : {random_normal(n, uint64_t(n)), sparse}) {
            const auto I = inverse(M);
            ASSERT_TRUE(I.has_value()) << n;
            EXPECT_EQ(I->values, plain(M).values) << n;
        }
    }
}

TEST(Inverse, OfNonSymmetricMatrices) {
    for (const int64_t n : {1, 2, 5, 12, 33, 100}) {
        const SquareMatrix M = random_normal(n, uint64_t(n));
        const auto I = inverse(M);
        ASSERT_TRUE(I.has_value()) << n;
        const double bound = double(n * n * n) * 0x1p-52 * largest(M) * largest(*I);
        for (const SquareMatrix& P : {product(M, *I), product(*I, M)})
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < n; j++)
                    ASSERT_NEAR(P.at(i, j), i == j, bound) << n << ": " << i << ", " << j;
    }
}

// Exact steps: a zero where the first pivot would be, and a triangle whose inverse is not its transpose.
TEST(Inverse, ExchangesRows) {
    EXPECT_EQ(inverse({2, {0, 2, 1, 0}})->values, (std::vector<double>{0, 1, 0.5, 0}));
    EXPECT_EQ(inverse({3, {1, 2, 3, 0, 1, 4, 0, 0, 1}})->values,
              (std::vector<double>{1, -2, 5, 0, 1, -4, 0, 0, 1}));
    EXPECT_EQ(inverse({3, {0, 0, 4, 1, 0, 0, 0, 2, 0}})->values,
              (std::vector<double>{0, 1, 0, 0, 0, 0.5, 0.25, 0, 0}));
}

TEST(Inverse, RefusesSingularMatrices) {
    EXPECT_FALSE(inverse({1, {0}}).has_value());
    EXPECT_FALSE(inverse({2, {1, 2, 2, 4}}).has_value());
    EXPECT_FALSE(
        inverse({3, {1, 2, 3, 4, 5, 6, 7, 8, 9}}).has_value());  // its last pivot is a rounding error
    EXPECT_FALSE(inverse({2, {1, 2, NAN, 4}}).has_value());
    EXPECT_FALSE(inverse({2, {1, INFINITY, 3, 4}}).has_value());
    EXPECT_TRUE(inverse({2, {1e-200, 0, 0, 1e-200}}).has_value());  // small, but not singular
}

TEST(OrthogonalityError, IsZeroForOrthogonalMatricesAndTheDistanceElse) {
    EXPECT_EQ(orthogonality_error(identity(7), 1), 0.0);
    EXPECT_EQ(orthogonality_error(identity(7), 2), 3.0);
    EXPECT_EQ(orthogonality_error(*hadamard_matrix(64), 0.125), 0.0);
    EXPECT_LE(orthogonality_error(*hadamard_matrix(12), 1 / std::sqrt(12.0)), 0x1p-51);
    EXPECT_EQ(orthogonality_error(*hadamard_matrix(12), 1), 11.0);
    SquareMatrix wrong = *hadamard_matrix(64);
    wrong.values[64 * 5 + 3] *= -1;  // the product with every other row becomes +-2
    EXPECT_EQ(orthogonality_error(wrong, 0.125), 2 / 64.0);
    SquareMatrix rotation{2, {0.6, 0.8, -0.8, 0.6}};
    EXPECT_LE(orthogonality_error(rotation, 1), 0x1p-52);
    rotation.values[1] = 0.9;
    EXPECT_NEAR(orthogonality_error(rotation, 1), 0.36 + 0.81 - 1, 1e-15);
}

// Every pair of rows counts, whatever the size of the tiles: entry (i, j) of the product is made wrong alone.
TEST(OrthogonalityError, LooksAtEveryPairOfRows) {
    for (const int64_t n : {1, 3, 4, 5, 9}) {
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < n; j++) {
                SquareMatrix M = identity(n);
                M.values[size_t(i * n + j)] += 0.5;
                EXPECT_EQ(orthogonality_error(M, 1), i == j ? 1.25 : 0.5) << n << ": " << i << ", " << j;
            }
        }
    }
}

TEST(OrthogonalityError, NamesTheWorstRow) {
    for (const int64_t n : {8, 12, 64}) {
        for (const int64_t row : {int64_t(0), int64_t(5), n - 1}) {
            for (const double factor : {-1.0, 0.5}) {  // +-1 still, and not
                SquareMatrix wrong = *hadamard_matrix(n);
                wrong.values[size_t(row * n + 3)] *= factor;
                int64_t worst = -1;
                orthogonality_error(wrong, 1 / std::sqrt(double(n)), &worst);
                EXPECT_EQ(worst, row) << n << ", " << factor;
            }
        }
    }
}

TEST(Invert, GivesTheConditionAndWhatIsWrongWithIt) {
    EXPECT_NEAR(invert(identity(7)).condition, 1, 1e-14);
    EXPECT_NEAR(invert(*hadamard_matrix(12)).condition, 1, 1e-14);
    const Inversion usable = invert({2, {1, 0, 0, 2}});
    EXPECT_EQ(usable.inverse->values, (std::vector<double>{1, 0, 0, 0.5}));
    EXPECT_NEAR(usable.condition, std::sqrt(5 * 1.25) / 2, 1e-15);
    EXPECT_EQ(usable.fault(), "");
    EXPECT_EQ(invert({2, {1, 0, 0, 1e-5}}).fault(),
              "has the condition 5e+04; a condition |T| |T^-1| / n of at most 4096 is needed (1 for an "
              "orthogonal matrix)");
    for (const SquareMatrix& M : {SquareMatrix{2, {1, 2, 2, 4}}, SquareMatrix{2, {0, 0, 0, 0}},
                                  SquareMatrix{2, {1e-200, 0, 0, 1e-200}}})
        EXPECT_EQ(invert(M).fault().find("is singular (condition infinite); "), 0u);
}

TEST(OrthogonalityError, OfWhatIsNotFiniteIsNotANumberOrInfinite) {
    for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
        for (const int64_t place : {0, 7, 24}) {
            SquareMatrix M = identity(5);
            M.values[size_t(place)] = bad;
            EXPECT_FALSE(std::isfinite(orthogonality_error(M, 1))) << bad << " at " << place;
        }
    }
}

TEST(PossibleBlockSizes, AreThoseThatDivideAndExist) {
    EXPECT_EQ(possible_block_sizes(80, true), "2, 4, 8, 16, 20, 40, 80");
    EXPECT_EQ(possible_block_sizes(464, true), "2, 4, 8, 16, 464");
    EXPECT_EQ(possible_block_sizes(704, true), "2, 4, 8, 16, 32, 44, 64, 88, 176, 352, 704");
    EXPECT_EQ(possible_block_sizes(1000, true), "2, 4, 8, 20, 40, 200, 500, 1000");
    EXPECT_EQ(possible_block_sizes(8, true), "2, 4, 8");
    EXPECT_EQ(possible_block_sizes(17, true), "none");
    EXPECT_EQ(possible_block_sizes(1, true), "none");
    EXPECT_EQ(possible_block_sizes(80, false), "2, 4, 5, 8, 10, 16, 20, 40, 80");
    EXPECT_EQ(possible_block_sizes(17, false), "17");
    EXPECT_EQ(possible_block_sizes(1, false), "none");
}

TEST(PossibleBlockSizes, AreShortenedInTheMiddle) {
    // 24 sizes are told, of the 25 of 2^25 the first 16 and the last 8.
    EXPECT_EQ(possible_block_sizes(1 << 24, true).find("..."), std::string::npos);
    EXPECT_EQ(possible_block_sizes(1 << 25, true),
              "2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, ..., 262144, "
              "524288, 1048576, 2097152, 4194304, 8388608, 16777216, 33554432");
}

}  // namespace halfbyte
