// Warpgroup products: D [64, N] FP32 = A B (+ D) with A [64, 16] in registers or shared memory and B [16, N]
// in shared memory, K-major. PTX ISA: wgmma.mma_async, sm_90a; which lane holds what of A and D is that of
// mma.sync.m16n8k16 for each warp's 16 rows. The bodies are empty for other architectures, whose kernels
// never run.
#pragma once

#include <cstdint>

namespace halfbyte::cuda::ptx {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool has_wgmma = true;
#define HALFBYTE_WGMMA(text, ...) asm volatile(text : __VA_ARGS__)
#else
inline constexpr bool has_wgmma = false;
#define HALFBYTE_WGMMA(text, ...)
#endif

// Before the first wgmma and whenever registers that one reads or writes have been written otherwise.
__device__ __forceinline__ void wgmma_fence() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until all committed groups but the latest `pending` are done.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#endif
}
// What this thread has written to shared memory is there for a wgmma that comes after a barrier. PTX ISA:
// fence.proxy.
__device__ __forceinline__ void fence_shared_for_wgmma() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// A warpgroup's registers for each thread from here on; what some give back others take. PTX ISA: setmaxnreg.
template <int count>
__device__ __forceinline__ void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
template <int count>
__device__ __forceinline__ void give_registers_back() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
// The compiler moves no use of these registers across this point.
template <int count>
__device__ __forceinline__ void keep_registers(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void keep_register(uint32_t& value) {
    asm volatile("" : "+r"(value)::"memory");
}

// B as rows of 64 16-bit elements (one row of B^T each, 128 bytes), 128-byte swizzle, beginning at a multiple
// of 1024 bytes; groups of 8 rows are 1024 bytes apart. PTX ISA: "Matrix-descriptor format". The address
// counts in 16 bytes: 16 elements along k are 2, 8 rows 64.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t sixteenths) {
    return uint64_t(0x40000040) << 32 | (sixteenths | 0x10000u);
}

// The registers of D as the text names them and as operands, each longer list after a shorter one.
#define HALFBYTE_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define HALFBYTE_SUMS_8 \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define HALFBYTE_NAMES_16 HALFBYTE_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define HALFBYTE_SUMS_16                                                                         \
    HALFBYTE_SUMS_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), \
        "+f"(d[14]), "+f"(d[15])
#define HALFBYTE_NAMES_32 \
    HALFBYTE_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HALFBYTE_SUMS_32                                                                            \
    HALFBYTE_SUMS_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
        "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
        "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define HALFBYTE_NAMES_64                                                                               \
    HALFBYTE_NAMES_32                                                                                   \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
    "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HALFBYTE_SUMS_64                                                                            \
    HALFBYTE_SUMS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), \
        "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]),  \
        "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),  \
        "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]),  \
        "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define HALFBYTE_NAMES_88                                                                               \
    HALFBYTE_NAMES_64                                                                                   \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
    "%83, %84, %85, %86, %87"
#define HALFBYTE_SUMS_88                                                                            \
    HALFBYTE_SUMS_64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),  \
        "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),  \
        "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])

// One overload for each N = 2 * registers; accumulate = false: D = A B. The names are those of a, b and
// accumulate behind the registers of D.
#define HALFBYTE_WGMMA_OF(name, type, n, registers, a_names, b_name, p_name)                           \
    __device__ __forceinline__ void name(float(&d)[registers], const uint32_t(&a)[4], uint64_t b,      \
                                         bool accumulate) {                                            \
        HALFBYTE_WGMMA("{.reg .pred p; setp.ne.b32 p, " p_name                                         \
                       ", 0;\n"                                                                        \
                       "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type                  \
                       " {" HALFBYTE_NAMES_##registers "}, {" a_names "}, " b_name ", p, 1, 1, 0;}",   \
                       HALFBYTE_SUMS_##registers : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), \
                       "r"(int(accumulate)));                                                          \
    }
#define HALFBYTE_WGMMA_BOTH(n, registers, a_names, b_name, p_name)               \
    HALFBYTE_WGMMA_OF(wgmma_bf16, "bf16", n, registers, a_names, b_name, p_name) \
    HALFBYTE_WGMMA_OF(wgmma_fp16, "f16", n, registers, a_names, b_name, p_name)

HALFBYTE_WGMMA_BOTH("16", 8, "%8, %9, %10, %11", "%12", "%13")
HALFBYTE_WGMMA_BOTH("32", 16, "%16, %17, %18, %19", "%20", "%21")
HALFBYTE_WGMMA_BOTH("64", 32, "%32, %33, %34, %35", "%36", "%37")
HALFBYTE_WGMMA_BOTH("128", 64, "%64, %65, %66, %67", "%68", "%69")
HALFBYTE_WGMMA_BOTH("176", 88, "%88, %89, %90, %91", "%92", "%93")

// D = A B from +0, A in shared memory too, its 64 rows as those of B^T.
__device__ __forceinline__ void wgmma_bf16(float (&d)[64], uint64_t a, uint64_t b) {
    HALFBYTE_WGMMA(
        "{.reg .pred p; setp.ne.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" HALFBYTE_NAMES_64
        "}, %64, %65, p, 1, 1, 0, 0;}",
        HALFBYTE_SUMS_64 : "l"(a), "l"(b));
}

#undef HALFBYTE_WGMMA_BOTH
#undef HALFBYTE_WGMMA_OF
#undef HALFBYTE_NAMES_8
#undef HALFBYTE_SUMS_8
#undef HALFBYTE_NAMES_16
#undef HALFBYTE_SUMS_16
#undef HALFBYTE_NAMES_32
#undef HALFBYTE_SUMS_32
#undef HALFBYTE_NAMES_64
#undef HALFBYTE_SUMS_64
#undef HALFBYTE_NAMES_88
#undef HALFBYTE_SUMS_88
#undef HALFBYTE_WGMMA

}  // namespace halfbyte::cuda::ptx
