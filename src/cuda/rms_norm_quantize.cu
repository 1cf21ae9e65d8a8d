// codes, block_scales = NVFP4(y), y = round_T(fl(fl(r * i) * w)) the RMSNorm of r = x, or of r = round_T(x +
// residual), which is written back: x, residual [rows, k] of type T, w [k]. One CTA per row:
//   1. all threads: r, kept in shared memory if the row fits;
//   2. one warp: sum32 of the squares, lane l the elements l, l + 32, .. in order; i = 1 / sqrt(sum / k +
//   eps);
//   3. all threads: y and its codes, a block of 16 each.
// 6.5625 bytes a BF16 value with a residual, 2.5625 without. The serial sum of one row hides behind other
// rows.
#include "cuda/device/block_kernel.cuh"
#include "cuda/launch.h"
#include "cuda/operations.h"
#include "cuda/ptx/launch.cuh"

namespace halfbyte::cuda {
namespace {

constexpr int most_threads = 256;
constexpr int64_t most_staged_bytes = 47 << 10;  // of the 48 KiB that a CTA has without opting in

struct Weight {
    const void* data;
    DType type;
    int64_t k;
    uint32_t vector_columns;

    __device__ __forceinline__ void load(uint32_t column, float (&w)[block_elements]) const {
        if (type == DType::bf16)
            load_as<__nv_bfloat16>(column, w);
        else if (type == DType::f16)
            load_as<__half>(column, w);
        else
            load_as<float>(column, w);
    }

  private:
    template <typename T>
    __device__ __forceinline__ void load_as(uint32_t column, float (&w)[block_elements]) const {
        widen(BlockMatrix<const T>{static_cast<const T*>(data), 0, k, vector_columns}
                  .template load<Reuse::soon>(0, column),
              w);
    }
};

template <typename T>
struct Input {
    BlockMatrix<const T> x;
    BlockMatrix<T> residual;  // data may be null
    bool staged;              // a row of r fits into shared memory
    float epsilon;
    Weight weight;

    __device__ uint32_t columns() const { return uint32_t((x.k + block_elements - 1) / block_elements); }
};

extern __shared__ uint4 shared[];

// Where the row's r lies, as a matrix of one row, and i.
template <typename T>
struct Row {
    BlockMatrix<const T> r;
    float inverse;
};

// add: r = x + residual is still to be made and written back.
template <typename T>
__device__ Row<T> begin_row(const Input<T>& input, uint32_t row, bool add) {
    const bool has_residual = input.residual.data != nullptr, adds = has_residual && add;
    // The rows of x and of residual that are read by blocks, as matrices of one row.
    BlockMatrix<const T> x = {input.x.data + row * input.x.stride, 0, input.x.k, input.x.vector_columns},
                         residual = x;
    if (has_residual) {
        residual.data = input.residual.data + row * input.residual.stride;
        residual.vector_columns = input.residual.vector_columns;
        if (!add) x = residual;
    }
    if (adds || input.staged) {
        for (uint32_t column = threadIdx.x; column < input.columns(); column += blockDim.x) {
            Block<T> block = x.load(0, column);
            if (adds) {
                const Block<T> old_block = residual.load(0, column);
                float r[block_elements], old[block_elements];
                widen(block, r);
                widen(old_block, old);
#pragma unroll
                for (int i = 0; i < block_elements; i++) r[i] += old[i];
                narrow(r, block);
                input.residual.store(row, column, block);
            }
            if (input.staged) {
#pragma unroll
                for (int i = 0; i < Block<T>::words / 4; i++)
                    shared[column * (Block<T>::words / 4) + i] =
                        make_uint4(block.word[4 * i], block.word[4 * i + 1], block.word[4 * i + 2],
                                   block.word[4 * i + 3]);
            }
        }
    }
    Row<T> result = {residual, 0.0f};
    if (input.staged) {
        result.r.data = reinterpret_cast<const T*>(shared);
        result.r.vector_columns = uint32_t(input.x.k / block_elements);
    }
    __shared__ float inverse;
    __syncthreads();
    if (threadIdx.x < 32) {
        float sum = 0.0f;
#pragma unroll 32
        for (int64_t i = threadIdx.x; i < input.x.k; i += 32) {
            const float r = widen(result.r.data[i]);
            sum = __fmaf_rn(r, r, sum);
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(~0u, sum, distance);
        if (threadIdx.x == 0)
            inverse = __frcp_rn(__fsqrt_rn(__fdiv_rn(sum, float(input.x.k)) + input.epsilon));
    }
    __syncthreads();
    result.inverse = inverse;
    return result;
}

// Block `column` of y; its values are those of T.
template <typename T>
__device__ __forceinline__ Block<T> normalised_block(const Input<T>& input, const Row<T>& row,
                                                     uint32_t column, float (&y)[block_elements]) {
    float w[block_elements];
    widen(row.r.template load<Reuse::soon>(0, column), y);
    input.weight.load(column, w);
#pragma unroll
    for (int i = 0; i < block_elements; i++) y[i] = y[i] * row.inverse * w[i];
    Block<T> block;
    narrow(y, block);
    widen(block, y);
    return block;
}

template <typename T>
__device__ void quantize_row(const Input<T>& input, const NvFp4Output& output, uint32_t row,
                             const Row<T>& normalised, float G) {
    for (uint32_t column = threadIdx.x; column < output.grid_columns; column += blockDim.x) {
        QuantizedBlock result;
        if (column < output.columns) {
            float y[block_elements];
            const Block<T> block = normalised_block(input, normalised, column, y);
            bool ordinary;
            result =
                quantize_ordinary_block(ordinary_values(y, largest_magnitude_or_nan(block)), G, ordinary);
            if (!ordinary) result = quantize_block(y, G);
        }
        output.store(row, column, result);
    }
}

__device__ void zero_row(const NvFp4Output& output, uint32_t row) {
    for (uint32_t column = threadIdx.x; column < output.grid_columns; column += blockDim.x)
        output.store(row, column, QuantizedBlock());
}

template <typename T>
__global__ void __launch_bounds__(most_threads, 5)
    rms_norm_quantize(const __grid_constant__ Input<T> input, const __grid_constant__ NvFp4Output output,
                      const __grid_constant__ EncodeScales scales) {
    ptx::wait_for_previous_kernel();
    for (uint32_t row = blockIdx.x; row < output.grid_rows; row += gridDim.x) {
        if (row >= output.rows) {
            zero_row(output, row);
            continue;
        }
        quantize_row(input, output, row, begin_row(input, row, true), scales(row));
        __syncthreads();  // before the next row's r replaces this one's
    }
}

template <typename T>
__global__ void __launch_bounds__(most_threads)
    rms_norm_quantize_dynamic(const __grid_constant__ Input<T> input,
                              const __grid_constant__ NvFp4Output output,
                              const __grid_constant__ DynamicScales dynamic) {
    for (uint32_t row = blockIdx.x; row < output.rows; row += gridDim.x) {
        const Row<T> normalised = begin_row(input, row, true);
        float amax = 0.0f;
        for (uint32_t column = threadIdx.x; column < output.columns; column += blockDim.x) {
            float y[block_elements];
            normalised_block(input, normalised, column, y);
#pragma unroll
            for (int i = 0; i < block_elements; i++) amax = fmaxf(amax, finite_magnitude(y[i]));
        }
        add_amax(dynamic, row, true, amax);
        __syncthreads();
    }
    meet_all_blocks(dynamic.workspace);
    for (uint32_t row = blockIdx.x; row < output.grid_rows; row += gridDim.x) {
        if (row >= output.rows) {
            zero_row(output, row);
            continue;
        }
        quantize_row(input, output, row, begin_row(input, row, false), found_encode_scale(dynamic, row));
        __syncthreads();
    }
    finish_dynamic(dynamic);
}

struct Grid {
    int64_t ctas;
    int threads;
    size_t shared_bytes;
};

template <typename T>
Input<T> input_of(const RmsNormQuantizeArgs& args) {
    return {blocks_of<const T>(args.x),
            blocks_of<T>(args.residual),
            round_up(args.x.cols, block_elements) * int64_t(sizeof(T)) <= most_staged_bytes,
            args.epsilon,
            {args.weight.data, args.weight.type, args.weight.cols,
             blocks_of<const void>(args.weight).vector_columns}};
}

template <typename T>
Grid row_grid(const Input<T>& input, const NvFp4Output& output) {
    return {output.grid_rows,
            int(std::clamp<int64_t>(round_up(int64_t(output.grid_columns), 32), 32, most_threads)),
            input.staged ? size_t(round_up(input.x.k, block_elements)) * sizeof(T) : 0};
}

void launch_with_given_scales(const RmsNormQuantizeArgs& args, const Launch& launch, const DeviceInfo&) {
    with_type(args.x.type, [&](auto element) {
        const auto input = input_of<decltype(element)>(args);
        const NvFp4Output output = output_of(args.quantize);
        const Grid grid = row_grid(input, output);
        if (grid.ctas == 0) return;
        launch_grid(rms_norm_quantize<decltype(element)>,
                    dim3(unsigned(std::min<int64_t>(grid.ctas, 1 << 30))), grid.threads, grid.shared_bytes,
                    launch, input, output,
                    EncodeScales{args.quantize.encode_scale, args.quantize.scale_per_row});
    });
}

void launch_with_dynamic_scales(const RmsNormQuantizeArgs& args, const Launch& launch,
                                const DeviceInfo& device) {
    with_type(args.x.type, [&](auto element) {
        const auto input = input_of<decltype(element)>(args);
        const NvFp4Output output = output_of(args.quantize);
        const Grid grid = row_grid(input, output);
        launch_cooperative(rms_norm_quantize_dynamic<decltype(element)>, grid.ctas, grid.threads,
                           grid.shared_bytes, launch, device, input, output,
                           dynamic_scales_of(args.quantize, launch));
    });
}

}  // namespace

const Kernel<RmsNormQuantizeArgs> kernel::rms_norm_quantize = {
    "rms_norm_quantize",
    [](const RmsNormQuantizeArgs& args, const DeviceInfo&) { return given_scales_reason(args.quantize); },
    launch_with_given_scales};
const Kernel<RmsNormQuantizeArgs> kernel::rms_norm_quantize_dynamic = {
    "rms_norm_quantize_dynamic",
    [](const RmsNormQuantizeArgs& args, const DeviceInfo&) { return dynamic_scales_reason(args.quantize); },
    launch_with_dynamic_scales};

}  // namespace halfbyte::cuda
