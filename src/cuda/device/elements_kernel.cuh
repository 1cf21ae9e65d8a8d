// The kernels whose result are elements again: y = round_T(values of a Source), [rows, k]. y may be the
// source's memory: a warp reads all that its blocks depend on before it writes.
#pragma once

#include "cuda/device/block_kernel.cuh"

namespace halfbyte::cuda {

struct ElementOutput {
    Matrix y;
    uint32_t vector_columns = 0;

    __device__ __forceinline__ void store(uint32_t row, uint32_t column,
                                          const float (&values)[block_elements]) const {
        if (y.type == DType::bf16)
            store_as<__nv_bfloat16>(row, column, values);
        else if (y.type == DType::f16)
            store_as<__half>(row, column, values);
        else
            store_as<float>(row, column, values);
    }

  private:
    template <typename T>
    __device__ __forceinline__ void store_as(uint32_t row, uint32_t column,
                                             const float (&values)[block_elements]) const {
        Block<T> block;
        narrow(values, block);
        BlockMatrix<T>{static_cast<T*>(y.data), y.stride, y.cols, vector_columns}.store(row, column, block);
    }
};

inline ElementOutput element_output_of(const Matrix& y) {
    return {y, blocks_of<void>(y).vector_columns};
}

template <typename Source>
__global__ void __launch_bounds__(tile_threads)
    make_elements(const __grid_constant__ Source source, const __grid_constant__ ElementOutput output,
                  const __grid_constant__ Tiles tiles) {
    constexpr int blocks = Source::blocks;
    const Position first = own_position(tiles);
    const uint32_t row = first.row, column = first.column * blocks;
    const bool valid = row < tiles.rows && first.column < tiles.columns;
    ptx::wait_for_previous_kernel();
    typename Source::Raw raw = {};
    if (valid) raw = source.fetch(source.at(row, column), column);
    Values values[blocks];
    source.make(raw, column, values);
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < blocks; i++) output.store(row, column + i, values[i].value);
}

template <typename Source>
void launch_elements(const Source& source, const Matrix& y, const Launch& launch) {
    const int64_t unit = Source::blocks * block_elements;
    const Tiles tiles = make_tiles(y.rows, (y.cols + unit - 1) / unit);
    if (tiles.rows == 0 || tiles.columns == 0) return;
    launch_grid(make_elements<Source>, grid_of(tiles), tile_threads, 0, launch, source, element_output_of(y),
                tiles);
}

}  // namespace halfbyte::cuda
