// Products of few tokens: every weight is read once, dequantised in registers and multiplied by mma.sync; the
// time is that of reading the weight.
//
// A cluster of CTAs owns a range of strips (16 rows each); its CTAs share the chains of K (1024 elements)
// among them, so that the activations of a few chains, in shared memory, serve many rows. They are brought
// there by the CTA itself, or by a kernel of their own if they are many. A warp takes a unit, one chain of
// one strip, at a time. Every warp has its own ring of stages, which it fills itself by asynchronous copies
// far ahead, across units: no warp waits for another but when the activations change. Their first stages are
// filled before the kernel ahead of this one in the stream has ended, if the weight does not depend on it.
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
#include "cuda/ptx/memory.cuh"

namespace halfbyte::cuda {

// T: the type of the operands. contract: one exact product a block, added in FP32; else the matrix unit adds
// up a chain. tokens: 1, 4 or a multiple of 8. Source: of the activations (device/activations.cuh) that the
// CTA brings to its shared memory itself; void: expand_activations has been there before.
template <typename T_, bool contract_, int tokens_, typename Source_>
struct DecodeShape {
    using T = T_;
    using Source = Source_;
    static constexpr bool contract = contract_, expanded = std::is_void_v<Source>;
    static constexpr int tokens = tokens_;
    static constexpr int tiles = (tokens + 7) / 8;  // of mma.sync; for fewer than 8 its columns repeat
    static constexpr int warps = contract && tiles == 8 ? 12 : 16;  // 16 would spill registers
    static constexpr int slice_bytes =
        matmul_chain_k / 32 * pair_bytes(tokens);  // the activations of a chain
    static constexpr int sum_bytes = tiles * 512;  // of a unit
};

// How a CTA uses its warps and its shared memory.
struct DecodeLayout {
    uint32_t warps = 16;                    // no more than the shape's
    uint32_t stage_groups = 4, stages = 2;  // of a warp's ring; a multiple of 4, and 2 or 3
    uint32_t slices = 1;                    // chains whose activations a CTA holds at a time
    uint32_t shared_sums = 0;  // units whose sums are there, all of the cluster's; 0: they are in scratch

    static constexpr uint32_t most_stages = 4, most_slices = 32;  // of barriers that there is room for
    constexpr uint32_t ring_bytes() const { return stages * stage_groups * uint32_t(gpu_group_bytes); }
    template <typename Shape>
    constexpr int64_t shared_bytes() const {
        return int64_t(slices) * Shape::slice_bytes + int64_t(shared_sums) * Shape::sum_bytes +
               int64_t(warps) * (ring_bytes() + most_stages * int64_t(sizeof(uint64_t))) +
               most_slices * int64_t(sizeof(uint64_t));
    }
};

struct DecodeProblem {
    const uint8_t* weight = nullptr;   // the groups of a packed weight
    const uint8_t* special = nullptr;  // one byte for each strip
    bool settled = false;              // the weight does not depend on the kernel ahead
    uint32_t strips = 0, groups = 0, chains = 0;
    uint32_t cluster_strips = 0, longer = 0;  // strips of a cluster; the first `longer` have one more
    uint32_t inverse[2] = {};                 // 2^16 / strips + 1, without and with the one more
    DecodeLayout layout;
    Activations a;                      // for a Source
    const uint8_t* expanded = nullptr;  // what expand_activations has made
    ProductOutput output;
    float unscale = 1;            // takes the operands' powers of two out of a sum
    uint32_t scale_exponent = 0;  // scales_of
    // What a lane of mma.sync holds, if there are no shared_sums: [chains][strips][tiles][32 lanes].
    float4* sums = nullptr;
};

// The units of one warp in order. The CTA takes layout.slices chains at a time, from rank * slices on in
// steps of size * slices, and of each all its strips: slice by slice, strip by strip.
struct Units {
    uint32_t first_strip, strips, step;  // of the CTA; chains from one run of slices to the next
    uint32_t chain, slices;              // the first chain of the slices that are there now, and how many
    uint32_t strip, slice;               // the unit: first_strip + strip, chain + slice
    uint32_t first_slice, first, strip_step, slice_step;

    __device__ __forceinline__ Units(const DecodeProblem& p, uint32_t warp) {
        const uint32_t size = ptx::cluster_size(), cluster = ptx::cluster_index(), warps = p.layout.warps;
        first_strip = p.cluster_strips * cluster + min(cluster, p.longer);
        strips = p.cluster_strips + (cluster < p.longer);
        // x / strips, exact for the few warps that there are.
        const uint32_t inverse = cluster < p.longer ? p.inverse[1] : p.inverse[0];
        first_slice = warp * inverse >> 16, first = warp - first_slice * strips;
        slice_step = warps * inverse >> 16, strip_step = warps - slice_step * strips;
        step = size * p.layout.slices;
        enter(p, ptx::cluster_rank() * p.layout.slices);
    }
    __device__ __forceinline__ void enter(const DecodeProblem& p, uint32_t first_chain) {
        chain = first_chain;
        slices = chain < p.chains ? min(p.layout.slices, p.chains - chain) : 0;
        strip = first, slice = first_slice;
    }
    __device__ __forceinline__ bool more_slices(const DecodeProblem& p) const { return chain < p.chains; }
    __device__ __forceinline__ bool more() const { return slice < slices; }
    __device__ __forceinline__ void next() {
        strip += strip_step, slice += slice_step;
        if (strip >= strips) strip -= strips, slice++;
    }
};

// Where the stages of a warp's units lie.
struct StageCursor {
    const uint8_t* at;
    uint32_t left;  // groups of the unit; 0: there is nothing more
    Units units;

    __device__ __forceinline__ StageCursor(const DecodeProblem& p, const Units& from) : units(from) {
        enter_unit(p);
    }
    __device__ __forceinline__ void enter_unit(const DecodeProblem& p) {
        while (!units.more() && units.more_slices(p)) units.enter(p, units.chain + units.step);
        const uint32_t first = (units.chain + units.slice) * chain_groups;
        left = units.more_slices(p) ? min(chain_groups, p.groups - first) : 0;
        at = p.weight + (uint64_t(units.first_strip + units.strip) * p.groups + first) * gpu_group_bytes;
    }
    __device__ __forceinline__ uint32_t bytes(const DecodeProblem& p) const {
        return min(left, p.layout.stage_groups) * uint32_t(gpu_group_bytes);
    }
    __device__ __forceinline__ void next(const DecodeProblem& p) {
        at += p.layout.stage_groups * uint32_t(gpu_group_bytes);
        if (left > p.layout.stage_groups) {
            left -= p.layout.stage_groups;
        } else if (left != 0) {
            units.next();
            enter_unit(p);
        }
    }
};

// A warp's ring of stages. Copies are begun and awaited in the same order.
struct Ring {
    uint8_t* data;
    uint32_t full;  // barriers, one for each stage
    uint32_t stage_bytes, stages;
    uint64_t policy;
    uint32_t slot = 0, parity = 0;

    __device__ __forceinline__ uint8_t* stage() const { return data + slot * stage_bytes; }

    // All lanes; the stage is free.
    __device__ __forceinline__ void begin_copy(uint32_t into, const uint8_t* from, uint32_t bytes) const {
        uint8_t* to = data + into * stage_bytes;
#if __CUDA_ARCH__ >= 900
        if (bytes != 0 && ptx::elect_lane()) {
            ptx::arrive_and_expect(full + 8 * into, bytes);
            ptx::copy_bulk(ptx::shared_address(to), from, bytes, full + 8 * into, policy);
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
        if (stages == 2)
            ptx::wait_for_copies<1>();
        else
            ptx::wait_for_copies<2>();
        __syncwarp();
#endif
    }
    __device__ __forceinline__ void advance() {
        if (++slot == stages) slot = 0, parity ^= 1;
    }
};

template <typename Shape>
using Sums = float[Shape::tiles][4];

// acc += a b of one block.
template <typename Shape>
__device__ __forceinline__ void multiply_block(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                               float (&acc)[4]) {
    if constexpr (Shape::contract) {
        float product[4];
        ptx::product_bf16_16x8x16(product, a, b0, b1);
        // Of one token the odd columns are the even ones once more.
#pragma unroll
        for (int j = 0; j < 4; j += Shape::tokens == 1 ? 2 : 1) acc[j] += product[j];
    } else if constexpr (std::is_same_v<typename Shape::T, __half>) {
        ptx::mma_f16_16x8x16(acc, a, b0, b1);
    } else {
        ptx::mma_bf16_16x8x16(acc, a, b0, b1);
    }
}

// acc += `groups` groups of a stage; slice: at the first of them. careful: any scales and any number of
// groups, which are rare; else normal scales and a multiple of 4 groups.
template <typename Shape, bool careful>
__device__ __forceinline__ void multiply_stage(const uint8_t* stage, const uint8_t* slice, uint32_t groups,
                                               uint32_t exponent, Sums<Shape>& acc) {
    using T = typename Shape::T;
    constexpr int tokens = Shape::tokens, tiles = Shape::tiles;
    const uint32_t lane = threadIdx.x % 32,
                   own = operand_place(lane / 4 % min(tokens, 8), lane % 4) * sizeof(uint4);
    constexpr uint32_t unrolled = careful ? 1 : 4;
    for (uint32_t first = 0; first < groups; first += unrolled)
#pragma unroll
        for (uint32_t i = 0; i < unrolled; i++, stage += gpu_group_bytes, slice += 2 * pair_bytes(tokens)) {
            const uint4 codes = *reinterpret_cast<const uint4*>(stage + lane * 16);
            const uint2 scales = *reinterpret_cast<const uint2*>(stage + gpu_group_code_bytes + lane / 4 * 8);
            const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                uint32_t a[2][4];
#pragma unroll
                for (int i = 0; i < 2; i++)
                    dequantize<T>(words[pair * 2 + i], scales_of<T, careful>(scales, pair * 2 + i, exponent),
                                  a[i]);
#pragma unroll
                for (int tile = 0; tile < tiles; tile++) {
                    const uint4 b =
                        *reinterpret_cast<const uint4*>(slice + (pair * tokens + tile * 8) * 64 + own);
                    multiply_block<Shape>(a[0], b.x, b.y, acc[tile]);
                    multiply_block<Shape>(a[1], b.z, b.w, acc[tile]);
                }
            }
        }
}

// The activations of `groups` groups of K in shared memory. By all threads, which then meet; expanded ones
// arrive slice by slice at the barriers from `full` on.
// asked(): when they have been asked for; copies that begin earlier would delay them.
template <typename Shape, typename Asked>
__device__ __forceinline__ void bring_slices(const DecodeProblem& p, uint32_t first_group, uint32_t groups,
                                             uint8_t* slices, uint32_t full, const Asked& asked) {
    constexpr uint32_t group_bytes = 2 * pair_bytes(Shape::tokens);
    // Each CTA begins at another place: all read the same, and L2 gives a line to one at a time.
    if constexpr (!Shape::expanded) {
        const uint32_t pairs = groups * 2, turn = blockIdx.x * 8 % pairs, items = pairs * Shape::tokens;
        // Several at a time, loaded before the first is used, as far as there are registers.
        constexpr uint32_t batch = Shape::Source::quantises ? 1 : 2;
        ExpandedPair<typename Shape::Source> loaded[batch];
        const auto each = [&](uint32_t first, const auto& body) {
#pragma unroll
            for (uint32_t i = 0; i < batch; i++) {
                const uint32_t item = first + i * blockDim.x;
                uint32_t pair = item / Shape::tokens + turn;
                if (pair >= pairs) pair -= pairs;
                if (item < items) body(loaded[i], item % Shape::tokens, pair);
            }
        };
        const auto load = [&](auto& one, uint32_t token, uint32_t pair) {
            one.load(p.a, token, first_group * 2 + pair);
        };
        const auto store = [&](auto& one, uint32_t token, uint32_t pair) {
            one.store(p.a, Shape::tokens, token, first_group * 2 + pair,
                      slices + pair * pair_bytes(Shape::tokens));
        };
        each(threadIdx.x, load);
        asked();
        each(threadIdx.x, store);
        for (uint32_t first = threadIdx.x + batch * blockDim.x; first < items; first += batch * blockDim.x) {
            each(first, load);
            each(first, store);
        }
    } else {
        const uint8_t* from = p.expanded + uint64_t(first_group) * group_bytes;
#if __CUDA_ARCH__ >= 900
        // A barrier for each slice: the first ones are used while others are on their way.
        const uint32_t lane = threadIdx.x % 32;
        if (threadIdx.x < 32) {
            for (uint32_t first = 0, barrier = full; first < groups; first += chain_groups, barrier += 8) {
                const uint32_t count = min(chain_groups, groups - first);
                if (lane == 0) ptx::arrive_and_expect(barrier, count * group_bytes);
                __syncwarp();
                if (lane >= count) continue;
                const uint32_t offset = (first + (lane + blockIdx.x) % count) * group_bytes;
                ptx::copy_bulk(ptx::shared_address(slices) + offset, from + offset, group_bytes, barrier);
            }
            __syncwarp();
        }
        asked();
#else
        asked();
        for (uint32_t byte = threadIdx.x * 16; byte < groups * group_bytes; byte += blockDim.x * 16)
            *reinterpret_cast<uint4*>(slices + byte) = *reinterpret_cast<const uint4*>(from + byte);
#endif
    }
}

// What a lane of mma.sync needs to write what it holds of a strip and a tile to d: the rows g and g + 8 of
// the strip, the tokens 2q and 2q + 1 of the tile.
struct SumOutput {
    uint32_t token, row;
    ProductOutput::Column column[2];
    float decode[2];

    __device__ __forceinline__ SumOutput(const ProductOutput& out, uint32_t strip, uint32_t tile) {
        const uint32_t lane = threadIdx.x % 32;
        token = tile * 8 + lane % 4 * 2, row = strip * 16 + lane / 4;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            column[i] = out.column_of(row + 8 * i);
            decode[i] = out.row_decode_of(token + i);
        }
    }
    __device__ __forceinline__ void store(const ProductOutput& out, const float (&sum)[4],
                                          float unscale) const {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t m = token + j % 2, n = row + j / 2 * 8;
            if (m < out.rows && n < out.columns)
                out.store(m, n, column[j / 2].value(sum[j] * unscale, decode[j % 2]));
        }
    }
};

// The columns [first, first + count) of what SumOutput reads.
__device__ __forceinline__ void prefetch_output(const ProductOutput& output, uint32_t first, uint32_t count) {
    constexpr uint32_t line = 32;  // elements
    const uint32_t column = first + threadIdx.x * line;
    if (column >= min(first + count, output.columns)) return;
    ptx::prefetch_to_l2(output.column_decode + column);
    if (output.bias != nullptr)
        ptx::prefetch_to_l2(static_cast<const uint8_t*>(output.bias) +
                            column * (output.bias_type == DType::f32 ? 4 : 2));
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::warps * 32, 1) decode_kernel(const DecodeProblem p) {
    constexpr uint32_t tiles = Shape::tiles, group_bytes = 2 * pair_bytes(Shape::tokens);
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const DecodeLayout& layout = p.layout;
    const uint32_t ring_bytes = layout.ring_bytes(), stage_groups = layout.stage_groups;
    // Rings, their barriers, barriers of the slices, sums, slices.
    uint8_t* const barriers = shared + layout.warps * ring_bytes;
    const uint32_t rings_full = ptx::shared_address(barriers),
                   slices_full = rings_full + layout.warps * layout.most_stages * 8;
    float4* const shared_sums =
        reinterpret_cast<float4*>(barriers + (layout.warps * layout.most_stages + layout.most_slices) * 8);
    uint8_t* const slices = reinterpret_cast<uint8_t*>(shared_sums) + layout.shared_sums * Shape::sum_bytes;
    Ring ring{shared + warp * ring_bytes, rings_full + warp * layout.most_stages * 8,
              stage_groups * uint32_t(gpu_group_bytes), layout.stages, ptx::use_once()};

    const uint32_t exponent = p.scale_exponent;
    ptx::let_next_kernel_start();
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        for (uint32_t i = 0; i < layout.stages; i++) ptx::init_barrier(ring.full + 8 * i, 1);
        if (Shape::expanded && warp == 0)
            for (uint32_t i = 0; i < layout.slices; i++) ptx::init_barrier(slices_full + 8 * i, 1);
        ptx::publish_barriers();
    }
    __syncwarp();
#endif
    if (!p.settled) ptx::wait_for_previous_kernel();
    Units units(p, warp);
    // Small reads go ahead of the copies, behind which they would wait long. What the end needs comes to L2.
    uint32_t flag = 0;
    if (threadIdx.x < units.strips) flag = ptx::load_from_l2(p.special + units.first_strip + threadIdx.x);
    prefetch_output(p.output, units.first_strip * 16, units.strips * 16);
    StageCursor ahead(p, units);
    ring.begin_copy(0, ahead.at, ahead.bytes(p));
    ahead.next(p);
    for (uint32_t i = threadIdx.x + blockDim.x; i < units.strips; i += blockDim.x)
        flag |= ptx::load_from_l2(p.special + units.first_strip + i);
    bool special = false;
    ptx::wait_for_previous_kernel();

    // Chain c of the cluster's strip i: at c * sums_of_chain + i * (tiles * 32).
    const bool in_shared = layout.shared_sums != 0;
    float4* const sums = in_shared ? shared_sums : p.sums + uint64_t(units.first_strip) * (tiles * 32);
    const uint64_t sums_of_chain = uint64_t(in_shared ? units.strips : p.strips) * (tiles * 32);
    for (uint32_t run = 0; units.more_slices(p); units.enter(p, units.chain + units.step), run++) {
        if (run != 0) __syncthreads();  // the slices are free
        const uint32_t begin = units.chain * chain_groups;
        bring_slices<Shape>(p, begin, min(units.slices * chain_groups, p.groups - begin), slices, slices_full,
                            [&] {
                                if (run == 0)
                                    for (uint32_t i = 1; i < layout.stages; i++, ahead.next(p))
                                        ring.begin_copy(i, ahead.at, ahead.bytes(p));
                            });
        if (run == 0)
            special = __syncthreads_or(int(flag));
        else
            __syncthreads();
        for (; units.more(); units.next()) {
            const uint32_t chain = units.chain + units.slice;
            const uint32_t groups = min(chain_groups, p.groups - chain * chain_groups);
            Sums<Shape> acc = {};
#if __CUDA_ARCH__ >= 900
            if (Shape::expanded) ptx::wait(slices_full + 8 * units.slice, run % 2);
#endif
            const uint8_t* at = slices + units.slice * Shape::slice_bytes;
            for (uint32_t group = 0; group < groups;
                 group += stage_groups, at += stage_groups * group_bytes) {
                ring.await();
                if (special || groups - group < stage_groups)
                    multiply_stage<Shape, true>(ring.stage(), at, min(stage_groups, groups - group), exponent,
                                                acc);
                else
                    multiply_stage<Shape, false>(ring.stage(), at, stage_groups, exponent, acc);
                __syncwarp();  // all lanes have read the stage
                ring.begin_copy(ring.slot, ahead.at, ahead.bytes(p));
                ahead.next(p);
                ring.advance();
            }
            float4* own = sums + chain * sums_of_chain + units.strip * (tiles * 32) + lane;
#pragma unroll
            for (int tile = 0; tile < int(tiles); tile++)
                own[tile * 32] = make_float4(acc[tile][0], acc[tile][1], acc[tile][2], acc[tile][3]);
        }
    }
    const uint32_t size = ptx::cluster_size(), items = units.strips * tiles;
    uint32_t item = warp * size + ptx::cluster_rank();
    const auto output_of = [&] {
        return SumOutput(p.output, units.first_strip + min(item, items - 1) / tiles, item % tiles);
    };
    SumOutput output = output_of();
    ptx::meet_cluster();
    while (item < items) {
        float total[4] = {};
        const float4* from = sums + item * 32 + lane;
#pragma unroll 8
        for (uint32_t chain = 0; chain < p.chains; chain++) {
            const float4 sum = from[chain * sums_of_chain];
            total[0] += sum.x, total[1] += sum.y, total[2] += sum.z, total[3] += sum.w;
        }
        output.store(p.output, total, p.unscale);
        item += layout.warps * size;
        output = output_of();
    }
}

}  // namespace halfbyte::cuda
