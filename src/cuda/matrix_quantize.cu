// codes, block_scales = NVFP4(x'), x' = x T for every n elements of x [rows, k], T a given matrix, in the
// contract's order (device/matrix_transform.cuh); x' is not rounded before it is quantised.
#include "cuda/device/matrix_transform.cuh"
#include "cuda/operations.h"
#include "cuda/transforms.h"

namespace halfbyte::cuda {
namespace {

template <int n, typename T>
__global__ void __launch_bounds__(matrix_threads(n), 1)
    matrix_quantize(const __grid_constant__ MatrixInput<T> input, const __grid_constant__ NvFp4Output output,
                    const __grid_constant__ EncodeScales scales, const __grid_constant__ Tiles tiles) {
    ptx::wait_for_previous_kernel();
    load_matrix<n>(input.matrix, input.matrix_is_bf16);
    for_each_transformed_block<n>(
        input, tiles, [&](uint32_t row, uint32_t column, const float(&values)[block_elements]) {
            store_quantized(output, row, column, values,
                            output.holds_elements(row, column) ? scales(row) : 1.0f);
        });
}

template <int n, typename T>
__global__ void __launch_bounds__(matrix_threads(n), 1)
    matrix_quantize_dynamic(const __grid_constant__ MatrixInput<T> input,
                            const __grid_constant__ NvFp4Output output,
                            const __grid_constant__ DynamicScales dynamic,
                            const __grid_constant__ Tiles tiles) {
    load_matrix<n>(input.matrix, input.matrix_is_bf16);
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        for_each_transformed_block<n>(
            input, tiles, [&](uint32_t row, uint32_t column, const float(&values)[block_elements]) {
                if (pass == 0)
                    add_amax(dynamic, row, output.holds_elements(row, column),
                             largest_finite_magnitude(values));
                else
                    store_quantized(
                        output, row, column, values,
                        output.holds_elements(row, column) ? found_encode_scale(dynamic, row) : 1.0f);
            });
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
        with_transform_size(args.transform.n, [&](auto n) {
            launch_resident(matrix_quantize<n, decltype(element)>, tiles.count(), matrix_threads(n),
                            matrix_shared_bytes(n), launch, device,
                            matrix_input_of<decltype(element)>(args.x, args.transform), output,
                            EncodeScales{args.quantize.encode_scale, args.quantize.scale_per_row}, tiles);
        });
    });
}

void launch_with_dynamic_scales(const TransformQuantizeArgs& args, const Launch& launch,
                                const DeviceInfo& device) {
    const NvFp4Output output = output_of(args.quantize);
    const Tiles tiles = matrix_tiles(args.transform.n, output.grid_rows, output.grid_columns);
    with_type(args.x.type, [&](auto element) {
        with_transform_size(args.transform.n, [&](auto n) {
            launch_cooperative(matrix_quantize_dynamic<n, decltype(element)>, tiles.count(),
                               matrix_threads(n), matrix_shared_bytes(n), launch, device,
                               matrix_input_of<decltype(element)>(args.x, args.transform), output,
                               dynamic_scales_of(args.quantize, launch), tiles);
        });
    });
}

}  // namespace

const Kernel<TransformQuantizeArgs> kernel::matrix_quantize = {
    "matrix_quantize",
    [](const TransformQuantizeArgs& args, const DeviceInfo& device) {
        return first_reason(matrix_reason(args.transform, device), given_scales_reason(args.quantize));
    },
    launch_with_given_scales};
const Kernel<TransformQuantizeArgs> kernel::matrix_quantize_dynamic = {
    "matrix_quantize_dynamic",
    [](const TransformQuantizeArgs& args, const DeviceInfo& device) {
        return first_reason(matrix_reason(args.transform, device), dynamic_scales_reason(args.quantize));
    },
    launch_with_dynamic_scales};

}  // namespace halfbyte::cuda
