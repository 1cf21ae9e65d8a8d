// W4A4 and W4A16 products of some to many tokens on Hopper: device/prefill_kernel.cuh, in the tile that suits
// the size.
#include "cuda/device/prefill_activations.cuh"
#include "cuda/device/prefill_expand.cuh"
#include "cuda/device/prefill_kernel.cuh"
#include "cuda/operations.h"
#include "cuda/products.h"

namespace halfbyte::cuda {
namespace {

// A tile and the microseconds that it takes at K = 8192 on an H200 with BF16 activations, with as many CTAs
// on a multiprocessor as it holds, by which tiles are compared.
struct Candidate {
    int64_t rows, tokens;
    int cluster, split, resident;  // CTAs that share x; that share a tile; that a multiprocessor holds
    int groups;                    // K is rounded up to so many
    double time;
    void (*launch)(const ConstMatrix&, PrefillProblem, const Launch&, const DeviceInfo&);
};
template <typename T, typename S>
constexpr Candidate candidate(double time) {
    return {S::cluster * S::row_warpgroups * 64,
            S::tile_tokens,
            S::cluster,
            S::split,
            S::resident,
            S::stages_a_step,
            time,
            launch_prefill<T, S>};
}

using enum PrefillWeight;
template <typename T>
constexpr Candidate of_chains[] = {
    candidate<T, PrefillShape<false, packed, 1, 1, 16, 0, 1, 8, 2>>(16),
    candidate<T, PrefillShape<false, packed, 1, 1, 32, 0, 1, 8, 2>>(18),
    candidate<T, PrefillShape<false, packed, 1, 1, 64, 0, 1, 8, 2>>(14.5),
    candidate<T, PrefillShape<false, packed, 1, 1, 128, 0, 1, 8, 2>>(19.5),
    candidate<T, PrefillShape<false, packed, 1, 1, 64, 0, 2, 8>>(23),
    candidate<T, PrefillShape<false, packed, 1, 1, 128, 0, 2, 8>>(31),
    candidate<T, PrefillShape<false, packed, 2, 1, 128, 0, 2, 8>>(47),
    candidate<T, PrefillShape<false, packed, 2, 1, 176, 0, 2, 6>>(65.5),
};
constexpr Candidate of_blocks[] = {
    candidate<__nv_bfloat16, PrefillShape<true, packed, 1, 1, 16, 3, 1, 8, 2>>(17.5),
    candidate<__nv_bfloat16, PrefillShape<true, packed, 1, 1, 32, 2, 1, 4, 2>>(22.7),
    candidate<__nv_bfloat16, PrefillShape<true, packed, 1, 1, 64, 3, 1, 4, 2>>(21),
    candidate<__nv_bfloat16, PrefillShape<true, packed, 2, 1, 64, 2, 1, 4, 2>>(31),
    candidate<__nv_bfloat16, PrefillShape<true, packed, 2, 1, 64, 3, 1, 4>>(55),
    candidate<__nv_bfloat16, PrefillShape<true, packed, 2, 1, 128, 2, 1, 4>>(85),
};
constexpr Candidate of_expanded_blocks[] = {
    candidate<__nv_bfloat16, PrefillShape<true, expanded, 2, 1, 128, 2, 1, 4>>(74),
};

const Candidate& best_of(std::span<const Candidate> candidates, const PrefillProblem& problem,
                         const DeviceInfo& device) {
    const auto times = [](int64_t all, int64_t at_once) { return (all + at_once - 1) / at_once; };
    const int64_t chains = problem.chains();
    const auto time_of = [&](const Candidate& c) {
        const int64_t tiles = times(problem.output.columns, c.rows) * times(problem.output.rows, c.tokens);
        const int64_t at_once = std::max(device.multiprocessors * c.resident / (c.cluster * c.split), 1);
        // A CTA that has the multiprocessor of two for itself: 12.7 us for 15.7 (16 tokens), 14 for 17.7
        // (32).
        const double share = c.resident > 1 && c.resident * tiles <= at_once ? 0.8 : 1;
        return double(times(tiles, at_once)) * c.time * share * double(round_up(problem.groups, c.groups)) *
               double(times(chains, c.split) * c.split) / double(chains);
    };
    return *std::min_element(candidates.begin(), candidates.end(),
                             [&](const Candidate& a, const Candidate& b) { return time_of(a) < time_of(b); });
}

template <typename Args>
PrefillProblem problem_of(const Args& args, DType x_type) {
    PrefillProblem problem;
    problem.weight = args.w.data;
    problem.special = args.w.data + gpu_weight_flags(args.w.n, args.w.k);
    problem.strips = uint32_t(gpu_strips(args.w.n));
    problem.groups = uint32_t(gpu_groups(args.w.k));
    problem.unscale = x_type == DType::f16 ? Fragments<__half>::unscale : Fragments<__nv_bfloat16>::unscale;
    problem.output = output_of(args, 0, args.d.rows);
    return problem;
}

template <Accumulation accumulation, typename Args>
std::string reason(const Args& args, const DeviceInfo& device) {
    const std::string other = accumulation_reason(args.accumulation, accumulation);
    if (!other.empty()) return other;
    if (device.major != 9) return "wgmma is an instruction of compute capability 9.0 alone";
    if (args.w.k == 0) return no_k_reason;
    return "";
}

std::string expanded_reason(const MatmulW4A4Args& args, const DeviceInfo& device) {
    if (args.d.rows > 0 && args.d.rows < least_expanded_rows)
        return "M = " + std::to_string(args.d.rows) + ": it expands the whole weight first, from " +
               std::to_string(least_expanded_rows) + " rows on";
    return reason<Accumulation::contract>(args, device);
}

template <bool contract>
void launch_w4a4(const MatmulW4A4Args& args, const Launch& launch, const DeviceInfo& device) {
    if (args.d.rows == 0 || args.w.n == 0) return;
    const ConstMatrix x = prepare_activations(args, launch);
    const PrefillProblem problem = problem_of(args, x.type);
    best_of(contract ? std::span<const Candidate>(of_blocks) : of_chains<__nv_bfloat16>, problem, device)
        .launch(x, problem, launch, device);
}

// The weight is expanded in the scratch, behind it lie the activations.
void launch_expanded(const MatmulW4A4Args& args, const Launch& launch, const DeviceInfo& device) {
    if (args.d.rows == 0 || args.w.n == 0) return;
    auto* const weight = static_cast<uint8_t*>(launch.scratch);
    Launch behind = launch;
    behind.scratch = weight + expanded_weight_bytes(size_of_product(args));
    const ConstMatrix x = prepare_activations(args, behind);
    launch_expand_weight(args.w, weight, launch);
    PrefillProblem problem = problem_of(args, x.type);
    problem.weight = weight;
    best_of(of_expanded_blocks, problem, device).launch(x, problem, launch, device);
}

void launch_w4a16(const MatmulW4A16Args& args, const Launch& launch, const DeviceInfo& device) {
    if (args.d.rows == 0 || args.w.n == 0) return;
    const ConstMatrix x = prepare_activations(args, launch);
    const PrefillProblem problem = problem_of(args, x.type);
    best_of(x.type == DType::f16 ? std::span<const Candidate>(of_chains<__half>) : of_chains<__nv_bfloat16>,
            problem, device)
        .launch(x, problem, launch, device);
}

}  // namespace

const Kernel<MatmulW4A4Args> kernel::matmul_w4a4_prefill = {
    "prefill", reason<Accumulation::contract, MatmulW4A4Args>, launch_w4a4<true>};
const Kernel<MatmulW4A4Args> kernel::matmul_w4a4_prefill_expanded = {"prefill_expanded", expanded_reason,
                                                                     launch_expanded};
const Kernel<MatmulW4A4Args> kernel::matmul_w4a4_prefill_tensor_core = {
    "prefill_tensor_core", reason<Accumulation::tensor_core, MatmulW4A4Args>, launch_w4a4<false>};
const Kernel<MatmulW4A16Args> kernel::matmul_w4a16_prefill = {
    "prefill", reason<Accumulation::tensor_core, MatmulW4A16Args>, launch_w4a16};

}  // namespace halfbyte::cuda
