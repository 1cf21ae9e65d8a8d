// Attention at every level against the reference.
#include "cpu/every_level.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte::test {
namespace {

struct Problem {
    int64_t heads, kv_heads, head_dim, first_position;
    OwnedMatrix q, keys, values;

    Problem(int64_t queries, int64_t first, int64_t n_heads, int64_t n_kv_heads, int64_t dim, uint64_t seed)
        : heads(n_heads),
          kv_heads(n_kv_heads),
          head_dim(dim),
          first_position(first),
          q(random_matrix(queries, n_heads * dim, DType::f32, seed, 1.0f, n_heads * dim + 3)),
          keys(random_matrix(first + queries, n_kv_heads * dim, DType::f32, seed + 1, 1.0f,
                             n_kv_heads * dim + 1)),
          values(random_matrix(first + queries, n_kv_heads * dim, DType::f32, seed + 2, 1.0f,
                               n_kv_heads * dim + 1)) {}

    AttentionArgs args(OwnedMatrix& o) const {
        return {.q = q.view(),
                .keys = static_cast<const float*>(keys.data()),
                .values = static_cast<const float*>(values.data()),
                .cache_stride = keys.view().stride,
                .heads = heads,
                .kv_heads = kv_heads,
                .head_dim = head_dim,
                .first_position = first_position,
                .o = o.view()};
    }
};

void expect_reference_bits(const Problem& problem) {
    const int64_t cols = problem.heads * problem.head_dim;
    OwnedMatrix expected(problem.q.rows(), cols);
    by_reference(reference::attention, problem.args(expected));
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix o(problem.q.rows(), cols, DType::f32, cols + 3, 0x7F);
        kernels.attention(pool, problem.args(o));
        EXPECT_TRUE(same_values(o.values(), expected.values(), cols));
        EXPECT_TRUE(o.gaps_intact());
    });
}

}  // namespace

TEST(Attention, HasTheReferencesBitsForEveryGrouping) {
    uint64_t seed = 1;
    for (const auto& [heads, kv_heads] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {9, 3}, {2, 2}, {4, 1}, {7, 1}, {16, 2}})
        for (const auto& [queries, first] :
             std::vector<std::pair<int64_t, int64_t>>{{0, 4}, {1, 0}, {1, 40}, {5, 0}, {17, 31}}) {
            SCOPED_TRACE(testing::Message()
                         << heads << "/" << kv_heads << " heads, " << queries << " queries from " << first);
            expect_reference_bits(Problem(queries, first, heads, kv_heads, 64, seed += 10));
        }
}

TEST(Attention, HasTheReferencesBitsForEveryHeadSize) {
    uint64_t seed = 1000;
    for (const int64_t head_dim : {1, 2, 15, 16, 31, 32, 33, 48, 80, 96, 128}) {
        SCOPED_TRACE(testing::Message() << "head_dim " << head_dim);
        expect_reference_bits(Problem(6, 29, 3, 1, head_dim, seed += 10));
    }
}

TEST(Attention, HasTheReferencesBitsForLongContexts) {
    expect_reference_bits(Problem(3, 1000, 3, 1, 64, 2000));
    expect_reference_bits(Problem(200, 0, 3, 1, 32, 2010));
    expect_reference_bits(Problem(37, 300, 9, 3, 64, 2020));
    expect_reference_bits(Problem(70, 13, 2, 1, 128, 2030));
    expect_reference_bits(Problem(1, 400, 2, 1, 70, 2040));
}

// What lies in later positions must not leak into earlier queries of the same chunk.
TEST(Attention, NonFiniteKeysAndValuesStayWithTheQueriesThatSeeThem) {
    Problem problem(12, 20, 3, 1, 64, 3000);
    problem.values.set(27, 5, INFINITY);
    problem.values.set(30, 6, NAN);
    problem.keys.set(29, 7, NAN);
    problem.keys.set(31, 8, INFINITY);
    expect_reference_bits(problem);
}

// The result is -0 only if every product and every lane is.
TEST(Attention, KeepsSignsOfZeroLikeTheReference) {
    for (const int64_t queries : {1, 20}) {
        Problem problem(queries, 300, 3, 1, 64, 3010);
        for (int64_t i = 0; i < 300 + queries; i++)
            for (int64_t k = 0; k < 64; k++) problem.values.set(i, k, k % 3 == 0 ? -0.0f : -0x1p-149f);
        expect_reference_bits(problem);
    }
}

TEST(Attention, AChunkEqualsItsPositionsOneByOne) {
    const Problem problem(23, 10, 9, 3, 64, 4000);
    on_every_level([&](const cpu::Kernels& kernels, ThreadPool& pool) {
        OwnedMatrix chunk(23, 9 * 64);
        kernels.attention(pool, problem.args(chunk));
        for (int64_t t = 0; t < 23; t++) {
            const OwnedMatrix q = problem.q.row(t);
            OwnedMatrix o(1, 9 * 64);
            AttentionArgs args = problem.args(o);
            args.q = q.view();
            args.first_position += t;
            kernels.attention(pool, args);
            EXPECT_TRUE(same_values(o.values(), chunk.row(t).values(), 9 * 64));
        }
    });
}

}  // namespace halfbyte::test
