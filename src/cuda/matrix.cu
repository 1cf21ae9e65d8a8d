// y = round_T(x'), x' = x T for every n elements of x [rows, k], T a given matrix, in the contract's order
// (device/matrix_transform.cuh). y may be x: a warp reads its rows before it writes them.
#include "cuda/device/matrix_transform.cuh"
#include "cuda/operations.h"
#include "cuda/transforms.h"

namespace halfbyte::cuda {
namespace {

template <int n, typename T>
__global__ void __launch_bounds__(matrix_threads(n), matrix_ctas(n))
    matrix(const __grid_constant__ MatrixInput<T> input, const __grid_constant__ ElementOutput output,
           const __grid_constant__ Tiles tiles) {
    ptx::wait_for_previous_kernel();
    load_matrix<n>(input.matrix, input.matrix_is_bf16);
    const auto store = [&](uint32_t row, uint32_t column, const float(&values)[block_elements]) {
        if (row < tiles.rows && column < tiles.columns) output.store(row, column, values);
    };
    for_each_transformed_block<n>(input, tiles, FinishAlike<decltype(store)>{store});
}

void launch_matrix(const TransformArgs& args, const Launch& launch, const DeviceInfo& device) {
    const Tiles tiles = matrix_tiles(args.transform.n, args.y.rows, args.y.cols / block_elements);
    if (tiles.count() == 0) return;
    with_type(args.x.type, [&](auto element) {
        const auto input = matrix_input_of<decltype(element)>(args.x, args.transform, device);
        with_transform_size(args.transform.n, [&](auto n) {
            launch_resident(matrix<n, decltype(element)>, tiles.count(), matrix_threads(n),
                            matrix_shared_bytes(n, sizeof(element), input.stages), launch, device, input,
                            element_output_of(args.y), tiles);
        });
    });
}

}  // namespace

const Kernel<TransformArgs> kernel::matrix = {"matrix",
                                              [](const TransformArgs& args, const DeviceInfo& device) {
                                                  return matrix_reason(args.transform, args.x.type, device);
                                              },
                                              launch_matrix};

}  // namespace halfbyte::cuda
