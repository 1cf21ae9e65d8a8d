#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/exp.h"
#include "reference/reference.h"
#include "reference/sum32_oracle.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte {
namespace {

using test::OwnedMatrix;

struct Problem {
    int64_t T, first, heads, kv_heads, head_dim, cache_stride;
    OwnedMatrix q, keys, values;

    Problem(int64_t tokens, int64_t first_position, int64_t h, int64_t kv, int64_t d, uint64_t seed)
        : T(tokens),
          first(first_position),
          heads(h),
          kv_heads(kv),
          head_dim(d),
          cache_stride(kv * d + 4),
          q(test::random_matrix(T, heads * d, DType::f32, seed)),
          keys(test::random_matrix(first + T, kv * d, DType::f32, seed + 1, 1.0f, cache_stride)),
          values(test::random_matrix(first + T, kv * d, DType::f32, seed + 2, 1.0f, cache_stride)) {}

    AttentionArgs args(OwnedMatrix& o) const {
        return {.q = q.input(),
                .keys = static_cast<const float*>(keys.data()),
                .values = static_cast<const float*>(values.data()),
                .cache_stride = cache_stride,
                .heads = heads,
                .kv_heads = kv_heads,
                .head_dim = head_dim,
                .first_position = first,
                .o = o.view()};
    }
    OwnedMatrix run() const {
        OwnedMatrix o(T, heads * head_dim, DType::f32, heads * head_dim + 3);
        reference::attention(args(o));
        EXPECT_TRUE(o.gaps_intact());
        return o;
    }
};

// A score passes ceil(d/32) fma, 5 additions, the rounded scale and a product: gamma(ceil(d/32) + 7) of the
// sum of magnitudes; fl(s - m) adds R u, R the range of the scores; exp turns both into a relative error of
// its result and adds 3 u. This stands in the weights and in their sum; both sums pass ceil(n/32) + 5
// roundings more, the division one.
TEST(Attention, FollowsItsFormula) {
    for (const Problem& p :
         {Problem(1, 0, 1, 1, 64, 1), Problem(5, 0, 4, 2, 64, 2), Problem(3, 70, 6, 2, 80, 3),
          Problem(33, 31, 9, 3, 64, 4), Problem(1, 500, 2, 1, 16, 5)}) {
        std::vector<double> exact, tolerance;
        const double scale = 1 / std::sqrt(double(p.head_dim));
        for (int64_t t = 0; t < p.T; t++) {
            for (int64_t head = 0; head < p.heads; head++) {
                const int64_t positions = p.first + t + 1, kv = head / (p.heads / p.kv_heads) * p.head_dim;
                std::vector<double> scores;
                double score_error = 0;
                for (int64_t i = 0; i < positions; i++) {
                    double sum = 0, magnitude = 0;
                    for (int64_t k = 0; k < p.head_dim; k++) {
                        const double product =
                            double(p.q.at(t, head * p.head_dim + k)) * double(p.keys.at(i, kv + k));
                        sum += product, magnitude += std::fabs(product);
                    }
                    scores.push_back(sum * scale);
                    score_error = std::max(
                        score_error, test::gamma(std::ceil(double(p.head_dim) / 32) + 7) * magnitude * scale);
                }
                const auto [smallest, largest] = std::minmax_element(scores.begin(), scores.end());
                const double weight_error = score_error + (*largest - *smallest + 3) * test::u;
                double total = 0;
                for (const double score : scores) total += std::exp(score - *largest);
                for (int64_t k = 0; k < p.head_dim; k++) {
                    double sum = 0, magnitude = 0;
                    for (int64_t i = 0; i < positions; i++) {
                        const double term =
                            std::exp(scores[size_t(i)] - *largest) / total * double(p.values.at(i, kv + k));
                        sum += term, magnitude += std::fabs(term);
                    }
                    exact.push_back(sum);
                    tolerance.push_back(
                        1.01 *
                        (2 * weight_error + test::gamma(2 * (std::ceil(double(positions) / 32) + 5) + 1)) *
                        magnitude);
                }
            }
        }
        EXPECT_TRUE(test::within(p.run().values(), exact, tolerance, p.heads * p.head_dim))
            << p.T << " after " << p.first;
    }
}

TEST(Attention, EveryStepIsRounded) {
    const Problem p(40, 30, 4, 2, 48, 9);
    std::vector<float> expected;
    for (int64_t t = 0; t < p.T; t++) {
        for (int64_t head = 0; head < p.heads; head++) {
            const auto part = [&](const OwnedMatrix& matrix, int64_t row, int64_t column) {
                std::vector<float> values;
                for (int64_t k = 0; k < p.head_dim; k++) values.push_back(matrix.at(row, column + k));
                return values;
            };
            const int64_t positions = p.first + t + 1, kv = head / 2 * p.head_dim;
            std::vector<float> scores, e;
            for (int64_t i = 0; i < positions; i++) {
                const float dot = test::sum32_of(part(p.q, t, head * p.head_dim), part(p.keys, i, kv));
                scores.push_back(float(double(dot) * double(float(1 / std::sqrt(48.0)))));
            }
            const float largest = *std::max_element(scores.begin(), scores.end());
            for (const float score : scores)
                e.push_back(reference::exp(float(double(score) - double(largest))));
            for (int64_t k = 0; k < p.head_dim; k++) {
                std::vector<float> column;
                for (int64_t i = 0; i < positions; i++) column.push_back(p.values.at(i, kv + k));
                expected.push_back(float(double(test::sum32_of(e, column)) / double(test::sum32_of(e))));
            }
        }
    }
    EXPECT_TRUE(test::same_values(p.run().values(), expected, p.heads * p.head_dim));
}

TEST(Attention, ATokenHasTheSameBitsAloneAndInAChunk) {
    const Problem p(20, 13, 4, 2, 64, 6);
    const OwnedMatrix all = p.run();
    for (int64_t t = 0; t < p.T; t++) {
        OwnedMatrix q = p.q.row(t), o(1, p.heads * p.head_dim);
        AttentionArgs args = p.args(o);
        args.q = q.input();
        args.first_position = p.first + t;
        reference::attention(args);
        EXPECT_TRUE(test::same_values(o.values(), all.row(t).values(), p.heads * p.head_dim)) << t;
    }
}

TEST(Attention, LaterPositionsAndOtherHeadsAreNotSeen) {
    Problem p(4, 6, 4, 2, 32, 7);
    const OwnedMatrix before = p.run();
    for (int64_t k = 0; k < 64; k++)
        p.keys.set(9, k, NAN), p.values.set(9, k, NAN);  // the last token sees it, no other
    OwnedMatrix after = p.run();
    for (int64_t t = 0; t < 3; t++)
        EXPECT_TRUE(test::same_values(after.row(t).values(), before.row(t).values(), 128)) << t;
    EXPECT_TRUE(std::isnan(after.at(3, 0)));
    Problem other(4, 6, 4, 2, 32, 7);
    for (int64_t i = 0; i < 10; i++)
        for (int64_t k = 32; k < 64; k++)
            other.values.set(i, k, NAN);  // the second KV head: query heads 2 and 3
    after = other.run();
    for (int64_t t = 0; t < 4; t++) {
        for (int64_t k = 0; k < 64; k++) EXPECT_EQ(after.at(t, k), before.at(t, k));
        for (int64_t k = 64; k < 128; k++) EXPECT_TRUE(std::isnan(after.at(t, k)));
    }
}

TEST(Attention, OnePositionReturnsItsValue) {
    const Problem p(1, 0, 2, 1, 48, 8);
    const OwnedMatrix o = p.run();
    for (int64_t k = 0; k < 96; k++) EXPECT_EQ(o.at(0, k), p.values.at(0, k % 48));
}

TEST(AttentionScale, IsOneRoundingOfTheInverseRoot) {
    EXPECT_EQ(reference::attention_scale(64), 0.125f);
    EXPECT_EQ(reference::attention_scale(128), std::bit_cast<float>(0x3DB504F3u));
    EXPECT_EQ(reference::attention_scale(32), std::bit_cast<float>(0x3E3504F3u));
}

}  // namespace
}  // namespace halfbyte
