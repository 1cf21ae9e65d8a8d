// MXFP4: codes and E8M0 scales of 32 values from x [rows, k], and back. A thread has 16 values; the two of a
// block share their amax. All layouts, padding included, any stride and alignment.
#include "cuda/device/elements_kernel.cuh"
#include "cuda/operations.h"
#include "format/e8m0.h"

namespace halfbyte::cuda {
namespace {

struct MxOutput {
    uint8_t* codes;
    uint8_t* scales;
    uint32_t rows, padded_rows, grid_rows;
    uint32_t halves, padded_halves,
        grid_halves;  // of blocks, a thread each: with elements, of codes, of scales
    ScaleLayout layout;
    bool aligned;  // codes to 8 bytes
};

template <typename T>
__global__ void __launch_bounds__(tile_threads)
    quantize_blocks(const __grid_constant__ BlockMatrix<const T> x, const __grid_constant__ MxOutput output,
                    const __grid_constant__ Tiles tiles) {
    const auto [row, half] = own_position(tiles);
    ptx::wait_for_previous_kernel();
    Block<T> block = {};
    const bool valid = row < output.rows && half < output.halves;
    if (valid) block = x.load(row, half);
    float amax = largest_magnitude(block);
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 1));
    QuantizedBlock result;
    if (row < output.rows && half / 2 < (output.halves + 1) / 2) result.scale = encode_e8m0_for_amax(amax);
    if (valid) {
        float q[2][8], values[block_elements];
        widen(block, values);
        const float reciprocal = decode_e8m0(uint8_t(254 - result.scale));
        uint32_t signs[2] = {0, 0};
#pragma unroll
        for (int i = block_elements - 1; i >= 0; i--) {
            const float quotient = values[i] * reciprocal;
            q[i / 8][i % 8] = fabsf(quotient);
            signs[i / 8] = __funnelshift_l(__float_as_uint(quotient), signs[i / 8], 4);
        }
        result.codes.x = ptx::encode_e2m1_magnitudes<true>(q[0]) | (signs[0] & 0x88888888u);
        result.codes.y = ptx::encode_e2m1_magnitudes<true>(q[1]) | (signs[1] & 0x88888888u);
    }
    if (row < output.padded_rows && half < output.padded_halves)
        store_codes(output.codes + (uint64_t(row) * output.padded_halves + half) * 8, result.codes,
                    output.aligned);
    if (row < output.grid_rows && half < output.grid_halves && half % 2 == 0)
        output.scales[scale_offset(output.layout, row, half / 2, output.padded_halves / 2)] =
            uint8_t(result.scale);
}

void launch_mxfp4_quantize(const MxFp4QuantizeArgs& args, const Launch& launch, const DeviceInfo&) {
    const MxFp4Shape& shape = args.shape;
    const MxOutput output{args.codes,
                          args.block_scales,
                          uint32_t(shape.rows),
                          uint32_t(shape.padded_rows),
                          uint32_t(scale_rows(shape.layout, shape.padded_rows)),
                          uint32_t((shape.k + 15) / 16),
                          uint32_t(shape.padded_k / 16),
                          uint32_t(scale_columns(shape.layout, shape.padded_blocks()) * 2),
                          shape.layout,
                          is_aligned(args.codes, 8)};
    const Tiles tiles = make_tiles(output.grid_rows, output.grid_halves);
    if (tiles.rows == 0 || tiles.columns == 0) return;
    with_type(args.x.type, [&](auto element) {
        using T = decltype(element);
        launch_grid(quantize_blocks<T>, grid_of(tiles), tile_threads, 0, launch, blocks_of<const T>(args.x),
                    output, tiles);
    });
}

struct MxSource {
    static constexpr int blocks = 1;
    using Cursor = Position;
    struct Raw {
        uint2 codes;
        uint32_t scale;
    };
    const uint8_t* codes;
    const uint8_t* scales;
    uint32_t padded_halves;
    ScaleLayout layout;
    bool aligned;  // codes to 8 bytes

    __device__ __forceinline__ Cursor at(uint32_t row, uint32_t half) const { return {row, half}; }
    __device__ __forceinline__ Raw fetch(Cursor at, uint32_t) const {
        return {load_codes(codes + (uint64_t(at.row) * padded_halves + at.column) * 8, aligned),
                scales[scale_offset(layout, at.row, at.column / 2, padded_halves / 2)]};
    }
    __device__ __forceinline__ void make(const Raw& raw, uint32_t, Values (&values)[blocks]) const {
        const float scale = decode_e8m0(uint8_t(raw.scale));
#pragma unroll
        for (int i = 0; i < block_elements; i++)
            values[0].value[i] = decode_e2m1((i < 8 ? raw.codes.x : raw.codes.y) >> (i % 8 * 4)) * scale;
    }
};

void launch_mxfp4_dequantize(const MxFp4DequantizeArgs& args, const Launch& launch, const DeviceInfo&) {
    launch_elements(MxSource{args.codes, args.block_scales, uint32_t(args.shape.padded_k / 16),
                             args.shape.layout, is_aligned(args.codes, 8)},
                    args.y, launch);
}

}  // namespace

const Kernel<MxFp4QuantizeArgs> kernel::mxfp4_quantize = {"mxfp4_quantize", no_reason<MxFp4QuantizeArgs>,
                                                          launch_mxfp4_quantize};
const Kernel<MxFp4DequantizeArgs> kernel::mxfp4_dequantize = {
    "mxfp4_dequantize", no_reason<MxFp4DequantizeArgs>, launch_mxfp4_dequantize};

}  // namespace halfbyte::cuda
