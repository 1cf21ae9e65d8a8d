// The W4A4 product of a weight that is packed for a GPU: the numbers of matmul_w4a4.cpp, and of quantize.cpp
// before it where x is quantised on the way. Code times SF is exact, and so is every sum of a block's
// products of two such values (docs/numbers.md), so each block is added up value by value.
#include <algorithm>
#include <vector>

#include "core/element.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/scale_layout.h"
#include "reference/reference.h"

namespace halfbyte::reference {
namespace {

constexpr int64_t chain_blocks = 64;

struct Quantized {
    NvFp4Shape shape;
    std::vector<uint8_t> codes, block_scales;

    Quantized(int64_t rows, int64_t k)
        : shape(NvFp4Shape::of(rows, k)),
          codes(size_t(shape.code_bytes())),
          block_scales(size_t(shape.scale_bytes())) {}
    NvFp4View view() const { return {codes.data(), block_scales.data(), shape}; }
};

// code * SF at row * row_stride + k * k_stride; 0 from k to the end of the last block.
std::vector<float> values_of(const NvFp4View& a, int64_t row_stride, int64_t k_stride) {
    const NvFp4Shape& shape = a.shape;
    std::vector<float> values(size_t(shape.rows * shape.blocks() * 16));
    for (int64_t row = 0; row < shape.rows; row++)
        for (int64_t k = 0; k < shape.k; k++) {
            const uint8_t code = a.codes[row * (shape.padded_k / 2) + k / 2] >> (k % 2 * 4) & 15;
            const uint8_t SF = a.block_scales[scale_offset(shape.layout, row, k / 16, shape.padded_blocks())];
            values[size_t(row * row_stride + k * k_stride)] = decode_e2m1(code) * decode_e4m3(SF);
        }
    return values;
}

Quantized quantized(const cuda::MatmulW4A4Args& args) {
    Quantized a(args.x.rows, args.x.cols);
    quantize({.x = args.x,
              .encode_scale = args.encode_scale,
              .scale_per_row = args.encode_scale_per_row,
              .shape = a.shape,
              .codes = a.codes.data(),
              .block_scales = a.block_scales.data()});
    return a;
}

}  // namespace

void matmul_w4a4_packed(const cuda::MatmulW4A4Args& args) {
    if (args.encode_scale != nullptr) {
        const Quantized a = quantized(args);
        cuda::MatmulW4A4Args given = args;
        given.a = a.view(), given.x = {}, given.encode_scale = nullptr, given.encode_scale_per_row = false;
        return matmul_w4a4_packed(given);
    }
    const int64_t n = args.w.n, blocks = args.a.shape.blocks();
    Quantized weight(n, args.w.k);
    unpack_weight({args.w, weight.codes.data(), weight.block_scales.data()});
    const std::vector<float> a = values_of(args.a, blocks * 16, 1), w = values_of(weight.view(), 1, n);
    std::vector<float> accumulator(size_t(n), 0), chain(size_t(n), 0), product(size_t(n), 0);
    for (int64_t m = 0; m < args.d.rows; m++) {
        std::fill(accumulator.begin(), accumulator.end(), 0.0f);
        for (int64_t first = 0; first < blocks; first += chain_blocks) {
            std::fill(chain.begin(), chain.end(), 0.0f);
            for (int64_t block = first; block < std::min(first + chain_blocks, blocks); block++) {
                std::fill(product.begin(), product.end(), 0.0f);
                for (int64_t k = block * 16; k < block * 16 + 16; k++)
                    for (int64_t i = 0; i < n; i++)
                        product[size_t(i)] += a[size_t(m * blocks * 16 + k)] * w[size_t(k * n + i)];
                for (int64_t i = 0; i < n; i++) chain[size_t(i)] += product[size_t(i)];
            }
            for (int64_t i = 0; i < n; i++) accumulator[size_t(i)] += chain[size_t(i)];
        }
        const float Da = args.row_decode == nullptr ? 1.0f : args.row_decode[args.row_decode_per_row ? m : 0];
        for (int64_t i = 0; i < n; i++) {
            float d = accumulator[size_t(i)] * (Da * args.column_decode[i]);
            if (args.bias != nullptr) d += load_element(args.bias, args.bias_type, i);
            store_element(args.d.data, args.d.type, m * args.d.stride + i, d);
        }
    }
}

}  // namespace halfbyte::reference
