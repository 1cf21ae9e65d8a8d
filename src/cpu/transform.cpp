// y = round_T(fl(c * x T)), block after block of n elements along K.
//   x [rows, K], T [n, n] -> y [rows, K], which may be x's own memory
// Hadamard: a row at a time, signs and the steps h < N inside vectors, the others between them.
// A given T: a row of it is contiguous in j, so a vector holds N values of j, and acc = fma(x_k, T_kj, acc)
// runs over k for a tile of rows and of vectors. x is widened first, some rows at a time: a tile needs all of
// a block and writes a part of it.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/transform.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cpu/operations.h"
#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

// --- Hadamard

// Lane i of the result is lane i ^ h.
template <int h>
HWY_INLINE V exchange(V v) {
    if constexpr (h == 1) return hn::Shuffle2301(v);
    if constexpr (h == 2) return hn::Shuffle1032(v);
    if constexpr (h == N / 2) return hn::ConcatLowerUpper(F32(), v, v);
    return hn::SwapAdjacentBlocks(v);  // h = 4 of 16 lanes
}

// (a, b) at the lanes (i, i + h) become (b + a, a + -b): the bits of a + b and a - b.
template <int h>
HWY_INLINE V butterfly_step(V v) {
    uint32_t negative[N];
    for (int i = 0; i < N; i++) negative[i] = (i & h) != 0 ? 0x80000000u : 0;
    return hn::Add(exchange<h>(v), hn::Xor(v, hn::BitCast(F32(), hn::LoadU(U32(), negative))));
}

// The steps h = 1, 2, 4 ... below n inside the vector.
HWY_INLINE V butterfly_inside(V v, int64_t n) {
    if (n > 1) v = butterfly_step<1>(v);
    if (n > 2) v = butterfly_step<2>(v);
    if constexpr (N > 4)
        if (n > 4) v = butterfly_step<4>(v);
    if constexpr (N > 8)
        if (n > 8) v = butterfly_step<8>(v);
    return v;
}

// The steps h = N, 2N ... n/2 of one block, two at a time while there are two.
HWY_INLINE void butterfly_between(float* values, int64_t n) {
    int64_t h = N;
    for (; 2 * h < n; h *= 4) {
        for (int64_t first = 0; first < n; first += 4 * h) {
            for (int64_t i = first; i < first + h; i += N) {
                const V a = load(values + i), b = load(values + i + h);
                const V c = load(values + i + 2 * h), d = load(values + i + 3 * h);
                const V ab = hn::Add(a, b), a_b = hn::Sub(a, b), cd = hn::Add(c, d), c_d = hn::Sub(c, d);
                store(hn::Add(ab, cd), values + i);
                store(hn::Add(a_b, c_d), values + i + h);
                store(hn::Sub(ab, cd), values + i + 2 * h);
                store(hn::Sub(a_b, c_d), values + i + 3 * h);
            }
        }
    }
    if (h == n || n < N) return;
    for (int64_t i = 0; i < h; i += N) {
        const V a = load(values + i), b = load(values + i + h);
        store(hn::Add(a, b), values + i);
        store(hn::Sub(a, b), values + i + h);
    }
}

// signs: [max(n, N)], those of n < N repeated; buffer: [K rounded up to N]
template <typename X>
void hadamard_row(const X* x, int64_t K, int64_t n, const float* signs, float* buffer) {
    const int64_t period = std::max<int64_t>(n, N);
    int64_t first = 0;
    for (; first + period <= K; first += period) {
        for (int64_t i = 0; i < period; i += N)
            store(butterfly_inside(hn::Mul(load(x + first + i), load(signs + i)), n), buffer + first + i);
        butterfly_between(buffer + first, n);
    }
    if (first < K)  // n < N: whole blocks, but no whole vector
        store(butterfly_inside(hn::Mul(load_first(x + first, K - first), load(signs)), n), buffer + first);
}

template <typename Y>
void scale_row(const float* buffer, int64_t K, float scale, Y* y) {
    const V c = set(scale);
    int64_t i = 0;
    for (; i + N <= K; i += N) store(hn::Mul(c, load(buffer + i)), y + i);
    if (i < K) store_first(hn::Mul(c, load(buffer + i)), y + i, K - i);
}

void hadamard(ThreadPool& pool, const TransformArgs& args) {
    const int64_t K = args.x.cols, n = args.transform.n;
    std::vector<float> signs(size_t(std::max<int64_t>(n, N)), 1.0f);
    for (size_t i = 0; args.transform.signs != nullptr && i < signs.size(); i++)
        signs[i] = args.transform.signs[int64_t(i) % n];
    pool.parallel_for(args.x.rows, grain_for(pool, args.x.rows, 4 * K), [&](int64_t begin, int64_t end) {
        const auto buffer = std::make_unique_for_overwrite<float[]>(size_t(K + N));
        for (int64_t row = begin; row < end; row++) {
            with_type(args.x.data, args.x.type, [&](const auto* x) {
                hadamard_row(x + row * args.x.stride, K, n, signs.data(), buffer.get());
            });
            with_type(args.y.data, args.y.type, [&](auto* y) {
                scale_row(buffer.get(), K, args.transform.scale, y + row * args.y.stride);
            });
        }
    });
}

// --- a given matrix

constexpr int accumulators = N == 16 ? 24 : 12;  // of 32 registers, or of 16
constexpr int64_t part_rows = 96;                // that a thread takes at once

// Vectors of a tile, at most: with few rows they are what there is to do at once, and T is read in longer
// pieces.
constexpr int most_vectors(int64_t rows) {
    return rows < 4 ? 8 : N == 16 ? 4 : 2;
}

// Vectors j = column .. column + vectors * N of every block.
struct Panel {
    int64_t column;
    int vectors;
};

// The last panel of an n that N does not divide begins earlier and makes some columns twice, the same bits; n
// < N is one vector of T padded to N.
std::vector<Panel> panels_of(int64_t n, int most) {
    std::vector<Panel> panels;
    for (int64_t column = 0; column < n;) {
        int vectors = most;
        while (vectors > 1 && column + vectors * N > n) vectors /= 2;
        panels.push_back({std::max<int64_t>(0, std::min(column, n - vectors * N)), vectors});
        column += vectors * N;
    }
    return panels;
}

// What a tile reads and writes: x [rows, x_stride] and T [n, T_stride] in FP32, at the first row and column;
// y's row begins at `index`.
struct Tile {
    const float *x, *T;
    int64_t x_stride, T_stride, n;
    float scale;
    const Matrix& y;
    int64_t index, columns;
};

// y of R rows and C vectors.
template <int R, int C>
HWY_INLINE void multiply_tile(const Tile& tile) {
    V sums[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = hn::Zero(F32());
    for (int64_t k = 0; k < tile.n; k++) {
        V t[C];
        for (int c = 0; c < C; c++) t[c] = load(tile.T + k * tile.T_stride + c * N);
        for (int r = 0; r < R; r++) {
            const V x = set(tile.x[r * tile.x_stride + k]);
            for (int c = 0; c < C; c++) sums[r][c] = fma(x, t[c], sums[r][c]);
        }
    }
    const V scale = set(tile.scale);
    with_type(tile.y.data, tile.y.type, [&](auto* y) HWY_ATTR {
        for (int r = 0; r < R; r++) {
            for (int c = 0; c < C; c++) {
                auto* out = y + tile.index + r * tile.y.stride + c * N;
                const V value = hn::Mul(scale, sums[r][c]);
                if (tile.columns < N) {
                    store_first(value, out, tile.columns);
                } else {
                    store(value, out);
                }
            }
        }
    });
}

// Tiles of R rows, then what is left in tiles of half as many.
template <int R, int C>
void multiply_rows(Tile tile, int64_t rows) {
    for (; rows >= R; rows -= R) {
        multiply_tile<R, C>(tile);
        tile.x += R * tile.x_stride;
        tile.index += R * tile.y.stride;
    }
    if constexpr (R > 1)
        if (rows > 0) multiply_rows<R / 2, C>(tile, rows);
}

void multiply_panel(const Tile& tile, int vectors, int64_t rows) {
    if (vectors == 1) return multiply_rows<12, 1>(tile, rows);
    if (vectors == 2) return multiply_rows<accumulators / 2, 2>(tile, rows);
    if (vectors == 4) return multiply_rows<accumulators / 4, 4>(tile, rows);
    multiply_rows<1, 8>(tile, rows);
}

void matrix(ThreadPool& pool, const TransformArgs& args) {
    const BlockTransform& t = args.transform;
    const int64_t K = args.x.cols, n = t.n, blocks = K / n;
    const float* T = static_cast<const float*>(t.matrix);
    const int64_t T_stride = std::max<int64_t>(n, N);
    std::unique_ptr<float[]> copy;
    if (t.matrix_type != DType::f32 || n < N) {
        copy = std::make_unique_for_overwrite<float[]>(size_t(n * T_stride));
        with_type(t.matrix, t.matrix_type, [&](const auto* p) {
            for (int64_t k = 0; k < n; k++) widen(p + k * n, n, copy.get() + k * T_stride, T_stride, 0.0f);
        });
        T = copy.get();
    }

    const std::vector<Panel> panels = panels_of(n, most_vectors(args.x.rows));
    const int64_t chunk = std::max<int64_t>(part_rows, (1 << 20) / K);  // 4 MiB of x at a time, or part_rows
    const auto x = std::make_unique_for_overwrite<float[]>(size_t(std::min(chunk, args.x.rows) * K));
    for (int64_t first = 0; first < args.x.rows; first += chunk) {
        const int64_t rows = std::min(chunk, args.x.rows - first);
        pool.parallel_for(rows, grain_for(pool, rows, K), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; row++)
                with_type(args.x.data, args.x.type, [&](const auto* p) {
                    widen(p + (first + row) * args.x.stride, K, x.get() + row * K, K, 0.0f);
                });
        });
        // Items in the order of their T: a part of the rows by one panel of one block.
        const int64_t parts = (rows + part_rows - 1) / part_rows,
                      items = int64_t(panels.size()) * blocks * parts;
        const int64_t grain = grain_for(pool, items, std::min(rows, part_rows) * n * panels[0].vectors * N);
        pool.parallel_for(items, grain, [&](int64_t begin, int64_t end) {
            for (int64_t item = begin; item < end; item++) {
                const Panel& panel = panels[size_t(item / (blocks * parts))];
                const int64_t block = item / parts % blocks, row = item % parts * part_rows;
                const Tile tile = {x.get() + row * K + block * n,
                                   T + panel.column,
                                   K,
                                   T_stride,
                                   n,
                                   t.scale,
                                   args.y,
                                   (first + row) * args.y.stride + block * n + panel.column,
                                   std::min<int64_t>(n, N)};
                multiply_panel(tile, panel.vectors, std::min(part_rows, rows - row));
            }
        });
    }
}

}  // namespace

void transform(ThreadPool& pool, const TransformArgs& args) {
    if (args.x.rows == 0 || args.x.cols == 0) return;
    if (args.transform.matrix == nullptr) {
        hadamard(pool, args);
    } else {
        matrix(pool, args);
    }
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<TransformArgs>> transform_levels = HALFBYTE_PER_LEVEL(transform);
}  // namespace halfbyte::cpu
#endif
