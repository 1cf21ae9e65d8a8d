// The sum32 product of FP32 activations with rows of weights, shared by matmul_dense and matmul_w4a16:
// sums[m, n] = sum32 over K of x[m, k] * w[n, k].
//
// A register tile is `tile_rows` x 4 outputs. One of the 32 partial sums is one lane: a pass over K takes
// every (32 / N)-th vector, so a tile needs one accumulator per output and pass, and each loaded vector
// serves a whole tile. K is padded to a multiple of 32 with x = -0 and w = +0: fma(-0, +0, s) = s for every
// s, also for s = -0.
#if defined(HALFBYTE_CPU_SUM32_PRODUCT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFBYTE_CPU_SUM32_PRODUCT_INL_H
#undef HALFBYTE_CPU_SUM32_PRODUCT_INL_H
#else
#define HALFBYTE_CPU_SUM32_PRODUCT_INL_H
#endif

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
inline constexpr int group_columns = 16;  // whose trees are added together
inline constexpr int64_t panel_columns = epilogue_columns;

// x as FP32 with rows of `stride` elements, a multiple of 32.
struct WideRows {
    std::unique_ptr<float[]> data;
    int64_t stride = 0;
};

inline WideRows widen_rows(ThreadPool& pool, const ConstMatrix& x) {
    WideRows wide;
    wide.stride = round_up(x.cols, 32);
    wide.data = std::make_unique_for_overwrite<float[]>(size_t(std::max<int64_t>(1, x.rows * wide.stride)));
    pool.parallel_for(x.rows, grain_for(pool, x.rows, x.cols), [&](int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; m++)
            with_type(x.data, x.type, [&](const auto* p) {
                widen(p + m * x.stride, x.cols, wide.data.get() + m * wide.stride, wide.stride, -0.0f);
            });
    });
    return wide;
}

// sums[r][c]: the N lanes that remain when the 32 partial sums are added at distances 16 to N.
template <int R, typename W>
HWY_INLINE void multiply_tile(const float* x, int64_t x_stride, const W* const (&w)[tile_columns], int64_t K,
                              V (*sums)[group_columns]) {
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

// R rows x `columns` <= panel_columns outputs from row m and output n on; w is the first weight row.
template <int R, typename W>
void multiply_rows(const WideRows& x, int64_t m, const W* w, int64_t w_stride, int64_t n, int64_t columns,
                   const Epilogue& epilogue) {
    HWY_ALIGN float finished[R][panel_columns];
    for (int64_t group = 0; group < columns; group += group_columns) {
        V sums[R][group_columns];
        for (int column = 0; column < group_columns; column += tile_columns) {
            const W* rows[tile_columns];  // outputs beyond the last repeat it; they are not written
            for (int c = 0; c < tile_columns; c++)
                rows[c] = w + std::min(group + column + c, columns - 1) * w_stride;
            V(*tile)[group_columns] = reinterpret_cast<V(*)[group_columns]>(&sums[0][column]);
            multiply_tile<R>(x.data.get() + m * x.stride, x.stride, rows, x.stride, tile);
            if (group + column + tile_columns >= columns) {
                for (int r = 0; r < R; r++)
                    for (int c = column + tile_columns; c < group_columns; c++) sums[r][c] = hn::Zero(F32());
                break;
            }
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < group_columns; c += N) {
                V each[N];
                for (int i = 0; i < N; i++) each[i] = sums[r][c + i];
                store(add_lanes_of_each(each), finished[r] + group + c);
            }
    }
    for (int r = 0; r < R; r++) finish_row(epilogue, 1.0f, m + r, n, columns, finished[r]);
}

// All rows, tile_rows at a time and the rest in smaller tiles.
template <int R = tile_rows, typename W>
void multiply_panel(const WideRows& x, int64_t m, int64_t rows, const W* w, int64_t w_stride, int64_t n,
                    int64_t columns, const Epilogue& epilogue) {
    for (; m + R <= rows; m += R) multiply_rows<R>(x, m, w, w_stride, n, columns, epilogue);
    if constexpr (R > 1)
        if (m < rows) multiply_panel<smaller_tile(R)>(x, m, rows, w, w_stride, n, columns, epilogue);
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
