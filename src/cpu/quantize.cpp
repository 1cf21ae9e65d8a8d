// codes, block_scales = NVFP4(x): the rule of format/nvfp4_block.h, 16 blocks of 16 values at a time.
//   x [rows, K] BF16, FP16 or FP32 -> codes [Rp, Kp/2], block_scales in any layout; all padding is written as
//   zero.
// The largest magnitudes of the blocks are found together by a transposing tree and give their scales in one
// vector. Then there are three ways to the codes, with the same result:
//   comparison   BF16 and FP16, many values of one G: the code of a value is the number of thresholds that
//   its
//                magnitude exceeds, and for a block scale the seven thresholds are seven 16-bit integers,
//                found once (Thresholds)
//   reciprocal   everything else: the quotient by r = fl(1/SF) and one correction
//   rule         quantize_nvfp4_block: groups with values that are not finite, with clipped values to be
//                counted, and Rounding::vllm
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantize.cpp"
#include <hwy/foreach_target.h>
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "core/element.h"
#include "cpu/kernels.h"
#include "cpu/operations.h"
#include "cpu/vectors-inl.h"
#include "format/e2m1_rounding.h"
#include "format/nvfp4_block.h"
#include "format/scale_layout.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

constexpr int group = 16;  // blocks handled together
constexpr int group_values = group * nvfp4_block;

// For every block scale the magnitudes, as the bits of T, above which the codes 1, 2 .. 7 begin, each
// repeated for a vector: 32 KiB, of which a matrix uses some of the 127 rows.
struct Thresholds {
    alignas(64) int16_t above[e4m3_max + 1][8][nvfp4_block];
};

// What all blocks of a row have in common.
struct Rule {
    float G;
    Rounding rounding;
    const Thresholds* thresholds;  // or null
    QuantizeStats* stats;          // or null
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

HWY_INLINE V decode_scales(hn::Vec<U32> bytes) {
    const V normal = hn::BitCast(F32(), hn::Add(hn::ShiftLeft<20>(bytes), hn::Set(U32(), 120u << 23)));
    const V subnormal = hn::Mul(hn::ConvertTo(F32(), hn::BitCast(I32(), bytes)), set(0x1p-9f));
    return hn::IfThenElse(hn::Lt(normal, set(0x1p-6f)), subnormal, normal);
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

// --- codes by comparison

#undef HALFBYTE_QUANTIZE_COMPARES
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define HALFBYTE_QUANTIZE_COMPARES
using I16 = hn::FixedTag<int16_t, nvfp4_block>;

template <typename T>
constexpr int infinity_bits = std::is_same_v<T, BFloat16> ? 0x7F80 : 0x7C00;

// By bisection, for N block scales at once: fl(v * G) never falls with v, and SF times a midpoint is exact.
template <typename T>
void find_thresholds(float G, Thresholds& thresholds) {
    constexpr float midpoints[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const I32 d;
    const hn::Rebind<uint16_t, F32> d16;
    for (int first = 0; first <= e4m3_max; first += N) {
        const V SF = decode_scales(hn::Iota(U32(), uint32_t(first)));
        for (int i = 0; i < 7; i++) {
            const V edge = hn::Mul(SF, set(midpoints[i]));
            auto low = hn::Zero(d), high = hn::Set(d, infinity_bits<T>);  // low is not above, high is
            for (int step = 0; step < 15; step++) {
                const auto middle = hn::ShiftRight<1>(hn::Add(low, high));
                T values[N];
                hn::StoreU(hn::DemoteTo(d16, middle), d16, reinterpret_cast<uint16_t*>(values));
                const V y = hn::Mul(load(values), set(G));
                const auto above = hn::RebindMask(d, i % 2 == 0 ? hn::Gt(y, edge) : hn::Ge(y, edge));
                low = hn::IfThenElse(above, low, middle);
                high = hn::IfThenElse(above, middle, high);
            }
            int32_t found[N];
            hn::StoreU(low, d, found);
            for (int j = 0; j < N && first + j <= e4m3_max; j++) {  // a block of scale 0 has zeros alone
                const int threshold = first + j == 0 ? 0x7FFF : found[j];
                hn::StoreU(hn::Set(I16(), int16_t(threshold)), I16(), thresholds.above[first + j][i]);
            }
        }
    }
}

// Lane j is the largest lane of v[j].
HWY_INLINE hn::Vec<I16> largest_lane_of_each(hn::Vec<I16> (&v)[group]) {
    const I16 d;
    const hn::Repartition<uint32_t, I16> d32;
    const hn::Repartition<uint64_t, I16> d64;
    for (int j = 0; j < 8; j++)
        v[j] = hn::Max(hn::ConcatLowerLower(d, v[j + 8], v[j]), hn::ConcatUpperUpper(d, v[j + 8], v[j]));
    for (int j = 0; j < 4; j++)
        v[j] = hn::Max(hn::InterleaveLower(d, v[2 * j], v[2 * j + 1]),
                       hn::InterleaveUpper(d, v[2 * j], v[2 * j + 1]));
    const auto by = [&](auto wide, hn::Vec<I16> a, hn::Vec<I16> b) HWY_ATTR {
        const auto x = hn::BitCast(wide, a), y = hn::BitCast(wide, b);
        return hn::Max(hn::BitCast(d, hn::InterleaveLower(wide, x, y)),
                       hn::BitCast(d, hn::InterleaveUpper(wide, x, y)));
    };
    return by(d64, by(d32, v[0], v[1]), by(d32, v[2], v[3]));
}

// Minus the code of each magnitude. The comparison's result is 0 or -1 in a vector, also where Highway would
// make a mask of it.
HWY_INLINE __m256i minus_codes(__m256i magnitude, const int16_t (*above)[nvfp4_block]) {
    const auto reached = [&](int i) HWY_ATTR {
        return _mm256_cmpgt_epi16(magnitude, _mm256_load_si256(reinterpret_cast<const __m256i*>(above[i])));
    };
    const __m256i a = _mm256_add_epi16(reached(0), reached(1)), b = _mm256_add_epi16(reached(2), reached(3)),
                  c = _mm256_add_epi16(reached(4), reached(5));
    return _mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_add_epi16(c, reached(6)));
}

// Packed codes of two blocks in 16-bit words, from -code and v of each as 16 lanes; packing keeps v's sign.
HWY_INLINE __m256i join_nibbles(__m256i minus_a, __m256i minus_b, __m256i a, __m256i b) {
    const __m256i minus = _mm256_packs_epi16(minus_a, minus_b), v = _mm256_packs_epi16(a, b);
    const __m256i sign = _mm256_srli_epi16(_mm256_and_si256(v, _mm256_set1_epi8(-128)), 4);
    return _mm256_maddubs_epi16(_mm256_sub_epi8(sign, minus), _mm256_set1_epi16(0x1001));
}

template <typename T>
HWY_INLINE bool encode_by_comparison(const T* x, const Rule& rule, uint8_t* codes, uint8_t* bytes,
                                     int64_t& flushed) {
    const I16 d;
    const auto* words = reinterpret_cast<const int16_t*>(x);
    const auto magnitude_bits = hn::Set(d, 0x7FFF);
    hn::Vec<I16> v[group];
    for (int j = 0; j < group; j++) v[j] = hn::And(hn::LoadU(d, words + j * nvfp4_block), magnitude_bits);
    const auto largest = largest_lane_of_each(v);
    if (!hn::AllFalse(d, hn::Gt(largest, hn::Set(d, infinity_bits<T> - 1)))) return false;
    T amax[group];
    hn::StoreU(largest, d, reinterpret_cast<int16_t*>(amax));
    V SF;
    for (int first = 0; first < group; first += N)
        if (!find_scales(load(amax + first), rule, bytes + first, SF, flushed)) return false;

    for (int first = 0; first < group; first += 4) {
        __m256i values[4], minus[4];
        for (int j = 0; j < 4; j++) {
            values[j] = hn::LoadU(d, words + (first + j) * nvfp4_block).raw;
            minus[j] = minus_codes(_mm256_and_si256(values[j], magnitude_bits.raw),
                                   rule.thresholds->above[bytes[first + j]]);
        }
        // 32-bit words of the low halves of four blocks, then of their high halves, are put in order.
        const __m256i packed = _mm256_packus_epi16(join_nibbles(minus[0], minus[1], values[0], values[1]),
                                                   join_nibbles(minus[2], minus[3], values[2], values[3]));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + first * (nvfp4_block / 2)),
                            _mm256_permutevar8x32_epi32(packed, order));
    }
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
        if (!hn::AllTrue(I32(), hn::Lt(hn::BitCast(I32(), amax), hn::Set(I32(), 0x7F800000)))) return false;
        if (!find_scales(amax, rule, bytes + first, SF, flushed)) return false;
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

// x [256] -> packed [128], bytes [16]; the group's blocks behind `blocks` hold zeros.
template <typename T>
HWY_INLINE void quantize_group(const T* x, int blocks, const Rule& rule, uint8_t* packed, uint8_t* bytes) {
    int64_t flushed = 0;
    bool done = false;
#ifdef HALFBYTE_QUANTIZE_COMPARES
    if constexpr (sizeof(T) == 2)
        if (rule.thresholds != nullptr) done = encode_by_comparison(x, rule, packed, bytes, flushed);
#endif
    if (rule.thresholds == nullptr && rule.rounding == Rounding::contract)
        done = encode_by_reciprocal(x, rule, packed, bytes, flushed);
    if (!done) return encode_by_rule(x, blocks, rule, packed, bytes);
    if (rule.stats == nullptr) return;
    rule.stats->blocks += blocks;
    rule.stats->flushed += flushed;
}

// `values` values side by side -> codes; write_scales(first block, bytes, blocks) for each group.
template <typename T, typename WriteScales>
void quantize_values(const T* x, int64_t values, const Rule& rule, uint8_t* codes,
                     const WriteScales& write_scales) {
    uint8_t bytes[group];
    int64_t k = 0;
    for (; k + group_values <= values; k += group_values) {
        quantize_group(x + k, group, rule, codes + k / 2, bytes);
        write_scales(k / nvfp4_block, bytes, int64_t(group));
    }
    if (k == values) return;
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
    constexpr int64_t piece = 1 << 16;  // values
    const Thresholds* thresholds = nullptr;
#ifdef HALFBYTE_QUANTIZE_COMPARES
    std::unique_ptr<Thresholds> found;
    if constexpr (sizeof(T) == 2) {  // finding them takes as long as 2^14 values
        if (values >= 1 << 17 && !args.scale_per_row && args.rounding == Rounding::contract) {
            found = std::make_unique_for_overwrite<Thresholds>();
            find_thresholds<T>(args.encode_scale[0], *found);
            thresholds = found.get();
        }
    }
#endif
    std::mutex mutex;
    const auto with_rule = [&](const auto& work) {  // adds up what work counts
        QuantizeStats counted;
        work(Rule{0, args.rounding, thresholds, args.stats == nullptr ? nullptr : &counted});
        if (args.stats == nullptr) return;
        const std::lock_guard lock(mutex);
        args.stats->blocks += counted.blocks;
        args.stats->non_finite += counted.non_finite;
        args.stats->clipped += counted.clipped;
        args.stats->flushed += counted.flushed;
    };
    if (is_one_row(args)) {
        const int64_t first_value = first_row * shape.k;
        pool.parallel_for(values / nvfp4_block, piece / nvfp4_block, [&](int64_t begin, int64_t end) {
            with_rule([&](Rule rule) {
                rule.G = args.encode_scale[0];
                uint8_t* scales = args.block_scales + first_value / nvfp4_block + begin;
                quantize_values(x + begin * nvfp4_block, (end - begin) * nvfp4_block, rule,
                                args.codes + (first_value + begin * nvfp4_block) / 2,
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
