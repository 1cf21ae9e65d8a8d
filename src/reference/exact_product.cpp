// The int64 oracle: code values are multiples of 1/2 and block scales of 2^-9, so a product of two elements
// is a multiple of 2^-20, and a block sum stays below 2^47 such units.
#include <cmath>
#include <cstdlib>

#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/packed_weight.h"
#include "format/scale_layout.h"
#include "reference/reference.h"

namespace halfbyte::reference {

void exact_product(const NvFp4View& a, const PackedWeight& w, int64_t* sums, int64_t* magnitudes) {
    const NvFp4Shape& shape = a.shape;
    const auto halves = [](uint8_t code) { return int64_t(decode_e2m1(code) * 2); };
    const auto scale_units = [](uint8_t byte) { return int64_t(decode_e4m3(byte) * 512); };
    for (int64_t m = 0; m < shape.rows; m++) {
        for (int64_t n = 0; n < w.n; n++) {
            int64_t sum = 0, magnitude = 0;
            for (int64_t block = 0; block < shape.blocks(); block++) {
                int64_t products = 0;
                for (int64_t k = block * 16; k < std::min(block * 16 + 16, shape.k); k++) {
                    const uint8_t pair = a.codes[m * (shape.padded_k / 2) + k / 2];
                    products += halves(uint8_t(pair >> (k % 2 * 4) & 15)) * halves(packed_code(w, n, k));
                }
                products *=
                    scale_units(a.block_scales[scale_offset(shape.layout, m, block, shape.padded_blocks())]) *
                    scale_units(packed_scale(w, n, block));
                sum += products;
                magnitude += std::abs(products);
            }
            sums[m * w.n + n] = sum;
            if (magnitudes != nullptr) magnitudes[m * w.n + n] = magnitude;
        }
    }
}

double accumulator_bound(int64_t k, double magnitudes) {
    const double n = 62 + std::ceil(double(k) / 1024), u = 0x1p-24;
    return n * u / (1 - n * u) * magnitudes;
}

}  // namespace halfbyte::reference
