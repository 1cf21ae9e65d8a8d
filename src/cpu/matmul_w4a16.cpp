// d[m,n] = round_T(fl(fl(sum32_k(x[m,k] * (code * SF)) * column_decode[n]) + bias[n]))
//   x [M, K], w PackedWeight [N, K] -> d [M, N]
// A tile of 16 outputs at a time is decoded to FP32 (exact), and up to `block_rows` rows of x use it.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_w4a16.cpp"
#include <hwy/foreach_target.h>

#include "cpu/decode-inl.h"
#include "cpu/sum32_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

// One packed block of 16 outputs in FP32, in the places of a panel: `place` is its first pass and step.
HWY_INLINE void decode_rows(const uint8_t* codes, const uint8_t* scales, const WeightPanel& panel,
                            int64_t place) {
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
        float* row = panel.column(r) + place;
        const int64_t pass = panel.pass_stride();
        decode_16(hn::BitCast(d8, hn::InterleaveLower(d64, first_01, second_01)), scale(0), row, pass);
        decode_16(hn::BitCast(d8, hn::InterleaveUpper(d64, first_01, second_01)), scale(1), row + N, pass);
        decode_16(hn::BitCast(d8, hn::InterleaveLower(d64, first_23, second_23)), scale(2), row + 2 * N,
                  pass);
        decode_16(hn::BitCast(d8, hn::InterleaveUpper(d64, first_23, second_23)), scale(3), row + 3 * N,
                  pass);
    }
}

void decode_tile(const PackedWeight& w, int64_t tile, const WeightPanel& panel) {
    const int64_t blocks = w.blocks();
    constexpr int block_passes = 16 / N;
    for (int64_t block = 0; block < blocks; block++)
        decode_rows(&w.codes[size_t((tile * blocks + block) * 128)],
                    &w.block_scales[size_t((tile * blocks + block) * 16)], panel,
                    block % 2 * block_passes * panel.pass_stride() + block / 2 * tile_columns * N);
    // What is beyond K becomes +0: the packed padding is code 0, but its scale may be negative, and half a
    // step may be missing.
    for (int64_t k = w.k; k < panel.steps * 32; k++)
        for (int64_t c = 0; c < panel_columns; c++)
            panel.column(c)[k % 32 / N * panel.pass_stride() + k / 32 * tile_columns * N + k % N] = 0.0f;
}

}  // namespace

void matmul_w4a16(ThreadPool& pool, const MatmulW4A16Args& args) {
    const PackedWeight& w = *args.w;
    const Epilogue epilogue{args.column_decode, args.bias, args.bias_type, args.d};
    multiply_blocked(pool, args.x, args.d.cols, epilogue, [&](const WeightPanel& panel, int64_t n, int64_t) {
        decode_tile(w, n / panel_columns, panel);
    });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<MatmulW4A16Args>> matmul_w4a16_levels = HALFBYTE_PER_LEVEL(matmul_w4a16);
}  // namespace halfbyte::cpu
#endif
