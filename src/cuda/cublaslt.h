// Products by cuBLASLt, which is opened when it is first needed: libhalfbyte_cuda.so does not link it. The
// description of a product is a plain value; cuBLASLt's objects are made of it for a call.
#pragma once

#include <cublasLt.h>

#include <string>

#include "cuda/matmul_scratch.h"
#include "halfbyte/cuda.h"

namespace halfbyte::cuda {

// d[m,n] = sum_k x[m,k] w[n,k], all row-major. cuBLAS counts columns first: there w is A, read transposed, x
// is B, and the result is [n, m]. (One factor for each n it knows for integers alone.)
struct LtProduct {
    cudaDataType_t operand = CUDA_R_16BF;  // of x and w: BF16, FP16, or E2M1 with block scales
    cudaDataType_t result = CUDA_R_16BF;   // of d: BF16, FP16 or FP32
    int64_t m = 0, n = 0, k = 0;
    int64_t x_stride = 0, w_stride = 0, d_stride = 0;  // elements
    uint32_t x_alignment = 256;                        // bytes, of its address; all else is aligned to 256
    // E4M3 per 16 in tiles of 128 rows and 4 blocks, for E2M1 only.
    const void* x_scales = nullptr;
    const void* w_scales = nullptr;
    bool operator==(const LtProduct&) const = default;
};

// Empty if cuBLASLt can be opened; else why not.
std::string lt_unavailable_reason();
// Empty if its heuristic knows an algorithm for the product on the current device. It needs a device; what
// the heuristic said of a product is kept, and where scales lie is no part of the question.
std::string lt_unsupported_reason(const LtProduct& product);
// workspace: lt_workspace_bytes aligned to 256. Throws Error (failure).
void lt_matmul(const LtProduct& product, const void* x, const void* w, void* d, void* workspace,
               Stream stream);

// The largest power of two that divides the address, 256 at the most.
uint32_t lt_alignment_of(const void* address);

// x times the weight dequantised to x's type, rows of whole groups; FP32 sums without gaps.
LtProduct lt_product(const MatmulW4A16Args& args);
// a times the weight's codes [n, k / 2] with these block scales; FP32 sums without gaps.
LtProduct lt_product(const MatmulW4A4Args& args, const uint8_t* w_scales);

}  // namespace halfbyte::cuda
