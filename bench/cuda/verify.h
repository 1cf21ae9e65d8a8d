// One launch against the reference, on sampled rows: the rows become a problem of their own on the host.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <random>
#include <type_traits>
#include <utility>

#include "core/float_environment.h"
#include "gpu.h"
#include "reference/reference.h"

namespace halfbyte::bench {

// The arguments over these buffers, for that many rows.
template <typename Args>
using Make = std::function<Args(Buffers&, int64_t rows)>;

// All rows up to 32; else the first, the last and 30 between them.
std::vector<int64_t> sample_rows(int64_t rows);

// What the sampled rows of the device's set at `set` hold, as a set on the host.
std::vector<uint8_t> gather(Gpu& gpu, const Buffers& device, const uint8_t* set, const Buffers& host,
                            const std::vector<int64_t>& sample);

// Empty if the written bytes of `given` are those of `expected`, both laid out as `host`.
std::string first_difference(const Buffers& host, const std::vector<int64_t>& sample,
                             const std::vector<uint8_t>& expected, const std::vector<uint8_t>& given);

// For sums that are the matrix unit's: less than 1 % of the codes and of the block scales differ, and the
// dequantised values differ by less than 5 % in the Euclidean norm. 1 % of the codes, each off by the
// largest relative step, 1/2 of a value, is sqrt(0.01) / 2.
struct Closeness {
    double codes, scales, values;  // fractions
    bool holds() const { return codes < 0.01 && scales < 0.01 && values < 0.05; }
};
Closeness compare_closely(const QuantizeArgs& expected, const QuantizeArgs& given);

// x of the device on the host, whole.
inline ConstMatrix fetch_matrix(Gpu& gpu, const ConstMatrix& x, std::vector<uint8_t>& memory) {
    memory = gpu.fetch(static_cast<const uint8_t*>(x.data), x.rows * x.stride * int64_t(size_of(x.type)));
    return {memory.data(), x.type, x.rows, x.cols, x.stride};
}

// An amax of all of x needs all of x: `device` are the arguments there.
template <typename Args>
void run_reference(Gpu& gpu, void (*reference)(const Args&), Args host, const Args& device) {
    std::vector<uint8_t> memory;
    if constexpr (std::is_same_v<Args, AmaxArgs>) {
        host.x = fetch_matrix(gpu, device.x, memory);
    } else if constexpr (std::is_same_v<Args, QuantizeArgs>) {
        if (host.dynamic_encode_scale != nullptr) {
            reference::amax({.x = fetch_matrix(gpu, device.x, memory),
                             .encode_scale = host.dynamic_encode_scale,
                             .decode_scale = host.dynamic_decode_scale});
            host.encode_scale = std::exchange(host.dynamic_encode_scale, nullptr);
            host.dynamic_decode_scale = nullptr;
        }
    }
    reference(host);
}

template <typename Args>
bool uses_tensor_core(const Args& args) {
    if constexpr (std::is_same_v<Args, TransformQuantizeArgs>)
        return args.transform.accumulation == Accumulation::tensor_core;
    else
        return false;
}

struct Verdict {
    std::string difference;  // empty: right
    std::string note;
};

// Fills the set at gpu.memory(), launches once and compares.
template <typename Args>
Verdict verify(Gpu& gpu, const Work& work, const Make<Args>& make, void (*reference)(const Args&),
               int64_t rows) {
    const FloatEnvironment environment;
    const std::vector<int64_t> sample = sample_rows(rows);
    const int64_t count = int64_t(sample.size());
    Buffers device(gpu.memory()), layout;
    const Args device_args = make(device, rows);
    make(layout, count);
    gpu.fill_set(device, gpu.memory());
    std::vector<uint8_t> expected = gather(gpu, device, gpu.memory(), layout, sample);
    Buffers host(expected.data());
    const Args host_args = make(host, count);
    work.launch(gpu.memory(), gpu.launch());
    std::vector<uint8_t> given = gather(gpu, device, gpu.memory(), layout, sample);
    run_reference(gpu, reference, host_args, device_args);
    if constexpr (std::is_same_v<Args, TransformQuantizeArgs>) {
        if (uses_tensor_core(host_args)) {
            Buffers other(given.data());
            const Closeness found = compare_closely(host_args.quantize, make(other, count).quantize);
            const std::string note = fmt::format(
                "{:.4f} % of the codes and {:.4f} % of the block scales are not the contract's, "
                "values differ by {:.2e}",
                100 * found.codes, 100 * found.scales, found.values);
            return {found.holds() ? "" : note, note};
        }
    }
    return {first_difference(host, sample, expected, given), ""};
}

}  // namespace halfbyte::bench
