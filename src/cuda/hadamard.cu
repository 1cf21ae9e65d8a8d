// y = round_T(x'), x' the Hadamard transform of every n elements of x [rows, k], n = 16, 32, 64 or 128. y may
// be x.
#include "cuda/device/elements_kernel.cuh"
#include "cuda/device/hadamard.cuh"
#include "cuda/operations.h"
#include "cuda/transforms.h"

namespace halfbyte::cuda {

static void launch_hadamard(const TransformArgs& args, const Launch& launch, const DeviceInfo&) {
    with_type(args.x.type, [&](auto element) {
        with_transform_size(args.transform.n, [&](auto n) {
            launch_elements(hadamard_source_of<decltype(element), n, 1>(args.x, args.transform), args.y,
                            launch);
        });
    });
}

const Kernel<TransformArgs> kernel::hadamard = {
    "hadamard", [](const TransformArgs& args, const DeviceInfo&) { return hadamard_reason(args.transform); },
    launch_hadamard};

}  // namespace halfbyte::cuda
