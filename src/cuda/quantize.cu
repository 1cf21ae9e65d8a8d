// codes, block_scales = NVFP4(x): x [rows, k] BF16, FP16 or FP32; one thread per block of 16, one launch.
// Memory-bound: 2.5625 bytes a BF16 value. Any stride and alignment, all layouts, padding included.
#include "cuda/device/block_kernel.cuh"
#include "cuda/operations.h"

namespace halfbyte::cuda {
namespace {

template <typename T>
struct PlainSource {
    static constexpr int blocks = 1;
    static constexpr int ctas = sizeof(T) == 2 ? 5 : 4;
    static constexpr int unrolled = sizeof(T) == 2 ? 2 : 1;
    using Cursor = const T*;
    using Raw = Block<T>;
    BlockMatrix<const T> x;

    uint32_t vector_columns() const { return x.vector_columns; }
    __device__ __forceinline__ Cursor at(uint32_t row, uint32_t column) const { return x.at(row, column); }
    __device__ __forceinline__ void step(Cursor& cursor, uint32_t rows) const { cursor += rows * x.stride; }
    __device__ __forceinline__ Raw fetch_vector(Cursor cursor) const {
        return load_vector<Reuse::none, T>(cursor);
    }
    __device__ __forceinline__ Raw fetch(Cursor cursor, uint32_t column) const {
        return x.load_at(cursor, column);
    }
    __device__ __forceinline__ void make(const Raw& raw, uint32_t, Values (&values)[blocks]) const {
        widen(raw, values[0].value);
        values[0].amax = largest_magnitude_or_nan(raw);
    }
};

template <typename T>
PlainSource<T> source_of(const ConstMatrix& x) {
    return {blocks_of<const T>(x)};
}

void launch_with_given_scales(const QuantizeArgs& args, const Launch& launch, const DeviceInfo& device) {
    with_type(args.x.type, [&](auto element) {
        launch_given(source_of<decltype(element)>(args.x), args, launch, device);
    });
}
void launch_with_dynamic_scales(const QuantizeArgs& args, const Launch& launch, const DeviceInfo& device) {
    with_type(args.x.type, [&](auto element) {
        launch_dynamic(source_of<decltype(element)>(args.x), args, launch, device);
    });
}

}  // namespace

const Kernel<QuantizeArgs> kernel::quantize = {
    "quantize", [](const QuantizeArgs& args, const DeviceInfo&) { return given_scales_reason(args); },
    launch_with_given_scales};
const Kernel<QuantizeArgs> kernel::quantize_dynamic = {
    "quantize_dynamic",
    [](const QuantizeArgs& args, const DeviceInfo&) { return dynamic_scales_reason(args); },
    launch_with_dynamic_scales};

}  // namespace halfbyte::cuda
