// The operations and their arguments. Every backend takes these structs and gives the same bits
// (docs/numbers.md). Strides are in elements; a row's bytes between its end and its stride are never written.
// Any size may be 0. In the formulas fl() is one rounding to FP32, to nearest even, round_T one to the type
// of the output, sum32 the order of addition that docs/numbers.md defines; everything else is exact.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "halfbyte/dtype.h"
#include "halfbyte/nvfp4.h"

namespace halfbyte {

// A row-major matrix owned by somebody else. type is BF16, FP16 or FP32 where nothing else is said.
struct ConstMatrix {
    const void* data = nullptr;
    DType type = DType::f32;
    int64_t rows = 0, cols = 0;
    int64_t stride = 0;  // >= cols
};
struct Matrix {
    void* data = nullptr;
    DType type = DType::f32;
    int64_t rows = 0, cols = 0;
    int64_t stride = 0;
};

// A quantised matrix owned by somebody else.
struct NvFp4View {
    const uint8_t* codes = nullptr;         // [Rp, Kp/2], even element in the low nibble
    const uint8_t* block_scales = nullptr;  // E4M3 in shape.layout
    NvFp4Shape shape;
};

// Per block of 16: SF = E4M3(fl(G * fl(amax * 1/6))), code = E2M1(fl(v * G) / SF), both to nearest even.
// Source: the block scale is that of vLLM's CUDA quantiser (csrc/quantization/fp4, its reciprocal taken as
// correctly rounded); the code is the exact quotient's (docs/numbers.md).
struct QuantizeArgs {
    ConstMatrix x;                        // [rows, k]
    const float* encode_scale = nullptr;  // G > 0: one number, or [rows] if scale_per_row
    bool scale_per_row = false;
    // Dynamic scales: encode_scale is null, and G = min(fl(2688 / amax), FLT_MAX), amax over the finite
    // values of all of x or of each row, is found first and written here, D = fl(1 / G) beside it. amax = 0:
    // G = 1.
    float* dynamic_encode_scale = nullptr;  // out: one number, or [rows] if scale_per_row
    float* dynamic_decode_scale = nullptr;  // out, the same shape, or null
    Rounding rounding = Rounding::contract;
    NvFp4Shape shape;                 // of the result; rows and k are x's
    uint8_t* codes = nullptr;         // out [Rp, Kp/2], every byte written, padding as zero
    uint8_t* block_scales = nullptr;  // out, shape.scale_bytes(), every byte written
    QuantizeStats* stats = nullptr;   // added to if given
};

// y = round_T(fl((code * SF) * D)). Source: the definition of NVFP4 by NVIDIA; code * SF is exact.
struct DequantizeArgs {
    NvFp4View a;
    const float* decode_scale = nullptr;  // D: one number, or [rows] if scale_per_row
    bool scale_per_row = false;
    Matrix y;  // out [rows, k]
};

// What quantising and dequantising does to x, in one step: y = round_T(fl((code * SF) * fl(1 / G))).
struct FakeQuantizeArgs {
    ConstMatrix x;                        // [rows, k]
    const float* encode_scale = nullptr;  // G > 0: one number, or [rows] if scale_per_row
    bool scale_per_row = false;
    Matrix y;  // out [rows, k]; may be x's own memory
};

// Block scales from one layout into another; the shape says how many there are and where they come from.
// Padding is written as zero, whatever it was. Each conversion is the inverse of the one the other way.
struct ConvertScalesArgs {
    NvFp4Shape shape;                 // of the source
    const uint8_t* source = nullptr;  // shape.scale_bytes()
    ScaleLayout layout = ScaleLayout::linear;
    uint8_t* target = nullptr;  // out, the scale_bytes() of the shape in `layout`; not the source's memory
};

// amax = max |x| over the finite values (0 if there is none), of all of x or of each row; and the scales that
// follow from it, each out and each may be null: G = min(fl(2688 / amax), FLT_MAX), 1 for amax = 0;
// D = fl(1 / G).
struct AmaxArgs {
    ConstMatrix x;  // [rows, k]
    bool per_row = false;
    float* amax = nullptr;  // out: one number, or [rows] if per_row
    float* encode_scale = nullptr;
    float* decode_scale = nullptr;
};

// MXFP4: E2M1 codes, one E8M0 block scale per 32 codes along K and no global scale. Source: OCP Microscaling
// Formats specification 1.0; the scale's rule is vLLM's (format/e8m0.h): a block scale 2^(byte - 127), code =
// E2M1(v / scale) of the exact quotient, to nearest even. A NaN adds nothing to amax and gets code 7, an
// infinity makes the byte 253, as the rule gives it, and gets +-6.
struct MxFp4Shape {
    int64_t rows = 0;
    int64_t k = 0;
    int64_t padded_rows = 0;  // Rp >= rows
    int64_t padded_k = 0;     // Kp >= k, a multiple of 32
    ScaleLayout layout = ScaleLayout::linear;

    static MxFp4Shape of(int64_t rows, int64_t k, ScaleLayout layout = ScaleLayout::linear);

    int64_t blocks() const { return (k + 31) / 32; }
    int64_t padded_blocks() const { return padded_k / 32; }
    int64_t code_bytes() const { return padded_rows * (padded_k / 2); }
    int64_t scale_bytes() const;
    bool operator==(const MxFp4Shape&) const = default;
};
struct MxFp4QuantizeArgs {
    ConstMatrix x;  // [rows, k]
    MxFp4Shape shape;
    uint8_t* codes = nullptr;         // out [Rp, Kp/2], every byte written, padding as zero
    uint8_t* block_scales = nullptr;  // out, shape.scale_bytes(), every byte written
};
struct MxFp4DequantizeArgs {
    const uint8_t* codes = nullptr;
    const uint8_t* block_scales = nullptr;
    MxFp4Shape shape;
    Matrix y;  // out [rows, k]: round_T(code * 2^(byte - 127)), NaN for byte 255
};

// The same n x n matrix T for every n consecutive elements along K: x'_j = fl(c * sum_k x_k T_kj).
// Hadamard (no matrix): T = diag(signs) times Sylvester's matrix, by butterflies: for h = 1, 2, 4 .. n/2 the
// pair (i, i + h) becomes (fl(a + b), fl(a - b)). Any other T: acc = fma(x_k, T_kj, acc) from +0 in order of
// k. Source: Sylvester 1867; Ashkboos et al., arXiv:2404.00456, for its use before quantising.
enum class Accumulation {
    contract,     // the order above: the same bits everywhere
    tensor_core,  // GPU only: BF16 x and BF16 T, sums as the device's matrix unit makes them, not rounded
                  // before they are used
    library       // GPU products only: cuBLASLt's
};
struct BlockTransform {
    int64_t n = 0;                   // >= 1, divides K; Hadamard: a power of two; on a GPU 16, 32, 64 or 128
    const void* matrix = nullptr;    // T [n, n], T_kj at k * n + j; null: Hadamard
    DType matrix_type = DType::f32;  // BF16 or FP32
    const float* signs = nullptr;    // [n] of +-1, Hadamard only; null: all +1
    float scale = 1.0f;  // c, for Hadamard fl(1 / sqrt(n)) or 1; applied here, never to the matrix
    Accumulation accumulation = Accumulation::contract;
};

struct TransformArgs {
    ConstMatrix x;  // [rows, k]
    BlockTransform transform;
    Matrix y;  // out [rows, k]: round_T(x'); may be x's own memory
};

// A producer and the quantiser in one: the bits of the two operations one after the other. In `quantize` the
// x is not given (data = null): it is the producer's result, of type x.type.
struct TransformQuantizeArgs {
    ConstMatrix x;  // [rows, k]
    BlockTransform transform;
    QuantizeArgs quantize;  // x.type = F32: x' is not rounded before it is quantised
};

// W4A4 weights [N, K] as the CPU kernels read them: tiles of 16 rows, so that one vector holds one place of
// 16 outputs. Tile t holds rows 16t..16t+15 (rows >= N as zeros); inside it block b of 16 elements occupies
//   codes        128 bytes at ((t * blocks + b) * 128): byte 64h + 4r + j (h = 0, 1; r = 0..15; j = 0..3)
//   holds the
//                elements 8h + 2j (low nibble) and 8h + 2j + 1 (high) of row r, so a 512-bit vector has 16
//                rows
//   block_scales  16 bytes at ((t * blocks + b) * 16): E4M3 of rows 0..15 of the tile
// No code or scale of the logical matrix is lost.
struct PackedWeight {
    int64_t n = 0, k = 0;
    std::pmr::vector<uint8_t> codes, block_scales;
    int64_t blocks() const { return (k + 15) / 16; }
    int64_t tiles() const { return (n + 15) / 16; }
};

// d[m,n] = round_T(fl(fl(acc * fl(row_decode[m] * column_decode[n])) + bias[n])), acc the sum over blocks b
// of (sum of a * w in b) * SFa * SFw, each exact, added in FP32 in the order that docs/numbers.md defines: 64
// blocks make a chain. Source: this project's contract; nothing in the order depends on M, N or the machine.
struct MatmulW4A4Args {
    NvFp4View a;                        // [M, K], any layout
    const PackedWeight* w = nullptr;    // [N, K]
    const float* row_decode = nullptr;  // Da: one number, or [M] if row_decode_per_row
    bool row_decode_per_row = false;
    const float* column_decode = nullptr;  // Dw: [N], so fused layers keep a scale for each part
    const void* bias = nullptr;            // [N] of bias_type, or null
    DType bias_type = DType::f32;
    Matrix d;  // out [M, N]
};

// d[m,n] = round_T(fl(fl(sum32_k(x * (code * SF)) * column_decode[n]) + bias[n])). Source: this project's
// contract.
struct MatmulW4A16Args {
    ConstMatrix x;                         // [M, K]
    const PackedWeight* w = nullptr;       // [N, K]
    const float* column_decode = nullptr;  // Dw: [N]
    const void* bias = nullptr;            // [N] of bias_type, or null
    DType bias_type = DType::f32;
    Matrix d;  // out [M, N]
};

// d[m,n] = round_T(fl(fl(sum32_k(x * w) * column_decode[n]) + bias[n])), w E4M3 (exact in FP32); a NaN byte
// makes NaN of its column. Source: this project's contract.
struct MatmulW8A16Args {
    ConstMatrix x;                         // [M, K]
    ConstMatrix w;                         // [N, K] F8_E4M3
    const float* column_decode = nullptr;  // [N], what a weight of 1 stands for
    const void* bias = nullptr;            // [N] of bias_type, or null
    DType bias_type = DType::f32;
    Matrix d;  // out [M, N]
};

// d[m,n] = round_T(fl(sum32_k(x * w) + bias[n])), w BF16, FP16 or FP32 (exact in FP32)
struct MatmulDenseArgs {
    ConstMatrix x;               // [M, K]
    ConstMatrix w;               // [N, K]
    const void* bias = nullptr;  // [N] of bias_type, or null
    DType bias_type = DType::f32;
    Matrix d;  // out [M, N]
};

// r = x, or r = fl(x + residual), written back to residual; i = fl(1 / fl(sqrt(fl(fl(sum32(r*r) / K) +
// eps)))); y = round_T(fl(fl(r * i) * w)). x and residual have the type of y; r is rounded to it before it is
// used. Source: Zhang and Sennrich, arXiv:1910.07467.
struct RmsNormArgs {
    ConstMatrix x;       // [rows, K]
    Matrix residual;     // in and out [rows, K], or data = null
    ConstMatrix weight;  // [1, K] BF16, FP16 or FP32
    float epsilon = 0;
    Matrix y;  // out [rows, K]; may be x's own memory
};

// y = round_T(fl(fl(gate / fl(1 + exp(-gate))) * up)). Source: SwiGLU, Shazeer, arXiv:2002.05202.
struct SiluMulArgs {
    ConstMatrix gate, up;  // [rows, K] of one type
    Matrix y;              // out; may be the memory of gate or of up
};

struct SiluMulQuantizeArgs {
    ConstMatrix gate, up;   // [rows, k] of one type
    QuantizeArgs quantize;  // x.type = T of y, that of gate and up
};
struct RmsNormQuantizeArgs {
    ConstMatrix x;       // [rows, k]
    Matrix residual;     // in and out [rows, k] of x's type, or data = null
    ConstMatrix weight;  // [1, k] BF16, FP16 or FP32
    float epsilon = 0;
    QuantizeArgs quantize;  // x.type = T of y, that of x
};

// y_i = fl(e_i / sum32(e)), e_i = exp(fl(x_i - max x)); FP32, exp as docs/numbers.md defines it.
struct SoftmaxArgs {
    ConstMatrix x;  // [rows, K]
    Matrix y;       // out; may be x's own memory
};

// Rotates pairs (i, i + d/2) of each head in place, FP32: the row t has position first_position + t.
//   x_i' = fl(fl(x_i * cos) - fl(x_j * sin)), x_j' = fl(fl(x_j * cos) + fl(x_i * sin)), j = i + d/2
// Source: Su et al., arXiv:2104.09864, with the pairs as Hugging Face's Llama has them.
struct RopeArgs {
    Matrix x;  // [T, heads * head_dim]
    int64_t heads = 0, head_dim = 0;
    int64_t first_position = 0;
    const float* cos = nullptr;  // [positions, head_dim / 2]
    const float* sin = nullptr;
};

// Causal attention, FP32. Query row t has the absolute position first_position + t and sees positions 0 to
// its own.
//   s_i = fl(sum32(q * k_i) * fl(1 / sqrt(head_dim))); m = max s; e_i = exp(fl(s_i - m));
//   o = fl(sum32 over positions of e_i * v_i / sum32(e))
// Source: Vaswani et al., arXiv:1706.03762; heads that share keys and values: Ainslie et al.,
// arXiv:2305.13245.
struct AttentionArgs {
    ConstMatrix q;                                  // [T, heads * head_dim]
    const float* keys = nullptr;                    // [first_position + T, kv_heads * head_dim]
    const float* values = nullptr;                  // the same shape
    int64_t cache_stride = 0;                       // elements from one position to the next
    int64_t heads = 0, kv_heads = 0, head_dim = 0;  // heads is a multiple of kv_heads
    int64_t first_position = 0;
    Matrix o;  // out [T, heads * head_dim]
};

}  // namespace halfbyte
