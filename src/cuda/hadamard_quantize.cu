// codes, block_scales = NVFP4(x'), x' the Hadamard transform of every n elements of x [rows, k], n = 16, 32,
// 64 or 128; x' is not rounded before it is quantised. 2.5625 bytes a BF16 value.
#include "cuda/device/hadamard.cuh"
#include "cuda/operations.h"
#include "cuda/transforms.h"

namespace halfbyte::cuda {
namespace {

// body(source)
template <typename Body>
void with_source(const TransformQuantizeArgs& args, const Body& body) {
    with_type(args.x.type, [&](auto element) {
        with_transform_size(args.transform.n, [&](auto n) {
            constexpr int blocks = 2;
            body(hadamard_source_of<decltype(element), n, blocks>(args.x, args.transform));
        });
    });
}

std::string given_reason(const TransformQuantizeArgs& args, const DeviceInfo&) {
    return first_reason(hadamard_reason(args.transform), given_scales_reason(args.quantize));
}
std::string dynamic_reason(const TransformQuantizeArgs& args, const DeviceInfo&) {
    return first_reason(hadamard_reason(args.transform), dynamic_scales_reason(args.quantize));
}

void launch_with_given_scales(const TransformQuantizeArgs& args, const Launch& launch,
                              const DeviceInfo& device) {
    with_source(args, [&](const auto& source) { launch_given(source, args.quantize, launch, device); });
}
void launch_with_dynamic_scales(const TransformQuantizeArgs& args, const Launch& launch,
                                const DeviceInfo& device) {
    with_source(args, [&](const auto& source) { launch_dynamic(source, args.quantize, launch, device); });
}

}  // namespace

const Kernel<TransformQuantizeArgs> kernel::hadamard_quantize = {"hadamard_quantize", given_reason,
                                                                 launch_with_given_scales};
const Kernel<TransformQuantizeArgs> kernel::hadamard_quantize_dynamic = {
    "hadamard_quantize_dynamic", dynamic_reason, launch_with_dynamic_scales};

}  // namespace halfbyte::cuda
