// What the kernels of block-diagonal transforms share on the host: their reasons and the dispatch on n.
#pragma once

#include <string>
#include <type_traits>

#include "cuda/launch.h"

namespace halfbyte::cuda {

// The kernels of a given matrix keep T and the inputs of every warp in shared memory as FP32. A thread has
// several rows, so that a value of T that it reads serves as many multiply-adds: more rows where those are
// most of the work, more threads where waiting for memory is.
constexpr int matrix_threads(int64_t n) {
    return n <= 32 ? 512 : 256;
}
constexpr int matrix_rows(int64_t n) {
    return n <= 32 ? 4 : 8;
}
constexpr int64_t matrix_pitch(int64_t n) {
    return n + 4;  // conflict-free for 16-byte reads at every n
}
constexpr int64_t matrix_warp_floats(int64_t n) {
    return matrix_rows(n) * (32 * block_elements / n) * matrix_pitch(n);
}
constexpr int64_t matrix_shared_bytes(int64_t n) {
    return (n * n + matrix_threads(n) / 32 * matrix_warp_floats(n)) * int64_t(sizeof(float));
}

inline std::string hadamard_reason(const BlockTransform& transform) {
    return transform.matrix == nullptr ? "" : "the transform is a given matrix, not Hadamard";
}

inline std::string matrix_reason(const BlockTransform& transform, const DeviceInfo& device) {
    if (transform.matrix == nullptr) return "the transform is Hadamard, not a given matrix";
    if (transform.accumulation != Accumulation::contract)
        return "its sums are in the contract's order; tensor_core is asked for";
    return device.shared_memory_per_block >= matrix_shared_bytes(transform.n)
               ? ""
               : "it needs " + std::to_string(matrix_shared_bytes(transform.n)) +
                     " bytes of shared memory, the device has " +
                     std::to_string(device.shared_memory_per_block);
}

// body(std::integral_constant<int, n>()); src/backend has checked n.
template <typename Body>
void with_transform_size(int64_t n, const Body& body) {
    switch (n) {
        case 16:
            return body(std::integral_constant<int, 16>());
        case 32:
            return body(std::integral_constant<int, 32>());
        case 64:
            return body(std::integral_constant<int, 64>());
        case 128:
            return body(std::integral_constant<int, 128>());
    }
}

}  // namespace halfbyte::cuda
