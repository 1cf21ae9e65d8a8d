// The activations of a product of few tokens as the operand B of 16 x 8 x 16 products.
//
// Pair p of the blocks of K (32 elements) begins at byte p * pair_bytes(tokens); there the uint4 at
// operand_place(token, q) (q 0..3) holds what lane token % 8 * 4 + q of a warp needs of both blocks: the
// elements 2q, 2q + 1 (x) and 2q + 8, 2q + 9 (y) of the first, those of the second (z, w). Tokens and
// elements that are not there are 0.
#pragma once

#include "cuda/device/block.cuh"
#include "cuda/device/fragments.cuh"
#include "cuda/ptx/launch.cuh"
#include "format/scale_layout.h"
#include "halfbyte/dtype.h"

namespace halfbyte::cuda {

constexpr int pair_bytes(int tokens) {
    return 64 * tokens;
}
// Neighbouring tokens are turned, so that threads that write one q of 8 tokens each meet all banks of shared
// memory.
constexpr uint32_t operand_place(uint32_t token, uint32_t q) {
    return token * 4 + (q ^ (token / 2 % 4));
}

// Quantised codes, or a matrix x that is used as it is or, with an encode_scale, quantised.
struct Activations {
    uint32_t first = 0, rows = 0, k = 0;  // rows [first, first + rows) of what follows
    const uint8_t* codes = nullptr;       // [rows, padded_blocks * 8], or x
    const uint8_t* scales = nullptr;
    ScaleLayout layout = ScaleLayout::linear;
    uint32_t padded_blocks = 0;
    const void* x = nullptr;  // [rows, k] of type
    DType type = DType::bf16;
    int64_t stride = 0;
    const float* encode_scale = nullptr;  // one number, or [rows]
    bool encode_scale_per_row = false;
};

// The words of a block from its codes: code * SF * 2^-22 of the elements 2q, 2q + 1 in `low`, of 2q + 8, 2q +
// 9 in `high`.
__device__ __forceinline__ void operand_of_block(const QuantizedBlock& block, uint32_t (&low)[4],
                                                 uint32_t (&high)[4]) {
    const uint32_t scale = Fragments<__nv_bfloat16>::scale(block.scale) * 0x10001u;
    Fragments<__nv_bfloat16>::pairs(block.codes.x, low);
    Fragments<__nv_bfloat16>::pairs(block.codes.y, high);
#pragma unroll
    for (int q = 0; q < 4; q++) {
        low[q] = ptx::multiply_bf16x2(low[q], scale);
        high[q] = ptx::multiply_bf16x2(high[q], scale);
    }
}

// The bits of a block's codes that count, if `count` elements of it are there.
__device__ __forceinline__ uint2 codes_within(uint2 codes, uint32_t count) {
    const auto mask = [](uint32_t nibbles) { return nibbles >= 8 ? ~0u : (1u << 4 * nibbles) - 1; };
    return make_uint2(codes.x & mask(count), codes.y & mask(max(count, 8u) - 8));
}

// Where the activations of a pair of blocks come from: block(raw, i, ...) gives the words of its first or
// second block.
struct CodesSource {
    static constexpr bool quantises = false;
    const Activations& a;

    struct Raw {
        uint4 codes = {};
        uint32_t scales[2] = {};
    };
    __device__ __forceinline__ Raw load(uint32_t row, uint32_t block) const {
        Raw raw;
        if (block * block_elements >= a.k) return raw;
        const bool second = (block + 1) * block_elements < a.k;
        const uint8_t* codes = a.codes + (uint64_t(row) * a.padded_blocks + block) * 8;
        if (second && reinterpret_cast<uintptr_t>(codes) % 16 == 0) {
            raw.codes = *reinterpret_cast<const uint4*>(codes);
        } else {
            const uint2 low = load_codes(codes, false);
            const uint2 high = second ? load_codes(codes + 8, false) : make_uint2(0, 0);
            raw.codes = make_uint4(low.x, low.y, high.x, high.y);
        }
        raw.scales[0] = a.scales[scale_offset(a.layout, row, block, a.padded_blocks)];
        if (second) raw.scales[1] = a.scales[scale_offset(a.layout, row, block + 1, a.padded_blocks)];
        return raw;
    }
    __device__ __forceinline__ void block(const Raw& raw, int i, uint32_t, uint32_t block, uint32_t (&low)[4],
                                          uint32_t (&high)[4]) const {
        uint2 codes = i == 0 ? make_uint2(raw.codes.x, raw.codes.y) : make_uint2(raw.codes.z, raw.codes.w);
        const uint32_t first = (block + i) * block_elements;
        if (first + block_elements > a.k) codes = codes_within(codes, first < a.k ? a.k - first : 0);
        operand_of_block({codes, raw.scales[i]}, low, high);
    }
};

// x of type V: as it is, or quantised with G to the bits of CodesSource after the quantiser.
template <typename V, bool quantises_>
struct MatrixSource {
    static constexpr bool quantises = quantises_;
    const Activations& a;

    struct Raw {
        alignas(16) V values[32];
    };
    __device__ __forceinline__ Raw load(uint32_t row, uint32_t block) const {
        Raw raw;
        const uint32_t first = block * block_elements;
        const V* x = static_cast<const V*>(a.x) + row * a.stride + first;
        if (first + 32 <= a.k && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
#pragma unroll
            for (int i = 0; i < 32 * int(sizeof(V)) / 16; i++)
                reinterpret_cast<uint4*>(raw.values)[i] = reinterpret_cast<const uint4*>(x)[i];
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) raw.values[i] = first + i < a.k ? x[i] : V(0.0f);
        }
        return raw;
    }
    __device__ __forceinline__ void block(const Raw& raw, int i, uint32_t row, uint32_t, uint32_t (&low)[4],
                                          uint32_t (&high)[4]) const {
        const V* x = raw.values + 16 * i;
        if constexpr (quantises) {
            float values[block_elements];
#pragma unroll
            for (int j = 0; j < block_elements; j++) values[j] = widen(x[j]);
            operand_of_block(quantize_block(values, a.encode_scale[a.encode_scale_per_row ? row : 0]), low,
                             high);
        } else {
#pragma unroll
            for (int q = 0; q < 4; q++) {
                low[q] = reinterpret_cast<const uint32_t*>(x)[q];
                high[q] = reinterpret_cast<const uint32_t*>(x)[q + 4];
            }
        }
    }
};

// Pair `pair` of token `token`, first read, then written to the pair's place, `at`.
template <typename Source>
struct ExpandedPair {
    typename Source::Raw raw;

    static __device__ __forceinline__ bool is_there(const Activations& a, uint32_t token, uint32_t pair) {
        return token < a.rows && pair * 32 < a.k;
    }
    __device__ __forceinline__ void load(const Activations& a, uint32_t token, uint32_t pair) {
        if (is_there(a, token, pair)) raw = Source{a}.load(a.first + token, pair * 2);
    }
    __device__ __forceinline__ void store(const Activations& a, uint32_t tokens, uint32_t token,
                                          uint32_t pair, uint8_t* at) const {
        const bool there = is_there(a, token, pair);
        uint32_t low[2][4] = {}, high[2][4] = {};
#pragma unroll
        for (int block = 0; block < 2; block++)
            if (there) Source{a}.block(raw, block, a.first + token, pair * 2, low[block], high[block]);
#pragma unroll
        for (int q = 0; q < 4; q++)
            reinterpret_cast<uint4*>(at)[operand_place(token, q)] =
                make_uint4(low[0][q], high[0][q], low[1][q], high[1][q]);
    }
};

// All pairs of all tokens: a thread for each token of each pair; `pairs` of K rounded up to whole groups of
// 64 elements.
template <typename Source>
__global__ void expand_activations(const Activations a, uint32_t tokens, uint32_t pairs, uint8_t* expanded) {
    // In this order: the product behind this kernel reads its weight at once, and what is ahead of this
    // kernel may have packed it.
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
    const uint32_t item = blockIdx.x * blockDim.x + threadIdx.x, token = item % tokens, pair = item / tokens;
    if (pair >= pairs) return;
    ExpandedPair<Source> one;
    one.load(a, token, pair);
    one.store(a, tokens, token, pair, expanded + uint64_t(pair) * pair_bytes(int(tokens)));
}

}  // namespace halfbyte::cuda
