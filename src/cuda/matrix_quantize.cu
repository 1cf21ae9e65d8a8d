// codes, block_scales = NVFP4(x'), x' = x T for every n elements of x [rows, k], T a given matrix, in the
// contract's order (device/matrix_transform.cuh); x' is not rounded before it is quantised.
#include "cuda/device/matrix_transform.cuh"
#include "cuda/operations.h"
#include "cuda/transforms.h"

namespace halfbyte::cuda {
namespace {

// scales(row): the encode scale.
template <typename Scales>
struct Finish {
    const NvFp4Output& output;
    Scales scales;
    bool scale_per_row;

    __device__ __forceinline__ bool allows_quick(uint32_t end_column) const {
        return output.aligned && output.rows > 0 && end_column <= output.columns;
    }
    // First the codes of all rows without a branch, so that the steps of one fill the waits of another.
    template <int rows>
    __device__ __forceinline__ uint32_t quick(uint32_t first_row, uint32_t rows_apart, uint32_t column,
                                              const float (&sums)[rows][block_elements], float scale) const {
        float G = scales(0);
        const int64_t codes_step = int64_t(rows_apart) * output.padded_columns * 8;
        uint8_t* codes = output.codes_of(first_row, column);
        uint32_t remaining = 0, made[rows];
#pragma unroll
        for (int r = 0; r < rows; r++, codes += codes_step) {
            const uint32_t row = first_row + r * rows_apart;
            if (scale_per_row) G = scales(min(row, output.rows - 1));
            bool ordinary;
            const QuantizedBlock block =
                quantize_ordinary_block(scaled_ordinary(sums[r], scale), G, ordinary);
            made[r] = block.scale;
            if (row < output.rows) ptx::store_streaming(reinterpret_cast<uint2*>(codes), block.codes);
            remaining |= (row < output.rows ? ordinary : row >= output.grid_rows) ? 0 : 1u << r;
        }
        if (output.layout == ScaleLayout::linear) {
            const int64_t scales_step = int64_t(rows_apart) * output.padded_columns;
            uint8_t* own_scales = output.scale_of(first_row, column);
#pragma unroll
            for (int r = 0; r < rows; r++, own_scales += scales_step)
                if (first_row + r * rows_apart < output.rows) *own_scales = uint8_t(made[r]);
        } else {
#pragma unroll
            for (int r = 0; r < rows; r++)
                if (first_row + r * rows_apart < output.rows)
                    *output.scale_of(first_row + r * rows_apart, column) = uint8_t(made[r]);
        }
        return remaining;
    }
    __device__ __forceinline__ void any(uint32_t row, uint32_t column,
                                        const float (&values)[block_elements]) const {
        QuantizedBlock block;
        if (output.holds_elements(row, column)) block = quantize_block(values, scales(row));
        output.store(row, column, block);
    }
};

// One finish in the first pass, another in the second.
template <typename First, typename Second>
struct FinishInTurn {
    First first;
    Second second;
    bool is_second;

    __device__ __forceinline__ bool allows_quick(uint32_t end_column) const {
        return is_second ? second.allows_quick(end_column) : first.allows_quick(end_column);
    }
    template <int rows>
    __device__ __forceinline__ uint32_t quick(uint32_t first_row, uint32_t rows_apart, uint32_t column,
                                              float (&sums)[rows][block_elements], float scale) const {
        return is_second ? second.template quick<rows>(first_row, rows_apart, column, sums, scale)
                         : first.template quick<rows>(first_row, rows_apart, column, sums, scale);
    }
    __device__ __forceinline__ void any(uint32_t row, uint32_t column,
                                        const float (&values)[block_elements]) const {
        is_second ? second.any(row, column, values) : first.any(row, column, values);
    }
};

template <int n, typename T>
__global__ void __launch_bounds__(matrix_threads(n), matrix_ctas(n))
    matrix_quantize(const __grid_constant__ MatrixInput<T> input, const __grid_constant__ NvFp4Output output,
                    const __grid_constant__ EncodeScales scales, const __grid_constant__ Tiles tiles) {
    ptx::wait_for_previous_kernel();
    load_matrix<n>(input.matrix, input.matrix_is_bf16);
    for_each_transformed_block<n>(input, tiles, Finish<const EncodeScales&>{output, scales, scales.per_row});
}

template <int n, typename T>
__global__ void __launch_bounds__(matrix_threads(n), matrix_ctas(n))
    matrix_quantize_dynamic(const __grid_constant__ MatrixInput<T> input,
                            const __grid_constant__ NvFp4Output output,
                            const __grid_constant__ DynamicScales dynamic,
                            const __grid_constant__ Tiles tiles) {
    load_matrix<n>(input.matrix, input.matrix_is_bf16);
    const auto find_amax = [&](uint32_t row, uint32_t column, const float(&values)[block_elements]) {
        add_amax(dynamic, row, output.holds_elements(row, column), largest_finite_magnitude(values));
    };
    const auto scales = [&](uint32_t row) { return found_encode_scale(dynamic, row); };
    FinishInTurn<FinishAlike<decltype(find_amax)>, Finish<decltype(scales)>> finish{
        {find_amax}, {output, scales, dynamic.per_row}, false};
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        finish.is_second = pass == 1;
        for_each_transformed_block<n>(input, tiles, finish);
        if (pass == 0) meet_all_blocks(dynamic.workspace);
    }
    finish_dynamic(dynamic);
}

void launch_with_given_scales(const TransformQuantizeArgs& args, const Launch& launch,
                              const DeviceInfo& device) {
    const NvFp4Output output = output_of(args.quantize);
    const Tiles tiles = matrix_tiles(args.transform.n, output.grid_rows, output.grid_columns);
    if (tiles.count() == 0) return;
    with_type(args.x.type, [&](auto element) {
        const auto input = matrix_input_of<decltype(element)>(args.x, args.transform, device);
        with_transform_size(args.transform.n, [&](auto n) {
            launch_resident(matrix_quantize<n, decltype(element)>, tiles.count(), matrix_threads(n),
                            matrix_shared_bytes(n, sizeof(element), input.stages), launch, device, input,
                            output, EncodeScales{args.quantize.encode_scale, args.quantize.scale_per_row},
                            tiles);
        });
    });
}

void launch_with_dynamic_scales(const TransformQuantizeArgs& args, const Launch& launch,
                                const DeviceInfo& device) {
    const NvFp4Output output = output_of(args.quantize);
    const Tiles tiles = matrix_tiles(args.transform.n, output.grid_rows, output.grid_columns);
    with_type(args.x.type, [&](auto element) {
        const auto input = matrix_input_of<decltype(element)>(args.x, args.transform, device);
        with_transform_size(args.transform.n, [&](auto n) {
            launch_cooperative(matrix_quantize_dynamic<n, decltype(element)>, tiles.count(),
                               matrix_threads(n), matrix_shared_bytes(n, sizeof(element), input.stages),
                               launch, device, input, output, dynamic_scales_of(args.quantize, launch),
                               tiles);
        });
    });
}

}  // namespace

const Kernel<TransformQuantizeArgs> kernel::matrix_quantize = {
    "matrix_quantize",
    [](const TransformQuantizeArgs& args, const DeviceInfo& device) {
        return first_reason(matrix_reason(args.transform, args.x.type, device),
                            given_scales_reason(args.quantize));
    },
    launch_with_given_scales};
const Kernel<TransformQuantizeArgs> kernel::matrix_quantize_dynamic = {
    "matrix_quantize_dynamic",
    [](const TransformQuantizeArgs& args, const DeviceInfo& device) {
        return first_reason(matrix_reason(args.transform, args.x.type, device),
                            dynamic_scales_reason(args.quantize));
    },
    launch_with_dynamic_scales};

}  // namespace halfbyte::cuda
