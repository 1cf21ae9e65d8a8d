// What the problems of all operations are made of: sizes, padding, alignment, scales and values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/image.h"
#include "halfbyte/operations.h"

namespace halfbyte::conformance {

enum class Values {
    normal,     // with outliers
    ties,       // v * G / SF exactly a midpoint of two codes, or one unit in the last place beside it
    zeros,      // +0 and -0
    subnormal,  // of the type
    special,    // infinities, NaN and zeros among normal values
    huge,       // near the largest value of the type: s saturates
    tiny,       // blocks around the place where their scale becomes 0
    bits,       // random bit patterns
    mixed,      // each block one of the above
    rare,       // normal, but one block in 64 as in mixed: few of a warp's blocks need care
    patterns,   // element i has the bits i mod 65536, of FP32 random bits
    edges,      // FP32 around -104, 88.7228 and 0, where exp changes its course
    integers    // -4 to 4, whose sums of products are exact
};
inline constexpr Values block_values[] = {Values::normal,  Values::ties, Values::zeros, Values::subnormal,
                                          Values::special, Values::huge, Values::tiny,  Values::bits,
                                          Values::mixed,   Values::rare};

enum class Scales { one, per_row, dynamic, dynamic_per_row };

struct Case {
    std::string group;
    uint64_t seed = 0;
    int64_t rows = 0, k = 0;
    DType type = DType::bf16;        // of x
    DType other_type = DType::bf16;  // of y, of the weight of RMSNorm
    ScaleLayout layout = ScaleLayout::linear, target_layout = ScaleLayout::linear;
    int64_t extra_k = 0;     // padded_k beyond k rounded up to a block; -1: rounded up to 128
    int64_t extra_rows = 0;  // padded_rows beyond rows; -1: rounded up to 128
    int64_t extra_stride = 0;
    int64_t misaligned_input = 0;   // elements
    int64_t misaligned_output = 0;  // bytes, of codes and block scales
    Scales scales = Scales::one;
    float G = 1;
    Rounding rounding = Rounding::contract;
    Values values = Values::normal;
    bool in_place = false, residual = false;
    int64_t n = 16;  // of a transform, as the three below
    bool hadamard = true, signs = false, normalised = true;
    DType matrix_type = DType::bf16;
    Accumulation accumulation = Accumulation::contract;
    int64_t columns = 0;          // N of a product, as the two below
    bool on_the_way = false;      // W4A4: x is quantised by the product
    bool special_weight = false;  // scales of the weight are also 0, subnormal, negative or NaN

    bool dynamic() const { return scales == Scales::dynamic || scales == Scales::dynamic_per_row; }
    bool per_row() const { return scales == Scales::per_row || scales == Scales::dynamic_per_row; }
    int64_t padded_rows() const { return extra_rows < 0 ? round_up(rows, 128) : rows + extra_rows; }
    int64_t padded_k(int64_t block) const {
        return extra_k < 0 ? round_up(k, 128) : round_up(k, block) + round_up(extra_k, block);
    }
    NvFp4Shape shape() const { return {rows, k, padded_rows(), padded_k(16), layout}; }
    MxFp4Shape mx_shape() const { return {rows, k, padded_rows(), padded_k(32), layout}; }
    std::string describe() const;
};

std::vector<Case> make_cases(bool quick, uint64_t seed);
// For SiLU alone: all 65536 gates of BF16 and FP16, and 2^24 of FP32.
std::vector<Case> make_silu_cases(bool quick, uint64_t seed);
// For RMSNorm alone: rows about as large as the shared memory that a CTA has.
std::vector<Case> make_rms_norm_cases(bool quick, uint64_t seed);
// For the products: rows are M, columns N.
std::vector<Case> make_product_cases(bool quick, uint64_t seed);
// The same for arithmetics that are not the contract's, some of them.
std::vector<Case> make_product_cases(bool quick, uint64_t seed, Accumulation accumulation);

// The elements of a matrix. A row depends on the seed, the region's name and the row alone, not on how many
// rows there are.
void fill(Image& image, const Region& region, const Case& c, Values values);

}  // namespace halfbyte::conformance
