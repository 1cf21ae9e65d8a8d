// d[m,n] = round_T(fl(fl(sum32_k(x[m,k] * (code * SF)) * column_decode[n]) + bias[n]))
//   x [M, K], w PackedWeight [N, K] -> d [M, N]
// Three tiles of 16 outputs at a time are decoded to FP32 (exact) in a scratch buffer that all rows of x then
// use.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_w4a16.cpp"
#include <hwy/foreach_target.h>

#include "cpu/decode-inl.h"
#include "cpu/sum32_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

// out[r * stride + 0..16) = code * SF of the 16 rows of one packed block.
HWY_INLINE void decode_rows(const uint8_t* codes, const uint8_t* scales, float* out, int64_t stride) {
    const Bytes16 d8;
    const hn::Repartition<uint64_t, Bytes16> d64;
    const auto nibble = hn::Set(d8, 15);
    for (int r = 0; r < 16; r += 4) {
        const auto first = hn::LoadU(d8, codes + 4 * r), second = hn::LoadU(d8, codes + 64 + 4 * r);
        const auto first_even = hn::And(first, nibble), first_odd = hn::ShiftRight<4>(first);
        const auto second_even = hn::And(second, nibble), second_odd = hn::ShiftRight<4>(second);
        // Eight elements of two rows each.
        const auto first_01 = hn::BitCast(d64, hn::InterleaveLower(d8, first_even, first_odd));
        const auto first_23 = hn::BitCast(d64, hn::InterleaveUpper(d8, first_even, first_odd));
        const auto second_01 = hn::BitCast(d64, hn::InterleaveLower(d8, second_even, second_odd));
        const auto second_23 = hn::BitCast(d64, hn::InterleaveUpper(d8, second_even, second_odd));
        const auto scale = [&](int i) { return scale_times_2_112[scales[r + i]]; };
        float* row = out + r * stride;
        decode_16(hn::BitCast(d8, hn::InterleaveLower(d64, first_01, second_01)), scale(0), row);
        decode_16(hn::BitCast(d8, hn::InterleaveUpper(d64, first_01, second_01)), scale(1), row + stride);
        decode_16(hn::BitCast(d8, hn::InterleaveLower(d64, first_23, second_23)), scale(2), row + 2 * stride);
        decode_16(hn::BitCast(d8, hn::InterleaveUpper(d64, first_23, second_23)), scale(3), row + 3 * stride);
    }
}

// 16 rows of FP32, each `stride` long: K rounded up to 32.
void decode_tile(const PackedWeight& w, int64_t tile, float* out, int64_t stride) {
    const int64_t blocks = w.blocks();
    for (int64_t block = 0; block < blocks; block++)
        decode_rows(&w.codes[size_t((tile * blocks + block) * 128)],
                    &w.block_scales[size_t((tile * blocks + block) * 16)], out + block * 16, stride);
    // The packed padding beyond K is code 0, but a NaN scale would make a NaN of it.
    for (int64_t r = 0; r < 16; r++)
        for (int64_t k = w.k; k < stride; k++) out[r * stride + k] = 0.0f;
}

}  // namespace

void matmul_w4a16(ThreadPool& pool, const MatmulW4A16Args& args) {
    const PackedWeight& w = *args.w;
    const int64_t rows = args.d.rows, outputs = args.d.cols;
    const WideRows x = widen_rows(pool, args.x);
    const Epilogue epilogue{args.column_decode, args.bias, args.bias_type, args.d};

    const int64_t panels = (outputs + panel_columns - 1) / panel_columns;
    pool.parallel_for(
        panels, grain_for(pool, panels, panel_columns * w.k * (rows + 8)), [&](int64_t begin, int64_t end) {
            const auto scratch =
                std::make_unique_for_overwrite<float[]>(size_t(panel_columns * x.stride + 1));
            for (int64_t panel = begin; panel < end; panel++) {
                const int64_t n = panel * panel_columns, columns = std::min(panel_columns, outputs - n);
                for (int64_t c = 0; c < columns; c += 16)
                    decode_tile(w, (n + c) / 16, scratch.get() + c * x.stride, x.stride);
                multiply_panel(x, 0, rows, static_cast<const float*>(scratch.get()), x.stride, n, columns,
                               epilogue);
            }
        });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<MatmulW4A16Args>> matmul_w4a16_levels = HALFBYTE_PER_LEVEL(matmul_w4a16);
}  // namespace halfbyte::cpu
#endif
