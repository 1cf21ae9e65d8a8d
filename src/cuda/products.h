// What the kernels of products share on the host.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "cuda/device/activations.cuh"
#include "cuda/device/product_output.cuh"
#include "cuda/launch.h"

namespace halfbyte::cuda {

inline Activations activations_of(const MatmulW4A4Args& args) {
    Activations a;
    a.rows = uint32_t(args.d.rows);
    a.k = uint32_t(args.w.k);
    if (args.encode_scale == nullptr) {
        a.codes = args.a.codes;
        a.scales = args.a.block_scales;
        a.layout = args.a.shape.layout;
        a.padded_blocks = uint32_t(args.a.shape.padded_blocks());
    } else {
        a.x = args.x.data;
        a.type = args.x.type;
        a.stride = args.x.stride;
        a.encode_scale = args.encode_scale;
        a.encode_scale_per_row = args.encode_scale_per_row;
    }
    return a;
}
inline Activations activations_of(const MatmulW4A16Args& args) {
    Activations a;
    a.rows = uint32_t(args.d.rows);
    a.k = uint32_t(args.w.k);
    a.x = args.x.data;
    a.type = args.x.type;
    a.stride = args.x.stride;
    return a;
}

// Of the rows [first, first + rows) of d.
template <typename Args>
ProductOutput output_of(const Args& args, int64_t first, int64_t rows) {
    ProductOutput output;
    output.rows = uint32_t(rows);
    output.columns = uint32_t(args.w.n);
    if constexpr (requires { args.row_decode; }) {
        output.row_decode_per_row = args.row_decode_per_row;
        output.row_decode = args.row_decode;
        if (args.row_decode != nullptr && args.row_decode_per_row) output.row_decode += first;
    }
    output.column_decode = args.column_decode;
    output.bias = args.bias;
    output.bias_type = args.bias_type;
    output.d = static_cast<uint8_t*>(args.d.data) + first * args.d.stride * int64_t(size_of(args.d.type));
    output.type = args.d.type;
    output.stride = args.d.stride;
    return output;
}

// Clusters of the kernel, of which a multiprocessor holds `resident` CTAs, that run on the device at once; at
// least 1. Asked once for each kind: it takes longer than a launch.
inline int64_t active_clusters(const void* kernel, int64_t cluster, int resident, int threads,
                               int64_t shared_bytes, const DeviceInfo& device) {
    allow_shared_memory(kernel, device);
    const int64_t most = std::max<int64_t>(int64_t(device.multiprocessors) * resident / cluster, 1);
    if (cluster == 1) return most;
    static std::mutex mutex;
    static std::map<std::tuple<const void*, int64_t, int64_t, int>, int> known;
    const std::lock_guard lock(mutex);
    const auto key = std::make_tuple(kernel, cluster, shared_bytes, device.ordinal);
    auto place = known.find(key);
    if (place == known.end()) {
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {unsigned(cluster), 1, 1};
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(unsigned(cluster));
        config.blockDim = dim3(unsigned(threads));
        config.dynamicSmemBytes = size_t(shared_bytes);
        config.attrs = &attribute;
        config.numAttrs = 1;
        int clusters = 0;
        check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "clusters");
        place = known.emplace(key, clusters).first;
    }
    return std::clamp<int64_t>(place->second, 1, most);
}

inline constexpr const char* no_k_reason = "K = 0: there is nothing to multiply";

inline std::string accumulation_reason(Accumulation asked, Accumulation own) {
    const auto name = [](Accumulation one) {
        return one == Accumulation::contract      ? "contract"
               : one == Accumulation::tensor_core ? "tensor_core"
                                                  : "library";
    };
    return asked == own
               ? ""
               : std::string("its accumulation is ") + name(own) + "; " + name(asked) + " is asked for";
}

}  // namespace halfbyte::cuda
