// Block scales from one layout into another: every byte of the target once, padding as zero.
//   target[offset(row, block)] = row < rows and block < blocks ? source[offset(row, block)] : 0
// The maps are those of format/scale_layout.h. A thread makes four bytes: in a tiled layout those are four
// blocks of one row, so that it divides once for them.
#include "cuda/launch.h"
#include "cuda/operations.h"
#include "cuda/ptx/launch.cuh"
#include "format/scale_layout.h"

namespace halfbyte::cuda {
namespace {

constexpr int threads = 256;

__global__ void __launch_bounds__(threads)
    convert_scales_kernel(ConvertScalesArgs args, int64_t target_bytes) {
    ptx::wait_for_previous_kernel();
    const NvFp4Shape& shape = args.shape;
    const int64_t blocks_per_row = shape.padded_blocks();
    const int64_t step = int64_t(gridDim.x) * threads * 4;
    const bool words = reinterpret_cast<uintptr_t>(args.target) % 4 == 0;
    for (int64_t first = (int64_t(blockIdx.x) * threads + threadIdx.x) * 4; first < target_bytes;
         first += step) {
        const int count = target_bytes - first < 4 ? int(target_bytes - first) : 4;
        ScalePosition at = scale_position(args.layout, first, blocks_per_row);
        uint32_t word = 0;
        for (int i = 0; i < count; i++) {
            if (at.row < shape.rows && at.block < shape.blocks())
                word |= uint32_t(args.source[scale_offset(shape.layout, at.row, at.block, blocks_per_row)])
                        << 8 * i;
            at.block++;
            if (args.layout == ScaleLayout::linear && at.block == blocks_per_row) at = {at.row + 1, 0};
        }
        if (words && count == 4)
            *reinterpret_cast<uint32_t*>(args.target + first) = word;
        else
            for (int i = 0; i < count; i++) args.target[first + i] = uint8_t(word >> 8 * i);
    }
}

void launch_conversion(const ConvertScalesArgs& args, const Launch& launch, const DeviceInfo&) {
    const int64_t bytes = scale_buffer_bytes(args.layout, args.shape.padded_rows, args.shape.padded_blocks());
    if (bytes == 0) return;
    const int64_t ctas = (bytes + 4 * threads - 1) / (4 * threads);
    launch_grid(convert_scales_kernel, dim3(unsigned(std::min<int64_t>(ctas, 1 << 20))), threads, 0, launch,
                args, bytes);
}

}  // namespace

const Kernel<ConvertScalesArgs> kernel::convert_scales = {"convert_scales", no_reason<ConvertScalesArgs>,
                                                          launch_conversion};

}  // namespace halfbyte::cuda
