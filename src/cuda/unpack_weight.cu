// The inverse of pack_weight.cu: codes [n, Kp/2] and linear block scales [n, Kp/16] from the packed form, Kp
// = k rounded up to 16. The work is shared out as there: a CTA for a strip of 16 rows, a lane for two bytes
// of codes of the rows g and g + 8 in every block of a group.
#include "cuda/device/unpack.cuh"
#include "cuda/launch.h"
#include "cuda/operations.h"
#include "cuda/ptx/launch.cuh"
#include "format/gpu_weight.h"

namespace halfbyte::cuda {
namespace {

constexpr int warps = 4, threads = warps * 32;

__global__ void __launch_bounds__(threads) unpack_weight_kernel(UnpackWeightArgs args, ScaleLayout layout) {
    ptx::wait_for_previous_kernel();
    const auto& [data, n, k] = args.w;
    const int lane = int(threadIdx.x % 32), g = lane / 4, q = lane % 4;
    const int64_t first_row = int64_t(blockIdx.x) * gpu_strip_rows, groups = gpu_groups(k);
    const int64_t blocks = (k + 15) / 16;
    const bool has_low = first_row + g < n, has_high = first_row + g + 8 < n;
    uint8_t* const low = args.codes + (first_row + g) * blocks * 8 + q;
    uint8_t* const high = low + 8 * blocks * 8;
    for (int64_t group = threadIdx.x / 32; group < groups; group += warps) {
        const uint8_t* in = data + (blockIdx.x * groups + group) * gpu_group_bytes;
        const uint4 loaded = *reinterpret_cast<const uint4*>(in + lane * 16);
        const uint32_t words[gpu_group_blocks] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
        for (int b = 0; b < gpu_group_blocks; b++) {
            const int64_t block = group * gpu_group_blocks + b;
            if (block >= blocks) break;
            if (has_low) {
                low[block * 8] = pair_of<0, 0>(words[b]);
                low[block * 8 + 4] = pair_of<0, 8>(words[b]);
            }
            if (has_high) {
                high[block * 8] = pair_of<8, 0>(words[b]);
                high[block * 8 + 4] = pair_of<8, 8>(words[b]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = g + q % 2 * 8, b = q / 2 * 2 + i;
            const int64_t block = group * gpu_group_blocks + b;
            if (first_row + row < n && block < blocks)
                args.block_scales[scale_offset(layout, first_row + row, block, blocks)] =
                    in[gpu_scale_byte(row, b)];
        }
    }
}

}  // namespace

void launch_unpack_weight(const UnpackWeightArgs& args, ScaleLayout layout, const Launch& launch) {
    if (args.w.n == 0 || args.w.k == 0) return;
    launch_grid(unpack_weight_kernel, dim3(unsigned(gpu_strips(args.w.n))), threads, 0, launch, args, layout);
}

const Kernel<UnpackWeightArgs> kernel::unpack_weight = {
    "unpack_weight", no_reason<UnpackWeightArgs>,
    [](const UnpackWeightArgs& args, const Launch& launch, const DeviceInfo&) {
        launch_unpack_weight(args, ScaleLayout::linear, launch);
    }};

}  // namespace halfbyte::cuda
