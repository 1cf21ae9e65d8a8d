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
// Two orders of work. Up to `direct_rows` rows, which is decoding tokens, read the weights once, from memory
// to registers, with w raised. For more rows a strip of outputs x 64 blocks (a chain) of weights is decoded
// into a buffer in L1, and all rows of a pass by, `group_rows` at a time, with a raised: the sums of w are
// made once for all rows.
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
#if HWY_TARGET == HWY_EMU128
inline constexpr int strip_outputs = tile_outputs, group_rows = 4, direct_rows = 0;
#else
inline constexpr int strip_outputs = 2 * N;  // two vectors share each broadcast of activations
inline constexpr int group_rows = N == 16 ? 8 : 4;
inline constexpr int direct_rows = N == 16 ? 8 : 4;
#endif
inline constexpr int64_t pass_rows =
    128;  // their chain sums wait in a buffer while a strip's chains are walked through

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

// The quantised rows, unpacked once per call. Rows go in groups of R (group_rows, or direct_rows; the last
// one smaller); inside a group everything of one block lies together: codes [R][16], doubled and raised for
// the buffered order; doubled, with offsets [R] = -12 * sum, for the direct one; scales [R] = SFa *
// scale_factor. The order of a block's codes is that of a packed tile: elements 0 2 4 6, 1 3 5 7, 8 10 12 14,
// 9 11 13 15.
struct Activations {
    std::unique_ptr<uint8_t[]> codes;
    std::unique_ptr<int32_t[]> offsets;
    std::unique_ptr<float[]> scales;
};

// The avx levels read SFw through FP16, which gives SFw * 2^-8.
inline constexpr std::array<float, 256> activation_scales =
    scale_table(HWY_TARGET == HWY_EMU128 ? 0.25f : 64.0f);

void unpack_group(const NvFp4View& a, int64_t first, int R, bool direct, const Activations& out) {
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
            const auto raised = hn::TableLookupBytes(hn::Load(d8, raised_codes), ordered);
            const auto lowered = hn::Sub(raised, hn::Set(d8, raise));
            // The raised side is the weights' in the direct order.
            hn::StoreU(direct ? lowered : raised, d8, out.codes.get() + place * 16);
            if (direct) {
                alignas(16) uint64_t halves[2];
                hn::Store(hn::SumsOf8(raised), hn::Full128<uint64_t>(), halves);
                out.offsets[size_t(place)] = -raise * (int32_t(halves[0] + halves[1]) - 16 * raise);
            }
            out.scales[size_t(place)] = activation_scales[block_scales[block % 4]];
        }
    }
}

void finish(const MatmulW4A4Args& args, int64_t m, int64_t n, int64_t columns, float* sums) {
    const Epilogue epilogue{args.column_decode, args.bias, args.bias_type, args.d};
    finish_row(epilogue, args.row_decode[args.row_decode_per_row ? m : 0], m, n, columns, sums);
}

#if HWY_TARGET == HWY_EMU128

struct DecodedChain {
    int16_t codes[chain_blocks][16][tile_outputs];  // [block][element in the order above][output]
    float scales[chain_blocks][tile_outputs];
};

inline constexpr std::array<float, 256> weight_scales = scale_table(1.0f);

void decode_chain(const PackedWeight& w, int64_t strip, int64_t first, int64_t blocks, DecodedChain& out) {
    const uint8_t* codes = &w.codes[size_t((strip * w.blocks() + first) * 128)];
    const uint8_t* scales = &w.block_scales[size_t((strip * w.blocks() + first) * 16)];
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

template <int R, bool dotprod>
void multiply_chain(const DecodedChain& w, int64_t blocks, const uint8_t* a, const float* scales,
                    float (*sums)[strip_outputs]) {
    for (int r = 0; r < R; r++) {
        float chain[tile_outputs] = {};
        for (int64_t b = 0; b < blocks; b++) {
            const uint8_t* raised = a + (b * R + r) * 16;
            const float scale = scales[b * R + r];
            for (int n = 0; n < tile_outputs; n++) {
                int16_t sum = 0;
#pragma GCC unroll 16
                for (int k = 0; k < 16; k++)
                    sum = int16_t(sum + w.codes[b][k][n] * int16_t(raised[k] - raise));
                chain[n] += float(sum) * (scale * w.scales[b][n]);
            }
        }
        for (int n = 0; n < tile_outputs; n++) sums[r][n] += chain[n];
    }
}

#else

using Bytes = hn::ScalableTag<uint8_t>;
using Ints = hn::Vec<I32>;

// start + the sums of four products of u (unsigned, signed in NEON) and s (signed) in each lane, four times:
// one block. dotprod: by sdot of the level neon_dotprod, or AVX-VNNI's vpdpbusd in the level avx2.
template <bool dotprod>
HWY_INLINE Ints add_block(Ints start, const hn::Vec<Bytes> (&u)[4], const hn::Vec<Bytes> (&s)[4]) {
#if HWY_TARGET == HWY_AVX3
    for (int i = 0; i < 4; i++) start.raw = _mm512_dpbusd_epi32(start.raw, u[i].raw, s[i].raw);
    return start;
#elif HWY_TARGET == HWY_NEON
    if constexpr (dotprod) {
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
    if constexpr (dotprod) {
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

// fl(chain + sum * SFw * SFa): the product is exact, so there is one rounding.
HWY_INLINE V add_to_chain(V chain, Ints sum, V SFw, V SFa) {
    return fma(hn::ConvertTo(F32(), sum), hn::Mul(SFw, SFa), chain);
}

// The codes of one block and N outputs, looked up in `table`.
template <typename Table>
HWY_INLINE void look_up(const Table& table, const uint8_t* codes, hn::Vec<Bytes> (&out)[4]) {
    const Bytes d8;
    const auto nibble = hn::Set(d8, 15);
    for (int half = 0; half < 2; half++) {
        const auto pairs = hn::LoadU(d8, codes + half * 64);
        out[2 * half] = hn::TableLookupBytes(table, hn::And(pairs, nibble));
        out[2 * half + 1] = hn::TableLookupBytes(table, hn::ShiftRight<4>(pairs));
    }
}

struct DecodedChain {
    alignas(64) uint8_t codes[chain_blocks][4][strip_outputs * 4];  // doubled, four elements of each output
    alignas(64) float scales[chain_blocks][strip_outputs];          // SFw * 2^-8
    alignas(64) int32_t offsets[chain_blocks][strip_outputs];       // -12 * sum of the block's codes
};

void decode_chain(const PackedWeight& w, int64_t strip, int64_t first, int64_t blocks, DecodedChain& out) {
    const Bytes d8;
    const auto table = hn::Sub(hn::LoadDup128(d8, raised_codes), hn::Set(d8, raise));
    for (int n = 0; n < strip_outputs; n += N) {
        // A strip that is half beyond the last tile repeats it.
        const int64_t output = strip * strip_outputs + n, in_tile = output % tile_outputs,
                      tile = std::min(output / tile_outputs, w.tiles() - 1);
        const uint8_t* codes = &w.codes[size_t((tile * w.blocks() + first) * 128)] + in_tile * 4;
        const uint8_t* scales = &w.block_scales[size_t((tile * w.blocks() + first) * 16)] + in_tile;
        for (int64_t b = 0; b < blocks; b++) {
            hn::Vec<Bytes> found[4];
            look_up(table, codes + b * 128, found);
            for (int i = 0; i < 4; i++) hn::Store(found[i], d8, out.codes[b][i] + 4 * n);
            const auto twelve = hn::Set(d8, raise);
            const auto raised = add_block<false>(hn::Zero(I32()), {twelve, twelve, twelve, twelve}, found);
            hn::Store(hn::Neg(raised), I32(), out.offsets[b] + n);
            store(decode_scales(scales + b * 16), out.scales[b] + n);
        }
    }
}

// Adds one chain, a sequence of FP32 additions from +0, to sums [R][strip_outputs].
template <int R, bool dotprod>
void multiply_chain(const DecodedChain& w, int64_t blocks, const uint8_t* a, const float* scales,
                    float (*sums)[strip_outputs]) {
    const Bytes d8;
    V chain[R][2];
    for (int r = 0; r < R; r++) chain[r][0] = chain[r][1] = hn::Zero(F32());
    for (int64_t b = 0; b < blocks; b++) {
        for (int r = 0; r < R; r++) {
            const uint8_t* codes = a + (b * R + r) * 16;
            const hn::Vec<Bytes> four[4] = {broadcast_four(codes), broadcast_four(codes + 4),
                                            broadcast_four(codes + 8), broadcast_four(codes + 12)};
            const V SFa = set(scales[b * R + r]);
            for (int half = 0; half < 2; half++) {
                hn::Vec<Bytes> other[4];
                for (int i = 0; i < 4; i++) other[i] = hn::Load(d8, w.codes[b][i] + half * 4 * N);
                const auto sum = add_block<dotprod>(hn::Load(I32(), w.offsets[b] + half * N), four, other);
                chain[r][half] =
                    add_to_chain(chain[r][half], sum, hn::Load(F32(), w.scales[b] + half * N), SFa);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int half = 0; half < 2; half++) {
            float* sum = sums[r] + half * N;
            store(hn::Add(load(sum), chain[r][half]), sum);
        }
}

// sums [R][16] of one tile and all of K, with the weights on their way from memory.
template <int R, bool has_nan, bool dotprod>
void multiply_direct(const PackedWeight& w, int64_t tile, const Activations& a, float (*sums)[tile_outputs]) {
    constexpr int vectors = tile_outputs / N;
    constexpr int64_t ahead = 4096;  // bytes of codes: a core waits for memory as long as it takes for these
    const auto table = hn::LoadDup128(Bytes(), raised_codes);
    const int64_t blocks = w.blocks();
    const uint8_t* codes = w.codes.data() + tile * blocks * 128;
    const uint8_t* scales = w.block_scales.data() + tile * blocks * 16;
    V total[R][vectors];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < vectors; v++) total[r][v] = hn::Zero(F32());
    for (int64_t first = 0; first < blocks; first += chain_blocks) {
        V chain[R][vectors];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < vectors; v++) chain[r][v] = hn::Zero(F32());
        const int64_t end = std::min(first + chain_blocks, blocks);
        for (int64_t b = first; b < end; b++) {
            hwy::Prefetch(codes + b * 128 + ahead);
            hwy::Prefetch(codes + b * 128 + ahead + 64);
            hwy::Prefetch(scales + b * 16 + ahead / 8);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                hn::Vec<Bytes> found[4];
                look_up(table, codes + b * 128 + v * 4 * N, found);
                const V SFw = decode_scales<has_nan>(scales + b * 16 + v * N);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    const uint8_t* row = a.codes.get() + (b * R + r) * 16;
                    const hn::Vec<Bytes> four[4] = {broadcast_four(row), broadcast_four(row + 4),
                                                    broadcast_four(row + 8), broadcast_four(row + 12)};
                    const auto sum =
                        add_block<dotprod>(hn::Set(I32(), a.offsets[size_t(b * R + r)]), found, four);
                    chain[r][v] = add_to_chain(chain[r][v], sum, SFw, set(a.scales[size_t(b * R + r)]));
                }
            }
        }
        for (int r = 0; r < R; r++)
            for (int v = 0; v < vectors; v++) total[r][v] = hn::Add(total[r][v], chain[r][v]);
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < vectors; v++) store(total[r][v], sums[r] + v * N);
}

// All rows, at most R, of one tile.
template <int R, bool dotprod>
void multiply_tile(const MatmulW4A4Args& args, const Activations& a, int64_t tile) {
    if constexpr (R > 1)
        if (args.d.rows < R) return multiply_tile<R - 1, dotprod>(args, a, tile);
    const PackedWeight& w = *args.w;
    alignas(64) float sums[R][tile_outputs];
    const int64_t scales = w.blocks() * tile_outputs;
    if (any_nan(w.block_scales.data() + tile * scales, scales))
        multiply_direct<R, true, dotprod>(w, tile, a, sums);
    else
        multiply_direct<R, false, dotprod>(w, tile, a, sums);
    const int64_t n = tile * tile_outputs, columns = std::min<int64_t>(tile_outputs, args.d.cols - n);
    for (int r = 0; r < R; r++) finish(args, r, n, columns, sums[r]);
}

#endif

// Rows m..m+rows of one chain, in groups of R; R counts down to the rows that are left.
template <bool dotprod, int R = group_rows>
void multiply_groups(const DecodedChain& w, int64_t first_block, int64_t chain, int64_t all_blocks,
                     const Activations& a, int64_t m, int64_t rows, float (*sums)[strip_outputs]) {
    for (; rows >= R; m += R, rows -= R, sums += R) {
        const int64_t place = m * all_blocks + first_block * R;
        multiply_chain<R, dotprod>(w, chain, a.codes.get() + place * 16, a.scales.get() + place, sums);
    }
    if constexpr (R > 1)
        if (rows > 0) multiply_groups<dotprod, R - 1>(w, first_block, chain, all_blocks, a, m, rows, sums);
}

// A strip writes one or two cache lines of each row: fetched while the last chain is multiplied.
void prepare_to_write(const Matrix& d, int64_t m, int64_t rows, int64_t n) {
    with_type(d.data, d.type, [&](const auto* first) {
        for (int64_t r = m; r < m + rows; r++) __builtin_prefetch(first + r * d.stride + n, 1);
    });
}

template <bool dotprod>
void multiply_strip(const MatmulW4A4Args& args, const Activations& a, int64_t strip) {
    const PackedWeight& w = *args.w;
    const int64_t blocks = w.blocks(), M = args.d.rows, n = strip * strip_outputs;
    const int64_t columns = std::min<int64_t>(strip_outputs, args.d.cols - n);
    DecodedChain decoded;
    alignas(64) float sums[pass_rows][strip_outputs];
    for (int64_t m = 0; m < M; m += pass_rows) {
        const int64_t rows = std::min(pass_rows, M - m);
        std::memset(sums, 0, size_t(rows) * sizeof sums[0]);
        for (int64_t first = 0; first < blocks; first += chain_blocks) {
            const int64_t chain = std::min(chain_blocks, blocks - first);
            if (m == 0 || blocks > chain_blocks) decode_chain(w, strip, first, chain, decoded);
            if (first + chain == blocks) prepare_to_write(args.d, m, rows, n);
            multiply_groups<dotprod>(decoded, first, chain, blocks, a, m, rows, sums);
        }
        for (int64_t r = 0; r < rows; r++) finish(args, m + r, n, columns, sums[r]);
    }
}

template <bool dotprod>
void multiply_all(ThreadPool& pool, const MatmulW4A4Args& args) {
    const int64_t M = args.d.rows, blocks = args.a.shape.blocks(), k = args.a.shape.k;
    if (M == 0) return;
    const bool direct = M <= direct_rows;
    const size_t places = size_t(M * blocks);
    const Activations a{std::make_unique_for_overwrite<uint8_t[]>(places * 16),
                        std::make_unique_for_overwrite<int32_t[]>(direct ? places : 0),
                        std::make_unique_for_overwrite<float[]>(places)};
    const int64_t in_group = direct ? M : group_rows;
    const int64_t groups = (M + in_group - 1) / in_group;
    pool.parallel_for(groups, grain_for(pool, groups, 16 * k * in_group), [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; group++)
            unpack_group(args.a, group * in_group, int(std::min<int64_t>(in_group, M - group * in_group)),
                         direct, a);
    });
#if HWY_TARGET == HWY_EMU128
    const auto multiply = multiply_strip<dotprod>;
#else
    const auto multiply = direct ? multiply_tile<direct_rows, dotprod> : multiply_strip<dotprod>;
#endif
    const int64_t outputs = direct ? tile_outputs : strip_outputs;
    const int64_t pieces = (args.d.cols + outputs - 1) / outputs;
    pool.parallel_for(pieces, grain_for(pool, pieces, outputs * k * (M + 2)),
                      [&](int64_t begin, int64_t end) {
                          for (int64_t piece = begin; piece < end; piece++) multiply(args, a, piece);
                      });
}

}  // namespace

void matmul_w4a4(ThreadPool& pool, const MatmulW4A4Args& args) {
#if HWY_TARGET == HWY_AVX2
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avxvnni")) return multiply_all<true>(pool, args);
#endif
    multiply_all<false>(pool, args);
}

#if HWY_TARGET == HWY_NEON
void matmul_w4a4_dotprod(ThreadPool& pool, const MatmulW4A4Args& args) {
    multiply_all<true>(pool, args);
}
#endif

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
    &N_EMU128::matmul_w4a4, nullptr, nullptr, &N_NEON::matmul_w4a4, &N_NEON::matmul_w4a4_dotprod};
#else
const PerLevel<Kernel<MatmulW4A4Args>> matmul_w4a4_levels = HALFBYTE_PER_LEVEL(matmul_w4a4);
#endif
}  // namespace halfbyte::cpu
#endif
