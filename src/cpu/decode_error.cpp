// What quantising lost, for a checkpoint's report: for each row signal = sum of w^2 and noise = sum of (w -
// y)^2, y = fl((code * SF) * D), in FP64 and in order of k. Rows stand side by side in a vector, so that
// the order of each is kept.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/decode_error.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>

#include "cpu/decode-inl.h"
#include "cpu/operations.h"
#include "cpu/vectors-inl.h"
#include "format/scale_layout.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

constexpr int quad = 4, quads = 2, rows_at_once = quad * quads;
using F64 = hn::CappedTag<double, quad>;
constexpr int F64_lanes = HWY_LANES(double) < quad ? HWY_LANES(double) : quad;
constexpr int F64_vectors = rows_at_once / F64_lanes;

// Rows row..row+7; behind the last one its values stand again, and what they give is not written.
template <typename T>
void add_rows(const DecodeErrorArgs& args, const T* w, int64_t row) {
    const NvFp4Shape& shape = args.a.shape;
    const V D = set(args.decode_scale);
    const F64 d64;
    const hn::Rebind<float, F64> d32;
    hn::Vec<F64> signal[F64_vectors], noise[F64_vectors];
    for (int j = 0; j < F64_vectors; j++) signal[j] = noise[j] = hn::Zero(d64);
    const T* source[rows_at_once];
    const uint8_t* codes[rows_at_once];
    const uint8_t* scales[rows_at_once];  // of four blocks: in every layout they lie side by side
    for (int r = 0; r < rows_at_once; r++) {
        const int64_t at = std::min(row + r, shape.rows - 1);
        source[r] = w + at * args.w.stride;
        codes[r] = args.a.codes + at * (shape.padded_k / 2);
    }
    for (int64_t block = 0; block < shape.blocks(); block++) {
        if (block % 4 == 0)
            for (int r = 0; r < rows_at_once; r++)
                scales[r] =
                    args.a.block_scales + scale_offset(shape.layout, std::min(row + r, shape.rows - 1), block,
                                                       shape.padded_blocks());
        const int64_t present = std::min<int64_t>(16, shape.k - block * 16);
        float columns[2][quads][16 * quad];  // [k][row] of w and of y
        for (int q = 0; q < quads; q++) {
            T rest[quad][16];
            const T* values[quad];
            float decoded[quad][16];
            for (int r = 0; r < quad; r++) {
                const int from = q * quad + r;
                decode_block(codes[from] + block * 8, scales[from][block % 4], decoded[r]);
                values[r] = source[from] + block * 16;
                if (present == 16) continue;
                for (int64_t i = 0; i < 16; i++) rest[r][i] = values[r][std::min(i, present - 1)];
                values[r] = rest[r];
            }
            for (int i = 0; i < 16; i += N) {
                const auto v = [&](int r) HWY_ATTR { return load(values[r] + i); };
                const auto y = [&](int r) HWY_ATTR { return hn::Mul(load(decoded[r] + i), D); };
                hn::StoreInterleaved4(v(0), v(1), v(2), v(3), F32(), columns[0][q] + i * quad);
                hn::StoreInterleaved4(y(0), y(1), y(2), y(3), F32(), columns[1][q] + i * quad);
            }
        }
        for (int64_t k = 0; k < present; k++) {
            for (int j = 0; j < F64_vectors; j++) {
                const int q = j * F64_lanes / quad;
                const int64_t place = k * quad + j * F64_lanes % quad;
                const auto value = hn::PromoteTo(d64, hn::LoadU(d32, columns[0][q] + place));
                const auto error = hn::Sub(value, hn::PromoteTo(d64, hn::LoadU(d32, columns[1][q] + place)));
                signal[j] = hn::Add(signal[j], hn::Mul(value, value));
                noise[j] = hn::Add(noise[j], hn::Mul(error, error));
            }
        }
    }
    double sums[2][rows_at_once];
    for (int j = 0; j < F64_vectors; j++) {
        hn::StoreU(signal[j], d64, sums[0] + j * F64_lanes);
        hn::StoreU(noise[j], d64, sums[1] + j * F64_lanes);
    }
    const int64_t count = std::min<int64_t>(rows_at_once, shape.rows - row);
    std::copy_n(sums[0], count, args.signal + row);
    std::copy_n(sums[1], count, args.noise + row);
}

}  // namespace

void decode_error(ThreadPool& pool, const DecodeErrorArgs& args) {
    const int64_t groups = (args.w.rows + rows_at_once - 1) / rows_at_once;
    pool.parallel_for(groups, grain_for(pool, groups, 16 * rows_at_once * args.w.cols),
                      [&](int64_t begin, int64_t end) {
                          with_type(args.w.data, args.w.type, [&](const auto* w) {
                              for (int64_t i = begin; i < end; i++) add_rows(args, w, i * rows_at_once);
                          });
                      });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<DecodeErrorArgs>> decode_error_levels = HALFBYTE_PER_LEVEL(decode_error);
}  // namespace halfbyte::cpu
#endif
