#include "cuda/problem.h"

#include <cmath>

#include "core/element.h"
#include "cuda/matmul_scratch.h"
#include "cuda/workspace.h"
#include "reference/reference.h"
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

// Up to 8 parts, each in a layout of its own; padding holds anything.
Problem<cuda::PackWeightArgs> make_pack_weight(const Case& c) {
    Problem<cuda::PackWeightArgs> p;
    Random random(c.seed + 3);
    const int count = 1 + int(random.below(cuda::PackWeightArgs::most_parts));
    std::vector<NvFp4Shape> shapes;
    std::vector<Region> codes, scales;
    int64_t left = c.rows;
    for (int i = 0; i < count; i++) {
        Case part = c;
        part.rows = i + 1 == count ? left : random.below(left + 1);
        part.layout = ScaleLayout((int(c.layout) + i) % 3);
        left -= part.rows;
        shapes.push_back(part.shape());
        codes.push_back(
            p.image.codes(Role::input, part.padded_rows(), part.padded_k(16), c.misaligned_output));
        scales.push_back(p.image.block_scales(Role::input, part.layout, part.padded_rows(),
                                              part.padded_k(16) / 16, 16, c.misaligned_output));
        fill_bytes(p.image, codes.back(), random.bits(), 256);
        fill_bytes(p.image, scales.back(), random.bits(), c.values == Values::special ? 256 : 0x7F);
        for (int64_t b = 0; c.values == Values::normal && b < scales.back().bytes; b++)
            scales.back().at<uint8_t>(p.image.bytes.data())[b] |= 0x08;  // none is special
    }
    const int64_t bytes = gpu_weight_bytes(c.rows, c.k);
    const Region packed = p.image.matrix("packed", Role::output, DType::u8, 1, bytes, bytes);
    p.args = [=](uint8_t* image) {
        cuda::PackWeightArgs args{.part_count = count, .packed = packed.at<uint8_t>(image)};
        for (size_t i = 0; i < size_t(count); i++)
            args.parts[i] = {codes[i].at<uint8_t>(image), scales[i].at<uint8_t>(image), shapes[i]};
        return args;
    };
    return p;
}

// Any bytes are a packed weight.
Problem<cuda::UnpackWeightArgs> make_unpack_weight(const Case& c) {
    Problem<cuda::UnpackWeightArgs> p;
    const int64_t bytes = gpu_weight_bytes(c.rows, c.k), padded_k = round_up(c.k, 16);
    const Region packed = p.image.matrix("packed", Role::input, DType::u8, 1, bytes, bytes);
    fill_bytes(p.image, packed, c.seed, 256);
    if (c.k % 16 != 0) {  // but for the codes beyond k, which are 0
        std::vector<uint8_t> codes(size_t(c.rows * padded_k / 2)), scales(size_t(c.rows * padded_k / 16));
        uint8_t* const data = packed.at<uint8_t>(p.image.bytes.data());
        reference::unpack_weight({{data, c.rows, padded_k}, codes.data(), scales.data()});
        reference::pack_weight({.parts = {{codes.data(), scales.data(), NvFp4Shape::of(c.rows, c.k)}},
                                .part_count = 1,
                                .packed = data});
    }
    const Region codes = p.image.codes(Role::output, c.rows, padded_k, c.misaligned_output);
    const Region scales = p.image.block_scales(Role::output, ScaleLayout::linear, c.rows, padded_k / 16, 16,
                                               c.misaligned_output);
    p.args = [=](uint8_t* image) {
        return cuda::UnpackWeightArgs{
            {packed.at<uint8_t>(image), c.rows, c.k}, codes.at<uint8_t>(image), scales.at<uint8_t>(image)};
    };
    return p;
}

namespace {

// The scales of a weight or of activations, all 2^-6 to 448 or, in every other case, around 1.
uint8_t ordinary_scale(Random& random, const Case& c) {
    if (c.values == Values::integers) return uint8_t(0x30 + 8 * random.below(3));  // 1/2, 1, 2
    return uint8_t(c.seed % 2 == 0 ? 8 + random.below(119) : 0x30 + random.below(16));
}
uint8_t special_scale(Random& random) {
    const int64_t kind = random.below(32);
    if (kind == 0) return 0x7F;  // NaN: rare, since all of the column is NaN then
    return uint8_t(kind < 16 ? random.below(8) : 0x80 + random.below(0x7F));
}

// What both products have besides the activations.
struct PlacedProduct {
    Case c;
    Region weight, column_decode, bias, d;
    bool has_bias;
    DType bias_type;

    PlacedProduct(Image& image, const Case& from) : c(from) {
        Random random(c.seed + 29);
        const NvFp4Shape shape = NvFp4Shape::of(c.columns, c.k);
        std::vector<uint8_t> codes(size_t(shape.code_bytes())), scales(size_t(shape.scale_bytes()));
        for (uint8_t& byte : codes) byte = uint8_t(random.bits());
        for (uint8_t& byte : scales)
            byte = c.special_weight && random.below(c.k + 64) < 16 ? special_scale(random)
                                                                   : ordinary_scale(random, c);
        const int64_t bytes = gpu_weight_bytes(c.columns, c.k);
        weight = image.matrix("w", Role::input, DType::u8, 1, bytes, bytes);
        reference::pack_weight({.parts = {{codes.data(), scales.data(), shape}},
                                .part_count = 1,
                                .packed = weight.at<uint8_t>(image.bytes.data())});
        // Fused layers: three parts, each with an encode word's D = fl(1 / g) or a decode word's D = d.
        column_decode = image.floats("column_decode", Role::input, c.columns, c.misaligned_input);
        const float size = std::ldexp(1.0f, -int(random.below(16)));
        const float words[3] = {1.0f / random.uniform(1, 1000), size * random.uniform(0.5f, 1), 1.0f};
        for (int64_t i = 0; i < c.columns; i++)
            column_decode.at<float>(image.bytes.data())[i] =
                c.values == Values::integers ? 1.0f : words[i * 3 / c.columns];
        has_bias = random.below(2) == 0;
        constexpr DType bias_types[] = {DType::f32, DType::bf16, DType::f16};
        bias_type = bias_types[random.below(3)];
        if (has_bias) {
            bias = image.matrix("bias", Role::input, bias_type, c.columns, 1, 1, c.misaligned_input);
            for (int64_t i = 0; i < c.columns; i++)
                store_element(bias.at<void>(image.bytes.data()), bias_type, i, 1e3f * random.normal());
        }
        d = image.matrix("d", Role::output, c.other_type, c.rows, c.columns, c.columns + c.extra_stride,
                         c.misaligned_input);
    }
    template <typename Args>
    void fill_in(Args& args, uint8_t* image) const {
        args.w = {weight.at<uint8_t>(image), c.columns, c.k};
        args.column_decode = column_decode.at<float>(image);
        args.bias = has_bias ? bias.at<void>(image) : nullptr;
        args.bias_type = bias_type;
        args.d = d.matrix(image);
    }
    template <typename Args>
    void measure(Problem<Args>& p) const {
        std::vector<uint8_t> image(p.image.bytes);
        const Args args = p.args(image.data());
        p.scratch_bytes = cuda::matmul_scratch_bytes(args);
    }
};

// Activations whose rows depend on the seed and the row alone. Every third row of Values::special has a
// scale that is NaN, and others that are negative.
void fill_activations(Image& image, const Region& codes, const Region& scales, const Case& c) {
    fill_bytes(image, codes, c.seed, 256);
    fill_bytes(image, scales, c.seed + 1, 256);
    for (int64_t row = 0; row < c.rows; row++) {
        Random random(c.seed * 31 + uint64_t(row) * 0xD1342543DE82EF95);
        for (int64_t i = 0; i < (c.k + 1) / 2; i++)
            codes.at<uint8_t>(image.bytes.data())[row * codes.stride + i] = uint8_t(random.bits());
        const int64_t blocks = (c.k + 15) / 16, bad = random.below(blocks + 1);
        for (int64_t block = 0; block < blocks; block++) {
            uint8_t byte = ordinary_scale(random, c);
            if (c.values == Values::special && row % 3 == 1) byte = block == bad ? 0x7F : byte | 0x80;
            scales.at<uint8_t>(image.bytes.data())[scale_offset(c.layout, row, block, scales.stride)] = byte;
        }
    }
}

}  // namespace

Problem<cuda::MatmulW4A4Args> make_matmul_w4a4(const Case& c) {
    Problem<cuda::MatmulW4A4Args> p;
    Region x, G, codes, scales, row_decode;
    if (c.on_the_way) {
        x = place_input(p.image, "x", c);
        G = place_scale(p.image, "encode_scale", c, c.G);
    } else {
        codes = p.image.codes(Role::input, c.padded_rows(), c.padded_k(16), c.misaligned_output);
        scales = p.image.block_scales(Role::input, c.layout, c.padded_rows(), c.padded_k(16) / 16, 16,
                                      c.misaligned_output);
        fill_activations(p.image, codes, scales, c);
    }
    const bool has_row_decode = c.seed % 4 != 0 && c.values != Values::integers;
    if (has_row_decode) row_decode = place_scale(p.image, "row_decode", c, 1.0f / c.G);
    const PlacedProduct product(p.image, c);
    p.args = [=](uint8_t* image) {
        cuda::MatmulW4A4Args args;
        if (c.on_the_way)
            args.x = x.input(image), args.encode_scale = G.at<float>(image),
            args.encode_scale_per_row = c.per_row();
        else
            args.a = {codes.at<uint8_t>(image), scales.at<uint8_t>(image), c.shape()};
        if (has_row_decode)
            args.row_decode = row_decode.at<float>(image), args.row_decode_per_row = c.per_row();
        args.accumulation = c.accumulation;
        product.fill_in(args, image);
        return args;
    };
    product.measure(p);
    return p;
}

Problem<cuda::MatmulW4A16Args> make_matmul_w4a16(const Case& from) {
    Case c = from;
    if (c.type == DType::f32) c.type = DType::f16;
    // The bound of the sums does not reach to the ends of the range.
    if (c.values != Values::special && c.values != Values::integers) c.values = Values::normal;
    Problem<cuda::MatmulW4A16Args> p;
    Case ordinary = c;
    if (c.values == Values::special) ordinary.values = Values::normal;
    const Region x = place_input(p.image, "x", ordinary);
    for (int64_t row = 1; c.values == Values::special && c.k > 0 && row < c.rows; row += 3) {
        Random random(c.seed + uint64_t(row));  // a NaN or an infinity in every third row
        store_element(x.at<void>(p.image.bytes.data()), c.type, row * x.stride + random.below(c.k),
                      random.below(2) == 0 ? NAN : INFINITY);
    }
    const PlacedProduct product(p.image, c);
    p.args = [=](uint8_t* image) {
        cuda::MatmulW4A16Args args;
        args.x = x.input(image);
        if (c.accumulation == Accumulation::library) args.accumulation = c.accumulation;
        product.fill_in(args, image);
        return args;
    };
    product.measure(p);
    return p;
}

}  // namespace halfbyte::conformance
