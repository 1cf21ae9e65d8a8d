// Products of few tokens: every weight is read once, dequantised in registers and multiplied by mma.sync; the
// time is that of reading the weight.
//
// A cluster of CTAs owns a range of strips (16 rows each); its CTAs share the chains of K (1024 elements)
// among them, so that the activations of a few chains, in shared memory, serve many rows. A warp takes a
// unit, one chain of one strip, at a time. Every warp has its own ring of stages of 2304 bytes, which it
// fills itself by asynchronous copies far ahead, across units: no warp waits for another but when the
// activations change. The weight does not depend on the kernel ahead of this one in the stream, so the rings
// are filled before that has ended.
//
// The sums of the chains meet in shared memory, or in scratch memory if there is no room or the cluster has
// several CTAs. When all are done, each CTA adds up a part of them, chain after chain, and writes d. So the
// bits depend neither on the grid nor on who comes last.
#pragma once

#include "cuda/device/activations.cuh"
#include "cuda/device/product_output.cuh"
#include "cuda/matmul_scratch.h"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/launch.cuh"

namespace halfbyte::cuda {

inline constexpr uint32_t chain_groups = matmul_chain_k / gpu_group_k;

// T: the type of the operands. contract: one exact product a block, added in FP32; else the matrix unit adds
// up a chain. tokens: 1, 4 or a multiple of 8.
template <typename T_, bool contract_, int tokens_>
struct DecodeShape {
    using T = T_;
    static constexpr bool contract = contract_;
    static constexpr int tokens = tokens_;
    static constexpr int tiles = (tokens + 7) / 8;  // of mma.sync; for fewer than 8 its columns repeat
    static constexpr int warps = contract && tiles == 8 ? 12 : 16;  // 16 would spill registers
    static constexpr int stages = 2, stage_groups = 4;              // of a warp
    static constexpr int slice_bytes =
        matmul_chain_k / 32 * pair_bytes(tokens);  // the activations of a chain
    static constexpr int sum_bytes = tiles * 512;  // of a unit
    static constexpr int64_t shared_bytes(int64_t slices, int64_t sums) {
        return slices * slice_bytes + sums * sum_bytes +
               warps * stages * int64_t(stage_groups * gpu_group_bytes + sizeof(uint64_t)) + 16;
    }
};

struct DecodeProblem {
    const uint8_t* weight = nullptr;   // the groups of a packed weight
    const uint8_t* special = nullptr;  // one byte for each strip
    uint32_t strips = 0, groups = 0, chains = 0;
    uint32_t slices = 1;                   // chains whose activations a CTA holds at a time
    const uint8_t* activations = nullptr;  // device/activations.cuh
    ProductOutput output;
    float unscale = 1;  // takes the operands' powers of two out of a sum
    // What a lane of mma.sync holds: [chains][strips][tiles][32 lanes], of all strips or, in shared memory,
    // of the CTA's.
    float4* sums = nullptr;  // scratch memory; null: shared_sums units in shared memory
    uint32_t shared_sums = 0;
};

// The units of one warp in order. The CTA takes p.slices chains at a time, from rank * p.slices on in steps
// of size * p.slices, and of each all its strips: strip by strip, slice by slice.
struct Units {
    uint32_t first_strip, strips, step;  // of the CTA; chains from one run of slices to the next
    uint32_t chain, slices;              // the first chain of the slices that are there now, and how many
    uint32_t strip, slice;               // the unit: first_strip + strip, chain + slice
    uint32_t warp, strip_step, slice_step;

    __device__ __forceinline__ Units(const DecodeProblem& p, uint32_t warp_, uint32_t warps) : warp(warp_) {
        const uint32_t size = ptx::cluster_size(), cluster = blockIdx.x / size, clusters = gridDim.x / size;
        first_strip = uint32_t(uint64_t(p.strips) * cluster / clusters);
        strips = uint32_t(uint64_t(p.strips) * (cluster + 1) / clusters) - first_strip;
        step = size * p.slices;
        enter(p, ptx::cluster_rank() * p.slices, warps);
    }
    __device__ __forceinline__ void enter(const DecodeProblem& p, uint32_t first_chain, uint32_t warps) {
        chain = first_chain;
        slices = chain < p.chains ? min(p.slices, p.chains - chain) : 1;
        strip = warp / slices, slice = warp % slices;
        strip_step = warps / slices, slice_step = warps % slices;
    }
    __device__ __forceinline__ bool more_slices(const DecodeProblem& p) const { return chain < p.chains; }
    __device__ __forceinline__ bool more() const { return strip < strips; }
    __device__ __forceinline__ void next() {
        strip += strip_step, slice += slice_step;
        if (slice >= slices) slice -= slices, strip++;
    }
};

// Where the stages of a warp's units lie.
template <typename Shape>
struct StageCursor {
    const uint8_t* at;
    uint32_t left;  // groups of the unit; 0: there is nothing more
    Units units;

    __device__ __forceinline__ StageCursor(const DecodeProblem& p, const Units& from) : units(from) {
        enter_unit(p);
    }
    __device__ __forceinline__ void enter_unit(const DecodeProblem& p) {
        while (!units.more() && units.more_slices(p)) units.enter(p, units.chain + units.step, Shape::warps);
        const uint32_t first = (units.chain + units.slice) * chain_groups;
        left = units.more_slices(p) ? min(chain_groups, p.groups - first) : 0;
        at = p.weight + (uint64_t(units.first_strip + units.strip) * p.groups + first) * gpu_group_bytes;
    }
    __device__ __forceinline__ uint32_t bytes() const {
        return min(left, uint32_t(Shape::stage_groups)) * uint32_t(gpu_group_bytes);
    }
    __device__ __forceinline__ void next(const DecodeProblem& p) {
        at += Shape::stage_groups * gpu_group_bytes;
        if (left > Shape::stage_groups) {
            left -= Shape::stage_groups;
        } else if (left != 0) {
            units.next();
            enter_unit(p);
        }
    }
};

// A warp's ring of stages. Copies are begun and awaited in the same order.
template <typename Shape>
struct Ring {
    static constexpr uint32_t stage_bytes = Shape::stage_groups * uint32_t(gpu_group_bytes);
    uint8_t* data;
    uint32_t full;  // barriers, one for each stage
    uint32_t slot = 0, parity = 0;

    __device__ __forceinline__ uint8_t* stage() const { return data + slot * stage_bytes; }

    // All lanes; the stage is free.
    __device__ __forceinline__ void begin_copy(uint32_t into, const uint8_t* from, uint32_t bytes) const {
        uint8_t* to = data + into * stage_bytes;
#if __CUDA_ARCH__ >= 900
        if (bytes != 0 && ptx::elect_lane()) {
            ptx::arrive_and_expect(full + 8 * into, bytes);
            ptx::copy_bulk_once(ptx::shared_address(to), from, bytes, full + 8 * into);
        }
#else
        for (uint32_t byte = threadIdx.x % 32 * 16; byte < bytes; byte += 512)
            ptx::copy_async(to + byte, from + byte);
        ptx::commit_copies();
#endif
    }
    __device__ __forceinline__ void await() const {
#if __CUDA_ARCH__ >= 900
        ptx::wait(full + 8 * slot, parity);
#else
        ptx::wait_for_copies<Shape::stages - 1>();
        __syncwarp();
#endif
    }
    __device__ __forceinline__ void advance() {
        if (++slot == Shape::stages) slot = 0, parity ^= 1;
    }
};

template <typename Shape>
using Sums = float[Shape::tiles][4];

// acc += the groups of one stage; slice: at the stage's first group. careful: any scales and any number of
// groups, which are rare; else normal scales and a whole stage.
template <typename Shape, bool careful>
__device__ __forceinline__ void multiply_stage(const uint8_t* stage, const uint8_t* slice, uint32_t groups,
                                               Sums<Shape>& acc) {
    using T = typename Shape::T;
    constexpr int tokens = Shape::tokens, tiles = Shape::tiles;
    const uint32_t lane = threadIdx.x % 32, own = lane % (4 * min(tokens, 8)) * sizeof(uint2);
#pragma unroll(careful ? 1 : Shape::stage_groups)
    for (int group = 0; group < Shape::stage_groups; group++) {
        if (careful && group >= groups) break;
        const uint8_t* at = stage + group * int(gpu_group_bytes);
        const uint4 codes = *reinterpret_cast<const uint4*>(at + lane * 16);
        const uint2 scales = *reinterpret_cast<const uint2*>(at + gpu_group_code_bytes + lane / 4 * 8);
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int block = 0; block < 4; block++) {
            uint32_t a[4];
            dequantize<T>(words[block], scales_of<T, careful>(scales, block), a);
#pragma unroll
            for (int tile = 0; tile < tiles; tile++) {
                const uint2 b = *reinterpret_cast<const uint2*>(
                    slice + ((group * 4 + block) * tokens + tile * 8) * 32 + own);
                if constexpr (Shape::contract) {
                    float product[4];
                    ptx::product_bf16_16x8x16(product, a, b.x, b.y);
#pragma unroll
                    for (int j = 0; j < 4; j++) acc[tile][j] += product[j];
                } else if constexpr (std::is_same_v<T, __half>) {
                    ptx::mma_f16_16x8x16(acc[tile], a, b.x, b.y);
                } else {
                    ptx::mma_bf16_16x8x16(acc[tile], a, b.x, b.y);
                }
            }
        }
    }
}

// Writes what a lane of mma.sync holds of a strip and tile to d.
__device__ __forceinline__ void store_sum(const DecodeProblem& p, uint32_t strip, uint32_t tile,
                                          const float (&sum)[4]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; j++)
        p.output.store(tile * 8 + lane % 4 * 2 + j % 2, strip * 16 + lane / 4 + j / 2 * 8,
                       sum[j] * p.unscale);
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::warps * 32, 1) decode_kernel(const DecodeProblem p) {
    constexpr int tiles = Shape::tiles, group_bytes = 2 * pair_bytes(Shape::tokens);
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    constexpr int ring_bytes = Shape::stages * int(Ring<Shape>::stage_bytes);
    uint8_t* const barriers = shared + Shape::warps * ring_bytes;  // of the rings, then of the slices
    const uint32_t ring_full = ptx::shared_address(barriers) + warp * Shape::stages * 8;
    const uint32_t slices_full = ptx::shared_address(barriers) + Shape::warps * Shape::stages * 8;
    float4* const shared_sums = reinterpret_cast<float4*>(barriers + Shape::warps * Shape::stages * 8 + 16);
    uint8_t* const slices = reinterpret_cast<uint8_t*>(shared_sums) + p.shared_sums * Shape::sum_bytes;
    Ring<Shape> ring{shared + warp * ring_bytes, ring_full};

    ptx::let_next_kernel_start();
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        for (int i = 0; i < Shape::stages; i++) ptx::init_barrier(ring.full + 8 * i, 1);
        if (warp == 0) ptx::init_barrier(slices_full, 1);
        ptx::publish_barriers();
    }
    __syncwarp();
#endif
    Units units(p, warp, Shape::warps);
    StageCursor<Shape> ahead(p, units);
    for (int i = 0; i < Shape::stages; i++, ahead.next(p)) ring.begin_copy(i, ahead.at, ahead.bytes());

    bool special = false;
    for (uint32_t i = threadIdx.x; i < units.strips; i += blockDim.x)
        special |= p.special[units.first_strip + i] != 0;
    special = __syncthreads_or(special);
    ptx::wait_for_previous_kernel();

    const bool in_shared = p.sums == nullptr;
    float4* const sums = in_shared ? shared_sums : p.sums + uint64_t(units.first_strip) * (tiles * 32);
    const uint64_t sums_of_chain = uint64_t(in_shared ? units.strips : p.strips) * (tiles * 32);
    for (uint32_t run = 0; units.more_slices(p);
         units.enter(p, units.chain + units.step, Shape::warps), run++) {
        if (run != 0) __syncthreads();  // the slices are free
        const uint32_t begin = units.chain * chain_groups;
        const uint32_t count = min(units.slices * chain_groups, p.groups - begin);
        const uint8_t* from = p.activations + uint64_t(begin) * group_bytes;
#if __CUDA_ARCH__ >= 900
        // In pieces, each CTA another one first: all read the same, and L2 gives a line to one at a time.
        if (warp == 0) {
            if (lane == 0) ptx::arrive_and_expect(slices_full, count * group_bytes);
            __syncwarp();
            const uint32_t piece = (lane + blockIdx.x) % 32, low = count * piece / 32,
                           high = count * (piece + 1) / 32;
            if (low != high)
                ptx::copy_bulk(ptx::shared_address(slices) + low * group_bytes, from + low * group_bytes,
                               (high - low) * group_bytes, slices_full);
        }
        ptx::wait(slices_full, run % 2);
#else
        for (uint32_t byte = threadIdx.x * 16; byte < count * group_bytes; byte += blockDim.x * 16)
            *reinterpret_cast<uint4*>(slices + byte) = *reinterpret_cast<const uint4*>(from + byte);
        __syncthreads();
#endif
        for (; units.more(); units.next()) {
            const uint32_t strip = units.strip, chain = units.chain + units.slice;
            const uint32_t groups = min(chain_groups, p.groups - chain * chain_groups);
            Sums<Shape> acc = {};
            const uint8_t* at = slices + units.slice * Shape::slice_bytes;
            for (uint32_t group = 0; group < groups;
                 group += Shape::stage_groups, at += Shape::stage_groups * group_bytes) {
                ring.await();
                if (special || groups - group < Shape::stage_groups)
                    multiply_stage<Shape, true>(ring.stage(), at, groups - group, acc);
                else
                    multiply_stage<Shape, false>(ring.stage(), at, Shape::stage_groups, acc);
                __syncwarp();  // all lanes have read the stage
                ring.begin_copy(ring.slot, ahead.at, ahead.bytes());
                ahead.next(p);
                ring.advance();
            }
            float4* own = sums + chain * sums_of_chain + strip * (tiles * 32) + lane;
#pragma unroll
            for (int tile = 0; tile < tiles; tile++)
                own[tile * 32] = make_float4(acc[tile][0], acc[tile][1], acc[tile][2], acc[tile][3]);
        }
    }
    ptx::meet_cluster();
    const uint32_t size = ptx::cluster_size();
    for (uint32_t item = warp * size + ptx::cluster_rank(); item < units.strips * tiles;
         item += Shape::warps * size) {
        float total[4] = {};
#pragma unroll 8
        for (uint32_t chain = 0; chain < p.chains; chain++) {
            const float4 sum = sums[chain * sums_of_chain + item * 32 + lane];
            total[0] += sum.x, total[1] += sum.y, total[2] += sum.z, total[3] += sum.w;
        }
        store_sum(p, units.first_strip + item / tiles, item % tiles, total);
    }
}

}  // namespace halfbyte::cuda
