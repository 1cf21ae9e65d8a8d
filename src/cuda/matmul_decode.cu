// W4A4 and W4A16 products of few tokens: device/decode_kernel.cuh. The activations are brought into the order
// of its operands on the way, or first by a small kernel of their own if there are more than 8 tokens, or
// more than one that are quantised on the way. More than 64 (fewer where shared memory is small) are done in
// passes.
#include <algorithm>

#include "cuda/device/decode_kernel.cuh"
#include "cuda/launch.h"
#include "cuda/operations.h"
#include "cuda/products.h"

namespace halfbyte::cuda {
namespace {

// Clusters are the larger, the more activations there are to share; few strips are spread over more CTAs.
template <typename Shape>
int64_t cluster_of(int64_t strips, int64_t chains, const DeviceInfo& device) {
    if (device.major < 9) return 1;
    int64_t cluster = Shape::tokens <= 4 ? 1 : Shape::tokens <= 32 ? 2 : 8;  // measured
    while (cluster < 8 && strips * cluster * 2 <= device.multiprocessors) cluster *= 2;
    while (cluster > std::max<int64_t>(chains, 1)) cluster /= 2;
    return cluster;
}

// The first of these that fits, and within it the longest ring: all activations of the CTA and, if no other
// CTA reads them, all sums in shared memory; all activations; as many as there is room for.
template <typename Shape>
DecodeLayout layout_of(int64_t cluster, int64_t own_strips, int64_t own_chains, int64_t room) {
    static constexpr struct {
        uint32_t stage_groups, stages;
    } rings[] = {{8, 2}, {4, 3}, {4, 2}};
    DecodeLayout layout;
    // Fewer warps than the most if they have one unit each: they begin sooner.
    layout.warps = uint32_t(std::clamp<int64_t>(own_strips * own_chains, 8, Shape::warps));
    for (const bool sums : {true, false})
        for (const auto& ring : rings) {
            if (sums && cluster > 1) continue;
            layout.stage_groups = ring.stage_groups, layout.stages = ring.stages;
            layout.slices = uint32_t(own_chains);
            layout.shared_sums = uint32_t(sums ? own_chains * own_strips : 0);
            if (own_chains <= layout.most_slices && layout.shared_bytes<Shape>() <= room) return layout;
        }
    layout.slices = 1;
    const int64_t most =
        std::min<int64_t>(layout.most_slices, 1 + (room - layout.shared_bytes<Shape>()) / Shape::slice_bytes);
    const int64_t runs = (own_chains + most - 1) / most;
    layout.slices = uint32_t((own_chains + runs - 1) / runs);
    return layout;
}

// With the shortest ring and one slice.
template <typename Shape>
bool fits(const DeviceInfo& device) {
    DecodeLayout least;
    least.warps = Shape::warps;
    return least.shared_bytes<Shape>() <= device.shared_memory_per_block;
}

template <typename Shape>
void launch_pass(DecodeProblem problem, uint8_t* scratch, const Launch& launch, const DeviceInfo& device) {
    const auto kernel = decode_kernel<Shape>;
    const int64_t cluster = cluster_of<Shape>(problem.strips, problem.chains, device);
    const int64_t clusters =
        std::min<int64_t>(active_clusters(reinterpret_cast<const void*>(kernel), cluster, 1,
                                          Shape::warps * 32, device.shared_memory_per_block, device),
                          problem.strips);
    problem.cluster_strips = uint32_t(problem.strips / clusters);
    problem.longer = uint32_t(problem.strips % clusters);
    for (const uint32_t i : {0, 1}) problem.inverse[i] = 65536 / (problem.cluster_strips + i) + 1;
    problem.layout = layout_of<Shape>(cluster, (problem.strips + clusters - 1) / clusters,
                                      std::max<int64_t>(1, (problem.chains + cluster - 1) / cluster),
                                      device.shared_memory_per_block);
    if (problem.layout.shared_sums == 0) problem.sums = reinterpret_cast<float4*>(scratch);
    launch_clusters(kernel, unsigned(cluster), unsigned(clusters), int(problem.layout.warps) * 32,
                    size_t(problem.layout.shared_bytes<Shape>()), launch, problem);
}

// If there is a multiprocessor for each CTA, it asks for more than half of the shared memory, so that it is
// alone there. While the product ahead ends, all would else gather on the few multiprocessors that are free
// first, and take several times as long.
template <typename Source>
void launch_expand(const Activations& a, uint32_t tokens, uint8_t* expanded, const Launch& launch,
                   const DeviceInfo& device) {
    const int64_t pairs = gpu_groups(a.k) * 2, threads = 128;
    if (pairs == 0) return;
    const auto kernel = expand_activations<Source>;
    allow_shared_memory(reinterpret_cast<const void*>(kernel), device);
    const int64_t ctas = (pairs * tokens + threads - 1) / threads;
    const int64_t alone = ctas <= device.multiprocessors ? device.shared_memory_per_block / 2 + 1024 : 0;
    launch_grid(kernel, dim3(unsigned(ctas)), int(threads), size_t(alone), launch, a, tokens, uint32_t(pairs),
                expanded);
}

// body with the Source of the activations, as a null pointer to it.
template <typename T, bool contract, typename Body>
void with_source(const Activations& a, const Body& body) {
    if constexpr (!contract)
        body(static_cast<MatrixSource<T, false>*>(nullptr));
    else if (a.encode_scale == nullptr)
        body(static_cast<CodesSource*>(nullptr));
    else
        with_type(a.type,
                  [&](auto element) { body(static_cast<MatrixSource<decltype(element), true>*>(nullptr)); });
}

// body(DecodeShape<...>()) with the fewest tokens that are enough, or the most that fit.
template <typename T, bool contract, typename Source, typename Body>
void with_shape(int64_t m, const DeviceInfo& device, const Body& body) {
    // Quantising takes registers, so more than one token is quantised by the kernel ahead, FP32 always.
    using One = std::conditional_t<std::is_same_v<Source, MatrixSource<float, true>>, void, Source>;
    using Few = std::conditional_t<Source::quantises, void, Source>;
    if (m <= 1) return body(DecodeShape<T, contract, 1, One>());
    if (m <= 4) return body(DecodeShape<T, contract, 4, Few>());
    if (m <= 8 || !fits<DecodeShape<T, contract, 16, void>>(device))
        return body(DecodeShape<T, contract, 8, Few>());
    if (m <= 16 || !fits<DecodeShape<T, contract, 32, void>>(device))
        return body(DecodeShape<T, contract, 16, void>());
    if (m <= 32 || !fits<DecodeShape<T, contract, 64, void>>(device))
        return body(DecodeShape<T, contract, 32, void>());
    body(DecodeShape<T, contract, 64, void>());
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
    problem.scale_exponent = Fragments<T>::scale_exponent;
    auto* const scratch = static_cast<uint8_t*>(launch.scratch);
    const auto launch_tokens = [&](auto shape, auto* source, int64_t first) {
        using Shape = decltype(shape);
        a.first = uint32_t(first);
        a.rows = uint32_t(std::min<int64_t>(m - first, Shape::tokens));
        problem.output = output_of(args, first, a.rows);
        uint8_t* sums = scratch;
        if constexpr (Shape::expanded) {
            launch_expand<std::remove_pointer_t<decltype(source)>>(a, Shape::tokens, scratch, launch, device);
            problem.expanded = scratch;
            sums += gpu_groups(k) * 2 * pair_bytes(Shape::tokens);
        } else {
            problem.a = a;
        }
        // An expanding kernel ends after all that was ahead of it.
        problem.settled = (Shape::expanded && k > 0) || launch.weight_is_settled;
        launch_pass<Shape>(problem, sums, launch, device);
    };
    with_source<T, contract>(a, [&](auto* source) {
        using Source = std::remove_pointer_t<decltype(source)>;
        for (int64_t first = 0; first < m;)
            with_shape<T, contract, Source>(m - first, device, [&](auto shape) {
                launch_tokens(shape, source, first);
                first += shape.tokens;
            });
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
