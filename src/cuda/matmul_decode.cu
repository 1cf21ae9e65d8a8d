// W4A4 and W4A16 products of up to 64 tokens: device/decode_kernel.cuh.
#include "cuda/device/decode_kernel.cuh"
#include "cuda/launch.h"

namespace halfbyte::cuda {

template <typename Shape>
void launch_decode(DecodeProblem problem, const Launch& launch, const DeviceInfo& device) {
    problem.sets = (problem.strips + Shape::strips - 1) / Shape::strips;
    launch_resident(decode_kernel<Shape>, int64_t(problem.chains) * problem.sets, Shape::warps * 32,
                    Shape::shared_bytes, launch, device, problem);
}
template void launch_decode<DecodeShape<__nv_bfloat16, true, 1>>(DecodeProblem, const Launch&, const DeviceInfo&);
template void launch_decode<DecodeShape<__nv_bfloat16, true, 2>>(DecodeProblem, const Launch&, const DeviceInfo&);
template void launch_decode<DecodeShape<__nv_bfloat16, true, 4>>(DecodeProblem, const Launch&, const DeviceInfo&);
template void launch_decode<DecodeShape<__nv_bfloat16, true, 8>>(DecodeProblem, const Launch&, const DeviceInfo&);
template void launch_decode<DecodeShape<__nv_bfloat16, false, 1>>(DecodeProblem, const Launch&, const DeviceInfo&);
template void launch_decode<DecodeShape<__nv_bfloat16, false, 8>>(DecodeProblem, const Launch&, const DeviceInfo&);
template void launch_decode<DecodeShape<__half, false, 1>>(DecodeProblem, const Launch&, const DeviceInfo&);

}  // namespace halfbyte::cuda
