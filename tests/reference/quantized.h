// Calls of the reference quantiser that make their own result.
#pragma once

#include "reference/reference.h"
#include "support/matrix.h"

namespace halfbyte::test {

inline Quantized quantize_to(const NvFp4Shape& shape, const OwnedMatrix& x, float G,
                             Rounding rounding = Rounding::contract, uint8_t poison = 0xFF,
                             QuantizeStats* stats = nullptr) {
    Quantized result(shape, poison);
    reference::quantize({.x = x.input(),
                         .encode_scale = &G,
                         .rounding = rounding,
                         .shape = shape,
                         .codes = result.codes.data(),
                         .block_scales = result.scales.data(),
                         .stats = stats});
    return result;
}

inline Quantized quantize(const OwnedMatrix& x, float G, ScaleLayout layout = ScaleLayout::linear) {
    return quantize_to(NvFp4Shape::of(x.rows(), x.cols(), layout), x, G);
}

inline OwnedMatrix dequantize(const Quantized& a, float D, DType type = DType::f32) {
    OwnedMatrix y(a.shape.rows, a.shape.k, type);
    reference::dequantize({.a = a.view(), .decode_scale = &D, .y = y.view()});
    return y;
}

}  // namespace halfbyte::test
