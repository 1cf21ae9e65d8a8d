// d[m,n] = round_T(fl(fl(acc * fl(row_decode[m] * column_decode[n])) + bias[n])), acc the contract's sum over
// blocks.
//   a NvFp4View [M, K] in any layout, w PackedWeight [N, K] -> d [M, N]
//
// Everything up to the block product p = (sum of 16 products of codes) * SFa * SFw is exact, so each level
// takes the way its integer instructions offer. Codes are doubled to integers a2, w2 in -12..12; p = (sum of
// a2 * w2) * (SFa/4) * SFw.
//   avx512  vpdpbusd with u8 (w2 + 12) and s8 a2; the accumulator starts at -12 * (sum of a2)
//   avx2    vpmaddubsw likewise; four of its sums of pairs stay below 2^15
//   scalar  16-bit multiplications and additions: the sum of 16 products is at most 2304
// Order of work: 16 outputs (a tile) x 64 blocks (a chain) of weights are decoded once into 20 KB that stay
// in L1; all rows of a then pass by, `group_rows` at a time.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_w4a4.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "cpu/epilogue-inl.h"
#include "cpu/scale_table.h"
#include "cpu/vectors-inl.h"
#include "format/scale_layout.h"

// Highway's AVX3 target does not name VNNI; the avx512 level needs it.
#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

inline constexpr int64_t chain_blocks = 64;
inline constexpr int tile_outputs = 16;
inline constexpr int group_rows = N == 16 ? 8 : 4;
inline constexpr int64_t pass_rows =
    128;  // their chain sums wait in a buffer while a tile's chains are walked through

// 12 + twice the value of each code.
alignas(16) inline constexpr uint8_t doubled_plus_12[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                            12, 11, 10, 9,  8,  6,  4,  0};

// The quantised rows, unpacked once per call. Rows go in groups of R = group_rows (the last one smaller);
// inside a group everything of one block lies together: codes [R][16] doubled, offsets [R] = -12 * sum,
// scales [R] = SFa * scale_factor. The order of a block's codes is that of a packed tile: elements 0 2 4 6, 1
// 3 5 7, 8 10 12 14, 9 11 13 15.
struct Activations {
    std::unique_ptr<int8_t[]> codes;
    std::unique_ptr<int32_t[]> offsets;
    std::unique_ptr<float[]> scales;
};

// The avx levels read SFw through FP16, which gives SFw * 2^-8.
inline constexpr std::array<float, 256> activation_scales =
    scale_table(HWY_TARGET == HWY_EMU128 ? 0.25f : 64.0f);

void unpack_group(const NvFp4View& a, int64_t first, int R, const Activations& out) {
    const NvFp4Shape& shape = a.shape;
    const int64_t blocks = shape.blocks();
    for (int r = 0; r < R; r++) {
        const uint8_t* codes = a.codes + (first + r) * (shape.padded_k / 2);
        const uint8_t* block_scales =
            nullptr;  // of the current four blocks: in every layout they lie side by side
        for (int64_t block = 0; block < blocks; block++) {
            if (block % 4 == 0)
                block_scales =
                    a.block_scales + scale_offset(shape.layout, first + r, block, shape.padded_blocks());
            uint8_t pairs[16] = {};
            std::memcpy(pairs, codes + block * 8, 8);
            for (int64_t k = shape.k - block * 16; k < 16; k++)
                pairs[k / 2] = uint8_t(pairs[k / 2] & (k % 2 == 0 ? 0xF0 : 0x0F));

            const int64_t place = (first * blocks + block * R) + r;
            const hn::Full128<uint8_t> d8;
            const hn::Repartition<uint32_t, hn::Full128<uint8_t>> d32;
            const auto v = hn::LoadU(d8, pairs);
            const auto even = hn::BitCast(d32, hn::And(v, hn::Set(d8, 15))),
                       odd = hn::BitCast(d32, hn::ShiftRight<4>(v));
            const auto ordered = hn::BitCast(d8, hn::InterleaveLower(d32, even, odd));
            const auto raised = hn::TableLookupBytes(hn::Load(d8, doubled_plus_12), ordered);
            const auto sums = hn::SumsOf8(raised);
            alignas(16) uint64_t halves[2];
            hn::Store(sums, hn::Full128<uint64_t>(), halves);
            hn::StoreU(hn::BitCast(hn::Full128<int8_t>(), hn::Sub(raised, hn::Set(d8, 12))),
                       hn::Full128<int8_t>(), out.codes.get() + place * 16);
            out.offsets[size_t(place)] = -12 * (int32_t(halves[0] + halves[1]) - 16 * 12);
            out.scales[size_t(place)] = activation_scales[block_scales[block % 4]];
        }
    }
}

#if HWY_TARGET == HWY_EMU128

struct DecodedChain {
    int16_t codes[chain_blocks][16][tile_outputs];  // [block][element in the order above][output]
    float scales[chain_blocks][tile_outputs];
};

inline constexpr std::array<float, 256> weight_scales = scale_table(1.0f);

void decode_chain(const uint8_t* codes, const uint8_t* scales, int64_t blocks, DecodedChain& out) {
    for (int64_t b = 0; b < blocks; b++) {
        for (int half = 0; half < 2; half++)
            for (int j = 0; j < 4; j++)
                for (int n = 0; n < tile_outputs; n++) {
                    const uint8_t pair = codes[b * 128 + half * 64 + n * 4 + j];
                    out.codes[b][half * 8 + j][n] = int16_t(doubled_plus_12[pair & 15] - 12);
                    out.codes[b][half * 8 + 4 + j][n] = int16_t(doubled_plus_12[pair >> 4] - 12);
                }
        for (int n = 0; n < tile_outputs; n++) out.scales[b][n] = weight_scales[scales[b * 16 + n]];
    }
}

template <int R>
void multiply_chain(const DecodedChain& w, int64_t blocks, const int8_t* a, const int32_t*,
                    const float* scales, float (*sums)[tile_outputs]) {
    for (int r = 0; r < R; r++) {
        float chain[tile_outputs] = {};
        for (int64_t b = 0; b < blocks; b++) {
            const int8_t* code = a + (b * R + r) * 16;
            const float scale = scales[b * R + r];
            for (int n = 0; n < tile_outputs; n++) {
                int16_t sum = 0;
#pragma GCC unroll 16
                for (int k = 0; k < 16; k++) sum = int16_t(sum + w.codes[b][k][n] * code[k]);
                chain[n] += float(sum) * (scale * w.scales[b][n]);
            }
        }
        for (int n = 0; n < tile_outputs; n++) sums[r][n] += chain[n];
    }
}

#else

struct DecodedChain {
    alignas(
        64) uint8_t codes[chain_blocks][4][tile_outputs * 4];  // 12 + doubled, four elements of each output
    alignas(64) float scales[chain_blocks][tile_outputs];      // SFw * 2^-8
};

// An E4M3 byte's exponent and mantissa, read as FP16, are the value times 2^-8 (biases 7 and 15); 0x7F is NaN
// in one and 1.875 in the other.
HWY_INLINE V decode_scales(const uint8_t* bytes) {
    const hn::Rebind<uint16_t, F32> d16;
    const hn::Rebind<uint8_t, F32> d8;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, bytes));
    const auto magnitude = hn::And(hn::ShiftLeft<7>(wide), hn::Set(d16, 0x3F80));
    const auto sign = hn::And(hn::ShiftLeft<8>(wide), hn::Set(d16, 0x8000));
    const auto nan = hn::VecFromMask(d16, hn::Eq(magnitude, hn::Set(d16, 0x3F80)));
    const hn::Rebind<hwy::float16_t, F32> f16;
    return hn::PromoteTo(F32(), hn::BitCast(f16, hn::Or(hn::Or(magnitude, sign), nan)));
}

void decode_chain(const uint8_t* codes, const uint8_t* scales, int64_t blocks, DecodedChain& out) {
    const hn::ScalableTag<uint8_t> d8;
    const auto table = hn::LoadDup128(d8, doubled_plus_12), nibble = hn::Set(d8, 15);
    constexpr int step = N * 4;
    for (int64_t b = 0; b < blocks; b++) {
        hwy::Prefetch(codes + (b + 16) * 128);
        hwy::Prefetch(codes + (b + 16) * 128 + 64);
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 64; i += step) {
                const auto pairs = hn::LoadU(d8, codes + b * 128 + half * 64 + i);
                hn::Store(hn::TableLookupBytes(table, hn::And(pairs, nibble)), d8,
                          out.codes[b][half * 2] + i);
                hn::Store(hn::TableLookupBytes(table, hn::ShiftRight<4>(pairs)), d8,
                          out.codes[b][half * 2 + 1] + i);
            }
        for (int i = 0; i < tile_outputs; i += N)
            store(decode_scales(scales + b * 16 + i), out.scales[b] + i);
    }
}

// The integer sums of one block for N outputs: `w` has the four vectors of codes, `a` the 16 codes of a row.
HWY_INLINE hn::Vec<I32> block_sum(const hn::Vec<hn::ScalableTag<uint8_t>> (&w)[4], const int8_t* a,
                                  int32_t offset) {
    const auto four = [&](int i) HWY_ATTR {
        int32_t word;
        std::memcpy(&word, a + 4 * i, 4);
        return hn::Set(I32(), word).raw;
    };
#if HWY_TARGET == HWY_AVX3
    __m512i sum = _mm512_set1_epi32(offset);
    for (int i = 0; i < 4; i++) sum = _mm512_dpbusd_epi32(sum, w[i].raw, four(i));
    return hn::Vec<I32>{sum};
#else
    __m256i pairs[4];
    for (int i = 0; i < 4; i++) pairs[i] = _mm256_maddubs_epi16(w[i].raw, four(i));
    const __m256i sum =
        _mm256_add_epi16(_mm256_add_epi16(pairs[0], pairs[1]), _mm256_add_epi16(pairs[2], pairs[3]));
    return hn::Vec<I32>{
        _mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), _mm256_set1_epi32(offset))};
#endif
}

// Adds one chain, a sequence of FP32 additions from +0, to sums [R][16].
template <int R>
void multiply_chain(const DecodedChain& w, int64_t blocks, const int8_t* a, const int32_t* offsets,
                    const float* scales, float (*sums)[tile_outputs]) {
    const hn::ScalableTag<uint8_t> d8;
    for (int n = 0; n < tile_outputs; n += N) {
        V chain[R];
        for (int r = 0; r < R; r++) chain[r] = hn::Zero(F32());
        for (int64_t b = 0; b < blocks; b++) {
            hn::Vec<hn::ScalableTag<uint8_t>> codes[4];
            for (int i = 0; i < 4; i++) codes[i] = hn::Load(d8, w.codes[b][i] + 4 * n);
            const V SFw = hn::Load(F32(), w.scales[b] + n);
            for (int r = 0; r < R; r++) {
                const auto sum = block_sum(codes, a + (b * R + r) * 16, offsets[b * R + r]);
                const V scale = hn::Mul(SFw, set(scales[b * R + r]));        // exact
                chain[r] = fma(hn::ConvertTo(F32(), sum), scale, chain[r]);  // an exact product: one rounding
            }
        }
        for (int r = 0; r < R; r++) store(hn::Add(load(sums[r] + n), chain[r]), sums[r] + n);
    }
}

#endif

// Rows m..m+rows of one chain, in groups of R; R counts down to the rows that are left.
template <int R = group_rows>
void multiply_groups(const DecodedChain& w, int64_t first_block, int64_t chain, int64_t all_blocks,
                     const Activations& a, int64_t m, int64_t rows, float (*sums)[tile_outputs]) {
    for (; rows >= R; m += R, rows -= R, sums += R) {
        const int64_t place = m * all_blocks + first_block * R;
        multiply_chain<R>(w, chain, a.codes.get() + place * 16, a.offsets.get() + place,
                          a.scales.get() + place, sums);
    }
    if constexpr (R > 1)
        if (rows > 0) multiply_groups<R - 1>(w, first_block, chain, all_blocks, a, m, rows, sums);
}

void multiply_tile(const MatmulW4A4Args& args, const Activations& a, int64_t tile) {
    const PackedWeight& w = *args.w;
    const int64_t blocks = w.blocks(), M = args.d.rows, n = tile * tile_outputs;
    const int64_t columns = std::min<int64_t>(tile_outputs, args.d.cols - n);
    const Epilogue epilogue{args.column_decode, args.bias, args.bias_type, args.d};
    DecodedChain decoded;
    alignas(64) float sums[pass_rows][tile_outputs];
    for (int64_t m = 0; m < M; m += pass_rows) {
        const int64_t rows = std::min(pass_rows, M - m);
        std::memset(sums, 0, size_t(rows) * sizeof sums[0]);
        for (int64_t first = 0; first < blocks; first += chain_blocks) {
            const int64_t chain = std::min(chain_blocks, blocks - first);
            if (m == 0 || blocks > chain_blocks)
                decode_chain(&w.codes[size_t((tile * blocks + first) * 128)],
                             &w.block_scales[size_t((tile * blocks + first) * 16)], chain, decoded);
            multiply_groups(decoded, first, chain, blocks, a, m, rows, sums);
        }
        for (int64_t r = 0; r < rows; r++)
            finish_row(epilogue, args.row_decode[args.row_decode_per_row ? m + r : 0], m + r, n, columns,
                       sums[r]);
    }
}

}  // namespace

void matmul_w4a4(ThreadPool& pool, const MatmulW4A4Args& args) {
    const int64_t M = args.d.rows, blocks = args.a.shape.blocks(), k = args.a.shape.k;
    const size_t places = size_t(std::max<int64_t>(1, M * blocks));
    const Activations a{std::make_unique_for_overwrite<int8_t[]>(places * 16),
                        std::make_unique_for_overwrite<int32_t[]>(places),
                        std::make_unique_for_overwrite<float[]>(places)};
    const int64_t groups = (M + group_rows - 1) / group_rows;
    pool.parallel_for(groups, grain_for(pool, groups, 16 * k * group_rows), [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; group++)
            unpack_group(args.a, group * group_rows,
                         int(std::min<int64_t>(group_rows, M - group * group_rows)), a);
    });
    const int64_t tiles = (args.d.cols + tile_outputs - 1) / tile_outputs;
    pool.parallel_for(tiles, grain_for(pool, tiles, tile_outputs * k * (M + 2)),
                      [&](int64_t begin, int64_t end) {
                          for (int64_t tile = begin; tile < end; tile++) multiply_tile(args, a, tile);
                      });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
#if HWY_TARGET == HWY_AVX3
HWY_POP_ATTRIBUTES
#else
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<MatmulW4A4Args>> matmul_w4a4_levels = HALFBYTE_PER_LEVEL(matmul_w4a4);
}  // namespace halfbyte::cpu
#endif
