// y = round_T(fl((code * SF) * D)), 16 codes at a time.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/dequantize.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstring>

#include "cpu/decode-inl.h"
#include "cpu/operations.h"
#include "cpu/vectors-inl.h"
#include "format/scale_layout.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void dequantize_rows(const DequantizeArgs& args, T* y, int64_t begin, int64_t end) {
    const NvFp4Shape& shape = args.a.shape;
    for (int64_t row = begin; row < end; row++) {
        const V D = set(args.decode_scale[args.scale_per_row ? row : 0]);
        const uint8_t* codes = args.a.codes + row * (shape.padded_k / 2);
        const uint8_t* scales = nullptr;  // of the current four blocks: in every layout they lie side by side
        for (int64_t block = 0; block < shape.blocks(); block++) {
            if (block % 4 == 0)
                scales = args.a.block_scales + scale_offset(shape.layout, row, block, shape.padded_blocks());
            float values[16];
            decode_block(codes + block * 8, scales[block % 4], values);
            T* out = y + row * args.y.stride + block * 16;
            const int64_t present = std::min<int64_t>(16, shape.k - block * 16);
            for (int64_t i = 0; i < present; i += N) {
                const V value = hn::Mul(load(values + i), D);
                if (i + N <= present) {
                    store(value, out + i);
                } else {
                    store_first(value, out + i, present - i);
                }
            }
        }
    }
}

}  // namespace

void dequantize(ThreadPool& pool, const DequantizeArgs& args) {
    const NvFp4Shape& shape = args.a.shape;
    pool.parallel_for(shape.rows, grain_for(pool, shape.rows, 16 * shape.k), [&](int64_t begin, int64_t end) {
        with_type(args.y.data, args.y.type, [&](auto* y) { dequantize_rows(args, y, begin, end); });
    });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<DequantizeArgs>> dequantize_levels = HALFBYTE_PER_LEVEL(dequantize);
}  // namespace halfbyte::cpu
#endif
