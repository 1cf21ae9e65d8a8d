// A problem through every kernel of its operation that computes it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "core/float_environment.h"
#include "cuda/device.h"
#include "cuda/problem.h"
#include "cuda/report.h"

namespace halfbyte::conformance {

template <typename Args>
LaunchFunction launch_of(const cuda::Kernel<Args>& kernel, const Args& args, const cuda::DeviceInfo& info) {
    return [&kernel, args, info](const cuda::Launch& launch) {
        cuda::Launch named = launch;
        named.kernel = kernel.name;
        kernel.launch(args, named, info);
    };
}

// The same device with so many multiprocessors, which the host code of a kernel takes at its word: with one
// two tiles are a large problem, with four rows a thread, and CTAs that stay go round their loops many times.
inline cuda::DeviceInfo with_multiprocessors(cuda::DeviceInfo info, int count) {
    info.multiprocessors = count;
    return info;
}

// The devices that a kernel is launched for: this one; with one multiprocessor; and, for products, with two
// and three, where other tiles are the best, and with the shared memory and without the clusters of a smaller
// one, 8.9.
template <typename Args>
std::vector<std::pair<cuda::DeviceInfo, const char*>> variants_of(const cuda::Kernel<Args>& kernel,
                                                                  const Args& args,
                                                                  const cuda::DeviceInfo& info) {
    std::vector<std::pair<cuda::DeviceInfo, const char*>> variants = {
        {info, ""}, {with_multiprocessors(info, 1), "; with the grid of one multiprocessor"}};
    if constexpr (requires { args.column_decode; }) {
        variants.push_back({with_multiprocessors(info, 2), "; with the grid of two multiprocessors"});
        variants.push_back({with_multiprocessors(info, 3), "; with the grid of three multiprocessors"});
        cuda::DeviceInfo small = info;
        small.major = 8, small.minor = 9, small.shared_memory_per_block = 101376;
        if (kernel.unsupported_reason(args, small).empty())
            variants.push_back({small, "; as on compute capability 8.9"});
    }
    return variants;
}

// Calls f(kernel, args on the device) for each kernel that computes the problem; the image is loaded before.
// A launch that throws is a difference. False if no kernel computes it.
template <typename Args, typename Function>
bool for_each_kernel(const Operation<Args>& operation, const Problem<Args>& problem, const Case& c,
                     Device& device, Report& report, const Function& f) {
    bool computed = false;
    for (const cuda::Kernel<Args>& kernel : operation.kernels) {
        if (!report.wants(operation.name, kernel.name, c.group)) continue;
        const Args args = problem.args(device.load(problem.image.bytes));
        const std::string reason = kernel.unsupported_reason(args, device.info());
        if (!reason.empty()) {
            report.skip(operation.name, kernel.name, c.group, reason);
            continue;
        }
        computed = true;
        std::string difference;
        try {
            difference = f(kernel, args);
        } catch (const std::exception& error) {
            difference = error.what();
        }
        if (!difference.empty()) difference += fmt::format("; problem: {}", c.describe());
        report.add(operation.name, kernel.name, c.group, problem.image.output_bytes(), difference);
    }
    return computed;
}

// All bytes are the reference's, for every variant of the device, all with the same workspace.
template <typename Args>
void compare_with_reference(const Operation<Args>& operation, const Case& c, Device& device, Report& report) {
    bool wanted = !report.filtered();
    for (const auto& kernel : operation.kernels) wanted |= report.wants(operation.name, kernel.name, c.group);
    if (!wanted) return;
    const FloatEnvironment environment;
    const Problem<Args> problem = operation.make(c);
    std::vector<uint8_t> expected = problem.image.bytes;
    operation.reference(problem.args(expected.data()));
    const bool computed =
        for_each_kernel(operation, problem, c, device, report, [&](const auto& kernel, const Args& args) {
            std::string difference;
            for (bool loaded = true; const auto& [info, name] : variants_of(kernel, args, device.info())) {
                if (!loaded) device.load(problem.image.bytes);
                loaded = false;
                device.launch(problem.workspace_bytes, launch_of(kernel, args, info), problem.scratch_bytes);
                difference = problem.image.first_difference(expected, device.fetch());
                if (difference.empty() && !device.workspace_is_zero(problem.workspace_bytes))
                    difference = "the workspace is not zero afterwards";
                if (difference.empty()) continue;
                difference += name;
                break;
            }
            return difference;
        });
    // vLLM's order is an extra that kernels may leave out; the contract is not.
    if (!computed && !report.filtered() && c.rounding == Rounding::contract)
        report.add(operation.name, "(none)", c.group, 0, "no kernel computes the problem: " + c.describe());
}

}  // namespace halfbyte::conformance
