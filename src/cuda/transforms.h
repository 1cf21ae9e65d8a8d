// What the kernels of block-diagonal transforms share on the host: their reasons and the dispatch on n.
#pragma once

#include <string>
#include <type_traits>

#include "cuda/launch.h"

namespace halfbyte::cuda {

// The kernels of a given matrix keep T as FP32 and the inputs of every warp in shared memory. A thread has
// several rows, so that a value of T that it reads serves as many multiply-adds.
constexpr int matrix_threads(int64_t n) {
    return n <= 64 ? 192 : 384;
}
constexpr int matrix_ctas(int64_t n) {  // on a multiprocessor
    return 384 / matrix_threads(n);
}
constexpr int matrix_rows(int64_t) {
    return 6;
}
constexpr int64_t matrix_pitch(int64_t n, size_t element_bytes) {  // of a transform's inputs
    return n * int64_t(element_bytes) + 16;  // conflict-free for 16-byte reads at every n
}
constexpr int64_t matrix_bytes(int64_t n) {  // of T, with a row of padding
    return (n + 1) * n * int64_t(sizeof(float));
}
constexpr int64_t matrix_shared_bytes(int64_t n, size_t element_bytes, int stages) {
    return matrix_bytes(n) + matrix_threads(n) / 32 * stages * matrix_rows(n) * (32 * block_elements / n) *
                                 matrix_pitch(n, element_bytes);
}
// How many tiles of inputs a warp keeps: two where there is room, so that one is copied while the other is
// worked on.
inline int matrix_stages(int64_t n, DType x_type, const DeviceInfo& device) {
    return matrix_shared_bytes(n, size_of(x_type), 2) * matrix_ctas(n) <= device.shared_memory_per_block ? 2
                                                                                                         : 1;
}

inline std::string hadamard_reason(const BlockTransform& transform) {
    return transform.matrix == nullptr ? "" : "the transform is a given matrix, not Hadamard";
}

inline std::string matrix_reason(const BlockTransform& transform, DType x_type, const DeviceInfo& device) {
    const int64_t shared_bytes = matrix_shared_bytes(transform.n, size_of(x_type), 1);
    if (transform.matrix == nullptr) return "the transform is Hadamard, not a given matrix";
    if (transform.accumulation != Accumulation::contract)
        return "its sums are in the contract's order; tensor_core is asked for";
    return device.shared_memory_per_block >= shared_bytes
               ? ""
               : "it needs " + std::to_string(shared_bytes) + " bytes of shared memory, the device has " +
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
