// Wrong calls of the GPU's operations: each is refused at the door with a text that says what was given and
// what is needed, and launches nothing.
#include <functional>
#include <limits>

#include "backend/checks.h"
#include "backend/fake_device.h"
#include "halfbyte/cuda.h"
#include "halfbyte/error.h"

namespace halfbyte::cuda {
namespace {

alignas(64) uint8_t memory[65536];
float* const numbers = reinterpret_cast<float*>(memory);
float* const odd_numbers = reinterpret_cast<float*>(memory + 2);
uint8_t* const codes = memory + 16384;
uint8_t* const scales = memory + 24576;
constexpr int64_t huge = std::numeric_limits<int64_t>::max();

// Right calls, of [4, 96] with two rows and 32 columns of padding.
constexpr NvFp4Shape shape = {4, 96, 6, 128, ScaleLayout::linear};
ConstMatrix input(DType type = DType::bf16) {
    return {memory, type, 4, 96, 100};
}
Matrix output(DType type = DType::bf16) {
    return {memory + 8192, type, 4, 96, 100};
}
QuantizeArgs right_quantize() {
    return {.x = input(), .encode_scale = numbers, .shape = shape, .codes = codes, .block_scales = scales};
}
QuantizeArgs right_dynamic() {
    QuantizeArgs args = right_quantize();
    args.encode_scale = nullptr;
    args.dynamic_encode_scale = numbers;
    return args;
}
QuantizeArgs right_fused(DType type = DType::bf16) {
    QuantizeArgs args = right_quantize();
    args.x = {.type = type};
    return args;
}
DequantizeArgs right_dequantize() {
    return {.a = {codes, scales, shape}, .decode_scale = numbers, .y = output()};
}
FakeQuantizeArgs right_fake_quantize() {
    return {.x = input(), .encode_scale = numbers, .y = output()};
}
ConvertScalesArgs right_convert_scales() {
    return {.shape = shape, .source = memory, .layout = ScaleLayout::tiled_128x4, .target = memory + 4096};
}
AmaxArgs right_amax() {
    return {.x = input(), .amax = numbers};
}
MxFp4QuantizeArgs right_mxfp4_quantize() {
    return {input(), {4, 96, 6, 128}, codes, scales};
}
MxFp4DequantizeArgs right_mxfp4_dequantize() {
    return {codes, scales, {4, 96, 6, 128}, output()};
}
TransformArgs right_transform() {
    return {input(), {.n = 32}, output()};
}
TransformArgs right_matrix_transform() {
    TransformArgs args = right_transform();
    args.transform.matrix = memory;
    args.transform.matrix_type = DType::bf16;
    args.transform.accumulation = Accumulation::tensor_core;
    return args;
}
TransformQuantizeArgs right_transform_quantize() {
    return {input(), {.n = 32}, right_fused(DType::f32)};
}
SiluMulQuantizeArgs right_silu_mul_quantize() {
    return {input(), input(), right_fused()};
}
RmsNormQuantizeArgs right_rms_norm_quantize() {
    return {.x = input(),
            .residual = output(),
            .weight = {memory, DType::f32, 1, 96, 96},
            .quantize = right_fused()};
}

// A product of [4, 96] and [40, 96]: 40 rows are 3 strips of 2 groups, 3472 bytes.
constexpr PackedWeight weight = {memory + 32768, 40, 96};
PackWeightArgs right_pack() {
    return {.parts = {{codes, scales, shape},
                      {codes, scales, NvFp4Shape{36, 96, 36, 96, ScaleLayout::tiled_8x4}}},
            .part_count = 2,
            .packed = memory + 32768};
}
UnpackWeightArgs right_unpack() {
    return {.w = weight, .codes = codes, .block_scales = scales};
}
MatmulW4A4Args right_w4a4() {
    return {.a = {codes, scales, shape},
            .w = weight,
            .row_decode = numbers,
            .column_decode = numbers,
            .bias = memory + 4096,
            .bias_type = DType::bf16,
            .d = {memory + 8192, DType::bf16, 4, 40, 41}};
}
MatmulW4A4Args right_quantising_w4a4() {
    MatmulW4A4Args args = right_w4a4();
    args.a = {};
    args.x = {memory + 40960, DType::bf16, 4, 96, 100};
    args.encode_scale = numbers;
    return args;
}
MatmulW4A16Args right_w4a16() {
    return {
        .x = input(), .w = weight, .column_decode = numbers, .d = {memory + 8192, DType::bf16, 4, 40, 41}};
}

struct Row {
    std::function<void()> call;
    std::vector<std::string> parts;  // of the text
    ErrorKind kind = ErrorKind::usage;
};

// The operation with the right arguments after a change.
#define WRONG(operation, right, change)          \
    [] {                                         \
        auto args = right();                     \
        Launch launch;                           \
        launch.workspace = memory;               \
        launch.workspace_bytes = sizeof(memory); \
        launch.scratch = memory;                 \
        launch.scratch_bytes = sizeof(memory);   \
        change;                                  \
        operation(launch, args);                 \
    }

const std::vector<Row>& rows() {
    static const std::vector<Row> all = {
        // sizes that the kernels' 32-bit counts do not hold
        {WRONG(quantize, right_quantize,
               (args.shape.padded_rows = int64_t(1) << 31,
                args.block_scales = reinterpret_cast<uint8_t*>(int64_t(1) << 62))),
         {"quantize: [2147483648, 128]", "2147483392 rows", "split"},
         ErrorKind::unsupported},
        {WRONG(amax, right_amax, (args.x.rows = int64_t(1) << 31)),
         {"amax: [2147483648, ", "2147483392 rows"},
         ErrorKind::unsupported},
        // workspace of one amax of all rows
        {WRONG(amax, right_amax, launch.workspace = nullptr),
         {"amax: one amax of all rows needs a workspace of 32 bytes", "null"}},
        {WRONG(amax, right_amax, launch.workspace_bytes = 31),
         {"amax: one amax of all rows needs a workspace of 32 bytes; 31"}},
        // quantize: x and shape
        {WRONG(quantize, right_quantize, args.x.data = nullptr), {"quantize: x [4, 96] has no data"}},
        {WRONG(quantize, right_quantize, args.x.rows = -4), {"quantize: x is [-4, 96]", "negative"}},
        {WRONG(quantize, right_quantize, args.x.stride = 95), {"quantize: x is [4, 96]", "stride of 95"}},
        {WRONG(quantize, right_quantize, args.x.type = DType::f64),
         {"quantize: x has type F64", "BF16, F16 and F32"}},
        {WRONG(quantize, right_quantize, args.x.rows = 5), {"quantize: x is [5, 96]; [4, 96] is needed"}},
        {WRONG(quantize, right_quantize, args.x.stride = huge),
         {"quantize: x is [4, 9223372036854775807]", "2^59"}},
        {WRONG(quantize, right_quantize, (args.x.rows = 1 << 30, args.x.stride = int64_t(1) << 33)),
         {"quantize: x has 1073741824 rows of 17179869184 bytes", "2^63"}},
        {WRONG(quantize, right_quantize, args.x.data = memory + 1), {"quantize: x", "1 modulo 2", "BF16"}},
        {WRONG(quantize, right_quantize, args.shape.k = -1), {"quantize: shape [4, -1]", "negative"}},
        {WRONG(quantize, right_quantize, args.shape.padded_rows = 3), {"padded_rows = 3", "rows = 4"}},
        {WRONG(quantize, right_quantize, args.shape.padded_k = 104),
         {"padded_k = 104", "multiple of 16", "k = 96"}},
        {WRONG(quantize, right_quantize, args.shape.padded_k = 80), {"padded_k = 80", "at least k = 96"}},
        {WRONG(quantize, right_quantize, args.shape.padded_rows = huge),
         {"quantize", "9223372036854775807", "2^59"}},
        {WRONG(quantize, right_quantize,
               (args.shape.padded_rows = int64_t(1) << 40, args.shape.padded_k = 1 << 30)),
         {"quantize: the padded shape has 1099511627776 rows", "2^63"}},
        {WRONG(quantize, right_quantize, args.shape.layout = ScaleLayout(7)),
         {"layout = 7", "tiled_8x4 (2)"}},
        // quantize: scales and results
        {WRONG(quantize, right_quantize, args.encode_scale = nullptr),
         {"quantize: no encode scale", "dynamic_encode_scale"}},
        {WRONG(quantize, right_quantize, args.dynamic_encode_scale = numbers),
         {"quantize: encode_scale and a dynamic", "one"}},
        {WRONG(quantize, right_quantize, args.dynamic_decode_scale = numbers),
         {"quantize: encode_scale and a dynamic", "one"}},
        {WRONG(quantize, right_quantize, args.encode_scale = odd_numbers),
         {"encode_scale", "2 modulo 4", "F32"}},
        {WRONG(quantize, right_quantize, args.codes = nullptr),
         {"quantize: no memory for codes or block scales of [4, 96]"}},
        {WRONG(quantize, right_quantize, args.block_scales = nullptr),
         {"no memory for codes or block scales"}},
        {[] {
             QuantizeStats stats;
             QuantizeArgs args = right_quantize();
             args.stats = &stats;
             quantize({}, args);
         },
         {"quantize: stats are given", "null is needed"},
         ErrorKind::unsupported},
        {WRONG(quantize, right_quantize, args.rounding = Rounding::vllm),
         {"quantize: rounding is vllm", "contract is needed"},
         ErrorKind::unsupported},
        {WRONG(quantize, right_dynamic, (launch.workspace = nullptr)),
         {"workspace of 32 bytes", "null is given"}},
        {WRONG(quantize, right_dynamic, launch.workspace_bytes = 31),
         {"workspace of 32 bytes", "31 are given"}},
        {WRONG(quantize, right_dynamic, (args.scale_per_row = true, launch.workspace_bytes = 20)),
         {"workspace of 32 bytes", "20 are given"}},
        {WRONG(quantize, right_dynamic, launch.workspace = memory + 2), {"workspace", "2 modulo 4"}},
        {WRONG(quantize, right_dynamic, args.dynamic_encode_scale = odd_numbers),
         {"dynamic_encode_scale", "2 modulo 4"}},
        {WRONG(quantize, right_dynamic,
               (args.dynamic_encode_scale = nullptr, args.dynamic_decode_scale = numbers)),
         {"quantize: no encode scale"}},
        // dequantize, fake_quantize
        {WRONG(dequantize, right_dequantize, args.a.codes = nullptr), {"dequantize: a [4, 96]", "no codes"}},
        {WRONG(dequantize, right_dequantize, args.a.block_scales = nullptr),
         {"dequantize: a [4, 96]", "no block scales"}},
        {WRONG(dequantize, right_dequantize, args.a.shape.padded_k = 97), {"dequantize: padded_k = 97"}},
        {WRONG(dequantize, right_dequantize, args.decode_scale = nullptr), {"dequantize: no decode scale"}},
        {WRONG(dequantize, right_dequantize, args.y.cols = 95),
         {"dequantize: y is [4, 95]; [4, 96] is needed"}},
        {WRONG(dequantize, right_dequantize, args.y.type = DType::f8_e4m3),
         {"dequantize: y has type F8_E4M3"}},
        {WRONG(dequantize, right_dequantize, args.y.data = memory + 1), {"dequantize: y", "1 modulo 2"}},
        {WRONG(fake_quantize, right_fake_quantize, args.encode_scale = nullptr),
         {"fake_quantize: no encode scale"}},
        {WRONG(fake_quantize, right_fake_quantize, args.y.rows = 3),
         {"fake_quantize: y is [3, 96]; [4, 96]"}},
        {WRONG(fake_quantize, right_fake_quantize, (args.y.data = memory, args.y.type = DType::f32)),
         {"fake_quantize: y is in the memory of x with type F32", "BF16"}},
        {WRONG(fake_quantize, right_fake_quantize, (args.y.data = memory, args.y.stride = 96)),
         {"row stride 96", "stride 100 are needed"}},
        // convert_scales, amax
        {WRONG(convert_scales, right_convert_scales, args.source = nullptr),
         {"convert_scales: source is null; 48 bytes"}},
        {WRONG(convert_scales, right_convert_scales, args.target = nullptr),
         {"convert_scales: target", "1024 bytes"}},
        {WRONG(convert_scales, right_convert_scales, args.target = memory + 47),
         {"1024 bytes overlap", "48 bytes"}},
        {WRONG(convert_scales, right_convert_scales, args.layout = ScaleLayout(3)),
         {"the target's layout = 3"}},
        {WRONG(convert_scales, right_convert_scales, args.shape.padded_k = 100),
         {"convert_scales: padded_k = 100"}},
        {WRONG(amax, right_amax, args.amax = nullptr),
         {"amax: amax, encode_scale and decode_scale are all null"}},
        {WRONG(amax, right_amax, args.x.data = nullptr), {"amax: x [4, 96] has no data"}},
        {WRONG(amax, right_amax, args.decode_scale = odd_numbers), {"amax: decode_scale", "2 modulo 4"}},
        // MXFP4
        {WRONG(mxfp4_quantize, right_mxfp4_quantize, args.shape.padded_k = 112),
         {"padded_k = 112", "multiple of 32"}},
        {WRONG(mxfp4_quantize, right_mxfp4_quantize, args.shape.k = 64),
         {"mxfp4_quantize: x is [4, 96]; [4, 64] is needed"}},
        {WRONG(mxfp4_quantize, right_mxfp4_quantize, args.codes = nullptr),
         {"mxfp4_quantize: no memory for codes"}},
        {WRONG(mxfp4_dequantize, right_mxfp4_dequantize, args.shape.padded_k = 64),
         {"padded_k = 64", "at least k = 96"}},
        {WRONG(mxfp4_dequantize, right_mxfp4_dequantize, args.block_scales = nullptr),
         {"[4, 96] has no codes or no block"}},
        {WRONG(mxfp4_dequantize, right_mxfp4_dequantize, args.y.cols = 64),
         {"mxfp4_dequantize: y is [4, 64]; [4, 96]"}},
        // transform
        {WRONG(transform, right_transform, args.transform.n = 48),
         {"transform: transform.n = 48; 16, 32, 64 and 128"}},
        {WRONG(transform, right_transform, args.transform.n = 0), {"transform: transform.n = 0"}},
        {WRONG(transform, right_transform, args.transform.n = 64),
         {"x has K = 96", "transform.n = 64", "these do: 16, 32"}},
        {WRONG(transform, right_transform, args.x.cols = 100),
         {"x has K = 100", "multiple of 16, 32, 64 or 128", "pad x"}},
        {WRONG(transform, right_transform, args.transform.accumulation = Accumulation::tensor_core),
         {"tensor_core without a matrix", "contract"}},
        {WRONG(transform, right_matrix_transform, args.transform.matrix_type = DType::f16),
         {"transform.matrix_type is F16; BF16 and F32"}},
        {WRONG(transform, right_matrix_transform, args.transform.matrix_type = DType::f32),
         {"tensor_core with x BF16 and matrix F32", "BF16 for both"}},
        {WRONG(transform, right_matrix_transform, args.x.type = DType::f16),
         {"tensor_core with x F16 and matrix BF16"}},
        {WRONG(transform, right_matrix_transform, args.transform.signs = numbers),
         {"signs are given beside a matrix"}},
        {WRONG(transform, right_transform, args.transform.signs = odd_numbers),
         {"transform.signs", "2 modulo 4"}},
        {WRONG(transform, right_transform, args.y.rows = 5), {"transform: y is [5, 96]; [4, 96] is needed"}},
        {WRONG(transform, right_transform, (args.y.data = memory, args.y.type = DType::f16)),
         {"in the memory of x"}},
        // fused
        {WRONG(transform_quantize, right_transform_quantize, args.quantize.x.data = memory),
         {"transform_quantize: quantize.x has data; null is needed"}},
        {WRONG(transform_quantize, right_transform_quantize, args.quantize.x.type = DType::bf16),
         {"quantize.x has type BF16; F32 is needed", "not rounded"}},
        {WRONG(transform_quantize, right_transform_quantize, args.transform.n = 128),
         {"K = 96", "these do: 16, 32"}},
        {WRONG(silu_mul_quantize, right_silu_mul_quantize, args.quantize.x.type = DType::f32),
         {"silu_mul_quantize: quantize.x has type F32; BF16 is needed", "gate and up"}},
        {WRONG(silu_mul_quantize, right_silu_mul_quantize, args.up.type = DType::f16),
         {"gate has type BF16, up has type F16"}},
        {WRONG(silu_mul_quantize, right_silu_mul_quantize, args.up.cols = 80),
         {"up is [4, 80]; [4, 96] is needed"}},
        {WRONG(silu_mul_quantize, right_silu_mul_quantize, args.quantize.shape.k = 80),
         {"silu_mul_quantize: quantize.shape is [4, 80]; [4, 96] is needed"}},
        {WRONG(silu_mul_quantize, right_silu_mul_quantize, args.quantize.x.rows = 9),
         {"quantize.x is [9, 0]; [4, 96]"}},
        {WRONG(silu_mul_quantize, right_silu_mul_quantize, args.quantize.rounding = Rounding::vllm),
         {"silu_mul_quantize: rounding is vllm"},
         ErrorKind::unsupported},
        {WRONG(silu_mul_quantize, right_silu_mul_quantize,
               (args.quantize.encode_scale = nullptr, args.quantize.dynamic_encode_scale = numbers,
                launch.workspace_bytes = 0)),
         {"silu_mul_quantize: dynamic scales need a workspace of 32 bytes; 0 are given"}},
        {WRONG(rms_norm_quantize, right_rms_norm_quantize, args.residual.type = DType::f32),
         {"rms_norm_quantize: x has type BF16, the residual F32"}},
        {WRONG(rms_norm_quantize, right_rms_norm_quantize, args.residual.rows = 3),
         {"residual is [3, 96]; [4, 96]"}},
        {WRONG(rms_norm_quantize, right_rms_norm_quantize, args.weight.cols = 95),
         {"weight is [1, 95]; [1, 96] is needed"}},
        {WRONG(rms_norm_quantize, right_rms_norm_quantize, args.weight.data = nullptr),
         {"weight [1, 96] has no data"}},
        {WRONG(rms_norm_quantize, right_rms_norm_quantize, args.quantize.x.data = memory),
         {"quantize.x has data"}},
        {WRONG(rms_norm_quantize, right_rms_norm_quantize, args.weight.data = memory + 2),
         {"weight", "2 modulo 4"}},
        // overlaps: 4 rows of 96 BF16, 200 bytes from one to the next, take 792 bytes; codes 384, scales 48
        {WRONG(quantize, right_quantize, args.codes = memory),
         {"quantize: codes at", "overlaps x at", "its own"}},
        {WRONG(quantize, right_quantize, args.codes = memory + 791), {"quantize: codes at", "overlaps x at"}},
        {WRONG(quantize, right_quantize, args.block_scales = memory + 40),
         {"quantize: block_scales at", "overlaps x"}},
        {WRONG(quantize, right_quantize, args.block_scales = codes + 383),
         {"codes at", "overlaps block_scales at"}},
        {WRONG(quantize, right_quantize, args.codes = scales + 47), {"codes at", "overlaps block_scales at"}},
        {WRONG(dequantize, right_dequantize, args.y.data = codes), {"dequantize: y at", "overlaps codes at"}},
        {WRONG(dequantize, right_dequantize, args.y.data = scales + 46),
         {"y at", "overlaps block_scales at"}},
        {WRONG(fake_quantize, right_fake_quantize, args.y.data = memory + 2),
         {"fake_quantize: y at", "overlaps x at", "the same address or memory of its own"}},
        {WRONG(fake_quantize, right_fake_quantize, args.y.data = memory + 200), {"y at", "overlaps x at"}},
        {WRONG(transform, right_transform, args.y.data = memory + 600 + 190),
         {"transform: y at", "overlaps x at"}},
        {WRONG(transform, right_transform, (args.y.data = memory + 8, args.y.stride = 96)),
         {"y at", "overlaps x at"}},
        {WRONG(mxfp4_quantize, right_mxfp4_quantize, args.codes = memory),
         {"mxfp4_quantize: codes at", "x at"}},
        {WRONG(mxfp4_dequantize, right_mxfp4_dequantize, args.y.data = codes),
         {"mxfp4_dequantize: y at", "codes at"}},
        {WRONG(transform_quantize, right_transform_quantize, args.quantize.codes = memory),
         {"transform_quantize: codes at", "x at"}},
        {WRONG(silu_mul_quantize, right_silu_mul_quantize, args.quantize.codes = memory),
         {"silu_mul_quantize: codes at", "gate at"}},
        {WRONG(silu_mul_quantize, right_silu_mul_quantize, (args.up.data = codes)),
         {"codes at", "overlaps up at"}},
        {WRONG(rms_norm_quantize, right_rms_norm_quantize, args.quantize.block_scales = memory + 8192),
         {"rms_norm_quantize: block_scales at", "overlaps residual at"}},
        {WRONG(rms_norm_quantize, right_rms_norm_quantize, args.residual.data = memory),
         {"rms_norm_quantize: residual at", "overlaps x at"}},
        // pack_weight, unpack_weight
        {WRONG(pack_weight, right_pack, args.part_count = 0), {"pack_weight: part_count = 0; 1 to 8"}},
        {WRONG(pack_weight, right_pack, args.part_count = 9), {"pack_weight: part_count = 9; 1 to 8"}},
        {WRONG(pack_weight, right_pack, args.parts[1].codes = nullptr),
         {"pack_weight: parts[1] [36, 96] has no codes"}},
        {WRONG(pack_weight, right_pack, args.parts[1].shape.k = 95),
         {"pack_weight: parts[1] has K = 95, parts[0] has K = 96"}},
        {WRONG(pack_weight, right_pack, args.parts[1].shape.padded_k = 80),
         {"pack_weight: padded_k = 80", "at least k = 96"}},
        {WRONG(pack_weight, right_pack, args.packed = nullptr),
         {"pack_weight: the packed weight [40, 96] is null; 3472 bytes"}},
        {WRONG(pack_weight, right_pack, args.packed += 8), {"packed weight", "8 modulo 16"}},
        {WRONG(pack_weight, right_pack, args.packed = codes - 3456), {"packed at", "overlaps codes at"}},
        {WRONG(pack_weight, right_pack, (args.parts[0].block_scales = args.packed)),
         {"packed at", "overlaps block_scales at"}},
        {WRONG(pack_weight, right_pack,
               (args.part_count = 1,
                args.parts[0].shape = NvFp4Shape{4, 1 << 25, 4, 1 << 25, ScaleLayout::linear})),
         {"pack_weight: K = 33554432; at most 16777216"},
         ErrorKind::unsupported},
        {WRONG(unpack_weight, right_unpack, args.w.data = nullptr),
         {"unpack_weight: the packed weight", "null"}},
        {WRONG(unpack_weight, right_unpack, args.w.n = -1), {"unpack_weight: the weight is [-1, 96]"}},
        {WRONG(unpack_weight, right_unpack, args.w.n = int64_t(1) << 31),
         {"unpack_weight: [2147483648, 96]", "2147483392 rows"},
         ErrorKind::unsupported},
        {WRONG(unpack_weight, right_unpack, args.codes = nullptr), {"unpack_weight: no memory for codes"}},
        {WRONG(unpack_weight, right_unpack, args.block_scales = nullptr),
         {"no memory for codes or block scales"}},
        {WRONG(unpack_weight, right_unpack, args.codes = memory + 32768 + 3471),
         {"codes at", "overlaps the packed weight at"}},
        {WRONG(unpack_weight, right_unpack, args.block_scales = codes + 1919),
         {"codes at", "overlaps block_scales at"}},
        // matmul_w4a4
        {WRONG(matmul_w4a4, right_w4a4, args.encode_scale = numbers),
         {"matmul_w4a4: a has codes and encode_scale is given"}},
        {WRONG(matmul_w4a4, right_w4a4, args.x.data = memory),
         {"matmul_w4a4: x has data without encode_scale"}},
        {WRONG(matmul_w4a4, right_w4a4, args.encode_scale_per_row = true),
         {"encode_scale_per_row is given without encode_scale"}},
        {WRONG(matmul_w4a4, right_w4a4, args.a.codes = nullptr), {"matmul_w4a4: a [4, 96] has no codes"}},
        {WRONG(matmul_w4a4, right_w4a4, args.w.k = 95),
         {"matmul_w4a4: activations have K = 96, the weight has K = 95"}},
        {WRONG(matmul_w4a4, right_w4a4, args.w.n = 39),
         {"matmul_w4a4: the output has 40 columns, the weight has N = 39"}},
        {WRONG(matmul_w4a4, right_w4a4, args.w.data = nullptr), {"packed weight [40, 96] is null; 3472"}},
        {WRONG(matmul_w4a4, right_w4a4, args.w.data++), {"matmul_w4a4: the packed weight", "1 modulo 16"}},
        {WRONG(matmul_w4a4, right_w4a4, args.d.rows = 5),
         {"matmul_w4a4: the activations have 4 rows, the output has 5"}},
        {WRONG(matmul_w4a4, right_w4a4, args.d.stride = 39), {"d is [4, 40] with a row stride of 39"}},
        {WRONG(matmul_w4a4, right_w4a4, args.d.type = DType::u8), {"matmul_w4a4: d has type U8"}},
        {WRONG(matmul_w4a4, right_w4a4, args.d.data = memory + 8193), {"matmul_w4a4: d", "1 modulo 2"}},
        {WRONG(matmul_w4a4, right_w4a4, args.column_decode = nullptr),
         {"no decode scale for the 40 columns"}},
        {WRONG(matmul_w4a4, right_w4a4, args.column_decode = odd_numbers), {"column_decode", "2 modulo 4"}},
        {WRONG(matmul_w4a4, right_w4a4, args.row_decode = odd_numbers), {"row_decode", "2 modulo 4"}},
        {WRONG(matmul_w4a4, right_w4a4, (args.row_decode = nullptr, args.row_decode_per_row = true)),
         {"row_decode_per_row is given without row_decode"}},
        {WRONG(matmul_w4a4, right_w4a4, args.bias_type = DType::i8), {"the bias has type I8"}},
        {WRONG(matmul_w4a4, right_w4a4, args.bias = memory + 1), {"bias", "1 modulo 2", "BF16"}},
        {WRONG(matmul_w4a4, right_w4a4, args.accumulation = Accumulation(7)), {"accumulation = 7"}},
        {WRONG(matmul_w4a4, right_w4a4, (args.a.shape.rows = args.a.shape.padded_rows = args.d.rows = 65537)),
         {"65537 rows; at most 65536", "split"},
         ErrorKind::unsupported},
        {WRONG(matmul_w4a4, right_w4a4, args.d.data = codes), {"d at", "overlaps codes at"}},
        {WRONG(matmul_w4a4, right_w4a4, args.d.data = scales), {"d at", "overlaps block_scales at"}},
        {WRONG(matmul_w4a4, right_w4a4, args.d.data = memory + 32768),
         {"d at", "overlaps the packed weight"}},
        {WRONG(matmul_w4a4, right_w4a4, args.d.data = memory + 158), {"d at", "overlaps column_decode"}},
        {WRONG(matmul_w4a4, right_w4a4, args.d.data = memory + 4096), {"d at", "overlaps bias"}},
        {WRONG(matmul_w4a4, right_quantising_w4a4, args.x.type = DType::f64),
         {"matmul_w4a4: x has type F64"}},
        {WRONG(matmul_w4a4, right_quantising_w4a4, args.x.cols = 95), {"activations have K = 95"}},
        {WRONG(matmul_w4a4, right_quantising_w4a4, args.x.data = memory + 1), {"x is at", "1 modulo 2"}},
        {WRONG(matmul_w4a4, right_quantising_w4a4, args.encode_scale = odd_numbers),
         {"encode_scale", "2 modulo 4"}},
        {WRONG(matmul_w4a4, right_quantising_w4a4, args.d.data = memory + 40960), {"d at", "overlaps x at"}},
        // 4 rows of 128 operands and one chain of [48, 8] FP32 sums
        {WRONG(matmul_w4a4, right_w4a4, launch.scratch = nullptr), {"2560 bytes", "scratch", "null"}},
        {WRONG(matmul_w4a4, right_w4a4, launch.scratch_bytes = 2559), {"scratch of 2560 bytes; 2559"}},
        {WRONG(matmul_w4a4, right_w4a4, launch.scratch = memory + 8), {"scratch", "8 modulo 16"}},
        {WRONG(matmul_w4a4, right_w4a4, launch.scratch = args.d.data),
         {"matmul_w4a4: the scratch at", "overlaps d at"}},
        {WRONG(matmul_w4a4, right_w4a4, launch.scratch = const_cast<uint8_t*>(args.w.data)),
         {"the scratch at", "overlaps the packed weight at"}},
        {WRONG(matmul_w4a4, right_w4a4, launch.scratch = const_cast<uint8_t*>(args.a.codes)),
         {"the scratch at", "overlaps codes at"}},
        {WRONG(matmul_w4a4, right_w4a4, args.row_decode = static_cast<const float*>(args.d.data)),
         {"d at", "overlaps row_decode at"}},
        {WRONG(matmul_w4a4, right_quantising_w4a4,
               args.encode_scale = static_cast<const float*>(args.d.data)),
         {"d at", "overlaps encode_scale at"}},
        // matmul_w4a16
        {WRONG(matmul_w4a16, right_w4a16, args.x.type = DType::f32),
         {"matmul_w4a16: x has type F32; BF16 and F16"}},
        {WRONG(matmul_w4a16, right_w4a16, args.x.data = nullptr), {"matmul_w4a16: x [4, 96] has no data"}},
        {WRONG(matmul_w4a16, right_w4a16, args.x.data = memory + 1), {"matmul_w4a16: x", "1 modulo 2"}},
        {WRONG(matmul_w4a16, right_w4a16, args.w.k = 80), {"activations have K = 96, the weight has K = 80"}},
        {WRONG(matmul_w4a16, right_w4a16, args.d.cols = 41),
         {"output has 41 columns, the weight has N = 40"}},
        {WRONG(matmul_w4a16, right_w4a16, args.accumulation = Accumulation(3)),
         {"matmul_w4a16: accumulation = 3; contract (0), tensor_core (1) and library (2)"}},
        {WRONG(matmul_w4a16, right_w4a16, launch.scratch = memory + 256),
         {"matmul_w4a16: the scratch at", "overlaps x at"}},
        {WRONG(matmul_w4a16, right_w4a16, args.d.data = memory + 790), {"d at", "overlaps x at"}},
        {WRONG(matmul_w4a16, right_w4a16, launch.scratch = nullptr),
         {"matmul_w4a16: the product needs 2560 bytes", "scratch"}},
        // count_bad_scales
        {[] { count_bad_scales({}, nullptr, 3, reinterpret_cast<int32_t*>(memory)); },
         {"scales is null; 3 numbers"}},
        {[] { count_bad_scales({}, numbers, -1, reinterpret_cast<int32_t*>(memory)); },
         {"count = -1; 0 or more"}},
        {[] { count_bad_scales({}, numbers, 3, nullptr); }, {"bad is null"}},
        {[] { count_bad_scales({}, odd_numbers, 3, reinterpret_cast<int32_t*>(memory)); }, {"2 modulo 4"}},
    };
    return all;
}

using CudaChecks = test::WithFakeDevice;

TEST_F(CudaChecks, EveryWrongCallIsRefusedAndLaunchesNothing) {
    EXPECT_GE(rows().size(), 40u);
    for (const Row& row : rows()) {
        try {
            row.call();
            ADD_FAILURE() << "no error: " << row.parts.front();
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), row.kind) << error.what();
            for (const std::string& part : row.parts)
                EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
                    << "'" << part << "' in: " << error.what();
        }
        ASSERT_TRUE(fake.launched.empty()) << row.parts.front();
    }
}

// Before the library is looked for: the same errors come where there is none.
TEST_F(CudaChecks, TheChecksComeBeforeTheDevice) {
    fake.unavailable_reason = "there is no driver";
    for (const Row& row : rows()) {
        try {
            row.call();
            ADD_FAILURE() << "no error: " << row.parts.front();
        } catch (const Error& error) {
            EXPECT_EQ(std::string(error.what()).find("no driver"), std::string::npos) << error.what();
        }
    }
}

TEST_F(CudaChecks, TheRightCallsPass) {
    check_gpu_arguments(right_quantize());
    check_gpu_arguments(right_dynamic());
    check_gpu_arguments(right_dequantize());
    check_gpu_arguments(right_fake_quantize());
    check_gpu_arguments(right_convert_scales());
    check_gpu_arguments(right_amax());
    check_gpu_arguments(right_mxfp4_quantize());
    check_gpu_arguments(right_mxfp4_dequantize());
    check_gpu_arguments(right_transform());
    check_gpu_arguments(right_matrix_transform());
    check_gpu_arguments(right_transform_quantize());
    check_gpu_arguments(right_silu_mul_quantize());
    check_gpu_arguments(right_rms_norm_quantize());
    check_gpu_arguments(right_pack());
    check_gpu_arguments(right_unpack());
    check_gpu_arguments(right_w4a4());
    check_gpu_arguments(right_quantising_w4a4());
    check_gpu_arguments(right_w4a16());
}

// Memory that is shared in place, and memory that lies close by without a byte in common.
TEST_F(CudaChecks, WhatDoesNotOverlapPasses) {
    FakeQuantizeArgs fake_quantize = right_fake_quantize();
    fake_quantize.y.data = memory;
    check_gpu_arguments(fake_quantize);
    fake_quantize.x.data = memory + 792;  // y, its last row without the rest of the stride, then x
    check_gpu_arguments(fake_quantize);
    // Column halves of one matrix [4, 192], either way around.
    fake_quantize.x.stride = fake_quantize.y.stride = 192;
    fake_quantize.x.data = memory + 192;
    check_gpu_arguments(fake_quantize);
    std::swap(fake_quantize.y.data, const_cast<void*&>(fake_quantize.x.data));
    check_gpu_arguments(fake_quantize);
    fake_quantize.y.data = memory + 190;
    EXPECT_THROW(check_gpu_arguments(fake_quantize), Error);
    fake_quantize.y.data = memory + 194;  // a row of y ends in the next row of x
    EXPECT_THROW(check_gpu_arguments(fake_quantize), Error);
    fake_quantize.y.data = memory + 3 * 384 + 194;  // behind the last row there is none
    check_gpu_arguments(fake_quantize);
    QuantizeArgs quantize = right_quantize();
    quantize.codes = memory + 792;
    quantize.block_scales = quantize.codes + 384;
    check_gpu_arguments(quantize);
}

// Nothing needs memory where there is nothing.
TEST_F(CudaChecks, EmptyProblemsNeedNoMemory) {
    const NvFp4Shape none = {0, 96, 0, 96};
    check_gpu_arguments(QuantizeArgs{.x = {nullptr, DType::f16, 0, 96, 96}, .shape = none});
    check_gpu_arguments(DequantizeArgs{.a = {.shape = none}, .y = {nullptr, DType::f16, 0, 96, 96}});
    check_gpu_arguments(ConvertScalesArgs{.shape = none});
    check_gpu_arguments(
        TransformArgs{{nullptr, DType::f16, 0, 96, 96}, {.n = 16}, {nullptr, DType::f16, 0, 96, 96}});
    // Rows of padding alone are written, and need memory.
    QuantizeArgs padding = {.x = {nullptr, DType::f16, 0, 96, 96}, .shape = {0, 96, 8, 96}};
    EXPECT_THROW(check_gpu_arguments(padding), Error);
    padding.codes = codes;
    padding.block_scales = scales;
    check_gpu_arguments(padding);
}

}  // namespace
}  // namespace halfbyte::cuda
