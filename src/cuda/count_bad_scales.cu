// *bad += the number of scales[0..count) outside (0, inf), NaN included. For debugging: one addition to *bad
// per warp that found some.
#include "cuda/launch.h"
#include "cuda/operations.h"
#include "cuda/ptx/launch.cuh"

namespace halfbyte::cuda {
namespace {

constexpr int threads = 256, most_blocks = 1024;

__global__ void __launch_bounds__(threads)
    count_bad_scales_kernel(const float* scales, int64_t count, int32_t* bad) {
    ptx::wait_for_previous_kernel();
    const float infinity = __int_as_float(0x7F800000);
    int found = 0;
    for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * threads)
        found += !(scales[i] > 0 && scales[i] < infinity);
    found = __reduce_add_sync(0xFFFFFFFF, found);
    if (threadIdx.x % 32 == 0 && found > 0) atomicAdd(bad, found);
}

}  // namespace

void launch_count_bad_scales(Stream stream, const float* scales, int64_t count, int32_t* bad) {
    if (count == 0) return;
    const int64_t blocks = (count + threads - 1) / threads;
    launch_grid(count_bad_scales_kernel, dim3(unsigned(std::min<int64_t>(blocks, most_blocks))), threads, 0,
                Launch{.stream = stream}, scales, count, bad);
}

}  // namespace halfbyte::cuda
