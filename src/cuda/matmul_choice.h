// Which kernel of a product runs: the order in which they are asked, by the size of the product. Every kernel
// of one accumulation gives the same bits, so this is a matter of time alone.
//
// The tables hold measurements:  halfbyte-cuda-bench --tune  prints them. A product takes the first line
// that its M and its N * K do not exceed; the kernels that the line names come first, in its order, and the
// others follow in the order of the operation's list, which is also that of other devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/matmul_scratch.h"

namespace halfbyte::cuda {

struct MatmulTuning {
    int64_t most_rows;     // M
    int64_t most_weights;  // N * K
    std::string_view kernels[4];
};

// Compute capability 9.0: an H200, 1 December 2026, N x K = 8192 x 8192, 28672 x 8192 and 4096 x 4096, M in
// powers of two, so where a line ends is known to a power of two only; and what two kernels need is the same
// within a few percent at some ends.
inline constexpr MatmulTuning tuned_w4a4[] = {
    {16, INT64_MAX, {"decode", "prefill"}},
    {32, 4096 * 4096, {"decode", "prefill"}},
    {32, 8192 * 8192, {"prefill", "decode"}},
    {32, INT64_MAX, {"decode", "prefill"}},
    {1024, INT64_MAX, {"prefill", "decode"}},
    {INT64_MAX, INT64_MAX, {"prefill_expanded", "prefill", "decode"}},
};
inline constexpr MatmulTuning tuned_w4a16[] = {
    {8, INT64_MAX, {"decode", "prefill"}},
    {16, 8192 * 8192, {"prefill", "decode"}},
    {16, INT64_MAX, {"decode", "prefill"}},
    {INT64_MAX, INT64_MAX, {"prefill", "decode"}},
};

// The table for an operation on a device; operations without one have none.
template <typename Args>
std::span<const MatmulTuning> tuning_of(const DeviceInfo& device) {
    if (device.major != 9) return {};
    if constexpr (std::is_same_v<Args, MatmulW4A4Args>) return tuned_w4a4;
    if constexpr (std::is_same_v<Args, MatmulW4A16Args>) return tuned_w4a16;
    return {};
}

inline std::span<const std::string_view> preferred(std::span<const MatmulTuning> table,
                                                   const MatmulSize& size) {
    for (const MatmulTuning& line : table)
        if (size.m <= line.most_rows && size.n * size.k <= line.most_weights) return line.kernels;
    return {};
}

// The kernels of a list, those named first before the others.
template <typename Args>
std::vector<const Kernel<Args>*> in_order(KernelList<Args> list, std::span<const std::string_view> first) {
    std::vector<const Kernel<Args>*> order;
    order.reserve(list.size());
    for (const std::string_view name : first)
        for (const Kernel<Args>& kernel : list)
            if (kernel.name == name) order.push_back(&kernel);
    for (const Kernel<Args>& kernel : list)
        if (std::find(first.begin(), first.end(), kernel.name) == first.end()) order.push_back(&kernel);
    return order;
}

// The kernels in the order of the choice for this problem.
template <typename Args>
std::vector<const Kernel<Args>*> in_order(KernelList<Args> list, const Args& args, const DeviceInfo& device) {
    if constexpr (requires { size_of_product(args); })
        return in_order(list, preferred(tuning_of<Args>(device), size_of_product(args)));
    else
        return in_order(list, std::span<const std::string_view>());
}

}  // namespace halfbyte::cuda
