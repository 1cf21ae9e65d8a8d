#include "cuda/problem.h"

#include <cmath>

#include "core/element.h"
#include "cuda/workspace.h"
#include "support/random.h"

namespace halfbyte::conformance {

using test::Random;

static Region place_input(Image& image, const char* name, const Case& c, Role role = Role::input) {
    const Region region =
        image.matrix(name, role, c.type, c.rows, c.k, c.k + c.extra_stride, c.misaligned_input);
    fill(image, region, c, c.values);
    return region;
}

// y, or x's own memory.
static Region place_y(Image& image, const Case& c, const Region& x) {
    if (c.in_place) return x;
    return image.matrix("y", Role::output, c.other_type, c.rows, c.k, c.k + c.extra_stride,
                        c.misaligned_input);
}

// The given global scale, one or one per row: c.G times powers of two, so that ties stay ties.
static Region place_scale(Image& image, const char* name, const Case& c, float first) {
    const Region region = image.floats(name, Role::input, c.per_row() ? c.rows : 1, c.misaligned_input);
    for (int64_t i = 0; i < region.rows; i++)
        region.at<float>(image.bytes.data())[i] =
            std::ldexp(first, int((i * 5 + int64_t(c.seed % 7)) % 7) - 3);
    if (!c.per_row()) *region.at<float>(image.bytes.data()) = first;
    return region;
}

static void fill_bytes(Image& image, const Region& region, uint64_t seed, int64_t limit) {
    Random random(seed);
    for (int64_t i = 0; i < region.bytes; i++)
        region.at<uint8_t>(image.bytes.data())[i] = uint8_t(random.below(limit));
}

namespace {

// The quantiser's part of a problem: its scales and its results.
struct PlacedQuantize {
    Case c;
    DType type;  // of what is quantised
    Region scale, dynamic_decode, codes, block_scales;

    PlacedQuantize(Image& image, const Case& from, DType quantised) : c(from), type(quantised) {
        const int64_t count = c.per_row() ? c.rows : 1;
        scale = c.dynamic() ? image.floats("dynamic_encode_scale", Role::output, count, c.misaligned_input)
                            : place_scale(image, "encode_scale", c, c.G);
        if (c.dynamic() && c.seed % 3 != 0)
            dynamic_decode = image.floats("dynamic_decode_scale", Role::output, count, c.misaligned_input);
        codes = image.codes(Role::output, c.padded_rows(), c.padded_k(16), c.misaligned_output);
        block_scales = image.block_scales(Role::output, c.layout, c.padded_rows(), c.padded_k(16) / 16, 16,
                                          c.misaligned_output);
    }
    QuantizeArgs args(uint8_t* image) const {
        const bool with_decode = c.dynamic() && c.seed % 3 != 0;
        return {.x = {nullptr, type, c.rows, c.k, c.k},
                .encode_scale = c.dynamic() ? nullptr : scale.at<float>(image),
                .scale_per_row = c.per_row(),
                .dynamic_encode_scale = c.dynamic() ? scale.at<float>(image) : nullptr,
                .dynamic_decode_scale = with_decode ? dynamic_decode.at<float>(image) : nullptr,
                .rounding = c.rounding,
                .shape = c.shape(),
                .codes = codes.at<uint8_t>(image),
                .block_scales = block_scales.at<uint8_t>(image)};
    }
    int64_t workspace_bytes() const {
        return c.dynamic() ? cuda::dynamic_workspace_bytes(c.per_row(), c.rows) : 0;
    }
};

// What a file or a caller may say instead of 1/sqrt(n). The bound of the matrix unit's sums does not reach to
// the ends of the range: there without the last two.
static float unusual_scale(uint64_t seed, Accumulation accumulation) {
    constexpr float scales[] = {1.0f, 1.0f, 0.3f, -0.25f, 0x1p-30f, 0.0f, -0.0f, 3.0f, 0x1p-130f, 0x1p120f};
    return scales[seed / 8 % (std::size(scales) - (accumulation == Accumulation::contract ? 0 : 2))];
}

struct PlacedTransform {
    Case c;
    Region matrix, signs;

    PlacedTransform(Image& image, const Case& from) : c(from) {
        Random random(c.seed + 17);
        if (!c.hadamard) {
            matrix = image.matrix("matrix", Role::input, c.matrix_type, c.n, c.n, c.n, c.misaligned_input);
            fill(image, matrix, c, Values::normal);
        } else if (c.signs) {
            signs = image.floats("signs", Role::input, c.n, c.misaligned_input);
            for (int64_t i = 0; i < c.n; i++)
                signs.at<float>(image.bytes.data())[i] = random.below(2) == 0 ? 1.0f : -1.0f;
        }
    }
    BlockTransform transform(uint8_t* image) const {
        return {.n = c.n,
                .matrix = c.hadamard ? nullptr : matrix.at<void>(image),
                .matrix_type = c.matrix_type,
                .signs = c.hadamard && c.signs ? signs.at<float>(image) : nullptr,
                .scale = c.normalised ? float(1.0 / std::sqrt(double(c.n)))
                                      : unusual_scale(c.seed, c.accumulation),
                .accumulation = c.accumulation};
    }
};

// K is a multiple of n; the matrix unit takes BF16 only.
Case transform_case(Case c) {
    c.k = round_up(c.k, c.n);
    if (c.accumulation == Accumulation::tensor_core) c.type = c.matrix_type = DType::bf16;
    return c;
}

}  // namespace

Problem<QuantizeArgs> make_quantize(const Case& c) {
    Problem<QuantizeArgs> p;
    const Region x = place_input(p.image, "x", c);
    const PlacedQuantize q(p.image, c, c.type);
    p.workspace_bytes = q.workspace_bytes();
    p.args = [=](uint8_t* image) {
        QuantizeArgs args = q.args(image);
        args.x = x.input(image);
        return args;
    };
    return p;
}

Problem<SiluMulQuantizeArgs> make_silu_mul_quantize(const Case& c) {
    Problem<SiluMulQuantizeArgs> p;
    const Region gate = place_input(p.image, "gate", c);
    Case up_case = c;  // every gate meets ones, normal values or anything
    if (c.values >= Values::patterns) up_case.values = c.seed % 2 == 0 ? Values::normal : Values::bits;
    const Region up = place_input(p.image, "up", up_case);
    if (c.values >= Values::patterns && c.seed % 3 == 0)
        for (int64_t row = 0; row < c.rows; row++)
            for (int64_t k = 0; k < c.k; k++)
                store_element(up.at<void>(p.image.bytes.data()), c.type, row * up.stride + k, 1.0f);
    const PlacedQuantize q(p.image, c, c.type);
    p.workspace_bytes = q.workspace_bytes();
    p.args = [=](uint8_t* image) {
        return SiluMulQuantizeArgs{
            .gate = gate.input(image), .up = up.input(image), .quantize = q.args(image)};
    };
    return p;
}

Problem<RmsNormQuantizeArgs> make_rms_norm_quantize(const Case& c) {
    Problem<RmsNormQuantizeArgs> p;
    const Region x = place_input(p.image, "x", c);
    Region residual;
    if (c.residual) residual = place_input(p.image, "residual", c, Role::in_place);
    const Region weight =
        p.image.matrix("weight", Role::input, c.other_type, 1, c.k, c.k, c.misaligned_input);
    fill(p.image, weight, c, Values::normal);
    const PlacedQuantize q(p.image, c, c.type);
    p.workspace_bytes = q.workspace_bytes();
    p.args = [=](uint8_t* image) {
        return RmsNormQuantizeArgs{.x = x.input(image),
                                   .residual = c.residual ? residual.matrix(image) : Matrix{},
                                   .weight = weight.input(image),
                                   .epsilon = c.seed % 4 == 0 ? 0.0f : 1e-5f,
                                   .quantize = q.args(image)};
    };
    return p;
}

Problem<TransformQuantizeArgs> make_transform_quantize(const Case& from) {
    const Case c = transform_case(from);
    Problem<TransformQuantizeArgs> p;
    const Region x = place_input(p.image, "x", c);
    const PlacedTransform t(p.image, c);
    const PlacedQuantize q(p.image, c, DType::f32);
    p.workspace_bytes = q.workspace_bytes();
    p.args = [=](uint8_t* image) {
        return TransformQuantizeArgs{
            .x = x.input(image), .transform = t.transform(image), .quantize = q.args(image)};
    };
    return p;
}

Problem<TransformArgs> make_transform(const Case& from) {
    const Case c = transform_case(from);
    Problem<TransformArgs> p;
    const Region x = place_input(p.image, "x", c, c.in_place ? Role::in_place : Role::input);
    const PlacedTransform t(p.image, c);
    const Region y = place_y(p.image, c, x);
    p.args = [=](uint8_t* image) {
        return TransformArgs{.x = x.input(image), .transform = t.transform(image), .y = y.matrix(image)};
    };
    return p;
}

Problem<FakeQuantizeArgs> make_fake_quantize(const Case& c) {
    Problem<FakeQuantizeArgs> p;
    const Region x = place_input(p.image, "x", c, c.in_place ? Role::in_place : Role::input);
    const Region scale = place_scale(p.image, "encode_scale", c, c.G);
    const Region y = place_y(p.image, c, x);
    p.args = [=](uint8_t* image) {
        return FakeQuantizeArgs{.x = x.input(image),
                                .encode_scale = scale.at<float>(image),
                                .scale_per_row = c.per_row(),
                                .y = y.matrix(image)};
    };
    return p;
}

// Any byte is a code; padding holds anything. Values::special has all 256 block scales, NaN and negative ones
// too.
Problem<DequantizeArgs> make_dequantize(const Case& c) {
    Problem<DequantizeArgs> p;
    const Region codes = p.image.codes(Role::input, c.padded_rows(), c.padded_k(16), c.misaligned_output);
    const Region scales = p.image.block_scales(Role::input, c.layout, c.padded_rows(), c.padded_k(16) / 16,
                                               16, c.misaligned_output);
    fill_bytes(p.image, codes, c.seed, 256);
    fill_bytes(p.image, scales, c.seed + 1, c.values == Values::special ? 256 : 0x7F);
    const Region decode = place_scale(p.image, "decode_scale", c, 1.0f / c.G);
    const Region y = p.image.matrix("y", Role::output, c.other_type, c.rows, c.k, c.k + c.extra_stride,
                                    c.misaligned_input);
    p.args = [=](uint8_t* image) {
        return DequantizeArgs{.a = {codes.at<uint8_t>(image), scales.at<uint8_t>(image), c.shape()},
                              .decode_scale = decode.at<float>(image),
                              .scale_per_row = c.per_row(),
                              .y = y.matrix(image)};
    };
    return p;
}

Problem<ConvertScalesArgs> make_convert_scales(const Case& c) {
    Problem<ConvertScalesArgs> p;
    const int64_t blocks = c.padded_k(16) / 16;
    const Region source =
        p.image.block_scales(Role::input, c.layout, c.padded_rows(), blocks, 16, c.misaligned_input);
    fill_bytes(p.image, source, c.seed, 256);
    const Region target =
        p.image.block_scales(Role::output, c.target_layout, c.padded_rows(), blocks, 16, c.misaligned_output);
    p.args = [=](uint8_t* image) {
        return ConvertScalesArgs{.shape = c.shape(),
                                 .source = source.at<uint8_t>(image),
                                 .layout = c.target_layout,
                                 .target = target.at<uint8_t>(image)};
    };
    return p;
}

Problem<AmaxArgs> make_amax(const Case& c) {
    Problem<AmaxArgs> p;
    const Region x = place_input(p.image, "x", c);
    const int64_t count = c.per_row() ? c.rows : 1;
    const Region amax = p.image.floats("amax", Role::output, count, c.misaligned_input);
    const Region encode = p.image.floats("encode_scale", Role::output, count, c.misaligned_input);
    const Region decode = p.image.floats("decode_scale", Role::output, count, c.misaligned_input);
    p.workspace_bytes = cuda::amax_workspace_bytes(c.per_row());
    p.args = [=](uint8_t* image) {
        return AmaxArgs{.x = x.input(image),
                        .per_row = c.per_row(),
                        .amax = c.seed % 4 == 1 ? nullptr : amax.at<float>(image),
                        .encode_scale = c.seed % 4 == 2 ? nullptr : encode.at<float>(image),
                        .decode_scale = c.seed % 4 == 3 ? nullptr : decode.at<float>(image)};
    };
    return p;
}

Problem<MxFp4QuantizeArgs> make_mxfp4_quantize(const Case& c) {
    Problem<MxFp4QuantizeArgs> p;
    const Region x = place_input(p.image, "x", c);
    const Region codes = p.image.codes(Role::output, c.padded_rows(), c.padded_k(32), c.misaligned_output);
    const Region scales = p.image.block_scales(Role::output, c.layout, c.padded_rows(), c.padded_k(32) / 32,
                                               32, c.misaligned_output);
    p.args = [=](uint8_t* image) {
        return MxFp4QuantizeArgs{.x = x.input(image),
                                 .shape = c.mx_shape(),
                                 .codes = codes.at<uint8_t>(image),
                                 .block_scales = scales.at<uint8_t>(image)};
    };
    return p;
}

Problem<MxFp4DequantizeArgs> make_mxfp4_dequantize(const Case& c) {
    Problem<MxFp4DequantizeArgs> p;
    const Region codes = p.image.codes(Role::input, c.padded_rows(), c.padded_k(32), c.misaligned_output);
    const Region scales = p.image.block_scales(Role::input, c.layout, c.padded_rows(), c.padded_k(32) / 32,
                                               32, c.misaligned_output);
    fill_bytes(p.image, codes, c.seed, 256);
    fill_bytes(p.image, scales, c.seed + 1, 256);
    const Region y = p.image.matrix("y", Role::output, c.other_type, c.rows, c.k, c.k + c.extra_stride,
                                    c.misaligned_input);
    p.args = [=](uint8_t* image) {
        return MxFp4DequantizeArgs{.codes = codes.at<uint8_t>(image),
                                   .block_scales = scales.at<uint8_t>(image),
                                   .shape = c.mx_shape(),
                                   .y = y.matrix(image)};
    };
    return p;
}

}  // namespace halfbyte::conformance
