// W4A4 and W4A16 products of few tokens: device/decode_kernel.cuh. The activations are brought into the order
// of its operands first, by a small kernel of their own. More than 64 tokens (fewer where shared memory is
// small) are done in passes.
#include <algorithm>

#include "cuda/device/decode_kernel.cuh"
#include "cuda/launch.h"
#include "cuda/operations.h"
#include "cuda/products.h"

namespace halfbyte::cuda {
namespace {

// How a product is spread over the device.
struct Plan {
    int64_t cluster, slices;
    int64_t shared_sums;  // units whose sums fit into shared memory; 0: they go to scratch memory
};

template <typename Shape>
Plan plan_of(int64_t strips, int64_t chains, const DeviceInfo& device) {
    const int64_t room = device.shared_memory_per_block;
    Plan plan = {1, 1, 0};
    if (device.major >= 9) {
        // Measured: activations of more tokens are shared by more CTAs; and few strips are spread over more.
        plan.cluster = Shape::tokens <= 4 ? 1 : Shape::tokens <= 32 ? 2 : 8;
        while (plan.cluster < 8 && strips * plan.cluster * 2 <= device.multiprocessors) plan.cluster *= 2;
        while (plan.cluster > std::max<int64_t>(chains, 1)) plan.cluster /= 2;
    }
    const int64_t own_strips = (strips + device.multiprocessors - 1) / device.multiprocessors;
    const int64_t own_chains = std::max<int64_t>(1, (chains + plan.cluster - 1) / plan.cluster);
    if (plan.cluster == 1 && Shape::shared_bytes(own_chains, own_strips * chains) <= room)
        plan.shared_sums = own_strips * chains;
    const int64_t most = (room - Shape::shared_bytes(0, plan.shared_sums)) / Shape::slice_bytes;
    const int64_t runs = (own_chains + most - 1) / std::max<int64_t>(most, 1);
    plan.slices = (own_chains + runs - 1) / std::max<int64_t>(runs, 1);
    return plan;
}

template <typename Shape>
bool fits(const DeviceInfo& device) {
    return Shape::shared_bytes(1, 0) <= device.shared_memory_per_block;
}

template <typename Shape>
void launch_pass(DecodeProblem problem, uint8_t* scratch, const Launch& launch, const DeviceInfo& device) {
    const Plan plan = plan_of<Shape>(problem.strips, problem.chains, device);
    problem.slices = uint32_t(plan.slices);
    problem.shared_sums = uint32_t(plan.shared_sums);
    if (plan.shared_sums == 0) problem.sums = reinterpret_cast<float4*>(scratch);
    const int64_t shared_bytes = Shape::shared_bytes(plan.slices, plan.shared_sums);
    const int threads = Shape::warps * 32;
    const auto kernel = decode_kernel<Shape>;
    const int64_t active =
        active_clusters(reinterpret_cast<const void*>(kernel), plan.cluster, threads, shared_bytes, device);
    const int64_t clusters = std::clamp<int64_t>(active, 1, problem.strips);
    launch_clusters(kernel, unsigned(plan.cluster), unsigned(clusters), threads, size_t(shared_bytes), launch,
                    problem);
}

template <typename Source>
void launch_expand(const Activations& a, uint32_t tokens, uint8_t* expanded, const Launch& launch) {
    const int64_t pairs = gpu_groups(a.k) * 2, threads = 128;
    if (pairs == 0) return;
    launch_grid(expand_activations<Source>, dim3(unsigned((pairs * tokens + threads - 1) / threads)),
                int(threads), 0, launch, a, tokens, uint32_t(pairs), expanded);
}

template <typename T, bool contract>
void launch_expand_of(const Activations& a, uint32_t tokens, uint8_t* expanded, const Launch& launch) {
    if constexpr (!contract)
        launch_expand<MatrixSource<T, false>>(a, tokens, expanded, launch);
    else if (a.encode_scale == nullptr)
        launch_expand<CodesSource>(a, tokens, expanded, launch);
    else
        with_type(a.type, [&](auto element) {
            launch_expand<MatrixSource<decltype(element), true>>(a, tokens, expanded, launch);
        });
}

// body(DecodeShape<...>()) with the fewest tokens that are enough, or the most that fit.
template <typename T, bool contract, typename Body>
void with_shape(int64_t m, const DeviceInfo& device, const Body& body) {
    if (m <= 1) return body(DecodeShape<T, contract, 1>());
    if (m <= 4) return body(DecodeShape<T, contract, 4>());
    if (m <= 8 || !fits<DecodeShape<T, contract, 16>>(device)) return body(DecodeShape<T, contract, 8>());
    if (m <= 16 || !fits<DecodeShape<T, contract, 32>>(device)) return body(DecodeShape<T, contract, 16>());
    if (m <= 32 || !fits<DecodeShape<T, contract, 64>>(device)) return body(DecodeShape<T, contract, 32>());
    body(DecodeShape<T, contract, 64>());
}

template <typename T, bool contract, typename Args>
void launch_decode(const Args& args, Activations a, const Launch& launch, const DeviceInfo& device) {
    const int64_t m = args.d.rows, n = args.w.n, k = args.w.k;
    if (m == 0 || n == 0) return;
    DecodeProblem problem;
    problem.weight = args.w.data;
    problem.special = args.w.data + gpu_weight_flags(n, k);
    problem.strips = uint32_t(gpu_strips(n));
    problem.groups = uint32_t(gpu_groups(k));
    problem.chains = uint32_t((k + matmul_chain_k - 1) / matmul_chain_k);
    problem.unscale = Fragments<T>::unscale * (contract ? Fragments<T>::unscale : 1.0f);
    for (int64_t first = 0; first < m;)
        with_shape<T, contract>(m - first, device, [&](auto shape) {
            using Shape = decltype(shape);
            a.first = uint32_t(first);
            a.rows = uint32_t(std::min<int64_t>(m - first, Shape::tokens));
            auto* scratch = static_cast<uint8_t*>(launch.scratch);
            launch_expand_of<T, contract>(a, Shape::tokens, scratch, launch);
            problem.activations = scratch;
            problem.output = output_of(args, first, a.rows);
            launch_pass<Shape>(problem, scratch + gpu_groups(k) * 2 * pair_bytes(Shape::tokens), launch,
                               device);
            first += Shape::tokens;
        });
}

void launch_w4a4(const MatmulW4A4Args& args, const Launch& launch, const DeviceInfo& device) {
    launch_decode<__nv_bfloat16, true>(args, activations_of(args), launch, device);
}
void launch_w4a16(const MatmulW4A16Args& args, const Launch& launch, const DeviceInfo& device) {
    if (args.x.type == DType::bf16)
        launch_decode<__nv_bfloat16, false>(args, activations_of(args), launch, device);
    else
        launch_decode<__half, false>(args, activations_of(args), launch, device);
}

}  // namespace

const Kernel<MatmulW4A4Args> kernel::matmul_w4a4_decode = {"decode",
                                                           [](const MatmulW4A4Args& args, const DeviceInfo&) {
                                                               return accumulation_reason(
                                                                   args.accumulation, Accumulation::contract);
                                                           },
                                                           launch_w4a4};
const Kernel<MatmulW4A16Args> kernel::matmul_w4a16_decode = {
    "decode",
    [](const MatmulW4A16Args& args, const DeviceInfo&) {
        return accumulation_reason(args.accumulation, Accumulation::tensor_core);
    },
    launch_w4a16};

}  // namespace halfbyte::cuda
