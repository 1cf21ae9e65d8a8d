// Causal attention, FP32. Query row t sees the positions 0 to first_position + t:
//   s_i = fl(sum32(q * k_i) * scale), e_i = exp(fl(s_i - max s)), o = fl(sum32 over positions of e_i * v_i /
//   sum32(e))
//
// One piece of work is one head of keys and values and a few neighbouring query positions: the rows
// (position, head of the group) share every load of a key or value. Scores are products of
// sum32_product-inl.h. The weighted values are summed lane by lane: the positions of one lane (i mod 32) are
// walked through with the sums of `tile_rows` rows x 4 vectors of the head in registers, and the lanes are
// added by recursion in the order of sum32's tree.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "cpu/softmax-inl.h"
#include "cpu/sum32_product-inl.h"
#include "reference/reference.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

// sums[r][c]: the N lanes that remain when the 32 partial sums are added at distances 16 to N.
template <int R, typename W>
HWY_INLINE void score_tile(const float* x, int64_t x_stride, const W* const (&w)[tile_columns], int64_t K,
                           V (*sums)[panel_columns]) {
    V lanes[sum32_vectors][R][tile_columns];
    for (int pass = 0; pass < sum32_vectors; pass++) {
        V sum[R][tile_columns];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < tile_columns; c++) sum[r][c] = hn::Zero(F32());
        for (int64_t k = pass * N; k < K; k += 32) {
            V wide[tile_columns];
            for (int c = 0; c < tile_columns; c++) wide[c] = load(w[c] + k);
            for (int r = 0; r < R; r++) {
                const V xr = load(x + r * x_stride + k);
                for (int c = 0; c < tile_columns; c++) sum[r][c] = fma(xr, wide[c], sum[r][c]);
            }
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < tile_columns; c++) lanes[pass][r][c] = sum[r][c];
    }
    for (int half = sum32_vectors / 2; half > 0; half /= 2)
        for (int pass = 0; pass < half; pass++)
            for (int r = 0; r < R; r++)
                for (int c = 0; c < tile_columns; c++)
                    lanes[pass][r][c] = hn::Add(lanes[pass][r][c], lanes[pass + half][r][c]);
    for (int r = 0; r < R; r++)
        for (int c = 0; c < tile_columns; c++) sums[r][c] = lanes[0][r][c];
}

// The rows that share one head of keys and values: row r is query position first + r / group, head r % group
// of it.
struct Rows {
    const float* keys;  // of position 0; cache_stride from one position to the next
    const float* values;
    int64_t cache_stride, head_dim;
    float* scores;  // [rows, score_stride]
    int64_t score_stride;
    const int64_t* positions;  // [rows] that each row sees, ascending
    float* const* o;           // [rows] where its result goes
    const float* totals;       // [rows] sum32(e)
};

// scores[r, 16 keys from i on] = fl(sum32(q_r * k) * scale)
template <int R>
void score_rows(const Rows& rows, int64_t r, const float* q, int64_t padded_dim,
                const float* const (&keys)[panel_columns], int64_t i, V scale) {
    V sums[R][panel_columns];
    for (int c = 0; c < panel_columns; c += tile_columns) {
        const float* const four[tile_columns] = {keys[c], keys[c + 1], keys[c + 2], keys[c + 3]};
        score_tile<R>(q + r * padded_dim, padded_dim, four, padded_dim,
                      reinterpret_cast<V(*)[panel_columns]>(&sums[0][c]));
    }
    for (int j = 0; j < R; j++)
        for (int c = 0; c < panel_columns; c += N) {
            V each[N];
            for (int n = 0; n < N; n++) each[n] = sums[j][c + n];
            store(hn::Mul(add_lanes_of_each(each), scale), rows.scores + (r + j) * rows.score_stride + i + c);
        }
}

template <int R = tile_rows>
void score_all_rows(const Rows& rows, int64_t r, int64_t count, const float* q, int64_t padded_dim,
                    const float* const (&keys)[panel_columns], int64_t i, V scale) {
    for (; r + R <= count; r += R) score_rows<R>(rows, r, q, padded_dim, keys, i, scale);
    if constexpr (R > 1)
        if (r < count) score_all_rows<smaller_tile(R)>(rows, r, count, q, padded_dim, keys, i, scale);
}

// D vectors of a head from element d on; with D = 1 perhaps only `count` < N elements.
template <int D>
HWY_INLINE V load_value(const Rows& rows, int64_t position, int64_t d, int j, int64_t count) {
    const float* value = rows.values + position * rows.cache_stride + d + j * N;
    if constexpr (D == 1)
        if (count < N) return load_first(value, count);
    return load(value);
}

// out[R][D] = the sum over the positions of one lane of e * v.
template <int R, int D>
void sum_lane(const Rows& rows, int64_t r, int64_t d, int64_t count, int lane, V (&out)[R][D]) {
    V sum[R][D];
    for (int i = 0; i < R; i++)
        for (int j = 0; j < D; j++) sum[i][j] = hn::Zero(F32());
    const float* e = rows.scores + r * rows.score_stride;
    int64_t position = lane;
    for (; position < rows.positions[r]; position += 32) {  // seen by all rows
        V value[D];
        for (int j = 0; j < D; j++) value[j] = load_value<D>(rows, position, d, j, count);
        for (int i = 0; i < R; i++) {
            const V weight = set(e[i * rows.score_stride + position]);
            for (int j = 0; j < D; j++) sum[i][j] = fma(weight, value[j], sum[i][j]);
        }
    }
    for (int i = 1; i < R; i++)
        for (int64_t p = position; p < rows.positions[r + i]; p += 32)
            for (int j = 0; j < D; j++)
                sum[i][j] =
                    fma(set(e[i * rows.score_stride + p]), load_value<D>(rows, p, d, j, count), sum[i][j]);
    for (int i = 0; i < R; i++)
        for (int j = 0; j < D; j++) out[i][j] = sum[i][j];
}

// The sum of the lanes that are `lane` modulo `distance`, in the order of the tree.
template <int R, int D>
void sum_lanes(const Rows& rows, int64_t r, int64_t d, int64_t count, int lane, int distance,
               V (&out)[R][D]) {
    if (distance == 32) return sum_lane<R, D>(rows, r, d, count, lane, out);
    V other[R][D];
    sum_lanes<R, D>(rows, r, d, count, lane, 2 * distance, out);
    sum_lanes<R, D>(rows, r, d, count, lane + distance, 2 * distance, other);
    for (int i = 0; i < R; i++)
        for (int j = 0; j < D; j++) out[i][j] = hn::Add(out[i][j], other[i][j]);
}

template <int R, int D>
void weigh_values(const Rows& rows, int64_t r, int64_t d, int64_t count) {
    V sum[R][D];
    sum_lanes<R, D>(rows, r, d, count, 0, 1, sum);
    for (int i = 0; i < R; i++)
        for (int j = 0; j < D; j++) {
            const V o = hn::Div(sum[i][j], set(rows.totals[r + i]));
            if (D == 1 && count < N) {
                store_first(o, rows.o[r + i] + d, count);
            } else {
                store(o, rows.o[r + i] + d + j * N);
            }
        }
}

template <int R = tile_rows>
void weigh_all_rows(const Rows& rows, int64_t r, int64_t count) {
    for (; r + R <= count; r += R) {
        int64_t d = 0;
        for (; d + 4 * N <= rows.head_dim; d += 4 * N) weigh_values<R, 4>(rows, r, d, N);
        for (; d < rows.head_dim; d += N)
            weigh_values<R, 1>(rows, r, d, std::min<int64_t>(N, rows.head_dim - d));
    }
    if constexpr (R > 1)
        if (r < count) weigh_all_rows<smaller_tile(R)>(rows, r, count);
}

// Query positions first..first+queries of the heads that read head `kv` of keys and values.
void attend(const AttentionArgs& args, int64_t kv, int64_t first, int64_t queries) {
    const int64_t group = args.heads / args.kv_heads, count = queries * group, d = args.head_dim;
    const int64_t padded_dim = round_up(d, 32), visible = args.first_position + first + queries;
    const int64_t score_stride = round_up(visible, panel_columns);
    const auto buffer = std::make_unique_for_overwrite<float[]>(
        size_t(count * padded_dim + count * score_stride + panel_columns * padded_dim + count));
    float* const q = buffer.get();
    float* const scores = q + count * padded_dim;
    float* const padded_keys = scores + count * score_stride;
    float* const totals = padded_keys + panel_columns * padded_dim;
    const auto positions = std::make_unique_for_overwrite<int64_t[]>(size_t(count));
    const auto o = std::make_unique_for_overwrite<float*[]>(size_t(count));
    for (int64_t r = 0; r < count; r++) {
        const int64_t t = first + r / group, column = (kv * group + r % group) * d;
        widen(static_cast<const float*>(args.q.data) + t * args.q.stride + column, d, q + r * padded_dim,
              padded_dim, -0.0f);
        positions[size_t(r)] = args.first_position + t + 1;
        o[size_t(r)] = static_cast<float*>(args.o.data) + t * args.o.stride + column;
    }
    const Rows rows{args.keys + kv * d, args.values + kv * d, args.cache_stride, d,     scores,
                    score_stride,       positions.get(),      o.get(),           totals};

    const V scale = set(reference::attention_scale(d));
    for (int64_t i = 0; i < visible; i += panel_columns) {
        const float* keys[panel_columns];  // beyond the last one it is repeated; those scores are not used
        for (int c = 0; c < panel_columns; c++) {
            keys[c] = rows.keys + std::min(i + c, visible - 1) * args.cache_stride;
            if (padded_dim != d) {
                widen(keys[c], d, padded_keys + c * padded_dim, padded_dim, 0.0f);
                keys[c] = padded_keys + c * padded_dim;
            }
        }
        score_all_rows(rows, 0, count, q, padded_dim, keys, i, scale);
    }
    for (int64_t r = 0; r < count; r++) {
        float* e = scores + r * score_stride;
        totals[r] = exponentials(e, e, positions[size_t(r)]);
    }
    weigh_all_rows(rows, 0, count);
}

}  // namespace

void attention(ThreadPool& pool, const AttentionArgs& args) {
    const int64_t T = args.q.rows, group = args.heads / args.kv_heads;
    const int64_t queries = std::max<int64_t>(1, 2 * tile_rows / group);
    const int64_t blocks = (T + queries - 1) / queries, pieces = blocks * args.kv_heads;
    const int64_t operations = 4 * queries * group * args.head_dim * (args.first_position + T / 2 + 1);
    pool.parallel_for(pieces, grain_for(pool, pieces, operations), [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; piece++) {
            const int64_t first = piece / args.kv_heads * queries;
            attend(args, piece % args.kv_heads, first, std::min(queries, T - first));
        }
    });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<AttentionArgs>> attention_levels = HALFBYTE_PER_LEVEL(attention);
}  // namespace halfbyte::cpu
#endif
