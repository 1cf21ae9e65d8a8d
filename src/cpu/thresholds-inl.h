// E2M1 codes of BF16 or FP16 values by comparing 16-bit integers, 16 blocks of 16 at a time. The magnitudes
// of such a type are in the order of their bits, so for one G and one block scale there are seven of them
// above which the codes 1, 2 .. 7 begin.
#if defined(HALFBYTE_CPU_THRESHOLDS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFBYTE_CPU_THRESHOLDS_INL_H
#undef HALFBYTE_CPU_THRESHOLDS_INL_H
#else
#define HALFBYTE_CPU_THRESHOLDS_INL_H
#endif

#include "cpu/vectors-inl.h"
#include "format/e4m3.h"
#include "format/nvfp4_block.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {

// Is there code for it: elsewhere the struct is empty and nothing calls the functions.
#undef HALFBYTE_CPU_COMPARES
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define HALFBYTE_CPU_COMPARES
#endif

constexpr int group = 16;  // blocks handled together
constexpr int group_values = group * nvfp4_block;

HWY_INLINE V decode_scales(hn::Vec<U32> bytes) {
    const V normal = hn::BitCast(F32(), hn::Add(hn::ShiftLeft<20>(bytes), hn::Set(U32(), 120u << 23)));
    const V subnormal = hn::Mul(hn::ConvertTo(F32(), hn::BitCast(I32(), bytes)), set(0x1p-9f));
    return hn::IfThenElse(hn::Lt(normal, set(0x1p-6f)), subnormal, normal);
}

// above[SF][code - 1]: the largest magnitude, as the bits of T, whose code is below `code`; the lanes of a
// vector with AVX2, which compares with all seven. AVX-512 searches in the one number of each, where
// above[SF][7] is not used.
struct Thresholds {
#if HWY_TARGET == HWY_AVX2
    static constexpr int lanes = nvfp4_block;
#else
    static constexpr int lanes = 1;
#endif
    alignas(64) int16_t above[e4m3_max + 1][8][lanes];
};

#ifdef HALFBYTE_CPU_COMPARES

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
            for (int j = 0; j < N && first + j <= e4m3_max; j++)  // a block of scale 0 has zeros alone
                for (int16_t& lane : thresholds.above[first + j][i])
                    lane = int16_t(first + j == 0 ? 0x7FFF : found[j]);
        }
    }
}
#endif

HWY_INLINE void finish_stores_past_caches() {
#ifdef HALFBYTE_CPU_COMPARES
    _mm_sfence();
#endif
}

#if HWY_TARGET == HWY_AVX2
HWY_INLINE __m256i load_block(const void* words) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(words));
}
HWY_INLINE __m256i magnitude_of(__m256i words) {
    return _mm256_and_si256(words, _mm256_set1_epi16(0x7FFF));
}

// The largest magnitude of each of the 16 blocks, in order.
template <typename T>
HWY_INLINE void largest_magnitudes(const T* x, T* amax) {
    __m256i v[8];
    for (int j = 0; j < 8; j++) {
        const __m256i a = magnitude_of(load_block(x + j * nvfp4_block)),
                      b = magnitude_of(load_block(x + (j + 8) * nvfp4_block));
        v[j] = _mm256_max_epi16(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
    }
    for (int j = 0; j < 4; j++)
        v[j] = _mm256_max_epi16(_mm256_unpacklo_epi16(v[2 * j], v[2 * j + 1]),
                                _mm256_unpackhi_epi16(v[2 * j], v[2 * j + 1]));
    for (int j = 0; j < 2; j++)
        v[j] = _mm256_max_epi16(_mm256_unpacklo_epi32(v[2 * j], v[2 * j + 1]),
                                _mm256_unpackhi_epi32(v[2 * j], v[2 * j + 1]));
    const __m256i all =
        _mm256_max_epi16(_mm256_unpacklo_epi64(v[0], v[1]), _mm256_unpackhi_epi64(v[0], v[1]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(amax), all);
}

// Minus the code of each magnitude.
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

HWY_INLINE void store_codes(uint8_t* codes, __m256i packed, bool past_caches) {
    if (past_caches) return _mm256_stream_si256(reinterpret_cast<__m256i*>(codes), packed);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), packed);
}

// x [256], the blocks' scales -> codes [128]
template <typename T>
HWY_INLINE void compare(const T* x, const uint8_t* scales, const Thresholds& thresholds, uint8_t* codes,
                        bool past_caches) {
    for (int first = 0; first < group; first += 4) {
        __m256i v[4], minus[4];
        for (int j = 0; j < 4; j++) {
            v[j] = load_block(x + (first + j) * nvfp4_block);
            minus[j] = minus_codes(magnitude_of(v[j]), thresholds.above[scales[first + j]]);
        }
        // 32-bit words of the low halves of four blocks, then of their high halves, are put in order.
        const __m256i packed = _mm256_packus_epi16(join_nibbles(minus[0], minus[1], v[0], v[1]),
                                                   join_nibbles(minus[2], minus[3], v[2], v[3]));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        store_codes(codes + first * (nvfp4_block / 2), _mm256_permutevar8x32_epi32(packed, order),
                    past_caches);
    }
}
#endif

#if HWY_TARGET == HWY_AVX3
// Two blocks in a vector.
HWY_INLINE __m512i load_blocks(const void* words) {
    return _mm512_loadu_si512(words);
}
HWY_INLINE __m512i magnitude_of(__m512i words) {
    return _mm512_and_si512(words, _mm512_set1_epi16(0x7FFF));
}

// The largest magnitude of each of the 16 blocks, in order.
template <typename T>
HWY_INLINE void largest_magnitudes(const T* x, T* amax) {
    __m512i v[4];
    for (int j = 0; j < 4; j++) {  // 128-bit parts: blocks 2j, 2j + 1, 2j + 8, 2j + 9
        const __m512i a = magnitude_of(load_blocks(x + 2 * j * nvfp4_block)),
                      b = magnitude_of(load_blocks(x + (2 * j + 8) * nvfp4_block));
        v[j] = _mm512_max_epi16(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xDD));
    }
    for (int j = 0; j < 2; j++)
        v[j] = _mm512_max_epi16(_mm512_unpacklo_epi16(v[2 * j], v[2 * j + 1]),
                                _mm512_unpackhi_epi16(v[2 * j], v[2 * j + 1]));
    __m512i all = _mm512_max_epi16(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    all = _mm512_max_epi16(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC));
    // The first four words of the parts: blocks 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15.
    const __m512i order =
        _mm512_castsi256_si512(_mm256_setr_epi16(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(amax),
                        _mm512_castsi512_si256(_mm512_permutexvar_epi16(order, all)));
}

// Codes with signs of two blocks as 32 lanes, by bisection among the seven thresholds.
HWY_INLINE __m512i codes_of(__m512i v, const int16_t* above_a, const int16_t* above_b) {
    const __m512i magnitude = magnitude_of(v);
    const auto load8 = [](const int16_t* p)
                           HWY_ATTR { return _mm_load_si128(reinterpret_cast<const __m128i*>(p)); };
    const __m512i table = _mm512_castsi256_si512(
        _mm256_inserti128_si256(_mm256_castsi128_si256(load8(above_a)), load8(above_b), 1));
    // Threshold i of the lane's block; the second block's are 8 words further.
    const auto at = [](int16_t i) HWY_ATTR {
        const int32_t first = i * 0x10001, second = (i + 8) * 0x10001;
        return _mm512_setr_epi32(first, first, first, first, first, first, first, first,  //
                                 second, second, second, second, second, second, second, second);
    };
    const auto above = [&](__m512i i) HWY_ATTR {
        return _mm512_cmpgt_epi16_mask(magnitude, _mm512_permutexvar_epi16(i, table));
    };
    const __m512i one = _mm512_set1_epi16(1), two = _mm512_set1_epi16(2);
    const __mmask32 half = above(at(3));
    __m512i i = _mm512_mask_blend_epi16(half, at(1), at(5));
    const __m512i lower = _mm512_sub_epi16(i, one);
    i = _mm512_mask_add_epi16(lower, above(i), lower, two);
    const __m512i code = _mm512_mask_add_epi16(i, above(i), i, one);  // of the second block 8 too many
    const __m512i sign = _mm512_srli_epi16(v, 12);                    // bit 3, among others
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(7), code, sign, 0xCA);  // 7 ? code : sign
}

// Codes of four blocks, each vector the two of one, to bytes in 16-bit words.
HWY_INLINE __m512i join_nibbles(__m512i a, __m512i b) {
    return _mm512_maddubs_epi16(_mm512_packs_epi16(a, b), _mm512_set1_epi16(0x1001));
}

// x [256], the blocks' scales -> codes [128]
template <typename T>
HWY_INLINE void compare(const T* x, const uint8_t* scales, const Thresholds& thresholds, uint8_t* codes,
                        bool past_caches) {
    for (int first = 0; first < group; first += 8) {
        __m512i c[4];
        for (int j = 0; j < 4; j++) {
            const int block = first + 2 * j;
            c[j] = codes_of(load_blocks(x + block * nvfp4_block), thresholds.above[scales[block]][0],
                            thresholds.above[scales[block + 1]][0]);
        }
        // 128-bit part p holds part p of each of the four vectors.
        const __m512i packed = _mm512_packus_epi16(join_nibbles(c[0], c[1]), join_nibbles(c[2], c[3]));
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        const __m512i bytes = _mm512_permutexvar_epi32(order, packed);
        uint8_t* place = codes + first * (nvfp4_block / 2);
        if (past_caches) {
            _mm512_stream_si512(reinterpret_cast<__m512i*>(place), bytes);
        } else {
            _mm512_storeu_si512(place, bytes);
        }
    }
}
#endif

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
