// codes, block_scales = NVFP4(x): the rule of format/nvfp4_block.h for one block of 16 values at a time.
//   x [rows, K] BF16, FP16 or FP32 -> codes [Rp, Kp/2], block_scales in any layout; all padding is written as
//   zero.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantize.cpp"
#include <hwy/foreach_target.h>
#include <algorithm>
#include <cstring>
#include <mutex>

#include "core/element.h"
#include "cpu/kernels.h"
#include "cpu/operations.h"
#include "cpu/vectors-inl.h"
#include "format/nvfp4_block.h"
#include "format/scale_layout.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

// E2M1 codes 0..7 of |q|, nearest even. Adding 2^22, 2^23 or 2^24 rounds to steps of .5, 1 or 2; the right
// step for each magnitude is the one that gives the smallest code. NaN becomes 7.
HWY_INLINE hn::Vec<I32> encode_magnitude(V q) {
    const I32 d;
    const auto rounded = [](V magnitude, float big, int32_t code_of_big) HWY_ATTR {
        return hn::Sub(hn::BitCast(I32(), hn::Add(magnitude, set(big))), hn::Set(I32(), code_of_big));
    };
    const auto halves = rounded(q, 0x1p22f, 0x4A800000);
    const auto ones = rounded(q, 0x1p23f, 0x4B000000 - 2);
    const auto twos = rounded(q, 0x1p24f, 0x4B800000 - 4);
    return hn::Min(hn::Min(halves, ones), hn::Min(twos, hn::Set(d, 7)));
}

// 16 codes in bytes to 8 packed bytes, even elements in the low nibbles.
HWY_INLINE void pack(const uint8_t codes[nvfp4_block], uint8_t packed[nvfp4_block / 2]) {
    uint64_t words[2];
    std::memcpy(words, codes, sizeof words);
    for (uint64_t& word : words) {
        word = (word | word >> 4) & 0x00FF00FF00FF00FF;
        word = (word | word >> 8) & 0x0000FFFF0000FFFF;
        word = (word | word >> 16) & 0x00000000FFFFFFFF;
    }
    words[0] |= words[1] << 32;
    std::memcpy(packed, words, nvfp4_block / 2);
}

// E4M3 of s >= 0 in the low byte of each lane: encode_e4m3 for N values.
HWY_INLINE hn::Vec<U32> encode_scales(V s) {
    const U32 d;
    const auto bits = hn::BitCast(d, s);
    const auto subnormal = hn::And(hn::BitCast(d, hn::Add(s, set(16384.0f))), hn::Set(d, 15));
    const auto rebiased = hn::Sub(bits, hn::Set(d, 120u << 23));
    const auto odd = hn::And(hn::ShiftRight<20>(rebiased), hn::Set(d, 1));
    const auto normal = hn::ShiftRight<20>(hn::Add(hn::Add(rebiased, hn::Set(d, 0x7FFFF)), odd));
    const auto code = hn::IfThenElse(hn::RebindMask(d, hn::Lt(s, set(0x1p-6f))), subnormal, normal);
    return hn::IfThenElse(hn::RebindMask(d, hn::Ge(s, set(448.0f))), hn::Set(d, e4m3_max), code);
}

HWY_INLINE V decode_scales(hn::Vec<U32> bytes) {
    const V normal = hn::BitCast(F32(), hn::Add(hn::ShiftLeft<20>(bytes), hn::Set(U32(), 120u << 23)));
    const V subnormal = hn::Mul(hn::ConvertTo(F32(), hn::BitCast(I32(), bytes)), set(0x1p-9f));
    return hn::IfThenElse(hn::Lt(normal, set(0x1p-6f)), subnormal, normal);
}

template <typename T>
HWY_INLINE V largest_magnitude(const T* values) {
    V largest = hn::Zero(F32());
    for (int i = 0; i < nvfp4_block; i += N) {
        const V magnitude = hn::Abs(load(values + i));
        largest = hn::Max(largest, hn::IfThenElseZero(hn::Eq(magnitude, magnitude), magnitude));  // no NaN
    }
    return largest;
}

// q = fl(fl(v * factor) / divisor); a block of scale 0 gets the zeros with the signs of its values.
template <typename T>
HWY_INLINE void encode_block(const T* values, float factor, float divisor, bool divide, bool zero,
                             uint8_t* packed) {
    const hn::Rebind<uint8_t, F32> d8;
    const V sign_bit = set(-0.0f);
    uint8_t codes[nvfp4_block];
    for (int i = 0; i < nvfp4_block; i += N) {
        const V v = load(values + i);
        V q = hn::Mul(v, set(factor));
        if (divide) q = hn::Div(q, set(divisor));
        if (zero) q = hn::IfThenElse(hn::IsNaN(v), v, hn::And(v, sign_bit));
        const V sign = hn::IfThenElseZero(hn::Eq(q, q), hn::And(q, sign_bit));
        const auto shifted = hn::BitCast(I32(), hn::ShiftRight<28>(hn::BitCast(U32(), sign)));
        hn::StoreU(hn::DemoteTo(d8, hn::Or(encode_magnitude(hn::Abs(q)), shifted)), d8, codes + i);
    }
    pack(codes, packed);
}

// One row of the result from its x: N blocks at a time, whose scales are found together.
template <typename T>
void quantize_row(const QuantizeArgs& args, const T* x, int64_t row) {
    const NvFp4Shape& shape = args.shape;
    const int64_t blocks = shape.blocks(), whole = shape.k / nvfp4_block;
    const float G = args.encode_scale[args.scale_per_row ? row : 0];
    const bool contract = args.rounding == Rounding::contract;
    uint8_t* codes = args.codes + row * (shape.padded_k / 2);
    T partial[nvfp4_block] = {};
    if (whole < blocks)
        std::memcpy(partial, x + whole * nvfp4_block, size_t(shape.k % nvfp4_block) * sizeof(T));

    for (int64_t first = 0; first < blocks; first += N) {
        const int count = int(std::min<int64_t>(N, blocks - first));
        const auto source = [&](int j) {
            return first + j == whole ? partial : x + (first + j) * nvfp4_block;
        };
        V largest[N];
        for (int j = 0; j < count; j++) largest[j] = largest_magnitude(source(j));
        for (int j = count; j < N; j++) largest[j] = hn::Zero(F32());
        const V amax = combine_lanes_of_each<Max>(largest);
        const auto bytes = encode_scales(hn::Mul(set(G), hn::Mul(amax, set(one_sixth))));
        const V SF = decode_scales(bytes);
        uint32_t byte[N];
        float divisor[N], factor[N];
        hn::StoreU(bytes, U32(), byte);
        store(SF, divisor);
        store(contract ? set(G) : hn::Div(set(1.0f), hn::Mul(SF, set(1.0f / G))), factor);

        uint8_t* scales = nullptr;  // of four blocks: in every layout they lie side by side
        for (int j = 0; j < count; j++) {
            const int64_t block = first + j;
            if (block % 4 == 0)
                scales = args.block_scales + scale_offset(shape.layout, row, block, shape.padded_blocks());
            scales[block % 4] = uint8_t(byte[j]);
            encode_block(source(j), factor[j], divisor[j], contract, byte[j] == 0,
                         codes + block * (nvfp4_block / 2));
        }
    }
    // Missing elements are zeros, but vLLM's order may make a NaN of 0 * inf.
    for (int64_t k = shape.k; k < blocks * nvfp4_block; k++)
        codes[k / 2] = uint8_t(codes[k / 2] & (k % 2 == 0 ? 0xF0 : 0x0F));
    const int64_t written = blocks * (nvfp4_block / 2), code_stride = shape.padded_k / 2;
    if (written < code_stride) std::memset(codes + written, 0, size_t(code_stride - written));
}

}  // namespace

void quantize_rows(ThreadPool& pool, const QuantizeArgs& args, int64_t first_row) {
    const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, args.shape.k));
    pool.parallel_for(args.x.rows, grain, [&](int64_t begin, int64_t end) {
        with_type(args.x.data, args.x.type, [&](const auto* x) {
            for (int64_t row = begin; row < end; row++)
                quantize_row(args, x + row * args.x.stride, first_row + row);
        });
    });
    if (args.stats != nullptr) count_statistics(pool, args, first_row);
}

void quantize(ThreadPool& pool, const QuantizeArgs& args) {
    clear_padding(args);
    quantize_rows(pool, args, 0);
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {

const PerLevel<Kernel<QuantizeArgs>> quantize_levels = HALFBYTE_PER_LEVEL(quantize);
const PerLevel<RowsKernel<QuantizeArgs>> quantize_rows_levels = HALFBYTE_PER_LEVEL(quantize_rows);

void clear_padding(const QuantizeArgs& args) {
    const NvFp4Shape& shape = args.shape;
    const int64_t code_stride = shape.padded_k / 2, rows = shape.rows;
    if (shape.padded_rows > rows && code_stride > 0)
        std::memset(args.codes + rows * code_stride, 0, size_t((shape.padded_rows - rows) * code_stride));
    if (shape.scale_bytes() > rows * shape.blocks())
        std::memset(args.block_scales, 0, size_t(shape.scale_bytes()));
}

// A second pass over x by the scalar rule: statistics are asked for when a checkpoint is made, not in a
// running model.
void count_statistics(ThreadPool& pool, const QuantizeArgs& args, int64_t first_row) {
    const NvFp4Shape& shape = args.shape;
    std::mutex mutex;
    const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, shape.k));
    pool.parallel_for(args.x.rows, grain, [&](int64_t begin, int64_t end) {
        QuantizeStats stats;
        for (int64_t row = begin; row < end; row++) {
            const float G = args.encode_scale[args.scale_per_row ? first_row + row : 0];
            for (int64_t first = 0; first < shape.k; first += nvfp4_block) {
                float values[nvfp4_block] = {};
                uint8_t codes[nvfp4_block];
                for (int64_t i = first; i < std::min(first + nvfp4_block, shape.k); i++)
                    values[i - first] = load_element(args.x.data, args.x.type, row * args.x.stride + i);
                quantize_nvfp4_block(values, G, args.rounding, codes, &stats);
            }
        }
        const std::lock_guard lock(mutex);
        args.stats->blocks += stats.blocks;
        args.stats->non_finite += stats.non_finite;
        args.stats->clipped += stats.clipped;
        args.stats->flushed += stats.flushed;
    });
    args.stats->values += args.x.rows * shape.k;
}

}  // namespace halfbyte::cpu
#endif
