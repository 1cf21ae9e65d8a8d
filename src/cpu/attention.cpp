// Causal attention, FP32. Query row t sees the positions 0 to first_position + t:
//   s_i = fl(sum32(q * k_i) * scale), e_i = exp(fl(s_i - max s)), o = fl(sum32 over positions of e_i * v_i /
//   sum32(e))
//
// One piece of work is one head of keys and values and a few neighbouring query positions: the rows
// (position, head of the group) share every load of a key or value. Scores are sum32 products over the head:
// 16 keys at a time pass by all rows. The weighted values are sum32 products over the positions:
//   many rows  a few columns of the values are transposed, so that a register holds neighbouring positions as
//   it
//              holds those of e, and tiles of rows x 4 columns go over them pass by pass, as in
//              sum32_product-inl.h. In the last step, where some rows see more than others, values that a row
//              does not see become +0 and e is -0 there: fma(-0, +0, s) = s.
//   few rows   the values are read where they lie: the positions of one lane (i mod 32) are walked through
//   with
//              the sums of `tile_rows` rows x 4 vectors of the head in registers, and the lanes are added by
//              recursion in the order of sum32's tree.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <memory>

#include "cpu/softmax-inl.h"
#include "cpu/sum32_product-inl.h"
#include "reference/reference.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

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

inline constexpr int64_t key_block = 16;

// The sum32 product of a query in registers (64 elements) with a key: the N lanes that remain when the
// partial sums are added at distances 16 to N. The first product is not added to +0: the sign of a zero score
// has no effect on exp(s - m).
HWY_INLINE V score_64(const V (&q)[64 / N], const float* key) {
    V sum[sum32_vectors];
    for (int j = 0; j < sum32_vectors; j++) {
        sum[j] = hn::Mul(q[j], load(key + j * N));
        sum[j] = fma(q[j + sum32_vectors], load(key + 32 + j * N), sum[j]);
    }
    return add_vectors(sum);
}

// scores[0..16) = fl(sum32(q * k) * scale) of 16 keys. q is padded with -0 to a multiple of 32.
void score_row(const float* q, int64_t head_dim, const float* const (&keys)[key_block], V scale,
               float* scores) {
    for (int first = 0; first < key_block; first += N) {
        V each[N];
        if (head_dim == 64) {
            V registers[64 / N];
            for (int j = 0; j < 64 / N; j++) registers[j] = load(q + j * N);
            for (int c = 0; c < N; c++) each[c] = score_64(registers, keys[first + c]);
        } else {
            for (int c = 0; c < N; c += 2) {
                const float* const two[2] = {keys[first + c], keys[first + c + 1]};
                V sums[1][2];
                multiply_in_place<1, 2>(q, two, head_dim, 0, sums);
                each[c] = sums[0][0];
                each[c + 1] = sums[0][1];
            }
        }
        store(hn::Mul(add_lanes_of_each(each), scale), scores + first);
    }
}

// Columns of the values side by side for one piece: element [column / 4][pass][step][column % 4][lane], lanes
// being positions.
inline constexpr int value_columns = N > 8 ? N : 8;

// Four positions x four columns, transposed.
HWY_INLINE void transpose_values(const float* values, int64_t stride, float* out) {
    const hn::Full128<float> d;
    const hn::Full128<double> d64;
    const auto a = hn::LoadU(d, values), b = hn::LoadU(d, values + stride),
               c = hn::LoadU(d, values + 2 * stride), e = hn::LoadU(d, values + 3 * stride);
    const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b)),
               ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b)),
               ce_low = hn::BitCast(d64, hn::InterleaveLower(d, c, e)),
               ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_low, ce_low)), d, out);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_low, ce_low)), d, out + N);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ce_high)), d, out + 2 * N);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ce_high)), d, out + 3 * N);
}

// What lies behind the last position is left as it is; no row sees it.
void pack_values(const Rows& rows, int64_t column, int64_t visible, int64_t steps, float* out) {
    for (int64_t c = 0; c < value_columns; c += 4) {
        const float* values = rows.values + column + c;
        const auto place = [&](int64_t i) {
            return out + ((c / 4 * sum32_vectors + i % 32 / N) * steps + i / 32) * 4 * N + i % N;
        };
        int64_t i = 0;
        for (; i + 4 <= visible; i += 4)
            transpose_values(values + i * rows.cache_stride, rows.cache_stride, place(i));
        for (; i < visible; i++)
            for (int j = 0; j < 4; j++) place(i)[j * N] = values[i * rows.cache_stride + j];
    }
}

// One pass of R rows x 4 columns. All rows see the first `whole` steps.
template <int R>
HWY_INLINE void weigh_pass(const Rows& rows, int64_t r, const float* w, int64_t whole, int64_t steps,
                           int pass, V (&sum)[R][4]) {
    const float* e = rows.scores + r * rows.score_stride + pass * N;
    for (int i = 0; i < R; i++)
        for (int c = 0; c < 4; c++) sum[i][c] = hn::Zero(F32());
    int64_t step = 0;
    for (; step < whole; step++, w += 4 * N) {
        V value[4];
        for (int c = 0; c < 4; c++) value[c] = load(w + c * N);
        for (int i = 0; i < R; i++) {
            const V weight = load(e + i * rows.score_stride + step * 32);
            for (int c = 0; c < 4; c++) sum[i][c] = fma(weight, value[c], sum[i][c]);
        }
    }
    for (; step < steps; step++, w += 4 * N) {
        V value[4];
        for (int i = 0; i < R; i++) {
            if (i == 0 || rows.positions[r + i] != rows.positions[r + i - 1]) {
                const int64_t left = rows.positions[r + i] - step * 32 - pass * N;
                const auto seen =
                    hn::RebindMask(F32(), hn::Lt(hn::Iota(I32(), 0), hn::Set(I32(), int32_t(left))));
                for (int c = 0; c < 4; c++) value[c] = hn::IfThenElseZero(seen, load(w + c * N));
            }
            const V weight = load(e + i * rows.score_stride + step * 32);
            for (int c = 0; c < 4; c++) sum[i][c] = fma(weight, value[c], sum[i][c]);
        }
    }
}

// o[rows r.., columns column..column+value_columns) from packed values.
template <int R>
void weigh_tile(const Rows& rows, int64_t r, const float* packed, int64_t steps, int64_t column) {
    const int64_t whole = rows.positions[r] / 32;
    V each[R][value_columns];
    for (int c = 0; c < value_columns; c += 4) {
        HWY_ALIGN float lanes[sum32_vectors][R][4][N];
        for (int pass = 0; pass < sum32_vectors; pass++) {
            V sum[R][4];
            weigh_pass<R>(rows, r, packed + (c / 4 * sum32_vectors + pass) * steps * 4 * N, whole, steps,
                          pass, sum);
            for (int i = 0; i < R; i++)
                for (int j = 0; j < 4; j++) store(sum[i][j], lanes[pass][i][j]);
        }
        for (int i = 0; i < R; i++)
            for (int j = 0; j < 4; j++) {
                V parts[sum32_vectors];
                for (int pass = 0; pass < sum32_vectors; pass++) parts[pass] = load(lanes[pass][i][j]);
                each[i][c + j] = add_vectors(parts);
            }
    }
    for (int i = 0; i < R; i++)
        for (int c = 0; c < value_columns; c += N) {
            V group[N];
            for (int j = 0; j < N; j++) group[j] = each[i][c + j];
            store(hn::Div(add_lanes_of_each(group), set(rows.totals[r + i])), rows.o[r + i] + column + c);
        }
}

template <int R = tile_rows>
void weigh_packed(const Rows& rows, int64_t r, int64_t count, const float* packed, int64_t steps,
                  int64_t column) {
    for (; r + R <= count; r += R) weigh_tile<R>(rows, r, packed, steps, column);
    if constexpr (R > 1)
        if (r < count) weigh_packed<smaller_tile(R)>(rows, r, count, packed, steps, column);
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
void weigh_all_rows(const Rows& rows, int64_t r, int64_t count, int64_t first_column) {
    for (; r + R <= count; r += R) {
        int64_t d = first_column;
        for (; d + 4 * N <= rows.head_dim; d += 4 * N) weigh_values<R, 4>(rows, r, d, N);
        for (; d < rows.head_dim; d += N)
            weigh_values<R, 1>(rows, r, d, std::min<int64_t>(N, rows.head_dim - d));
    }
    if constexpr (R > 1)
        if (r < count) weigh_all_rows<smaller_tile(R)>(rows, r, count, first_column);
}

inline constexpr int64_t packed_rows = 4 * tile_rows;  // from which transposing the values pays

// Query positions first..first+queries of the heads that read head `kv` of keys and values.
void attend(const AttentionArgs& args, int64_t kv, int64_t first, int64_t queries) {
    const int64_t group = args.heads / args.kv_heads, count = queries * group, d = args.head_dim;
    const int64_t padded_dim = round_up(d, 32), visible = args.first_position + first + queries;
    const int64_t steps = steps_of(visible),
                  score_stride = steps * 32 + 16;  // rows in different sets of a cache
    const auto buffer = make_lines(count * (padded_dim + score_stride + 1) + steps * 32 * value_columns);
    float* const scores = buffer[0].values;
    float* const q = scores + count * score_stride;
    float* const packed = q + count * padded_dim;
    float* const totals = packed + steps * 32 * value_columns;
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
    for (int64_t i = 0; i < visible; i += key_block) {
        const float* keys[key_block];  // beyond the last one it is repeated; those scores are not used
        for (int64_t c = 0; c < key_block; c++)
            keys[c] = rows.keys + std::min(i + c, visible - 1) * args.cache_stride;
        for (int64_t r = 0; r < count; r++)
            if (i < positions[size_t(r)])
                score_row(q + r * padded_dim, d, keys, scale, scores + r * score_stride + i);
    }
    for (int64_t r = 0; r < count; r++) {
        float* e = scores + r * score_stride;
        totals[r] = exponentials(e, e, positions[size_t(r)]);
        std::fill(e + positions[size_t(r)], e + steps * 32, -0.0f);
    }
    int64_t column = 0;
    if (count >= packed_rows)
        for (; column + value_columns <= d; column += value_columns) {
            pack_values(rows, column, visible, steps, packed);
            weigh_packed(rows, 0, count, packed, steps, column);
        }
    weigh_all_rows(rows, 0, count, column);
}

}  // namespace

void attention(ThreadPool& pool, const AttentionArgs& args) {
    const int64_t T = args.q.rows, group = args.heads / args.kv_heads;
    // Neighbours whose rows, about 48, keep their scores in 256 KB. Blocks of them end at multiples of their
    // number, a power of two, so that all rows of one see the same steps but the last.
    int64_t queries = 1;
    while (queries < 16 && 2 * queries * group <= 64 &&
           2 * queries * group * (args.first_position + T) <= 1 << 16)
        queries *= 2;
    const int64_t before = args.first_position % queries, blocks = (before + T + queries - 1) / queries,
                  pieces = T == 0 ? 0 : blocks * args.kv_heads;
    const int64_t operations = 4 * queries * group * args.head_dim * (args.first_position + T / 2 + 1);
    pool.parallel_for(pieces, grain_for(pool, pieces, operations), [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; piece++) {
            const int64_t block = piece / args.kv_heads * queries - before,
                          first = std::max<int64_t>(0, block);
            attend(args, piece % args.kv_heads, first, std::min(block + queries, T) - first);
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
