#include "cpu/fused_quantize.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

#include "core/float_environment.h"
#include "cpu/operations.h"
#include "reference/reference.h"

namespace halfbyte::cpu {
namespace {

// Rows first..first+count of x, of a ConstMatrix or a Matrix.
template <typename M>
M rows_of(M x, int64_t first, int64_t count) {
    using Byte = std::conditional_t<std::is_same_v<M, Matrix>, char, const char>;
    if (x.data != nullptr) x.data = static_cast<Byte*>(x.data) + first * x.stride * int64_t(size_of(x.type));
    x.rows = count;
    return x;
}

// amax of each row, over the finite values.
void find_row_amax(const Kernels& kernels, ThreadPool& pool, const ConstMatrix& x, float* amax) {
    kernels.largest_magnitudes(pool, x, amax);
    for (int64_t row = 0; row < x.rows; row++)
        if (!std::isfinite(amax[row]))
            reference::amax({.x = rows_of(x, row, 1), .amax = amax + row});  // skips what is not finite
}

// The scales that follow from the amax of rows: of all of them together, or of each from first_row on.
void write_dynamic_scales(const std::vector<float>& row_amax, const QuantizeArgs& args, int64_t first_row) {
    const FloatEnvironment environment;
    const int64_t offset = args.scale_per_row ? first_row : 0;
    reference::amax({.x = {row_amax.data(), DType::f32, int64_t(row_amax.size()), 1, 1},
                     .per_row = args.scale_per_row,
                     .encode_scale = args.dynamic_encode_scale + offset,
                     .decode_scale = args.dynamic_decode_scale == nullptr
                                         ? nullptr
                                         : args.dynamic_decode_scale + offset});
}

constexpr int64_t tile_bytes = 64 << 10;  // of y: a part of a small L2

// codes, block_scales = NVFP4(y). produce(pool, y, first_row, again) makes the rows of y from first_row on;
// again: not for the first time, which one dynamic scale for all rows needs unless all of y is one tile.
// operations: about, for an element of y.
template <typename Produce>
void quantize_produced(const Kernels& kernels, ThreadPool& pool, QuantizeArgs args, int64_t operations,
                       int64_t least_tile, const Produce& produce) {
    const int64_t rows = args.shape.rows, k = args.shape.k, row_bytes = k * int64_t(size_of(args.x.type));
    const bool dynamic = args.dynamic_encode_scale != nullptr;
    const int64_t tile = std::clamp<int64_t>(tile_bytes / std::max<int64_t>(1, row_bytes), least_tile,
                                             std::max<int64_t>(least_tile, rows));
    const int64_t grain = std::max(tile, grain_for(pool, rows, operations * k));
    ThreadPool alone(1);
    std::mutex mutex;
    // use(y, first_row) for tiles that cover all rows.
    const auto for_tiles = [&](bool again, const auto& use) {
        pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
            const auto buffer =
                std::make_unique_for_overwrite<char[]>(size_t(std::min(tile, end - begin) * row_bytes) + 1);
            for (int64_t first = begin; first < end; first += tile) {
                const Matrix y = {buffer.get(), args.x.type, std::min(tile, end - first), k, k};
                produce(alone, y, first, again);
                use(ConstMatrix{y.data, y.type, y.rows, k, k}, first);
            }
        });
    };
    const bool twice = dynamic && !args.scale_per_row && rows > tile;
    if (twice) {
        std::vector<float> row_amax(static_cast<size_t>(rows));
        for_tiles(false, [&](const ConstMatrix& y, int64_t first) {
            find_row_amax(kernels, alone, y, row_amax.data() + first);
        });
        write_dynamic_scales(row_amax, args, 0);
    } else if (dynamic && rows == 0) {
        write_dynamic_scales({}, args, 0);
    }
    if (dynamic) args.encode_scale = args.dynamic_encode_scale;
    for_tiles(twice, [&](const ConstMatrix& y, int64_t first) {
        if (dynamic && !twice) {
            std::vector<float> row_amax(static_cast<size_t>(y.rows));
            find_row_amax(kernels, alone, y, row_amax.data());
            write_dynamic_scales(row_amax, args, first);
        }
        QuantizeArgs part = args;
        QuantizeStats counted;
        part.x = y;
        if (args.stats != nullptr) part.stats = &counted;
        kernels.quantize_rows(alone, part, first);
        if (args.stats == nullptr) return;
        const std::lock_guard lock(mutex);
        *args.stats += counted;
    });
    clear_padding_rows(args);
}

}  // namespace

void quantize(const Kernels& kernels, ThreadPool& pool, const QuantizeArgs& args) {
    QuantizeArgs with_scale = args;
    if (args.dynamic_encode_scale != nullptr) {
        std::vector<float> row_amax(static_cast<size_t>(args.x.rows));
        find_row_amax(kernels, pool, args.x, row_amax.data());
        write_dynamic_scales(row_amax, args, 0);
        with_scale.encode_scale = args.dynamic_encode_scale;
    }
    kernels.quantize(pool, with_scale);
}

// A given matrix takes rows together, so that what is read of it is used for several. Where there are few of
// them, or the matrix is too large for a thread's cache, the transform shares its work out itself, and parts
// of x' go through memory.
void transform_quantize(const Kernels& kernels, ThreadPool& pool, const TransformQuantizeArgs& args) {
    const BlockTransform& t = args.transform;
    const auto produce = [&](ThreadPool& threads, const Matrix& y, int64_t first, bool) {
        kernels.transform(threads, {.x = rows_of(args.x, first, y.rows), .transform = t, .y = y});
    };
    constexpr int64_t together = 48;
    if (t.matrix == nullptr) return quantize_produced(kernels, pool, args.quantize, 20, 1, produce);
    if (t.n <= 128 && args.x.rows >= together * pool.threads())
        return quantize_produced(kernels, pool, args.quantize, t.n, together, produce);

    const int64_t rows = args.x.rows, k = args.x.cols;
    const int64_t part =
        std::clamp<int64_t>((1 << 20) / std::max<int64_t>(1, k), 1, std::max<int64_t>(1, rows));
    const auto buffer = std::make_unique_for_overwrite<float[]>(size_t(part * k));
    const auto transformed = [&](int64_t first) {
        const Matrix y = {buffer.get(), DType::f32, std::min(part, rows - first), k, k};
        produce(pool, y, first, false);
        return ConstMatrix{y.data, y.type, y.rows, k, k};
    };
    QuantizeArgs with_scale = args.quantize;
    const bool dynamic = with_scale.dynamic_encode_scale != nullptr;
    if (dynamic) {  // needs all of x' first: made twice, unless a part is all
        std::vector<float> row_amax(static_cast<size_t>(rows));
        for (int64_t first = 0; first < rows; first += part)
            find_row_amax(kernels, pool, transformed(first), row_amax.data() + first);
        write_dynamic_scales(row_amax, args.quantize, 0);
        with_scale.encode_scale = with_scale.dynamic_encode_scale;
    }
    for (int64_t first = 0; first < rows; first += part) {
        const bool made = dynamic && part == rows;
        with_scale.x = made ? ConstMatrix{buffer.get(), DType::f32, rows, k, k} : transformed(first);
        kernels.quantize_rows(pool, with_scale, first);
    }
    clear_padding_rows(with_scale);
}

void silu_mul_quantize(const Kernels& kernels, ThreadPool& pool, const SiluMulQuantizeArgs& args) {
    quantize_produced(
        kernels, pool, args.quantize, 40, 1, [&](ThreadPool& alone, const Matrix& y, int64_t first, bool) {
            kernels.silu_mul(
                alone,
                {.gate = rows_of(args.gate, first, y.rows), .up = rows_of(args.up, first, y.rows), .y = y});
        });
}

void rms_norm_quantize(const Kernels& kernels, ThreadPool& pool, const RmsNormQuantizeArgs& args) {
    const Matrix& r = args.residual;
    quantize_produced(kernels, pool, args.quantize, 16, 1,
                      [&](ThreadPool& alone, const Matrix& y, int64_t first, bool again) {
                          RmsNormArgs part = {.x = rows_of(args.x, first, y.rows),
                                              .residual = rows_of(r, first, y.rows),
                                              .weight = args.weight,
                                              .epsilon = args.epsilon,
                                              .y = y};
                          if (again && r.data != nullptr) {  // the sum is there already
                              part.x = {part.residual.data, r.type, y.rows, r.cols, r.stride};
                              part.residual = {};
                          }
                          kernels.rms_norm(alone, part);
                      });
}

}  // namespace halfbyte::cpu
