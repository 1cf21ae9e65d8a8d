// y = round_T(fl((code * SF) * fl(1 / G))): what quantising x [rows, k] to NVFP4 and back makes of it. 4
// bytes a BF16 value.
#include "cuda/device/elements_kernel.cuh"
#include "cuda/operations.h"

namespace halfbyte::cuda {
namespace {

template <typename T>
struct FakeSource {
    static constexpr int blocks = 1;
    struct Cursor {
        const T* x;
        const float* G;
    };
    struct Raw {
        Block<T> block;
        float G;
    };
    BlockMatrix<const T> x;
    EncodeScales scales;

    __device__ __forceinline__ Cursor at(uint32_t row, uint32_t column) const {
        return {x.at(row, column), scales.data + (scales.per_row ? row : 0)};
    }
    __device__ __forceinline__ Raw fetch(const Cursor& cursor, uint32_t column) const {
        return {x.load_at(cursor.x, column), __ldg(cursor.G)};
    }
    __device__ __forceinline__ void make(const Raw& raw, uint32_t, Values (&values)[blocks]) const {
        widen(raw.block, values[0].value);
        const QuantizedBlock quantized = quantize_block(values[0].value, raw.G);
        decode_block(quantized, __frcp_rn(raw.G), values[0].value);
    }
};

void launch_fake(const FakeQuantizeArgs& args, const Launch& launch, const DeviceInfo&) {
    with_type(args.x.type, [&](auto element) {
        launch_elements(FakeSource<decltype(element)>{blocks_of<const decltype(element)>(args.x),
                                                      {args.encode_scale, args.scale_per_row}},
                        args.y, launch);
    });
}

}  // namespace

const Kernel<FakeQuantizeArgs> kernel::fake_quantize = {"fake_quantize", no_reason<FakeQuantizeArgs>,
                                                        launch_fake};

}  // namespace halfbyte::cuda
