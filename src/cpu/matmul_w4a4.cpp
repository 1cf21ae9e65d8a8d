// d[m,n] = round_T(fl(fl(acc * fl(row_decode[m] * column_decode[n])) + bias[n])), acc the contract's sum over
// blocks.
//   a NvFp4View [M, K] in any layout, w PackedWeight [N, K] -> d [M, N]
//
// Everything up to the block product p = (sum of 16 products of codes) * SFa * SFw is exact, so each level
// takes the way its integer instructions offer. Codes are doubled to integers a2, w2 in -12..12; p = (sum of
// a2 * w2) * (SFa/4) * SFw. The avx levels multiply unsigned by signed bytes: one side is raised by 12 and
// the sum starts at -12 * (sum of the other side).
//   avx512  vpdpbusd
//   avx2    vpmaddubsw; four of its sums of pairs stay below 2^15
//   neon    signed by signed, so nothing is raised: sdot where the processor has it (neon_dotprod), else
//           multiplications to 16 bits, which hold the sum of four
//   scalar  16-bit multiplications and additions: the sum of 16 products is at most 2304
// Two orders of work. Up to `group_rows` rows, which is decoding tokens, read the weights once, from memory
// to registers, as many tiles at a time as their sums leave registers for: a core has more loads under way
// from several places than from one (docs/performance.md). For more rows a tile x 64 blocks (a chain) of
// weights is decoded into a buffer in L1, and all rows of a pass go by, `group_rows` at a time. w is raised,
// but by avx2 in the second order, where the sums of w are made once for all rows and a is raised: there only
// the signed operand may come from memory.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_w4a4.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "cpu/decode-inl.h"
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
inline constexpr int group_rows = N == 16 ? 16 : 4;
inline constexpr bool buffer_is_raised = HWY_TARGET != HWY_AVX2;
inline constexpr int64_t pass_rows = 128;  // their sums wait in a buffer while the chains are walked through

inline constexpr int raise = HWY_TARGET == HWY_NEON ? 0 : 12;  // 12 makes a doubled code unsigned

// Twice the value of each code, raised.
alignas(16) inline constexpr uint8_t raised_codes[16] = {raise,
                                                         raise + 1,
                                                         raise + 2,
                                                         raise + 3,
                                                         raise + 4,
                                                         raise + 6,
                                                         raise + 8,
                                                         raise + 12,
                                                         raise,
                                                         uint8_t(raise - 1),
                                                         uint8_t(raise - 2),
                                                         uint8_t(raise - 3),
                                                         uint8_t(raise - 4),
                                                         uint8_t(raise - 6),
                                                         uint8_t(raise - 8),
                                                         uint8_t(raise - 12)};

// The quantised rows, unpacked once per call. Rows go in groups of R (group_rows, the last one smaller);
// inside a group everything of one block lies together: codes [R][16], doubled, and raised where w is not;
// offsets [R] = -12 * sum of the codes, where w is raised; scales [R] = SFa * scale_factor. The order of a
// block's codes is that of a packed tile: elements 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15.
struct Activations {
    std::unique_ptr<uint8_t[]> codes;
    std::unique_ptr<int32_t[]> offsets;
    std::unique_ptr<float[]> scales;
    bool w_is_raised;
};

// The avx levels read SFw through FP16, which gives SFw * 2^-8.
inline constexpr std::array<float, 256> activation_scales =
    scale_table(HWY_TARGET == HWY_EMU128 ? 0.25f : 64.0f);

// One block: `pairs` are its codes, `place` is where it lies among all.
void unpack_block(const uint8_t* pairs, int64_t place, const Activations& out) {
    const hn::Full128<uint8_t> d8;
    const hn::Repartition<uint32_t, hn::Full128<uint8_t>> d32;
    const auto v = hn::LoadU(d8, pairs);
    const auto even = hn::BitCast(d32, hn::And(v, hn::Set(d8, 15))),
               odd = hn::BitCast(d32, hn::ShiftRight<4>(v));
    const auto ordered = hn::BitCast(d8, hn::InterleaveLower(d32, even, odd));
    const auto raised = hn::TableLookupBytes(hn::Load(d8, raised_codes), ordered);
    const auto lowered = hn::Sub(raised, hn::Set(d8, raise));
    hn::StoreU(out.w_is_raised ? lowered : raised, d8, out.codes.get() + place * 16);
    if (out.w_is_raised) {
        alignas(16) uint64_t halves[2];
        hn::Store(hn::SumsOf8(raised), hn::Full128<uint64_t>(), halves);
        out.offsets[size_t(place)] = -raise * (int32_t(halves[0] + halves[1]) - 16 * raise);
    }
}

#if HWY_TARGET == HWY_AVX3
// Four blocks at once, `apart` places from one another.
HWY_INLINE void unpack_four_blocks(const uint8_t* pairs, int64_t place, int64_t apart,
                                   const Activations& out) {
    const __m512i two_of_each = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i v = _mm512_permutexvar_epi64(
        two_of_each, _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs))));
    // The words of a part: 0 0 1 1, of which the second and the fourth show the odd elements.
    const __m512i nibbles = _mm512_and_si512(
        _mm512_srlv_epi32(_mm512_shuffle_epi32(v, _MM_PERM_BBAA), _mm512_set1_epi64(int64_t(4) << 32)),
        _mm512_set1_epi8(15));
    const hn::ScalableTag<uint8_t> d8;
    const __m512i codes =
        _mm512_shuffle_epi8(hn::Sub(hn::LoadDup128(d8, raised_codes), hn::Set(d8, raise)).raw, nibbles);
    __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(raise), codes);
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
    const __m512i offsets = _mm512_sub_epi32(_mm512_setzero_si512(), sums);
    const auto take = [&](int i, __m128i block, __m128i offset) HWY_ATTR {
        const int64_t p = place + i * apart;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out.codes.get() + p * 16), block);
        out.offsets[size_t(p)] = _mm_cvtsi128_si32(offset);
    };
    take(0, _mm512_castsi512_si128(codes), _mm512_castsi512_si128(offsets));
    take(1, _mm512_extracti32x4_epi32(codes, 1), _mm512_extracti32x4_epi32(offsets, 1));
    take(2, _mm512_extracti32x4_epi32(codes, 2), _mm512_extracti32x4_epi32(offsets, 2));
    take(3, _mm512_extracti32x4_epi32(codes, 3), _mm512_extracti32x4_epi32(offsets, 3));
}
#endif

void unpack_group(const NvFp4View& a, int64_t first, int R, const Activations& out) {
    const NvFp4Shape& shape = a.shape;
    const int64_t blocks = shape.blocks(), whole = shape.k / 16;
    for (int r = 0; r < R; r++) {
        const uint8_t* codes = a.codes + (first + r) * (shape.padded_k / 2);
        const int64_t row = first * blocks + r;  // the place of its first block
        for (int64_t b = 0; b < blocks; b += 4) {
            // In every layout the scales of four blocks lie side by side.
            const uint8_t* block_scales =
                a.block_scales + scale_offset(shape.layout, first + r, b, shape.padded_blocks());
            const int64_t end = std::min(b + 4, blocks);
            for (int64_t block = b; block < end; block++)
                out.scales[size_t(row + block * R)] = activation_scales[block_scales[block - b]];
#if HWY_TARGET == HWY_AVX3
            if (b + 4 <= whole) {
                unpack_four_blocks(codes + b * 8, row + b * R, R, out);
                continue;
            }
#endif
            for (int64_t block = b; block < end; block++) {
                uint8_t pairs[16] = {};
                std::memcpy(pairs, codes + block * 8, 8);
                if (block == whole)
                    for (int64_t k = shape.k - block * 16; k < 16; k++)
                        pairs[k / 2] = uint8_t(pairs[k / 2] & (k % 2 == 0 ? 0xF0 : 0x0F));
                unpack_block(pairs, row + block * R, out);
            }
        }
    }
}

void finish(const MatmulW4A4Args& args, int64_t m, int64_t rows, int64_t tile, const float* sums) {
    const Epilogue epilogue{args.column_decode, args.bias, args.bias_type, args.d};
    const int64_t n = tile * tile_outputs, per_row = args.row_decode_per_row ? 1 : 0;
    finish_rows(epilogue, args.row_decode + m * per_row, per_row, m, rows, n,
                std::min<int64_t>(tile_outputs, args.d.cols - n), sums, tile_outputs);
}

#if HWY_TARGET == HWY_EMU128

struct DecodedChain {
    int16_t codes[chain_blocks][16][tile_outputs];  // [block][element in the order above][output]
    float scales[chain_blocks][tile_outputs];
};

inline constexpr std::array<float, 256> weight_scales = scale_table(1.0f);

template <bool>
void decode_chain(const PackedWeight& w, int64_t tile, int64_t first, int64_t blocks, DecodedChain& out) {
    const uint8_t* codes = &w.codes[size_t((tile * w.blocks() + first) * 128)];
    const uint8_t* scales = &w.block_scales[size_t((tile * w.blocks() + first) * 16)];
    for (int64_t b = 0; b < blocks; b++) {
        for (int half = 0; half < 2; half++)
            for (int j = 0; j < 4; j++)
                for (int n = 0; n < tile_outputs; n++) {
                    const uint8_t pair = codes[b * 128 + half * 64 + n * 4 + j];
                    out.codes[b][half * 8 + j][n] = int16_t(raised_codes[pair & 15] - raise);
                    out.codes[b][half * 8 + 4 + j][n] = int16_t(raised_codes[pair >> 4] - raise);
                }
        for (int n = 0; n < tile_outputs; n++) out.scales[b][n] = weight_scales[scales[b * 16 + n]];
    }
}

// Adds one chain, a sequence of FP32 additions from +0, to sums [R][16]. place: of the chain's first block
// and row in a.
template <int R, bool extended>
void multiply_chain(const DecodedChain& w, int64_t blocks, const Activations& a, int64_t place,
                    float (*sums)[tile_outputs]) {
    for (int r = 0; r < R; r++) {
        float chain[tile_outputs] = {};
        for (int64_t b = 0; b < blocks; b++) {
            const uint8_t* codes = &a.codes[size_t((place + b * R + r) * 16)];
            const float scale = a.scales[size_t(place + b * R + r)];
            for (int n = 0; n < tile_outputs; n++) {
                int16_t sum = 0;
#pragma GCC unroll 16
                for (int k = 0; k < 16; k++) sum = int16_t(sum + w.codes[b][k][n] * int8_t(codes[k]));
                chain[n] += float(sum) * (scale * w.scales[b][n]);
            }
        }
        for (int n = 0; n < tile_outputs; n++) sums[r][n] += chain[n];
    }
}

#else

using Bytes = hn::ScalableTag<uint8_t>;
using Ints = hn::Vec<I32>;
inline constexpr int vectors = tile_outputs / N;

#if HWY_TARGET != HWY_AVX3
// start + the sums of four products of u (unsigned, signed in NEON) and s (signed) in each lane, four times:
// one block.
template <bool extended>
HWY_INLINE Ints add_block(Ints start, const hn::Vec<Bytes> (&u)[4], const hn::Vec<Bytes> (&s)[4]) {
#if HWY_TARGET == HWY_NEON
    if constexpr (extended) {
        // By name: for the intrinsic, all that it is inlined into would have to be compiled for this
        // instruction.
        for (int i = 0; i < 4; i++)
            asm(".arch armv8.2-a+crypto+dotprod\n\tsdot %0.4s, %1.16b, %2.16b"
                : "+w"(start.raw)
                : "w"(u[i].raw), "w"(s[i].raw));
        return start;
    } else {
        int8x16_t a[4], b[4];
        for (int i = 0; i < 4; i++)
            a[i] = vreinterpretq_s8_u8(u[i].raw), b[i] = vreinterpretq_s8_u8(s[i].raw);
        int16x8_t lower = vmull_s8(vget_low_s8(a[0]), vget_low_s8(b[0])), upper = vmull_high_s8(a[0], b[0]);
        for (int i = 1; i < 4; i++) {
            lower = vmlal_s8(lower, vget_low_s8(a[i]), vget_low_s8(b[i]));
            upper = vmlal_high_s8(upper, a[i], b[i]);
        }
        return Ints{vpadalq_s16(start.raw, vpaddq_s16(lower, upper))};
    }
#else
    if constexpr (extended) {
        for (int i = 0; i < 4; i++)  // by name, too
            asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(start.raw) : "x"(u[i].raw), "x"(s[i].raw));
        return start;
    }
    __m256i pairs[4];
    for (int i = 0; i < 4; i++) pairs[i] = _mm256_maddubs_epi16(u[i].raw, s[i].raw);
    const __m256i sum =
        _mm256_add_epi16(_mm256_add_epi16(pairs[0], pairs[1]), _mm256_add_epi16(pairs[2], pairs[3]));
    return Ints{_mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), start.raw)};
#endif
}

// Four codes of a row in every lane.
HWY_INLINE hn::Vec<Bytes> broadcast_four(const uint8_t* codes) {
    int32_t word;
    std::memcpy(&word, codes, 4);
    return hn::BitCast(Bytes(), hn::Set(I32(), word));
}

#endif

// The sums of one block: w raised, a row's 16 codes and their offset.
template <bool extended>
HWY_INLINE Ints multiply_block(const hn::Vec<Bytes> (&w)[4], const uint8_t* row, int32_t offset) {
#if HWY_TARGET == HWY_AVX3
    // By name: g++ 12 would load each broadcast into a register.
    Ints sum = hn::Set(I32(), offset);
    for (int i = 0; i < 4; i++)
        asm("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(sum.raw)
            : "v"(w[i].raw), "m"(reinterpret_cast<const uint32_t*>(row)[i]));
    return sum;
#else
    return add_block<extended>(
        hn::Set(I32(), offset), w,
        {broadcast_four(row), broadcast_four(row + 4), broadcast_four(row + 8), broadcast_four(row + 12)});
#endif
}

// fl(chain + sum * SFw * SFa): the product is exact, so there is one rounding.
HWY_INLINE V add_to_chain(V chain, Ints sum, V SFw, V SFa) {
    return fma(hn::ConvertTo(F32(), sum), hn::Mul(SFw, SFa), chain);
}

// The codes of one block and N outputs, looked up in the table, which repeats every 16 bytes.
template <bool extended>
HWY_INLINE void look_up(hn::Vec<Bytes> table, const uint8_t* codes, hn::Vec<Bytes> (&out)[4]) {
    const Bytes d8;
    [[maybe_unused]] const auto nibble = hn::Set(d8, 15);
    for (int half = 0; half < 2; half++) {
        const auto pairs = hn::LoadU(d8, codes + half * 64);
#if HWY_TARGET == HWY_AVX3
        if constexpr (extended) {  // six bits of an index count, of which the table needs four
            const __m512i odd = _mm512_srli_epi16(pairs.raw, 4);
            asm("vpermb %2, %1, %0" : "=v"(out[2 * half].raw) : "v"(pairs.raw), "v"(table.raw));
            asm("vpermb %2, %1, %0" : "=v"(out[2 * half + 1].raw) : "v"(odd), "v"(table.raw));
            continue;
        }
#endif
        out[2 * half] = hn::TableLookupBytes(table, hn::And(pairs, nibble));
        out[2 * half + 1] = hn::TableLookupBytes(table, hn::ShiftRight<4>(pairs));
    }
}

// One chain of a tile, decoded.
struct DecodedChain {
    // Doubled, raised where the buffer is; four elements of each output.
    alignas(64) uint8_t codes[chain_blocks][vectors][4][4 * N];
    alignas(64) float scales[chain_blocks][tile_outputs];  // SFw * 2^-8
#if HWY_TARGET == HWY_AVX2
    alignas(64) int32_t offsets[chain_blocks][tile_outputs];  // -12 * sum of the codes
#endif

    HWY_INLINE void get(int /*tile*/, int64_t b, int v, hn::Vec<Bytes> (&found)[4], V& SFw) const {
        for (int i = 0; i < 4; i++) found[i] = hn::Load(Bytes(), codes[b][v][i]);
        SFw = hn::Load(F32(), scales[b] + v * N);
    }
};

template <bool extended>
void decode_chain(const PackedWeight& w, int64_t tile, int64_t first, int64_t blocks, DecodedChain& out) {
    const Bytes d8;
    auto table = hn::LoadDup128(d8, raised_codes);
#if HWY_TARGET == HWY_AVX2
    const auto twelve = hn::Set(d8, raise);
    table = hn::Sub(table, twelve);
#endif
    const uint8_t* codes = &w.codes[size_t((tile * w.blocks() + first) * 128)];
    const uint8_t* scales = &w.block_scales[size_t((tile * w.blocks() + first) * 16)];
    for (int64_t b = 0; b < blocks; b++)
        for (int v = 0; v < vectors; v++) {
            hn::Vec<Bytes> found[4];
            look_up<extended>(table, codes + b * 128 + v * 4 * N, found);
            for (int i = 0; i < 4; i++) hn::Store(found[i], d8, out.codes[b][v][i]);
            store(decode_scales(scales + b * 16 + v * N), out.scales[b] + v * N);
#if HWY_TARGET == HWY_AVX2
            const auto raised = add_block<false>(hn::Zero(I32()), {twelve, twelve, twelve, twelve}, found);
            hn::Store(hn::Neg(raised), I32(), out.offsets[b] + v * N);
#endif
        }
}

// One chain of T tiles, `step` tiles from one another, where they lie packed, on their way from memory.
template <int T, bool has_nan, bool extended>
struct PackedChain {
    // Bytes of codes that are asked for before their turn: 4096 in all, as much as comes while one load
    // waits.
    static constexpr int64_t ahead = 4096 / T;
    hn::Vec<Bytes> table;
    const uint8_t* codes;
    const uint8_t* scales;
    int64_t step_blocks;

    PackedChain(const PackedWeight& w, int64_t tile, int64_t step, int64_t first)
        : table(hn::LoadDup128(Bytes(), raised_codes)),
          codes(w.codes.data() + (tile * w.blocks() + first) * 128),
          scales(w.block_scales.data() + (tile * w.blocks() + first) * 16),
          step_blocks(step * w.blocks()) {}

    HWY_INLINE void get(int tile, int64_t b, int v, hn::Vec<Bytes> (&found)[4], V& SFw) const {
        b += tile * step_blocks;
        if (v == 0) {
            hwy::Prefetch(codes + b * 128 + ahead);
            hwy::Prefetch(codes + b * 128 + ahead + 64);
            hwy::Prefetch(scales + b * 16 + ahead / 8);
        }
        look_up<extended>(table, codes + b * 128 + v * 4 * N, found);
        SFw = decode_scales<has_nan>(scales + b * 16 + v * N);
    }
};

// Adds one chain, a sequence of FP32 additions from +0, of T tiles to sums [T][R][16]. place: of the chain's
// first block and row in a.
template <int R, int T, bool extended, typename Weights>
HWY_INLINE void multiply_raised_chain(const Weights& w, int64_t blocks, const Activations& a, int64_t place,
                                      float (*sums)[tile_outputs]) {
    const uint8_t* codes = a.codes.get() + place * 16;
    const int32_t* offsets = a.offsets.get() + place;
    const float* scales = a.scales.get() + place;
    V chain[T][R][vectors];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            for (int v = 0; v < vectors; v++) chain[t][r][v] = hn::Zero(F32());
    for (int64_t b = 0; b < blocks; b++, codes += R * 16, offsets += R, scales += R) {
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                hn::Vec<Bytes> found[4];
                V SFw;
                w.get(t, b, v, found, SFw);
#pragma GCC unroll 16
                for (int r = 0; r < R; r++)
                    chain[t][r][v] = add_to_chain(chain[t][r][v],
                                                  multiply_block<extended>(found, codes + r * 16, offsets[r]),
                                                  SFw, set(scales[r]));
            }
        }
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            for (int v = 0; v < vectors; v++) {
                float* sum = sums[t * R + r] + v * N;
                store(hn::Add(load(sum), chain[t][r][v]), sum);
            }
}

template <int R, bool extended>
void multiply_chain(const DecodedChain& w, int64_t blocks, const Activations& a, int64_t place,
                    float (*sums)[tile_outputs]) {
#if HWY_TARGET != HWY_AVX2
    multiply_raised_chain<R, 1, extended>(w, blocks, a, place, sums);
#else
    V chain[R][vectors];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < vectors; v++) chain[r][v] = hn::Zero(F32());
    for (int64_t b = 0; b < blocks; b++)
        for (int r = 0; r < R; r++) {
            const uint8_t* codes = a.codes.get() + (place + b * R + r) * 16;
            const hn::Vec<Bytes> four[4] = {broadcast_four(codes), broadcast_four(codes + 4),
                                            broadcast_four(codes + 8), broadcast_four(codes + 12)};
            const V SFa = set(a.scales[size_t(place + b * R + r)]);
            for (int v = 0; v < vectors; v++) {
                hn::Vec<Bytes> found[4];
                V SFw;
                w.get(0, b, v, found, SFw);
                const auto sum = add_block<extended>(hn::Load(I32(), w.offsets[b] + v * N), four, found);
                chain[r][v] = add_to_chain(chain[r][v], sum, SFw, SFa);
            }
        }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < vectors; v++) store(hn::Add(load(sums[r] + v * N), chain[r][v]), sums[r] + v * N);
#endif
}

// sums [T][R][16] of T tiles, `step` apart, and all of K.
template <int R, int T, bool has_nan, bool extended>
void multiply_packed_tiles(const PackedWeight& w, int64_t tile, int64_t step, const Activations& a,
                           float (*sums)[tile_outputs]) {
    std::memset(sums, 0, T * R * sizeof sums[0]);
    for (int64_t first = 0; first < w.blocks(); first += chain_blocks)
        multiply_raised_chain<R, T, extended>(PackedChain<T, has_nan, extended>(w, tile, step, first),
                                              std::min(chain_blocks, w.blocks() - first), a, first * R, sums);
}

// As many tiles at a time as their sums leave registers for.
constexpr int tiles_at_once(int R) {
    return N == 16 ? (R <= 4 ? 4 : R <= 8 ? 2 : 1) : N == 8 ? (R == 1 ? 2 : 1) : R <= 2 ? 2 : 1;
}

// All rows, at most R, of the tiles begin..end.
template <bool extended, int R = group_rows, int T = tiles_at_once(R)>
void multiply_few_rows(const MatmulW4A4Args& args, const Activations& a, int64_t begin, int64_t end) {
    if constexpr (R > 1)
        if (args.d.rows < R) return multiply_few_rows<extended, R - 1>(args, a, begin, end);
    const PackedWeight& w = *args.w;
    const int64_t tile_scales = w.blocks() * tile_outputs;
    const int64_t step = (end - begin) / T;  // so that each of T places is read on and on
    for (int64_t tile = begin; tile < begin + step; tile++) {
        bool has_nan = false;
        for (int t = 0; t < T; t++)
            has_nan |= any_nan(w.block_scales.data() + (tile + t * step) * tile_scales, tile_scales);
        alignas(64) float sums[T * R][tile_outputs];
        if (has_nan)
            for (int t = 0; t < T; t++)
                multiply_packed_tiles<R, 1, true, extended>(w, tile + t * step, 0, a, sums + t * R);
        else
            multiply_packed_tiles<R, T, false, extended>(w, tile, step, a, sums);
        for (int t = 0; t < T; t++) finish(args, 0, R, tile + t * step, sums[t * R]);
    }
    begin += step * T;
    if constexpr (T > 1)
        if (begin < end) multiply_few_rows<extended, R, T / 2>(args, a, begin, end);
}

#endif

// Rows m..m+rows of one chain, in groups of R; R counts down to the rows that are left.
template <bool extended, int R = group_rows>
void multiply_groups(const DecodedChain& w, int64_t first_block, int64_t chain, int64_t all_blocks,
                     const Activations& a, int64_t m, int64_t rows, float (*sums)[tile_outputs]) {
    for (; rows >= R; m += R, rows -= R, sums += R)
        multiply_chain<R, extended>(w, chain, a, m * all_blocks + first_block * R, sums);
    if constexpr (R > 1)
        if (rows > 0) multiply_groups<extended, R - 1>(w, first_block, chain, all_blocks, a, m, rows, sums);
}

// A tile writes a cache line or half of one of each row: fetched while the last chain is multiplied.
void prepare_to_write(const Matrix& d, int64_t m, int64_t rows, int64_t n) {
    with_type(d.data, d.type, [&](const auto* first) {
        for (int64_t r = m; r < m + rows; r++) __builtin_prefetch(first + r * d.stride + n, 1);
    });
}

template <bool extended>
void multiply_many_rows(const MatmulW4A4Args& args, const Activations& a, int64_t begin, int64_t end) {
    const PackedWeight& w = *args.w;
    const int64_t blocks = w.blocks(), M = args.d.rows, passes = (M + pass_rows - 1) / pass_rows;
    DecodedChain decoded;
    alignas(64) float sums[pass_rows][tile_outputs];
    for (int64_t piece = begin * passes; piece < end * passes; piece++) {
        const int64_t tile = piece / passes, m = piece % passes * pass_rows;
        const int64_t rows = std::min(pass_rows, M - m);
        std::memset(sums, 0, size_t(rows) * sizeof sums[0]);
        for (int64_t first = 0; first < blocks; first += chain_blocks) {
            const int64_t chain = std::min(chain_blocks, blocks - first);
            if (m == 0 || blocks > chain_blocks) decode_chain<extended>(w, tile, first, chain, decoded);
            if (first + chain == blocks) prepare_to_write(args.d, m, rows, tile * tile_outputs);
            multiply_groups<extended>(decoded, first, chain, blocks, a, m, rows, sums);
        }
        finish(args, m, rows, tile, sums[0]);
    }
}

template <bool extended>
void multiply_all(ThreadPool& pool, const MatmulW4A4Args& args) {
    const int64_t M = args.d.rows, blocks = args.a.shape.blocks(), k = args.a.shape.k;
    if (M == 0) return;
#if HWY_TARGET == HWY_EMU128
    constexpr bool few = false;
    const auto multiply = multiply_many_rows<extended>;
#else
    const bool few = M <= group_rows;
    const auto multiply = few ? multiply_few_rows<extended> : multiply_many_rows<extended>;
#endif
    const bool w_is_raised = few || buffer_is_raised;
    const size_t places = size_t(M * blocks);
    const Activations a{std::make_unique_for_overwrite<uint8_t[]>(places * 16),
                        std::make_unique_for_overwrite<int32_t[]>(w_is_raised ? places : 0),
                        std::make_unique_for_overwrite<float[]>(places), w_is_raised};
    const int64_t groups = (M + group_rows - 1) / group_rows;
    pool.parallel_for(groups, grain_for(pool, groups, 4 * k * group_rows), [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; group++)
            unpack_group(args.a, group * group_rows,
                         int(std::min<int64_t>(group_rows, M - group * group_rows)), a);
    });
    const int64_t tiles = args.w->tiles();
    pool.parallel_for(tiles, grain_for(pool, tiles, tile_outputs * k * (M + 2)),
                      [&](int64_t begin, int64_t end) { multiply(args, a, begin, end); });
}

}  // namespace

// With what the level itself has, and with an extension of it: sdot of neon_dotprod, AVX-VNNI for avx2, VBMI
// for avx512.
void matmul_w4a4_plain(ThreadPool& pool, const MatmulW4A4Args& args) {
    multiply_all<false>(pool, args);
}
void matmul_w4a4_extended(ThreadPool& pool, const MatmulW4A4Args& args) {
    multiply_all<true>(pool, args);
}

void matmul_w4a4(ThreadPool& pool, const MatmulW4A4Args& args) {
    bool extended = false;
#if HWY_TARGET == HWY_AVX2
    __builtin_cpu_init();
    extended = __builtin_cpu_supports("avxvnni");
#elif HWY_TARGET == HWY_AVX3
    __builtin_cpu_init();
    extended = __builtin_cpu_supports("avx512vbmi");
#endif
    extended ? matmul_w4a4_extended(pool, args) : matmul_w4a4_plain(pool, args);
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
#if HWY_TARGET == HWY_AVX3
HWY_POP_ATTRIBUTES
#else
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace halfbyte::cpu {
#if HWY_ARCH_ARM_A64
const PerLevel<Kernel<MatmulW4A4Args>> matmul_w4a4_levels = {
    &N_EMU128::matmul_w4a4, nullptr, nullptr, &N_NEON::matmul_w4a4, &N_NEON::matmul_w4a4_extended};
#else
const PerLevel<Kernel<MatmulW4A4Args>> matmul_w4a4_levels = HALFBYTE_PER_LEVEL(matmul_w4a4);
#endif
const PerLevel<Kernel<MatmulW4A4Args>> matmul_w4a4_plain_levels = HALFBYTE_PER_LEVEL(matmul_w4a4_plain);
}  // namespace halfbyte::cpu
#endif
