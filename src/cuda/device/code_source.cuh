// NVFP4 codes and block scales in any layout as a Source of elements: fl((code * SF) * D).
#pragma once

#include "cuda/device/elements_kernel.cuh"

namespace halfbyte::cuda {

template <typename Decode>
struct CodeSource {
    static constexpr int blocks = 1;
    using Cursor = Position;
    struct Raw {
        QuantizedBlock block;
        float D;
    };
    const uint8_t* codes;
    const uint8_t* scales;
    uint32_t padded_columns;
    ScaleLayout layout;
    bool aligned;   // codes to 8 bytes
    Decode decode;  // D of a row

    __device__ __forceinline__ Cursor at(uint32_t row, uint32_t column) const { return {row, column}; }
    __device__ __forceinline__ Raw fetch(Cursor at, uint32_t) const {
        return {{load_codes(codes + (uint64_t(at.row) * padded_columns + at.column) * 8, aligned),
                 scales[scale_offset(layout, at.row, at.column, padded_columns)]},
                decode(at.row)};
    }
    __device__ __forceinline__ void make(const Raw& raw, uint32_t, Values (&values)[blocks]) const {
        decode_block(raw.block, raw.D, values[0].value);
    }
};

template <typename Decode>
CodeSource<Decode> code_source_of(const NvFp4View& a, const Decode& decode) {
    return {a.codes,        a.block_scales,         uint32_t(a.shape.padded_blocks()),
            a.shape.layout, is_aligned(a.codes, 8), decode};
}

}  // namespace halfbyte::cuda
