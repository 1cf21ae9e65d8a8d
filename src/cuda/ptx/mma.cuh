// Matrix products of a warp. PTX ISA: mma.sync.m16n8k16, sm_80 and later; which lane holds what stands there.
#pragma once

#include <cstdint>

namespace halfbyte::cuda::ptx {

// d += a b: a 16 x 16 BF16 row-major, b 16 x 8 BF16 column-major, d 16 x 8 FP32.
__device__ __forceinline__ void mma_bf16_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace halfbyte::cuda::ptx
