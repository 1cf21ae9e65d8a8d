// codes, block_scales = NVFP4(y), y = round_T(silu(gate) * up): gate, up [rows, k] of one type T; one thread
// per block of 16, one launch. 4.5625 bytes a BF16 value; bound by instructions as much as by memory.
#include "cuda/device/block_kernel.cuh"
#include "cuda/device/silu.cuh"
#include "cuda/operations.h"

namespace halfbyte::cuda {
namespace {

template <typename T>
struct SiluMulSource {
    static constexpr int blocks = 1;
    static constexpr bool is_bf16 = std::is_same_v<T, __nv_bfloat16>;
    static constexpr int ctas = is_bf16 ? 4 : sizeof(T) == 2 ? 3 : 2;
    static constexpr int unrolled = is_bf16 ? 1 : 2;
    struct Cursor {
        const T *gate, *up;
    };
    struct Raw {
        Block<T> gate, up;
    };
    BlockMatrix<const T> gate, up;

    uint32_t vector_columns() const { return std::min(gate.vector_columns, up.vector_columns); }
    __device__ __forceinline__ Cursor at(uint32_t row, uint32_t column) const {
        return {gate.at(row, column), up.at(row, column)};
    }
    __device__ __forceinline__ void step(Cursor& cursor, uint32_t rows) const {
        cursor.gate += rows * gate.stride;
        cursor.up += rows * up.stride;
    }
    __device__ __forceinline__ Raw fetch_vector(const Cursor& cursor) const {
        return {load_vector<Reuse::none, T>(cursor.gate), load_vector<Reuse::none, T>(cursor.up)};
    }
    __device__ __forceinline__ Raw fetch(const Cursor& cursor, uint32_t column) const {
        return {gate.load_at(cursor.gate, column), up.load_at(cursor.up, column)};
    }
    __device__ __forceinline__ void make(const Raw& raw, uint32_t, Values (&values)[blocks]) const {
        float g[block_elements], u[block_elements];
        widen(raw.gate, g);
        widen(raw.up, u);
        if (largest_magnitude_or_nan(raw.gate) <= silu_plain_limit) {
#pragma unroll
            for (int i = 0; i < block_elements; i++) u[i] *= silu_plain<T>(g[i]);
        } else {
#pragma unroll
            for (int i = 0; i < block_elements; i++) u[i] *= silu(g[i]);
        }
        Block<T> y;
        narrow(u, y);
        widen(y, values[0].value);
        values[0].amax = largest_magnitude_or_nan(y);
    }
};

template <typename T>
SiluMulSource<T> source_of(const SiluMulQuantizeArgs& args) {
    return {blocks_of<const T>(args.gate), blocks_of<const T>(args.up)};
}

void launch_with_given_scales(const SiluMulQuantizeArgs& args, const Launch& launch,
                              const DeviceInfo& device) {
    with_type(args.gate.type, [&](auto element) {
        launch_given(source_of<decltype(element)>(args), args.quantize, launch, device);
    });
}
void launch_with_dynamic_scales(const SiluMulQuantizeArgs& args, const Launch& launch,
                                const DeviceInfo& device) {
    with_type(args.gate.type, [&](auto element) {
        launch_dynamic(source_of<decltype(element)>(args), args.quantize, launch, device);
    });
}

}  // namespace

const Kernel<SiluMulQuantizeArgs> kernel::silu_mul_quantize = {
    "silu_mul_quantize",
    [](const SiluMulQuantizeArgs& args, const DeviceInfo&) { return given_scales_reason(args.quantize); },
    launch_with_given_scales};
const Kernel<SiluMulQuantizeArgs> kernel::silu_mul_quantize_dynamic = {
    "silu_mul_quantize_dynamic",
    [](const SiluMulQuantizeArgs& args, const DeviceInfo&) { return dynamic_scales_reason(args.quantize); },
    launch_with_dynamic_scales};

}  // namespace halfbyte::cuda
