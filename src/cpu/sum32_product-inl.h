// The sum32 product of FP32 activations with rows of weights, shared by matmul_dense, matmul_w4a16 and
// attention: sums[m, n] = sum32 over K of x[m, k] * w[n, k].
//
// One lane of a register holds one of the 32 partial sums, so an output needs 32 / N registers. K counts in
// steps of 32; it is padded with x = -0 and w = +0: fma(-0, +0, s) = s for every s, also for s = -0.
//
// Few rows: the weights are read once, where they lie; all partial sums of a tile are in registers.
//
// Blocked form, for many rows. A register tile is `tile_rows` x 4 outputs and goes over K once for each of
// the 32 / N passes: pass p takes vector p of every step. Both operands lie in the order in which the tile
// reads them, and one pass over 16 outputs x `chunk_steps` steps of weights stays in L1 while `strip_rows`
// rows go by; the partial sums wait in a buffer.
#if defined(HALFBYTE_CPU_SUM32_PRODUCT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFBYTE_CPU_SUM32_PRODUCT_INL_H
#undef HALFBYTE_CPU_SUM32_PRODUCT_INL_H
#else
#define HALFBYTE_CPU_SUM32_PRODUCT_INL_H
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <memory>

#include "cpu/epilogue-inl.h"
#include "cpu/vectors-inl.h"
#include "format/scale_layout.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {

inline constexpr int tile_rows = N == 16 ? 6 : 3;  // 24 of 32 registers, or 12 of 16, are accumulators
// Rows that are left over go in tiles of 4, 2 and 1: fewer instantiations than one for every number.
constexpr int smaller_tile(int rows) {
    return rows > 4 ? 4 : rows > 2 ? 2 : 1;
}
inline constexpr int tile_columns = 4;
inline constexpr int panel_columns = 16;
inline constexpr int strip_rows = 24;                           // a multiple of tile_rows
inline constexpr int64_t chunk_steps = N == 16 ? 24 : 48;       // 24 KB of weights in a pass
inline constexpr int64_t block_rows = 5 * int64_t(strip_rows);  // that share one widening of the weights

struct alignas(64) Line {  // of a cache
    float values[16];
};

// Uninitialised and aligned; at least one line.
inline std::unique_ptr<Line[]> make_lines(int64_t floats) {
    return std::make_unique_for_overwrite<Line[]>(size_t(floats / 16 + 1));
}

inline constexpr int few_rows = N == 16 ? 4 : 3;  // with all 32 / N registers of an output
inline constexpr int64_t few_rows_ahead = 2048;   // bytes of a row that are asked for before they are read

inline int64_t steps_of(int64_t K) {
    return (K + 31) / 32;
}

// x in FP32, padded. Group g of R rows (tile_rows, then the smaller tiles for what is left) starts at row
// m * 32 * steps; in it element [pass][step][r][lane].
struct RowPanels {
    std::unique_ptr<Line[]> data;
    int64_t steps = 0;

    float* rows_from(int64_t m) const { return data[0].values + m * 32 * steps; }
};

// Calls body(first row, rows) for the groups of rows begin..end; begin is a multiple of tile_rows.
template <typename Body>
void for_each_group(int64_t begin, int64_t end, const Body& body) {
    for (int64_t m = begin; m < end;) {
        int64_t R = tile_rows;
        while (R > end - m) R = smaller_tile(int(R));
        body(m, R);
        m += R;
    }
}

template <typename T>
void pack_row(const T* x, int64_t K, int64_t steps, float* out, int64_t pass_stride, int64_t step_stride,
              float fill) {
    for (int64_t step = 0; step < steps; step++)
        for (int pass = 0; pass < sum32_vectors; pass++) {
            const int64_t k = step * 32 + pass * N;
            const V v = K - k >= N ? load(x + k) : K > k ? load_first(x + k, K - k, fill) : set(fill);
            store(v, out + pass * pass_stride + step * step_stride);
        }
}

inline RowPanels pack_rows(ThreadPool& pool, const ConstMatrix& x) {
    RowPanels panels;
    const int64_t steps = panels.steps = steps_of(x.cols);
    panels.data = make_lines(x.rows * steps * 32);
    const int64_t strips = (x.rows + strip_rows - 1) / strip_rows;
    pool.parallel_for(strips, grain_for(pool, strips, strip_rows * x.cols), [&](int64_t begin, int64_t end) {
        for_each_group(begin * strip_rows, std::min(end * strip_rows, x.rows), [&](int64_t m, int64_t R) {
            for (int64_t r = 0; r < R; r++)
                with_type(x.data, x.type, [&](const auto* p) {
                    pack_row(p + (m + r) * x.stride, x.cols, steps, panels.rows_from(m) + r * N,
                             steps * R * N, R * N, -0.0f);
                });
        });
    });
    return panels;
}

// 16 rows of weights in FP32, padded: element [pass][column / 4][step][column % 4][lane].
struct WeightPanel {
    std::unique_ptr<Line[]> data;
    int64_t steps;

    explicit WeightPanel(int64_t K)
        : data(make_lines(panel_columns * 32 * steps_of(K))), steps(steps_of(K)) {}
    int64_t pass_stride() const { return panel_columns * steps * N; }
    float* column(int64_t c) const {
        return data[0].values + c / tile_columns * steps * tile_columns * N + c % tile_columns * N;
    }
};

// The partial sums of a strip: [row][column][32].
inline constexpr int64_t row_sums = panel_columns * 32;

// Adds `steps` steps of one pass to the partial sums of R x 4 outputs, or begins them.
template <int R>
HWY_INLINE void multiply_tile(const float* x, const float* w, int64_t steps, bool begin, float* sums) {
    const auto place = [=](int r, int c) { return sums + r * row_sums + c * 32; };
    V sum[R][tile_columns];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < tile_columns; c++) sum[r][c] = begin ? hn::Zero(F32()) : load(place(r, c));
    for (int64_t step = 0; step < steps; step++, x += R * N, w += tile_columns * N) {
        V wide[tile_columns];
        for (int c = 0; c < tile_columns; c++) wide[c] = load(w + c * N);
        for (int r = 0; r < R; r++) {
            const V xr = load(x + r * N);
            for (int c = 0; c < tile_columns; c++) sum[r][c] = fma(xr, wide[c], sum[r][c]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < tile_columns; c++) store(sum[r][c], place(r, c));
}

// Rows m..m+R of a strip, all columns, one chunk of one pass.
template <int R = tile_rows>
void multiply_group(int64_t rows, const float* x, const WeightPanel& w, int64_t columns, int64_t first_step,
                    int64_t steps, int pass, float* sums) {
    if constexpr (R > 1)
        if (rows < R)
            return multiply_group<smaller_tile(R)>(rows, x, w, columns, first_step, steps, pass, sums);
    const float* first = x + (pass * w.steps + first_step) * R * N;
    for (int64_t c = 0; c < columns; c += tile_columns)
        multiply_tile<R>(first, w.column(c) + pass * w.pass_stride() + first_step * tile_columns * N, steps,
                         first_step == 0, sums + c * 32 + pass * N);
}

// d[rows begin..end, outputs n..n+columns) from a panel of their weights.
inline void multiply_panel(const RowPanels& x, int64_t begin, int64_t end, const WeightPanel& w, int64_t n,
                           int64_t columns, const Epilogue& epilogue, float* sums) {
    const int64_t chunks = std::max<int64_t>(1, (w.steps + chunk_steps - 1) / chunk_steps),
                  chunk = (w.steps + chunks - 1) / chunks;
    for (int64_t strip = begin; strip < end; strip += strip_rows) {
        const int64_t strip_end = std::min(strip + strip_rows, end);
        for (int64_t step = 0; step == 0 || step < w.steps; step += std::max<int64_t>(1, chunk))
            for (int pass = 0; pass < sum32_vectors; pass++)
                for_each_group(strip, strip_end, [&](int64_t m, int64_t R) {
                    multiply_group(R, x.rows_from(m), w, columns, step, std::min(chunk, w.steps - step), pass,
                                   sums + (m - strip) * row_sums);
                });
        for (int64_t m = strip; m < strip_end; m++) {
            HWY_ALIGN float finished[panel_columns];
            for (int c = 0; c < panel_columns; c += N) {
                if (c >= columns) break;
                V each[N];
                for (int i = 0; i < N; i++) {
                    V lanes[sum32_vectors];
                    for (int pass = 0; pass < sum32_vectors; pass++)
                        lanes[pass] = load(sums + (m - strip) * row_sums + (c + i) * 32 + pass * N);
                    each[i] = add_vectors(lanes);
                }
                store(add_lanes_of_each(each), finished + c);
            }
            finish_row(epilogue, m, n, columns, finished);
        }
    }
}

// x in FP32 for multiply_few_rows: rows of 32 * steps_of(K) elements, padded with -0.
inline std::unique_ptr<Line[]> widen_few_rows(const ConstMatrix& x) {
    const int64_t stride = 32 * steps_of(x.cols);
    auto wide = make_lines(x.rows * stride);
    for (int64_t m = 0; m < x.rows; m++)
        with_type(x.data, x.type, [&](const auto* p) {
            widen(p + m * x.stride, x.cols, wide[0].values + m * stride, stride, -0.0f);
        });
    return wide;
}

// sums[r][c] = the N lanes that remain when the 32 partial sums of R x C outputs are added at distances 16 to
// N. x: of widen_few_rows.
template <int R, int C, typename W>
HWY_INLINE void multiply_in_place(const float* x, const W* const (&w)[C], int64_t K, int64_t ahead,
                                  V (&sums)[R][C]) {
    const int64_t stride = 32 * steps_of(K);
    V sum[R][C][sum32_vectors];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            for (int j = 0; j < sum32_vectors; j++) sum[r][c][j] = hn::Zero(F32());
    int64_t k = 0;
    for (; k + 32 <= K; k += 32) {
        for (int c = 0; c < C; c++) hwy::Prefetch(w[c] + k + ahead);
        for (int j = 0; j < sum32_vectors; j++)
            for (int c = 0; c < C; c++) {
                const V wide = load(w[c] + k + j * N);
                for (int r = 0; r < R; r++)
                    sum[r][c][j] = fma(load(x + r * stride + k + j * N), wide, sum[r][c][j]);
            }
    }
    if (k < K)
        for (int c = 0; c < C; c++) {
            HWY_ALIGN float tail[32];
            widen(w[c] + k, K - k, tail, 32, 0.0f);
            for (int j = 0; j < sum32_vectors; j++)
                for (int r = 0; r < R; r++)
                    sum[r][c][j] = fma(load(x + r * stride + k + j * N), load(tail + j * N), sum[r][c][j]);
        }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = add_vectors(sum[r][c]);
}

// d[rows 0..R, outputs begin..end]. Outputs are taken from C places, each of which is read on and on: a core
// has more loads under way from several places than from one. What is left is taken C rows at a time.
template <int R, typename W>
void multiply_few_rows(const float* x, const W* w, int64_t w_stride, int64_t K, int64_t begin, int64_t end,
                       const Epilogue& epilogue) {
    // 8 to 12 registers of sums: so many fma are on their way at a time.
    constexpr int C = R == 1 ? (N == 16 ? 4 : 2) : R == 2 && N == 16 ? 2 : 1;
    const auto finish = [&](const V(&each)[N], int r, int64_t n) HWY_ATTR {
        HWY_ALIGN float finished[N];
        store(add_lanes_of_each(each), finished);
        finish_row(epilogue, r, n, std::min<int64_t>(N, end - n), finished);
    };
    const auto multiply = [&](int64_t n, int64_t apart, V(&sums)[R][C]) HWY_ATTR {
        const W* rows[C];  // outputs beyond the last repeat it; they are not written
        for (int c = 0; c < C; c++) rows[c] = w + std::min(n + c * apart, end - 1) * w_stride;
        multiply_in_place<R, C>(x, rows, K, few_rows_ahead / int64_t(sizeof(W)), sums);
    };
    const int64_t part = (end - begin) / (C * N) * N;
    for (int64_t n = begin; n < begin + part; n += N) {
        V each[C][R][N];
        for (int i = 0; i < N; i++) {
            V sums[R][C];
            multiply(n + i, part, sums);
            for (int r = 0; r < R; r++)
                for (int c = 0; c < C; c++) each[c][r][i] = sums[r][c];
        }
        for (int c = 0; c < C; c++)
            for (int r = 0; r < R; r++) finish(each[c][r], r, n + c * part);
    }
    for (int64_t n = begin + C * part; n < end; n += N) {
        V each[R][N];
        for (int i = 0; i < N; i += C) {
            V sums[R][C];
            multiply(n + i, 1, sums);
            for (int r = 0; r < R; r++)
                for (int c = 0; c < C; c++) each[r][i + c] = sums[r][c];
        }
        for (int r = 0; r < R; r++) finish(each[r], r, n);
    }
}

// d = x * w of all rows. fill(panel, n, columns) writes `columns` (rounded up to tile_columns) of the weights
// from output n on.
template <typename Fill>
void multiply_blocked(ThreadPool& pool, const ConstMatrix& a, int64_t outputs, const Epilogue& epilogue,
                      const Fill& fill) {
    const RowPanels x = pack_rows(pool, a);
    const int64_t blocks = (a.rows + block_rows - 1) / block_rows,
                  panels = (outputs + panel_columns - 1) / panel_columns, pieces = blocks * panels,
                  rows = std::min(a.rows, block_rows);
    pool.parallel_for(pieces, grain_for(pool, pieces, panel_columns * a.cols * (rows + 8)),
                      [&](int64_t begin, int64_t end) {
                          const WeightPanel panel(a.cols);
                          const auto sums = make_lines(strip_rows * row_sums);
                          for (int64_t piece = begin; piece < end; piece++) {
                              const int64_t n = piece % panels * panel_columns,
                                            m = piece / panels * block_rows;
                              const int64_t columns = std::min<int64_t>(panel_columns, outputs - n);
                              fill(panel, n, columns);
                              multiply_panel(x, m, std::min(m + block_rows, a.rows), panel, n, columns,
                                             epilogue, sums[0].values);
                          }
                      });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
