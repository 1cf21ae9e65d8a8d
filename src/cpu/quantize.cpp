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
#include "cpu/operations.h"
#include "cpu/vectors-inl.h"
#include "format/nvfp4_block.h"
#include "format/scale_layout.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

inline constexpr int vectors_per_block = nvfp4_block / N;

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

HWY_INLINE uint8_t quantize_block(const V (&v)[vectors_per_block], float G, Rounding rounding,
                                  uint8_t* packed) {
    V largest = hn::Zero(F32());
    for (const V& values : v) {
        const V magnitude = hn::Abs(values);
        largest = hn::Max(largest, hn::IfThenElseZero(hn::Eq(magnitude, magnitude), magnitude));
    }
    const float amax = hn::GetLane(hn::MaxOfLanes(F32(), largest));
    const uint8_t byte = encode_e4m3(G * (amax * one_sixth));
    const float SF = decode_e4m3(byte);
    const V factor = set(rounding == Rounding::vllm ? 1.0f / (SF * (1.0f / G)) : G);
    const V sign_bit = set(-0.0f);

    const hn::Rebind<uint8_t, F32> d8;
    uint8_t codes[nvfp4_block];
    for (int i = 0; i < vectors_per_block; i++) {
        V q = hn::Mul(v[i], factor);
        if (rounding == Rounding::contract) q = hn::Div(q, set(SF));
        if (byte == 0) q = hn::IfThenElse(hn::IsNaN(v[i]), v[i], hn::And(v[i], sign_bit));
        const V sign = hn::IfThenElseZero(hn::Eq(q, q), hn::And(q, sign_bit));
        const auto code = hn::Or(encode_magnitude(hn::Abs(q)),
                                 hn::BitCast(I32(), hn::ShiftRight<28>(hn::BitCast(U32(), sign))));
        hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i * N);
    }
    pack(codes, packed);
    return byte;
}

template <typename T>
void quantize_rows(const QuantizeArgs& args, const T* x, int64_t begin, int64_t end) {
    const NvFp4Shape& shape = args.shape;
    const int64_t whole = shape.k / nvfp4_block, code_stride = shape.padded_k / 2;
    for (int64_t row = begin; row < end; row++) {
        const T* values = x + row * args.x.stride;
        uint8_t* codes = args.codes + row * code_stride;
        const float G = args.encode_scale[args.scale_per_row ? row : 0];
        uint8_t* scales = nullptr;  // of the current four blocks: in every layout they lie side by side
        for (int64_t block = 0; block < shape.blocks(); block++) {
            if (block % 4 == 0)
                scales = args.block_scales + scale_offset(shape.layout, row, block, shape.padded_blocks());
            T partial[nvfp4_block] = {};
            const T* source = values + block * nvfp4_block;
            if (block == whole) {
                std::memcpy(partial, source, size_t(shape.k % nvfp4_block) * sizeof(T));
                source = partial;
            }
            V v[vectors_per_block];
            for (int i = 0; i < vectors_per_block; i++) v[i] = load(source + i * N);
            scales[block % 4] = quantize_block(v, G, args.rounding, codes + block * (nvfp4_block / 2));
        }
        // Missing elements are zeros, but vLLM's order may make a NaN of 0 * inf.
        for (int64_t k = shape.k; k < shape.blocks() * nvfp4_block; k++)
            codes[k / 2] &= k % 2 == 0 ? 0xF0 : 0x0F;
        const int64_t written = shape.blocks() * (nvfp4_block / 2);
        if (written < code_stride) std::memset(codes + written, 0, size_t(code_stride - written));
    }
}

}  // namespace

void quantize(ThreadPool& pool, const QuantizeArgs& args) {
    const NvFp4Shape& shape = args.shape;
    const int64_t code_stride = shape.padded_k / 2, rows = shape.rows;
    if (shape.padded_rows > rows && code_stride > 0)
        std::memset(args.codes + rows * code_stride, 0, size_t((shape.padded_rows - rows) * code_stride));
    if (shape.scale_bytes() > rows * shape.blocks())
        std::memset(args.block_scales, 0, size_t(shape.scale_bytes()));
    const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, shape.k));
    pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
        with_type(args.x.data, args.x.type, [&](const auto* x) { quantize_rows(args, x, begin, end); });
    });
    if (args.stats != nullptr) count_statistics(pool, args);
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {

const PerLevel<Kernel<QuantizeArgs>> quantize_levels = HALFBYTE_PER_LEVEL(quantize);

// A second pass over x by the scalar rule: statistics are asked for when a checkpoint is made, not in a
// running model.
void count_statistics(ThreadPool& pool, const QuantizeArgs& args) {
    const NvFp4Shape& shape = args.shape;
    std::mutex mutex;
    const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, shape.k));
    pool.parallel_for(shape.rows, grain, [&](int64_t begin, int64_t end) {
        QuantizeStats stats;
        for (int64_t row = begin; row < end; row++) {
            const float G = args.encode_scale[args.scale_per_row ? row : 0];
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
    args.stats->values += shape.rows * shape.k;
}

}  // namespace halfbyte::cpu
#endif
