#include "cpu/fused_quantize.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "cpu/operations.h"
#include "reference/reference.h"

namespace halfbyte::cpu {
namespace {

// Rows first..first+count of x, of a ConstMatrix or a Matrix.
template <typename M>
M rows_of(M x, int64_t first, int64_t count) {
    if (x.data != nullptr)
        x.data = (decltype(x.data))((const char*)x.data + first * x.stride * int64_t(size_of(x.type)));
    x.rows = count;
    return x;
}

// amax of each row and the scales that follow from them, of all or of each row.
void write_dynamic_scales(const float* row_amax, int64_t rows, const QuantizeArgs& args, int64_t first_row) {
    const int64_t offset = args.scale_per_row ? first_row : 0;
    reference::amax({.x = {row_amax, DType::f32, rows, 1, 1},
                     .per_row = args.scale_per_row,
                     .encode_scale = args.dynamic_encode_scale + offset,
                     .decode_scale = args.dynamic_decode_scale == nullptr
                                         ? nullptr
                                         : args.dynamic_decode_scale + offset});
}

constexpr int64_t tile_bytes = 64 << 10;  // of y: half of a small L2
constexpr int64_t whole_bytes = 4 << 20;  // of y, up to which it is kept whole rather than made twice

// codes, block_scales = NVFP4(y). produce(pool, y, first_row, again) makes the rows of y from first_row on;
// again: not for the first time, which one scale for all rows needs. operations: about, for an element of y.
template <typename Produce>
void quantize_produced(const Kernels& kernels, ThreadPool& pool, QuantizeArgs args, int64_t operations,
                       const Produce& produce) {
    const int64_t rows = args.shape.rows, k = args.shape.k, row_bytes = k * int64_t(size_of(args.x.type));
    const bool dynamic = args.encode_scale == nullptr && args.dynamic_encode_scale != nullptr;
    const int64_t tile =
        std::clamp<int64_t>(tile_bytes / std::max<int64_t>(1, row_bytes), 1, std::max<int64_t>(1, rows));
    const int64_t grain = std::max(tile, grain_for(pool, rows, operations * k));
    ThreadPool alone(1);
    std::mutex mutex;
    QuantizeStats* const stats = args.stats;
    // use(y, first_row) for tiles that cover all rows.
    const auto for_tiles = [&](bool again, const auto& use) {
        pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
            const auto buffer = std::make_unique_for_overwrite<char[]>(size_t(tile * row_bytes) + 1);
            for (int64_t first = begin; first < end; first += tile) {
                const Matrix y = {buffer.get(), args.x.type, std::min(tile, end - first), k, k};
                produce(alone, y, first, again);
                use(ConstMatrix{y.data, y.type, y.rows, k, k}, first);
            }
        });
    };
    const bool twice = dynamic && !args.scale_per_row;
    if (twice) {
        std::vector<float> row_amax(static_cast<size_t>(rows));
        for_tiles(false, [&](const ConstMatrix& y, int64_t first) {
            reference::amax({.x = y, .per_row = true, .amax = row_amax.data() + first});
        });
        write_dynamic_scales(row_amax.data(), rows, args, 0);
    }
    if (dynamic) args.encode_scale = args.dynamic_encode_scale;
    clear_padding_rows(args);
    for_tiles(twice, [&](const ConstMatrix& y, int64_t first) {
        if (dynamic && !twice) {
            std::vector<float> row_amax(static_cast<size_t>(y.rows));
            reference::amax({.x = y, .per_row = true, .amax = row_amax.data()});
            write_dynamic_scales(row_amax.data(), y.rows, args, first);
        }
        QuantizeArgs part = args;
        QuantizeStats counted;
        part.x = y;
        if (stats != nullptr) part.stats = &counted;
        kernels.quantize_rows(alone, part, first);
        if (stats == nullptr) return;
        const std::lock_guard lock(mutex);
        stats->values += counted.values;
        stats->blocks += counted.blocks;
        stats->non_finite += counted.non_finite;
        stats->clipped += counted.clipped;
        stats->flushed += counted.flushed;
    });
}

}  // namespace

void silu_mul_quantize(const Kernels& kernels, ThreadPool& pool, const SiluMulQuantizeArgs& args) {
    quantize_produced(
        kernels, pool, args.quantize, 40, [&](ThreadPool& alone, const Matrix& y, int64_t first, bool) {
            kernels.silu_mul(
                alone,
                {.gate = rows_of(args.gate, first, y.rows), .up = rows_of(args.up, first, y.rows), .y = y});
        });
}

void rms_norm_quantize(const Kernels& kernels, ThreadPool& pool, const RmsNormQuantizeArgs& args) {
    const Matrix& r = args.residual;
    quantize_produced(kernels, pool, args.quantize, 16,
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
