// d[m,n] = round_T(fl(fl(sum32_k(x[m,k] * (code * SF)) * column_decode[n]) + bias[n]))
//   x [M, K], w PackedWeight [N, K] -> d [M, N]
// A tile of 16 outputs at a time is decoded to FP32 (exact), and up to `block_rows` rows of x use it.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_w4a16.cpp"
#include <hwy/foreach_target.h>

#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cpu/decode-inl.h"
#include "cpu/sum32_product-inl.h"
#include "format/e2m1.h"
#include "format/e4m3.h"

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

#undef HALFBYTE_W4A16_FEW_ROWS
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define HALFBYTE_W4A16_FEW_ROWS

#if HWY_TARGET == HWY_AVX3
// Few rows of x: nothing is expanded in memory. The lanes of a register are the 16 elements of a block of one
// output, whose codes, shifted to the low bits of a lane, pick code * SF from the 16 numbers of its scale: a
// shift, a permutation and a multiply-add for each row. Two registers hold the 32 partial sums of an output;
// 16 / R / 2 outputs of R rows are summed at a time, over a chunk of a tile while it is in L1, and between
// chunks the sums wait in a buffer.
inline constexpr int64_t few_decoded_rows = 8;  // at most: beyond, an output's sums do not fit
inline constexpr int64_t tiles_at_once = 2;
inline constexpr int64_t row_chunk_blocks = 32;  // 4 KB of codes; an even number

struct alignas(64) ScaledCodes {
    float values[16];
};
inline constexpr auto scaled_codes = [] {
    std::array<ScaledCodes, 256> all{};
    for (int scale = 0; scale < 256; scale++)
        for (int code = 0; code < 16; code++) {
            const float SF = decode_e4m3(uint8_t(scale));
            all[size_t(scale)].values[code] = SF != SF ? SF : decode_e2m1(uint8_t(code)) * SF;
        }
    return all;
}();

// A chunk of one tile: the 16 codes of each block and output side by side.
struct Chunk {
    alignas(64) uint64_t codes[row_chunk_blocks][16];
    alignas(64) const ScaledCodes* numbers[row_chunk_blocks][16];
    int64_t blocks;
};

void open_chunk(const PackedWeight& w, int64_t tile, int64_t first, int64_t blocks, Chunk& chunk) {
    const __m512i lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                  upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
    const uint8_t* codes = &w.codes[size_t((tile * w.blocks() + first) * 128)];
    const uint8_t* scales = &w.block_scales[size_t((tile * w.blocks() + first) * 16)];
    const __m512i numbers = _mm512_set1_epi64(reinterpret_cast<int64_t>(scaled_codes.data()));
    const auto store_numbers = [&](const ScaledCodes** out, __m128i bytes) HWY_ATTR {
        _mm512_store_si512(out, _mm512_add_epi64(numbers, _mm512_slli_epi64(_mm512_cvtepu8_epi64(bytes), 6)));
    };
    for (int64_t b = 0; b < blocks; b++) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + b * 16));
        store_numbers(chunk.numbers[b], bytes);
        store_numbers(chunk.numbers[b] + 8, _mm_unpackhi_epi64(bytes, bytes));
        const __m512i eight = _mm512_loadu_si512(codes + b * 128),
                      next = _mm512_loadu_si512(codes + b * 128 + 64);
        _mm512_store_si512(chunk.codes[b], _mm512_permutex2var_epi32(eight, lower, next));
        _mm512_store_si512(chunk.codes[b] + 8, _mm512_permutex2var_epi32(eight, upper, next));
    }
    chunk.blocks = blocks;
}

// Asks for the next chunk of tiles_at_once tiles, line by line and from all of them in turn: a core has more
// loads under way from several places than from one. What is behind the weights may be asked for, too.
class NextChunks {
  public:
    NextChunks(const PackedWeight& w, int64_t tile, int64_t first)
        : codes_(w.codes.data() + (tile * w.blocks() + first) * 128),
          scales_(w.block_scales.data() + (tile * w.blocks() + first) * 16),
          tile_blocks_(w.blocks()) {}
    HWY_INLINE void fetch() {
        hwy::Prefetch(codes_ + line_ % tiles_at_once * tile_blocks_ * 128 + line_ / tiles_at_once * 64);
        if (line_ % 8 == 0) {
            const int64_t line = line_ / 8;
            hwy::Prefetch(scales_ + line % tiles_at_once * tile_blocks_ * 16 + line / tiles_at_once * 64);
        }
        line_++;
    }

  private:
    const uint8_t* codes_;
    const uint8_t* scales_;
    int64_t tile_blocks_, line_ = 0;
};

// The lane of element e of a block is e % 8 * 2 + e / 8, where the shift of a pair of words puts its code.
HWY_INLINE V order_elements(V x) {
    return V{_mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15),
                                   x.raw)};
}
HWY_INLINE V restore_elements(V x) {
    return V{_mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15),
                                   x.raw)};
}

// Adds the blocks of a chunk to the partial sums [output][row][parity of the block][lane] of the outputs
// n..n+O. x: R rows of `stride` elements. present: the lanes of the last block that are below K.
template <int R, int O>
HWY_INLINE void add_chunk(const Chunk& w, int n, const float* x, int64_t stride, __mmask16 present,
                          NextChunks& next, float* sums) {
    const __m512i shifts = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    V sum[2][O][R];
    for (int o = 0; o < O; o++)
        for (int r = 0; r < R; r++)
            for (int parity = 0; parity < 2; parity++)
                sum[parity][o][r] = load(sums + ((o * R + r) * 2 + parity) * 16);
    const auto add = [&](int64_t b, V(&to)[O][R], auto masked) HWY_ATTR {
        if (n % 8 == 0) next.fetch();
#pragma GCC unroll 8
        for (int o = 0; o < O; o++) {
            const __m512i codes = _mm512_srlv_epi32(_mm512_set1_epi64(int64_t(w.codes[b][n + o])), shifts);
            const __m512 weights = _mm512_permutexvar_ps(codes, _mm512_load_ps(w.numbers[b][n + o]->values));
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                const __m512 xr = _mm512_loadu_ps(x + r * stride + b * 16);
                to[o][r].raw = masked ? _mm512_mask3_fmadd_ps(xr, weights, to[o][r].raw, present)
                                      : _mm512_fmadd_ps(xr, weights, to[o][r].raw);
            }
        }
    };
    const bool is_partial = present != 0xFFFF;
    const int64_t whole = w.blocks - (is_partial ? 1 : 0);
    int64_t b = 0;
    for (; b + 2 <= whole; b += 2) {
        add(b, sum[0], std::false_type());
        add(b + 1, sum[1], std::false_type());
    }
    if (b < whole) add(b, sum[0], std::false_type());
    if (is_partial)
        whole % 2 == 0 ? add(whole, sum[0], std::true_type()) : add(whole, sum[1], std::true_type());
    for (int o = 0; o < O; o++)
        for (int r = 0; r < R; r++)
            for (int parity = 0; parity < 2; parity++)
                store(sum[parity][o][r], sums + ((o * R + r) * 2 + parity) * 16);
}

// The tiles tile..tile+tiles. x: rows of `stride` elements, those of each block in order_elements.
template <int R>
void multiply_tiles_by_rows(const PackedWeight& w, int64_t tile, int64_t tiles, const float* x,
                            int64_t stride, const Epilogue& epilogue) {
    constexpr int O = 16 / R / 2;
    const int64_t blocks = w.blocks();
    __mmask16 last = 0;  // the lanes of the last block that are below K
    for (int64_t e = 0; e <= (w.k - 1) % 16; e++) last |= __mmask16(1 << (e % 8 * 2 + e / 8));
    Chunk chunk;
    HWY_ALIGN float sums[tiles_at_once][16 * R * 32];
    std::memset(sums, 0, size_t(tiles) * sizeof sums[0]);
    for (int64_t first = 0; first < blocks; first += row_chunk_blocks) {
        const bool is_last = first + row_chunk_blocks >= blocks;
        NextChunks next(w, is_last ? tile + tiles_at_once : tile, is_last ? 0 : first + row_chunk_blocks);
        for (int64_t t = 0; t < tiles; t++) {
            open_chunk(w, tile + t, first, std::min(row_chunk_blocks, blocks - first), chunk);
            for (int n = 0; n < 16; n += O)
                add_chunk<R, O>(chunk, n, x + first * 16, stride, is_last ? last : __mmask16(0xFFFF), next,
                                sums[t] + n * R * 32);
        }
    }
    for (int64_t t = 0; t < tiles; t++)
        for (int r = 0; r < R; r++) {
            V each[16];
            for (int n = 0; n < 16; n++) {
                const float* partial = sums[t] + (n * R + r) * 32;
                each[n] = restore_elements(hn::Add(load(partial), load(partial + 16)));
            }
            HWY_ALIGN float finished[16];
            store(add_lanes_of_each(each), finished);
            const int64_t n = (tile + t) * 16;
            finish_row(epilogue, r, n, std::min<int64_t>(16, w.n - n), finished);
        }
}

template <int R = few_decoded_rows>
void multiply_rows(ThreadPool& pool, const MatmulW4A16Args& args, const Epilogue& epilogue) {
    if constexpr (R > 1)
        if (args.d.rows < R) return multiply_rows<R - 1>(pool, args, epilogue);
    const PackedWeight& w = *args.w;
    const int64_t stride = w.blocks() * 16;
    const auto x = make_lines(R * stride);
    for (int64_t m = 0; m < R; m++) {
        float* const row = x[0].values + m * stride;
        with_type(args.x.data, args.x.type,
                  [&](const auto* p) { widen(p + m * args.x.stride, w.k, row, stride, 0.0f); });
        for (int64_t k = 0; k < stride; k += 16) store(order_elements(load(row + k)), row + k);
    }
    pool.parallel_for(w.tiles(), grain_for(pool, w.tiles(), 16 * w.k * (R + 1)),
                      [&](int64_t begin, int64_t end) {
                          for (int64_t tile = begin; tile < end; tile += tiles_at_once)
                              multiply_tiles_by_rows<R>(w, tile, std::min(tiles_at_once, end - tile),
                                                        x[0].values, stride, epilogue);
                      });
}

#else
// Few rows of x: nothing is expanded in memory. A half-block is 64 bytes, 8 elements of K for the 16 outputs
// of a tile, and the lanes of a register are outputs. The 32 partial sums of 16 outputs do not fit the
// registers: a pass takes the even or odd elements of every fourth half-block, and all passes go over a chunk
// of the tile while it is in L1; between chunks the sums wait in a buffer. Elements beyond K are left out one
// by one, since their code 0 would be -0 under a negative scale. Two byte look-ups make code * 2^8 in BF16,
// so a lane holds the elements k and k + 2 of an output and a register four outputs: k and k + 4 side by
// side, k + 2 and k + 6 in the upper halves.
inline constexpr int64_t few_decoded_rows = 2;   // at most; from 3 on expanding once is cheaper
inline constexpr int64_t row_chunk_blocks = 32;  // 4 KB of codes; an even number
inline constexpr int64_t tile_sums = 32 * 16;

inline constexpr int element_order[8] = {0, 4, 2, 6, 1, 5, 3, 7};

struct Chunk {
    const uint8_t* codes;
    const uint8_t* scales;
    int64_t blocks;
    // SF * 2^-8 of each block for the outputs 0 0 1 1 4 4 5 5, 2 2 3 3 6 6 7 7, and 8 more each.
    alignas(64) float SF[row_chunk_blocks][4][8];
};

void open_chunk(Chunk& w) {
    for (int64_t b = 0; b < w.blocks; b++)
        for (int i = 0; i < 2; i++) {
            const V SF = decode_scales(w.scales + b * 16 + i * 8);
            store(hn::InterleaveLower(F32(), SF, SF), w.SF[b][2 * i]);
            store(hn::InterleaveUpper(F32(), SF, SF), w.SF[b][2 * i + 1]);
        }
}

// The upper and lower bytes of code * 2^8 in BF16.
alignas(16) inline constexpr uint8_t upper_bytes[16] = {0x00, 0x43, 0x43, 0x43, 0x44, 0x44, 0x44, 0x44,
                                                        0x80, 0xC3, 0xC3, 0xC3, 0xC4, 0xC4, 0xC4, 0xC4};
alignas(16) inline constexpr uint8_t lower_bytes[16] = {0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0,
                                                        0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0};

// The even or the odd elements of a half-block. sums[o][i][j]: the elements element_order[4 * odd + 2 * i]
// and the next one, of the outputs 8 * o + 0 1 4 5 (j = 0) or 2 3 6 7. x and present begin at element 4 *
// odd.
template <int odd, bool masked>
HWY_INLINE void add_half_block(V (&sums)[2][2][2], const uint8_t* codes, const float (*SF)[8], const float* x,
                               const float* present) {
    const hn::ScalableTag<uint8_t> d8;
    const auto pair = [](const float* p) HWY_ATTR {
        return V{_mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(p)))};
    };
    const V x0 = pair(x), x1 = pair(x + 2);
#pragma GCC unroll 2
    for (int o = 0; o < 2; o++) {
        const auto pairs = hn::LoadU(d8, codes + 32 * o);
        const auto code = hn::And(odd == 0 ? pairs : hn::ShiftRight<4>(pairs), hn::Set(d8, 15));
        const auto upper = hn::TableLookupBytes(hn::LoadDup128(d8, upper_bytes), code);
        const auto lower = hn::TableLookupBytes(hn::LoadDup128(d8, lower_bytes), code);
        const hn::Vec<U32> both[2] = {hn::BitCast(U32(), hn::InterleaveLower(d8, lower, upper)),
                                      hn::BitCast(U32(), hn::InterleaveUpper(d8, lower, upper))};
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++)
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const auto code_bits =
                    i == 0 ? hn::ShiftLeft<16>(both[j]) : hn::And(both[j], hn::Set(U32(), 0xFFFF0000));
                V& sum = sums[o][i][j];
                const V w = hn::Mul(hn::BitCast(F32(), code_bits), hn::Load(F32(), SF[2 * o + j]));
                const V added = fma(w, i == 0 ? x0 : x1, sum);
                sum = masked ? hn::IfThenElse(hn::Ne(pair(present + 2 * i), hn::Zero(F32())), added, sum)
                             : added;
            }
    }
}

template <int odd, bool masked>
HWY_INLINE void add_pass(const Chunk& w, int64_t first, int64_t end, int half, const float* x,
                         const float* present, float* sums) {
    V sum[2][2][2];
    for (int i = 0; i < 8; i++) sum[i / 4][i / 2 % 2][i % 2] = load(sums + i * 8);
    const uint8_t* codes = w.codes + half * 64;
    for (int64_t b = first; b < end; b += 2) {
        if constexpr (odd == 0) hwy::Prefetch(codes + (b + w.blocks) * 128);
        add_half_block<odd, masked>(sum, codes + b * 128, w.SF[b], x + b * 16 + half * 8 + odd * 4,
                                    present + half * 8 + odd * 4);
    }
    for (int i = 0; i < 8; i++) store(sum[i / 4][i / 2 % 2][i % 2], sums + i * 8);
}

// Adds the blocks first..end of a chunk to the partial sums [half-block mod 4][odd][o][i][j][8].
template <bool masked>
void add_blocks(const Chunk& w, int64_t first, int64_t end, const float* x, const float* present,
                float* sums) {
    for (int parity = 0; parity < 2; parity++)
        for (int half = 0; half < 2; half++, sums += 128) {
            const int64_t b = first + (first + parity) % 2;
            add_pass<0, masked>(w, b, end, half, x, present, sums);
            add_pass<1, masked>(w, b, end, half, x, present, sums + 64);
        }
}

void add_partial_sums(const float* sums, float* out) {
    for (int o = 0; o < 2; o++) {
        V sum[4];  // [odd][i]
        for (int i = 0; i < 4; i++) {
            V pair[2];
            for (int j = 0; j < 2; j++) {
                const float* p = sums + (i / 2 * 8 + o * 4 + i % 2 * 2 + j) * 8;
                pair[j] = hn::Add(hn::Add(load(p), load(p + 256)), hn::Add(load(p + 128), load(p + 384)));
            }
            sum[i] = V{_mm256_hadd_ps(pair[0].raw, pair[1].raw)};
        }
        store(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])), out + o * 8);
    }
}
// x: rows of w.blocks() * 16 elements in element_order; present: 1 or 0 for the elements of the last block.
void multiply_tile_by_rows(const PackedWeight& w, int64_t tile, const float* x, const float* present,
                           int64_t rows, const Epilogue& epilogue) {
    const int64_t blocks = w.blocks(), whole = w.k / 16, columns = std::min<int64_t>(16, w.n - tile * 16);
    HWY_ALIGN float sums[few_decoded_rows][tile_sums] = {};
    const int64_t chunks = std::max<int64_t>(1, (blocks + row_chunk_blocks - 1) / row_chunk_blocks),
                  chunk_blocks = round_up((blocks + chunks - 1) / chunks, 2);
    for (int64_t first = 0; first < blocks; first += chunk_blocks) {
        Chunk chunk;
        chunk.codes = &w.codes[size_t((tile * blocks + first) * 128)];
        chunk.scales = &w.block_scales[size_t((tile * blocks + first) * 16)];
        chunk.blocks = std::min(chunk_blocks, blocks - first);
        open_chunk(chunk);
        for (int64_t m = 0; m < rows; m++) {
            const float* row = x + (m * blocks + first) * 16;
            const int64_t end = std::min(chunk.blocks, whole - first);
            add_blocks<false>(chunk, 0, end, row, present, sums[m]);
            if (end < chunk.blocks) add_blocks<true>(chunk, end, chunk.blocks, row, present, sums[m]);
        }
    }
    for (int64_t m = 0; m < rows; m++) {
        HWY_ALIGN float finished[16];
        add_partial_sums(sums[m], finished);
        finish_row(epilogue, m, tile * 16, columns, finished);
    }
}

void multiply_rows(ThreadPool& pool, const MatmulW4A16Args& args, const Epilogue& epilogue) {
    const PackedWeight& w = *args.w;
    const int64_t rows = args.d.rows, padded = w.blocks() * 16;
    const auto x = make_lines(rows * padded);
    std::vector<float> row(static_cast<size_t>(padded));
    for (int64_t m = 0; m < rows; m++) {
        with_type(args.x.data, args.x.type,
                  [&](const auto* p) { widen(p + m * args.x.stride, w.k, row.data(), padded, 0.0f); });
        for (int64_t k = 0; k < padded; k++)
            x[0].values[m * padded + k] = row[size_t(k / 8 * 8 + element_order[k % 8])];
    }
    float present[16];
    for (int k = 0; k < 16; k++) present[k] = k / 8 * 8 + element_order[k % 8] < w.k % 16 ? 1.0f : 0.0f;
    pool.parallel_for(w.tiles(), grain_for(pool, w.tiles(), 16 * w.k * (rows + 1)),
                      [&](int64_t begin, int64_t end) {
                          for (int64_t tile = begin; tile < end; tile++)
                              multiply_tile_by_rows(w, tile, x[0].values, present, rows, epilogue);
                      });
}

#endif
#endif

}  // namespace

void matmul_w4a16(ThreadPool& pool, const MatmulW4A16Args& args) {
    const PackedWeight& w = *args.w;
    const Epilogue epilogue{args.column_decode, args.bias, args.bias_type, args.d};
    if (args.d.rows == 0) return;
#ifdef HALFBYTE_W4A16_FEW_ROWS
    if (args.d.rows <= few_decoded_rows) return multiply_rows(pool, args, epilogue);
#endif
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
