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

    __device__ __forceinline__ bool allows_quick(uint32_t end_column) const {
        return output.aligned && end_column <= output.columns;
    }
    __device__ __forceinline__ bool quick(uint32_t row, uint32_t column, const float (&sums)[block_elements],
                                          float scale) const {
        bool ordinary;
        const float G = scales(min(row, output.rows - 1));
        const QuantizedBlock block = quantize_ordinary_block(scaled_ordinary(sums, scale), G, ordinary);
        if (row >= output.rows) return row >= output.grid_rows;
        ptx::store_streaming(reinterpret_cast<uint2*>(output.codes_of(row, column)), block.codes);
        output.store_scale(row, column, block.scale);
        return ordinary;
    }
    __device__ __forceinline__ void any(uint32_t row, uint32_t column,
                                        const float (&values)[block_elements]) const {
        QuantizedBlock block;
        if (output.holds_elements(row, column)) block = quantize_block(values, scales(row));
        output.store(row, column, block);
    }
};

template <int n, typename T>
__global__ void __launch_bounds__(matrix_threads(n), matrix_ctas(n))
    matrix_quantize(const __grid_constant__ MatrixInput<T> input, const __grid_constant__ NvFp4Output output,
                    const __grid_constant__ EncodeScales scales, const __grid_constant__ Tiles tiles) {
    ptx::wait_for_previous_kernel();
    load_matrix<n>(input.matrix, input.matrix_is_bf16);
    for_each_transformed_block<n>(input, tiles, Finish<const EncodeScales&>{output, scales});
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
    for_each_transformed_block<n>(input, tiles, FinishAlike<decltype(find_amax)>{find_amax});
    meet_all_blocks(dynamic.workspace);
    const auto scales = [&](uint32_t row) { return found_encode_scale(dynamic, row); };
    for_each_transformed_block<n>(input, tiles, Finish<decltype(scales)>{output, scales});
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
