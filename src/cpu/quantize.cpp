// codes, block_scales = NVFP4(x): the rule of format/nvfp4_block.h, 16 blocks of 16 values at a time.
//   x [rows, K] BF16, FP16 or FP32 -> codes [Rp, Kp/2], block_scales in any layout; all padding is written as
//   zero.
// The largest magnitudes of the blocks are found together by a transposing tree and give their scales in one
// vector. Then there are three ways to the codes, with the same result:
//   comparison   BF16 and FP16, many values of one G: the code of a value is the number of thresholds
//                that its magnitude exceeds, and for a block scale the seven thresholds are seven 16-bit
//                integers, found once (Thresholds)
//   reciprocal   everything else: the quotient by r = fl(1/SF) and one correction
//   rule         quantize_nvfp4_block: groups with values that are not finite, with clipped values to be
//                counted, and Rounding::vllm
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantize.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "core/element.h"
#include "cpu/kernels.h"
#include "cpu/operations.h"
#include "cpu/thresholds-inl.h"
#include "cpu/vectors-inl.h"
#include "format/e2m1_rounding.h"
#include "format/nvfp4_block.h"
#include "format/scale_layout.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

// What all blocks of a row have in common.
struct Rule {
    float G;
    Rounding rounding;
    const Thresholds* thresholds;  // of G, or null
    bool past_caches;              // codes are too many for the caches, and aligned
    QuantizeStats* stats;          // or null
    const void* end;               // of the values: what may be asked for ahead of its time
};

// --- block scales

// E4M3 of s >= 0 in the low byte of each lane: encode_e4m3 for N values; at most 0x7E, whatever s is.
HWY_INLINE hn::Vec<U32> encode_scales(V s) {
    const U32 d;
    const auto bits = hn::BitCast(d, s);
    const auto subnormal = hn::And(hn::BitCast(d, hn::Add(s, set(16384.0f))), hn::Set(d, 15));
    const auto rebiased = hn::Sub(bits, hn::Set(d, 120u << 23));
    const auto odd = hn::And(hn::ShiftRight<20>(rebiased), hn::Set(d, 1));
    const auto normal = hn::ShiftRight<20>(hn::Add(hn::Add(rebiased, hn::Set(d, 0x7FFFF)), odd));
    const auto code = hn::IfThenElse(hn::RebindMask(d, hn::Lt(s, set(0x1p-6f))), subnormal, normal);
    return hn::Min(code, hn::Set(d, e4m3_max));
}

HWY_INLINE bool are_finite(V magnitudes) {
    return hn::AllTrue(I32(), hn::Lt(hn::BitCast(I32(), magnitudes), hn::Set(I32(), 0x7F800000)));
}

// The bytes of N blocks from their amax, which is finite. False: clipped values are to be counted.
HWY_INLINE bool find_scales(V amax, const Rule& rule, uint8_t* bytes, V& SF, int64_t& flushed) {
    const V s = hn::Mul(set(rule.G), hn::Mul(amax, set(one_sixth)));
    const auto codes = encode_scales(s);
    const hn::Rebind<uint8_t, F32> d8;
    hn::StoreU(hn::TruncateTo(d8, codes), d8, bytes);
    SF = decode_scales(codes);
    if (rule.stats == nullptr) return true;
    if (!hn::AllFalse(F32(), hn::Gt(s, set(448.0f)))) return false;
    const auto lost = hn::And(hn::Gt(amax, hn::Zero(F32())), hn::Eq(SF, hn::Zero(F32())));
    flushed += int64_t(hn::CountTrue(F32(), lost));
    return true;
}

#ifdef HALFBYTE_CPU_COMPARES
// The bytes of a group. False: it is the rule's.
template <typename T>
HWY_INLINE bool find_group_scales(const T* x, const Rule& rule, uint8_t* bytes, int64_t& flushed) {
    T amax[group];
    largest_magnitudes(x, amax);
    V SF;
    for (int first = 0; first < group; first += N) {
        const V largest = load(amax + first);
        if (!are_finite(largest) || !find_scales(largest, rule, bytes + first, SF, flushed)) return false;
    }
    return true;
}

template <typename T>
HWY_INLINE bool encode_by_comparison(const T* x, const Rule& rule, uint8_t* codes, uint8_t* bytes,
                                     int64_t& flushed) {
    if (!find_group_scales(x, rule, bytes, flushed)) return false;
    compare(x, bytes, *rule.thresholds, codes, rule.past_caches);
    return true;
}
#endif

// --- codes by the reciprocal

struct MaxOfBits {  // of magnitudes: infinity, then the NaNs, are the largest
    static HWY_INLINE V of(V a, V b) {
        return hn::BitCast(F32(), hn::Max(hn::BitCast(I32(), a), hn::BitCast(I32(), b)));
    }
};

template <typename T>
HWY_INLINE V largest_magnitude(const T* values) {
    V largest = hn::Abs(load(values));
    for (int i = N; i < nvfp4_block; i += N) largest = MaxOfBits::of(largest, hn::Abs(load(values + i)));
    return largest;
}

// e2m1_rounding_base + code, by quotient_by_reciprocal and e2m1_code_from_base of format/e2m1_rounding.h.
// limit = 6 SF makes codes above 7 impossible.
HWY_INLINE hn::Vec<I32> encode_magnitudes(V y, V SF, V r, V limit) {
    y = hn::Min(y, limit);
#if HWY_NATIVE_FMA
    const V q0 = hn::Mul(y, r);
    const V q = hn::MulAdd(hn::NegMulAdd(SF, q0, y), r, q0);
    const V ones = hn::MulAdd(q, set(0.5f), set(0x1p22f + 1)),
            twos = hn::MulAdd(q, set(0.25f), set(0x1p22f + 2));
#else
    (void)r;
    const V q = hn::Div(y, SF);
    const V ones = hn::Add(hn::Mul(q, set(0.5f)), set(0x1p22f + 1)),  // exact products
        twos = hn::Add(hn::Mul(q, set(0.25f)), set(0x1p22f + 2));
#endif
    const V halves = hn::Add(q, set(0x1p22f));
    const I32 d;
    return hn::Min(hn::BitCast(d, halves), hn::Min(hn::BitCast(d, ones), hn::BitCast(d, twos)));
}

#if HWY_TARGET == HWY_AVX2
// Packed codes of four blocks from e2m1_rounding_base + code and v, two vectors each.
HWY_INLINE void pack_blocks(const hn::Vec<I32> (&codes)[8], const V (&v)[8], uint8_t* packed) {
    __m256i pairs[2];
    for (int i = 0; i < 2; i++) {
        const auto words = [&](int j) HWY_ATTR {
            const auto minus = [&](int k) HWY_ATTR {
                return hn::Sub(hn::Set(I32(), e2m1_rounding_base), codes[4 * i + k]).raw;
            };
            return _mm256_packs_epi32(minus(j), minus(j + 1));
        };
        const auto signs = [&](int j) HWY_ATTR {
            return _mm256_packs_epi32(_mm256_castps_si256(v[4 * i + j].raw),
                                      _mm256_castps_si256(v[4 * i + j + 1].raw));
        };
        pairs[i] = join_nibbles(words(0), words(2), signs(0), signs(2));
    }
    // Each 128-bit part has 16-bit words: elements 0-3, 8-11 (or 4-7, 12-15) of each block.
    const __m256i bytes = _mm256_packus_epi16(pairs[0], pairs[1]);
    const __m256i apart = _mm256_permute4x64_epi64(bytes, 0xD8);  // part i: blocks 2i, 2i + 1
    const __m256i order = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15,  //
                                           0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed), _mm256_shuffle_epi8(apart, order));
}
#endif

template <typename T>
HWY_INLINE bool encode_by_reciprocal(const T* x, const Rule& rule, uint8_t* codes, uint8_t* bytes,
                                     int64_t& flushed) {
    float divisors[group], reciprocals[group], limits[group];
    for (int first = 0; first < group; first += N) {
        V largest[N], SF;
        for (int j = 0; j < N; j++) largest[j] = largest_magnitude(x + (first + j) * nvfp4_block);
        const V amax = combine_lanes_of_each<MaxOfBits>(largest);
        if (!are_finite(amax) || !find_scales(amax, rule, bytes + first, SF, flushed)) return false;
        // A scale of 0 limits y to 0, which any divisor leaves.
        const V divisor = hn::IfThenElse(hn::Eq(SF, hn::Zero(F32())), set(1.0f), SF);
        store(divisor, divisors + first);
        store(hn::Div(set(1.0f), divisor), reciprocals + first);
        store(hn::Mul(SF, set(6.0f)), limits + first);
    }
    const V G = set(rule.G);
    constexpr int vectors = nvfp4_block / N, blocks = 4;
    for (int first = 0; first < group; first += blocks) {
        V v[blocks * vectors];
        hn::Vec<I32> magnitudes[blocks * vectors];
        for (int i = 0; i < blocks * vectors; i++) {
            const int block = first + i / vectors;
            v[i] = load(x + first * nvfp4_block + i * N);
            magnitudes[i] = encode_magnitudes(hn::Mul(hn::Abs(v[i]), G), set(divisors[block]),
                                              set(reciprocals[block]), set(limits[block]));
        }
        uint8_t* packed = codes + first * (nvfp4_block / 2);
#if HWY_TARGET == HWY_AVX2
        pack_blocks(magnitudes, v, packed);
#else
        const hn::Repartition<uint64_t, F32> d64;
        const hn::Rebind<uint8_t, decltype(d64)> d8;
        for (int i = 0; i < blocks * vectors; i++) {
            const auto sign = hn::And(hn::ShiftRight<28>(hn::BitCast(U32(), v[i])), hn::Set(U32(), 8));
            const auto code = hn::Sub(magnitudes[i], hn::Set(I32(), e2m1_rounding_base));
            const auto pairs = hn::BitCast(d64, hn::Or(hn::BitCast(U32(), code), sign));
            hn::StoreU(hn::TruncateTo(d8, hn::Or(pairs, hn::ShiftRight<28>(pairs))), d8,
                       packed + i * (N / 2));
        }
#endif
    }
    return true;
}

// --- groups, rows, matrices

// The first `blocks` of a group by the rule itself; bytes of the others are 0.
template <typename T>
void encode_by_rule(const T* x, int blocks, const Rule& rule, uint8_t* packed, uint8_t* bytes) {
    for (int block = 0; block < group; block++) {
        float values[nvfp4_block];
        uint8_t codes[nvfp4_block] = {};
        for (int i = 0; i < nvfp4_block; i++) values[i] = to_float(x[block * nvfp4_block + i]);
        bytes[block] =
            block < blocks ? quantize_nvfp4_block(values, rule.G, rule.rounding, codes, rule.stats) : 0;
        for (int i = 0; i < nvfp4_block; i += 2)
            packed[(block * nvfp4_block + i) / 2] = uint8_t(codes[i] | codes[i + 1] << 4);
    }
}

void count_group(int blocks, int64_t flushed, const Rule& rule) {
    if (rule.stats == nullptr) return;
    rule.stats->blocks += blocks;
    rule.stats->flushed += flushed;
}

// x [256] -> packed [128], bytes [16]; the group's blocks behind `blocks` hold zeros.
template <typename T>
void quantize_group(const T* x, int blocks, const Rule& rule, uint8_t* packed, uint8_t* bytes) {
    int64_t flushed = 0;
    bool done = false;
#ifdef HALFBYTE_CPU_COMPARES
    if constexpr (sizeof(T) == 2)
        if (rule.thresholds != nullptr) done = encode_by_comparison(x, rule, packed, bytes, flushed);
#endif
    if (rule.thresholds == nullptr && rule.rounding == Rounding::contract)
        done = encode_by_reciprocal(x, rule, packed, bytes, flushed);
    if (!done) return encode_by_rule(x, blocks, rule, packed, bytes);
    count_group(blocks, flushed, rule);
}

#ifdef HALFBYTE_CPU_COMPARES
// `groups` groups by comparison. The scales of a group are found before the codes of the one in front of it:
// both are long chains of dependent instructions, which a processor can only run side by side if they are
// near.
template <typename T, typename WriteScales>
HWY_INLINE void compare_groups(const T* x, int64_t groups, const Rule& rule, uint8_t* codes,
                               const WriteScales& write_scales) {
    struct Found {
        uint8_t bytes[group];
        int64_t flushed;
        bool done;
    } found[2];
    // Many groups are taken from four places in turn: a core has more loads under way from several
    // (docs/performance.md).
    const int64_t part = groups >= 64 ? groups / 4 : 0;
    const auto place_of = [&](int64_t n) HWY_ATTR { return n < 4 * part ? n % 4 * part + n / 4 : n; };
    const auto find = [&](int64_t n) HWY_ATTR {
        Found& next = found[n % 2];
        next.flushed = 0;
        next.done = find_group_scales(x + place_of(n) * group_values, rule, next.bytes, next.flushed);
    };
    // Groups of values asked for ahead, as an Emerald Rapids core does not do by itself: 5.7 in the place
    // of 4.0 Gvalue/s from memory. A Zen 3 core lost a tenth by it. The next rows are among them, what is
    // behind the matrix is not.
    const int64_t ahead = part > 0 ? 3 : 9;  // of each place
    if (groups > 0) find(0);
    for (int64_t n = 0; n < groups; n++) {
        const int64_t i = place_of(n);
        if (n + 1 < groups) find(n + 1);
        if constexpr (HWY_TARGET == HWY_AVX3)
            if (static_cast<const T*>(rule.end) - x >= (i + ahead + 1) * group_values)
                for (int line = 0; line < group_values / 32; line++)
                    hwy::Prefetch(x + (i + ahead) * group_values + line * 32);
        Found& here = found[n % 2];
        const T* values = x + i * group_values;
        uint8_t* packed = codes + i * (group_values / 2);
        if (here.done) {
            compare(values, here.bytes, *rule.thresholds, packed, rule.past_caches);
            count_group(group, here.flushed, rule);
        } else {
            encode_by_rule(values, group, rule, packed, here.bytes);
        }
        write_scales(i * group, here.bytes, int64_t(group));
    }
}
#endif

// `values` values side by side -> codes; write_scales(first block, bytes, blocks) for each group.
template <typename T, typename WriteScales>
void quantize_values(const T* x, int64_t values, Rule rule, uint8_t* codes, const WriteScales& write_scales) {
    uint8_t bytes[group];
    int64_t k = 0;
#ifdef HALFBYTE_CPU_COMPARES
    if constexpr (sizeof(T) == 2)
        if (rule.thresholds != nullptr) {
            compare_groups(x, values / group_values, rule, codes, write_scales);
            k = values / group_values * group_values;
        }
#endif
    for (; k + group_values <= values; k += group_values) {
        quantize_group(x + k, group, rule, codes + k / 2, bytes);
        write_scales(k / nvfp4_block, bytes, int64_t(group));
    }
    if (rule.past_caches) finish_stores_past_caches();
    if (k == values) return;
    rule.past_caches = false;
    T rest[group_values] = {};
    uint8_t packed[group_values / 2];
    std::memcpy(rest, x + k, size_t(values - k) * sizeof(T));
    const int64_t blocks = (values - k + nvfp4_block - 1) / nvfp4_block;
    quantize_group(rest, int(blocks), rule, packed, bytes);
    // Missing elements are zeros, but vLLM's order may make a NaN of 0 * inf.
    for (int64_t i = values - k; i < blocks * nvfp4_block; i++)
        packed[i / 2] = uint8_t(packed[i / 2] & (i % 2 == 0 ? 0xF0 : 0x0F));
    std::memcpy(codes + k / 2, packed, size_t(blocks * (nvfp4_block / 2)));
    write_scales(k / nvfp4_block, bytes, blocks);
}

template <typename T>
void quantize_row(const QuantizeArgs& args, const Rule& rule, const T* x, int64_t row) {
    const NvFp4Shape& shape = args.shape;
    const bool tiled = shape.layout != ScaleLayout::linear;
    uint8_t* const scales =
        args.block_scales + scale_offset(shape.layout, row, int64_t(0), shape.padded_blocks());
    const int64_t tile = shape.layout == ScaleLayout::tiled_128x4 ? 512 : 32;  // bytes, 4 blocks of a row
    quantize_values(x, shape.k, rule, args.codes + row * (shape.padded_k / 2),
                    [&](int64_t first, const uint8_t* bytes, int64_t blocks) {
                        if (!tiled) {
                            std::memcpy(scales + first, bytes, size_t(blocks));
                            return;
                        }
                        for (int64_t i = 0; i < blocks; i += 4)  // with zeros behind the last block
                            std::memcpy(scales + (first + i) / 4 * tile, bytes + i, 4);
                    });
    clear_row(args, row, shape.blocks());
}

// Rows that lie side by side, as one: nothing is between them, neither in x nor in the result.
bool is_one_row(const QuantizeArgs& args) {
    const NvFp4Shape& shape = args.shape;
    return !args.scale_per_row && shape.layout == ScaleLayout::linear && args.x.stride == shape.k &&
           shape.padded_k == shape.k;
}

template <typename T>
void quantize_typed(ThreadPool& pool, const QuantizeArgs& args, const T* x, int64_t first_row) {
    const NvFp4Shape& shape = args.shape;
    const int64_t values = args.x.rows * shape.k;
    constexpr int64_t piece = 1 << 16, many_values = 1 << 24;
    const Thresholds* thresholds = nullptr;
#ifdef HALFBYTE_CPU_COMPARES
    std::unique_ptr<Thresholds> found;
    if constexpr (sizeof(T) == 2) {  // finding them takes as long as 2^14 values
        if (values >= 1 << 17 && !args.scale_per_row && args.rounding == Rounding::contract) {
            found = std::make_unique_for_overwrite<Thresholds>();
            find_thresholds<T>(args.encode_scale[0], *found);
            thresholds = found.get();
        }
    }
#endif
    const T* const behind = values == 0 ? x : x + (args.x.rows - 1) * args.x.stride + shape.k;
    std::mutex mutex;
    const auto with_rule = [&](const auto& work) {  // adds up what work counts
        QuantizeStats counted;
        work(Rule{0, args.rounding, thresholds, false, args.stats == nullptr ? nullptr : &counted, behind});
        if (args.stats == nullptr) return;
        const std::lock_guard lock(mutex);
        *args.stats += counted;
    };
    if (is_one_row(args)) {
        const int64_t first_value = first_row * shape.k;
        pool.parallel_for(values / nvfp4_block, piece / nvfp4_block, [&](int64_t begin, int64_t end) {
            with_rule([&](Rule rule) {
                uint8_t* const codes = args.codes + (first_value / nvfp4_block + begin) * (nvfp4_block / 2);
                uint8_t* const scales = args.block_scales + first_value / nvfp4_block + begin;
                rule.G = args.encode_scale[0];
                rule.past_caches = values >= many_values && reinterpret_cast<uintptr_t>(codes) % 64 == 0;
                quantize_values(x + begin * nvfp4_block, (end - begin) * nvfp4_block, rule, codes,
                                [&](int64_t first, const uint8_t* bytes, int64_t blocks) {
                                    std::memcpy(scales + first, bytes, size_t(blocks));
                                });
            });
        });
    } else {
        const int64_t grain = std::max<int64_t>(1, piece / std::max<int64_t>(1, shape.k));
        pool.parallel_for(args.x.rows, grain, [&](int64_t begin, int64_t end) {
            with_rule([&](Rule rule) {
                for (int64_t row = begin; row < end; row++) {
                    rule.G = args.encode_scale[args.scale_per_row ? first_row + row : 0];
                    quantize_row(args, rule, x + row * args.x.stride, first_row + row);
                }
            });
        });
    }
    if (args.stats != nullptr) args.stats->values += values;
}

}  // namespace

void quantize_rows(ThreadPool& pool, const QuantizeArgs& args, int64_t first_row) {
    with_type(args.x.data, args.x.type, [&](const auto* x) { quantize_typed(pool, args, x, first_row); });
}

void quantize(ThreadPool& pool, const QuantizeArgs& args) {
    quantize_rows(pool, args, 0);
    clear_padding_rows(args);
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {

const PerLevel<Kernel<QuantizeArgs>> quantize_levels = HALFBYTE_PER_LEVEL(quantize);
const PerLevel<RowsKernel<QuantizeArgs>> quantize_rows_levels = HALFBYTE_PER_LEVEL(quantize_rows);

void clear_row(const QuantizeArgs& args, int64_t row, int64_t first_block) {
    const NvFp4Shape& shape = args.shape;
    const int64_t blocks = shape.padded_blocks();
    if (row < shape.padded_rows && first_block < blocks)
        std::memset(args.codes + (row * blocks + first_block) * (nvfp4_block / 2), 0,
                    size_t((blocks - first_block) * (nvfp4_block / 2)));
    const int64_t columns = scale_columns(shape.layout, blocks);
    if (shape.layout == ScaleLayout::linear && first_block < blocks) {
        std::memset(args.block_scales + row * blocks + first_block, 0, size_t(blocks - first_block));
        return;
    }
    for (int64_t block = round_up(first_block, 4); block < columns; block += 4)
        std::memset(args.block_scales + scale_offset(shape.layout, row, block, blocks), 0, 4);
}

void clear_padding_rows(const QuantizeArgs& args) {
    const NvFp4Shape& shape = args.shape;
    for (int64_t row = shape.rows; row < scale_rows(shape.layout, shape.padded_rows); row++)
        clear_row(args, row, 0);
}

}  // namespace halfbyte::cpu
#endif
