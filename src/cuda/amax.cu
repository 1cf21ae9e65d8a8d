// amax of the finite values of x [rows, k], of all or of each row, and the scales that follow.
// Per row: a CTA for each. Of all: every CTA adds its share to the workspace, and the last one to be done
// writes the result and sets the workspace back to zero.
#include "cuda/device/elements.cuh"
#include "cuda/launch.h"
#include "cuda/operations.h"
#include "cuda/ptx/launch.cuh"

namespace halfbyte::cuda {
namespace {

constexpr int threads = 256;

// The amax of one row, over this thread's blocks; the CTAs of a grid's column share the row.
template <typename T>
__device__ float amax_of_row(const BlockMatrix<const T>& x, uint32_t row) {
    float largest = 0.0f;
    for (uint32_t column = blockIdx.y * threads + threadIdx.x;
         column < (x.k + block_elements - 1) / block_elements; column += gridDim.y * threads) {
        float values[block_elements];
        widen(x.load(row, column), values);
#pragma unroll
        for (int i = 0; i < block_elements; i++) largest = fmaxf(largest, finite_magnitude(values[i]));
    }
    return largest;
}

struct Result {
    float *amax, *encode, *decode;

    __device__ void store(int64_t place, float largest) const {
        const float G = dynamic_encode_scale(largest);
        if (amax != nullptr) amax[place] = largest;
        if (encode != nullptr) encode[place] = G;
        if (decode != nullptr) decode[place] = 1.0f / G;
    }
};

// Of all threads' values, in thread 0. Magnitudes are ordered as their bits.
__device__ float largest_of_cta(float value) {
    __shared__ uint32_t largest;
    __syncthreads();
    if (threadIdx.x == 0) largest = 0;
    __syncthreads();
    const uint32_t of_warp = __reduce_max_sync(~0u, __float_as_uint(value));
    if (threadIdx.x % 32 == 0) atomicMax(&largest, of_warp);
    __syncthreads();
    return __uint_as_float(largest);
}

template <typename T>
__global__ void __launch_bounds__(threads)
    amax_per_row(const BlockMatrix<const T> x, uint32_t rows, const Result result) {
    ptx::wait_for_previous_kernel();
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float largest = largest_of_cta(amax_of_row(x, row));
        if (threadIdx.x == 0) result.store(row, largest);
    }
}

template <typename T>
__global__ void __launch_bounds__(threads)
    amax_of_all(const BlockMatrix<const T> x, uint32_t rows, const Result result, Workspace* workspace) {
    ptx::wait_for_previous_kernel();
    float largest = 0.0f;
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x)
        largest = fmaxf(largest, amax_of_row(x, row));
    largest = largest_of_cta(largest);
    if (threadIdx.x != 0) return;
    if (largest > 0.0f) atomicMax(workspace->amax, __float_as_uint(largest));
    __threadfence();
    if (atomicAdd(&workspace->arrived, 1u) != gridDim.x * gridDim.y - 1) return;
    __threadfence();
    result.store(0, __uint_as_float(__ldcg(workspace->amax)));
    workspace->amax[0] = workspace->arrived = 0;
}

void launch_amax(const AmaxArgs& args, const Launch& launch, const DeviceInfo& device) {
    const Result result{args.amax, args.encode_scale, args.decode_scale};
    with_type(args.x.type, [&](auto element) {
        using T = decltype(element);
        const auto x = blocks_of<const T>(args.x);
        const uint32_t rows = uint32_t(args.x.rows);
        if (args.per_row) {
            const dim3 grid(unsigned(std::clamp<int64_t>(rows, 1, 1 << 30)));
            return launch_grid(amax_per_row<T>, grid, threads, 0, launch, x, rows, result);
        }
        // Few rows are shared by several CTAs each.
        const int64_t ctas = int64_t(device.multiprocessors) * 8, down = std::clamp<int64_t>(rows, 1, ctas);
        const int64_t steps = (args.x.cols + block_elements * threads - 1) / (block_elements * threads);
        const int64_t across = std::clamp<int64_t>(ctas / down, 1, std::max<int64_t>(1, steps));
        launch_grid(amax_of_all<T>, dim3(unsigned(down), unsigned(across)), threads, 0, launch, x, rows,
                    result, static_cast<Workspace*>(launch.workspace));
    });
}

}  // namespace

const Kernel<AmaxArgs> kernel::amax = {"amax", no_reason<AmaxArgs>, launch_amax};

}  // namespace halfbyte::cuda
