// Products of some to many tokens: D^T [N, M] = W x^T by wgmma, x [M, K] from shared memory (the operand B),
// W (the operand A: 64 rows a warpgroup, 16 a warp, one strip) from its packed form through registers; or
// from shared memory, expanded to BF16 beforehand, once for all tiles (prefill_expand.cuh).
//
// A tile is row_warpgroups * 64 rows of W by token_warpgroups * tokens tokens. A thread of the last warpgroup
// fills a ring of stages of 64 elements of K by two tensor copies, of x and of W. The CTAs of a cluster take
// tiles of the same tokens, side by side; each brings a part of x to all of them. The other warpgroups
// multiply.
//
// split: so many CTAs, a cluster too, share one tile where there are too few tiles: the chains (1024 elements
// of K) go round among them, and the first adds up what they send it.
//
// contract: each product of a block of 16 begins from zero and is added to the chain in FP32. Else a chain of
// 1024 elements is accumulated by the matrix unit. Chains are added in order in FP32, so that a row's bits
// depend on nothing but K.
//
// What the contract's loop may cost: a wgmma of 64 x 128 x 16 takes 64 clocks, its 8192 additions take 64
// more of the instruction slots, and where both run side by side they take 105 together (measured with
// nothing else in the loop: both write registers), so every other instruction counts.
#pragma once

#include "cuda/device/fragments.cuh"
#include "cuda/device/prefill_expand.cuh"
#include "cuda/device/product_output.cuh"
#include "cuda/products.h"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/launch.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/tensor_copy.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "format/gpu_weight.h"

namespace halfbyte::cuda {

// What the multiplying warps read of W.
enum class PrefillWeight { packed, expanded };

// tokens: of a warpgroup, N of wgmma. products: of the contract, how many are in registers at once.
template <bool contract_, PrefillWeight weight_, int row_warpgroups_, int token_warpgroups_, int tokens_,
          int products_, int cluster_, int stages_, int split_ = 1>
struct PrefillShape {
    static constexpr bool contract = contract_;
    static constexpr PrefillWeight weight = weight_;
    static constexpr int row_warpgroups = row_warpgroups_, token_warpgroups = token_warpgroups_;
    static constexpr int tokens = tokens_, products = products_, cluster = cluster_, stages = stages_,
                         split = split_;
    static constexpr int ctas = cluster * split;  // that run together
    static_assert(cluster == 1 || split == 1);

    // Of the loop: the whole ring, so that the addresses of its stages are constants, if it divides a chain.
    static constexpr int stages_a_step = chain_groups % stages == 0 ? stages : 1;
    static_assert((!contract && split == 1) || stages_a_step == stages);
    static_assert(weight == PrefillWeight::packed ||
                  (row_warpgroups * 4 == expanded_tile_strips && stages_a_step == expanded_whole_groups));

    static constexpr int warpgroups = row_warpgroups * token_warpgroups;
    static constexpr int threads = warpgroups * 128 + 128;
    static constexpr int resident = warpgroups == 1 && tokens <= 32 ? 2 : 1;  // CTAs of a multiprocessor
    // Of two and more multiplying warpgroups a thread's registers: as launched (65536 over all threads, in
    // steps of 8), then of the filling and of the multiplying ones; together no more than launched, or the
    // multiplying ones wait for ever. 24 are few for filling, but the contract's 128 tokens need the rest.
    static constexpr int launched = 65536 / threads / 8 * 8, filling = contract && tokens > 64 ? 24 : 40,
                         registers = ((warpgroups + 1) * launched - filling) / warpgroups / 8 * 8;
    static constexpr int strips = row_warpgroups * 4;
    static constexpr int tile_tokens = token_warpgroups * tokens;
    static constexpr int x_bytes = tile_tokens * int(gpu_group_k) * 2;  // of a stage
    static constexpr int w_bytes =
        strips * int(weight == PrefillWeight::packed ? gpu_group_bytes : expanded_group_bytes);
    static constexpr int sum_bytes = warpgroups * 64 * tokens * 4;  // the sums of a tile
    // The contract's registers hold no sums of chains beside the chain and the products.
    static constexpr int total_bytes = contract ? sum_bytes : 0;
    // Of a warp, for the output; the contract's lie among its totals.
    static constexpr int transpose_bytes = 512,
                         output_bytes = contract ? total_bytes : warpgroups * 4 * transpose_bytes;
    static constexpr int shared_bytes =
        1024 + stages * (x_bytes + w_bytes + 16) + output_bytes + (split - 1) * sum_bytes + 8 * split;
    static_assert(shared_bytes * resident <= 227 << 10);
    static_assert(x_bytes % 1024 == 0 && (weight == PrefillWeight::packed || w_bytes % 1024 == 0));
};

struct PrefillProblem {
    const uint8_t* weight = nullptr;   // the groups of a packed weight, or those that expand_weight makes
    const uint8_t* special = nullptr;  // one byte for each strip
    uint32_t strips = 0, groups = 0;
    uint32_t row_tiles = 0, token_tiles = 0;  // row tiles of a whole cluster
    ProductOutput output;
    float unscale = 1;            // takes the operands' powers of two out of a sum
    uint32_t scale_exponent = 0;  // scales_of

    constexpr uint32_t chains() const { return (groups + chain_groups - 1) / chain_groups; }
    __device__ __forceinline__ uint32_t groups_of_chain(uint32_t chain) const {
        return min(chain_groups, groups - chain * chain_groups);
    }
};

// Tiles in an order in which those that run at once share rows and tokens: bands of 8 token tiles.
struct PrefillTile {
    uint32_t row, token;
    __device__ __forceinline__ PrefillTile(const PrefillProblem& p, uint32_t index) {
        constexpr uint32_t band = 8;
        const uint32_t first = index / (band * p.row_tiles) * band;
        const uint32_t width = min(band, p.token_tiles - first), inside = index - first * p.row_tiles;
        row = inside / width;
        token = first + inside % width;
    }
};

// Addresses in shared memory.
template <typename S>
struct PrefillShared {
    uint32_t x, w, totals, sent, full, empty, arrived, taken;

    __device__ __forceinline__ explicit PrefillShared(const uint8_t* memory) {
        // A shuffle's result is kept in a register; the address itself ptxas would find anew at every
        // use.
        x = __shfl_sync(~0u, (ptx::shared_address(memory) + 1023) / 1024 * 1024, 0);
        w = x + S::stages * S::x_bytes;
        totals = w + S::stages * S::w_bytes;
        sent = totals + S::output_bytes;
        full = sent + (S::split - 1) * S::sum_bytes;
        empty = full + 8 * S::stages;
        taken = empty + 8 * S::stages;
        arrived = taken + 8;  // of CTA r at 8 (r - 1)
    }
};

// A place in the ring of stages and the parity of its phase.
template <typename S>
struct RingPlace {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ uint32_t before() const { return stage > 0 ? stage - 1 : S::stages - 1; }
    __device__ __forceinline__ void next() {
        if (++stage == S::stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// Of the chains of a tile this CTA has this one and every split-th after it.
template <typename S>
__device__ __forceinline__ uint32_t first_chain() {
    return S::split > 1 ? ptx::cluster_rank() : 0;
}

// By one thread.
template <typename S>
__device__ __forceinline__ void fill_stages(const PrefillShared<S>& shared, const CUtensorMap& x_map,
                                            const CUtensorMap& w_map, const PrefillProblem& p) {
    const uint32_t rank = S::cluster > 1 ? ptx::cluster_rank() : 0;
    constexpr uint32_t part = S::tile_tokens / S::cluster;
    RingPlace<S> place;
    for (uint32_t index = blockIdx.x / S::ctas; index < p.row_tiles * p.token_tiles;
         index += gridDim.x / S::ctas) {
        const PrefillTile tile(p, index);
        const uint32_t strip = (tile.row * S::cluster + rank) * S::strips,
                       token = tile.token * S::tile_tokens + rank * part;
        for (uint32_t chain = first_chain<S>(); chain < p.chains(); chain += S::split) {
            // So that a loop has whole steps, some groups of zeros may follow.
            const uint32_t first = chain * chain_groups,
                           end = first + round_up(p.groups_of_chain(chain), S::stages_a_step);
            for (uint32_t group = first; group < end; group++) {
                // Where products are accumulated a stage is released from within the next one, without a
                // condition (a branch there makes wgmma wait, C7513): so the last is released once before it
                // is filled.
                const bool released_first = !S::contract && place.stage == S::stages - 1;
                ptx::wait(shared.empty + 8 * place.stage, place.parity ^ uint32_t(!released_first));
                const uint32_t full = shared.full + 8 * place.stage,
                               x = shared.x + place.stage * S::x_bytes + rank * (part * 128),
                               w = shared.w + place.stage * S::w_bytes;
                ptx::arrive_and_expect(full, S::x_bytes + S::w_bytes);
                if constexpr (S::cluster == 1)
                    ptx::copy_box(x, x_map, group * gpu_group_k, token, full);
                else
                    ptx::copy_box_to_cluster(x, x_map, group * gpu_group_k, token, full,
                                             (1u << S::cluster) - 1);
                if constexpr (S::weight == PrefillWeight::packed)
                    ptx::copy_box_3d(w, w_map, group, strip, full);
                else
                    ptx::copy_bulk(w, p.weight + expanded_offset(strip, group, p.groups), S::w_bytes, full);
                place.next();
            }
        }
    }
}

// What a lane needs of its strip for one stage.
struct StripGroup {
    uint4 codes;
    uint2 scales;

    StripGroup() = default;
    __device__ __forceinline__ explicit StripGroup(uint32_t strip) {
        const uint32_t lane = threadIdx.x % 32;
        codes = ptx::load_shared_16(strip + lane * 16);
        scales = ptx::load_shared_8(strip + uint32_t(gpu_group_code_bytes) + lane / 4 * 8);
    }
    template <typename T, bool special>
    __device__ __forceinline__ void operand(int block, uint32_t exponent, uint32_t (&a)[4]) const {
        dequantize<T>(block == 0   ? codes.x
                      : block == 1 ? codes.y
                      : block == 2 ? codes.z
                                   : codes.w,
                      scales_of<T, special>(scales, block, exponent), a);
    }
};

// d of one tile of a warpgroup: rows g and g + 8 of the warp's strip (lane = 4 g + q); registers 4 j .. 4
// j + 3 are the tokens 8 j + 2 q and the next of row g, then of row g + 8.
template <int registers>
__device__ __forceinline__ void store_tile(const PrefillProblem& p, uint32_t transpose, uint32_t token,
                                           uint32_t row, const float (&sums)[registers]) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const ProductOutput& out = p.output;
    const ProductOutput::Column column[2] = {out.column_of(row + g), out.column_of(row + g + 8)};
    // Of tokens 8 j + 2 q (+ 1): row g, row g + 8; then of tokens 8 further on.
    const auto values_of = [&](int j, float(&values)[8]) {
        float decode[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            decode[i] = out.row_decode_of(token + 8 * j + i / 2 * 8 + 2 * q + i % 2);
#pragma unroll
        for (int i = 0; i < 8; i++)
            values[i] = column[i / 2 % 2].value(sums[4 * j + i] * p.unscale, decode[i / 4 * 2 + i % 2]);
    };
    if (out.type == DType::f32) {
        auto* d = static_cast<float*>(out.d) + uint64_t(token + 2 * q) * uint64_t(out.stride) + row + g;
#pragma unroll
        for (int j = 0; j < registers / 4; j += 2) {
            float values[8];
            values_of(j, values);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                const uint32_t m = 8 * j + i / 4 * 8 + i % 2, n = i / 2 % 2 * 8;
                if (token + 2 * q + m < out.rows && row + g + n < out.columns)
                    d[m * uint64_t(out.stride) + n] = values[i];
            }
        }
        return;
    }
    // 16 bits: through shared memory, so that a lane stores 8 neighbours of one token.
    const uint32_t first = row + lane % 2 * 8;
    const bool vectors =
        reinterpret_cast<uintptr_t>(out.d) % 16 == 0 && out.stride % 8 == 0 && first + 8 <= out.columns;
    auto* d = static_cast<uint16_t*>(out.d) + uint64_t(token + lane / 2) * uint64_t(out.stride) + first;
    const uint32_t address = transpose + (lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16;
#pragma unroll
    for (int j = 0; j < registers / 4; j += 2) {
        float values[8];
        uint32_t pairs[4];
        values_of(j, values);
        if (out.type == DType::bf16) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
                pairs[i] = reinterpret_cast<const uint32_t&>(pair);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
                pairs[i] = reinterpret_cast<const uint32_t&>(pair);
            }
        }
        ptx::store_transposed(address, pairs);
        __syncwarp();
        const uint4 eight = ptx::load_shared_16(transpose + lane * 16);
        __syncwarp();
        if (token + 8 * j + lane / 2 < out.rows) {
            if (vectors) {
                *reinterpret_cast<uint4*>(d) = eight;
            } else {
                uint64_t low = uint64_t(eight.y) << 32 | eight.x, high = uint64_t(eight.w) << 32 | eight.z;
#pragma unroll 1
                for (uint32_t i = 0; i < 8 && first + i < out.columns; i++) {
                    d[i] = uint16_t(low);
                    low = low >> 16 | high << 48;
                    high >>= 16;
                }
            }
        }
        d += 16 * uint64_t(out.stride);
    }
}

// The multiplying warps. special: some scale of the warpgroup's rows takes the slower way.
template <typename T, typename S>
struct Multiplier {
    static constexpr int registers = S::tokens / 2;
    const PrefillShared<S>& shared;
    const PrefillProblem& p;
    // A shuffle tells ptxas that a value is the whole warp's: the descriptors are made of it.
    const uint32_t warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const uint32_t row_warpgroup = warpgroup % S::row_warpgroups,
                   token_warpgroup = warpgroup / S::row_warpgroups,
                   strip = row_warpgroup * 4 + threadIdx.x / 32 % 4;  // of the tile
    const uint32_t w = shared.w + strip * uint32_t(gpu_group_bytes),
                   w_sixteenths = (shared.w + row_warpgroup * (64 * 128)) / 16,
                   x_sixteenths = (shared.x + token_warpgroup * (S::tokens * 128)) / 16;
    RingPlace<S> place;

    uint32_t taken_parity = 0, arrived_parity = 0;  // bit r of arrived: of CTA r + 1

    const uint32_t exponent = p.scale_exponent;

    __device__ __forceinline__ void wait_for_stage(uint32_t stage) const {
        ptx::wait(shared.full + 8 * stage, place.parity);
    }
    // A stage has arrived: what the lane needs of W.
    __device__ __forceinline__ StripGroup wait_for_group(uint32_t stage) const {
        wait_for_stage(stage);
        return StripGroup(w + stage * S::w_bytes);
    }
    __device__ __forceinline__ uint32_t x(uint32_t stage) const {
        return x_sixteenths + stage * (S::x_bytes / 16);
    }
    // A warp is done with a stage: every CTA that fills it hears of it.
    __device__ __forceinline__ void release(uint32_t stage) const {
        __syncwarp();
        if constexpr (S::cluster == 1) {
            if (threadIdx.x % 32 == 0) ptx::arrive(shared.empty + 8 * stage);
        } else {
            if (threadIdx.x % 32 < S::cluster) ptx::arrive_at(shared.empty + 8 * stage, threadIdx.x % 32);
        }
    }
    template <int count>
    __device__ __forceinline__ static void multiply(float (&d)[count], const uint32_t (&a)[4], uint32_t x,
                                                    bool accumulate) {
        if constexpr (std::is_same_v<T, __half>)
            ptx::wgmma_fp16(d, a, ptx::wgmma_descriptor(x), accumulate);
        else
            ptx::wgmma_bf16(d, a, ptx::wgmma_descriptor(x), accumulate);
    }

    // sums: of all chains of the tile, each accumulated by the matrix unit. A product with registers is
    // issued when the matrix unit begins it: meanwhile the next block is dequantised.
    template <bool special>
    __device__ __forceinline__ void accumulate(float (&sums)[registers]) {
        uint32_t a[4][4];
        float chain[registers];
#pragma unroll
        for (int i = 0; i < registers; i++) sums[i] = 0.0f;
        StripGroup group = wait_for_group(place.stage);
        for (uint32_t left = p.groups; left > 0;) {
            const uint32_t groups = min(chain_groups, left);
            left -= groups;
            for (uint32_t i = 0; i < groups; i++) {
                const uint32_t x = this->x(place.stage), previous = place.before();
                place.next();
#pragma unroll
                for (int block = 0; block < 4; block++) {
                    group.operand<T, special>(block, exponent, a[block]);
                    ptx::wgmma_fence();
                    multiply(chain, a[block], x + 2 * block, block > 0 || i > 0);
                    ptx::wgmma_commit();
                    if (block == 3 && (i + 1 < groups || left > 0)) group = wait_for_group(place.stage);
                    ptx::wgmma_wait<2>();
                    if (block == 1) release(previous);
                }
            }
            ptx::wgmma_wait<0>();
            ptx::keep_registers(chain);
#pragma unroll
            for (int i = 0; i < registers; i++) sums[i] += chain[i];
        }
    }

    // The same, the whole ring in one step of the loop.
    template <bool special>
    __device__ __forceinline__ void accumulate_ring(float (&sums)[registers]) {
        constexpr int steps = 4 * S::stages;
        uint32_t a[4][4];
        float chain[registers];
#pragma unroll
        for (int i = 0; i < registers; i++) sums[i] = 0.0f;
        if (first_chain<S>() >= p.chains()) return;
        StripGroup group = wait_for_group(0);
        group.operand<T, special>(0, exponent, a[0]);
        uint32_t index = first_chain<S>(), i = 0;  // of the chain, of its first group in the ring
        while (true) {
            const bool ends = i + S::stages >= p.groups_of_chain(index),
                       last = ends && index + S::split >= p.chains();
#pragma unroll
            for (int step = 0; step < steps; step++) {
                const int stage = step / 4, block = step % 4, next = (stage + 1) % S::stages;
                ptx::wgmma_fence();
                multiply(chain, a[block], x(stage) + 2 * block, step > 0 || i > 0);
                ptx::wgmma_commit();
                if (block < 3) group.operand<T, special>(block + 1, exponent, a[block + 1]);
                if (step == steps - 1) place.parity ^= 1;
                if (block == 3 && (step < steps - 1 || !last)) {
                    group = wait_for_group(next);
                    group.operand<T, special>(0, exponent, a[0]);
                }
                ptx::wgmma_wait<1>();
                if (block == 0) release(stage == 0 ? S::stages - 1 : stage - 1);
            }
            i += S::stages;
            if (!ends) continue;
            ptx::wgmma_wait<0>();
            ptx::keep_registers(chain);
            if (!send_if_other(chain)) {
                if (index > 0) add_sent(sums, index - S::split);
#pragma unroll
                for (int r = 0; r < registers; r++) sums[r] += chain[r];
                if (last) add_sent(sums, index);
            }
            if (last) break;
            index += S::split;
            i = 0;
        }
    }

    // chain: ends as the sum of all chains. Of the products one is added while the others are made; none
    // is made across the loop's edge, where ptxas would have them wait for each other (C7514).
    template <bool special>
    __device__ __forceinline__ void accumulate_blocks(float (&chain)[registers]) {
        constexpr bool packed = S::weight == PrefillWeight::packed;
        constexpr int steps = 4 * S::stages, products = S::products;
        float product[products][registers];
        uint32_t a[4][4];
#pragma unroll
        for (int i = 0; i < registers; i++) chain[i] = 0.0f;
        StripGroup group;
        const auto next_group = [&](uint32_t stage) {
            if constexpr (packed) {
                group = wait_for_group(stage);
                group.operand<T, special>(0, exponent, a[0]);
            }
        };
        if (first_chain<S>() >= p.chains()) return;
        next_group(0);
        for (uint32_t index = first_chain<S>(); index < p.chains(); index += S::split) {
            const uint32_t groups = p.groups_of_chain(index);
            const bool last_chain = index + S::split >= p.chains();
#pragma unroll
            for (int i = 0; i < registers; i++) chain[i] = 0.0f;
            for (uint32_t i = 0; i < groups; i += S::stages) {
#pragma unroll
                for (int step = 0; step < steps + products - 1; step++) {
                    if (step < steps) {
                        const int stage = step / 4, block = step % 4;
                        const uint32_t x = this->x(stage) + 2 * block;
                        if (!packed && block == 0) wait_for_stage(stage);
                        ptx::wgmma_fence();
                        if constexpr (packed)
                            multiply(product[step % products], a[block], x, false);
                        else
                            ptx::wgmma_bf16(
                                product[step % products],
                                ptx::wgmma_descriptor(w_sixteenths + stage * (S::w_bytes / 16) + 2 * block),
                                ptx::wgmma_descriptor(x));
                        ptx::wgmma_commit();
                        if (packed && block < 3) group.operand<T, special>(block + 1, exponent, a[block + 1]);
                        if (block == 3 && step < steps - 1) next_group(stage + 1);
                    }
                    const int added = step - (products - 1);
                    if (added < 0) continue;
                    if (step < steps)
                        ptx::wgmma_wait<products - 1>();
                    else if (step == steps)
                        ptx::wgmma_wait<products - 2>();
                    else
                        ptx::wgmma_wait<0>();
                    ptx::keep_registers(product[added % products]);
                    if (added % 4 == 3) release(added / 4);
#pragma unroll
                    for (int r = 0; r < registers; r++) chain[r] += product[added % products][r];
                }
                place.parity ^= 1;
                if (!last_chain || i + S::stages < groups) next_group(0);
            }
            if (send_if_other(chain)) continue;
            if (index > 0) {
                // The total before, in the place of a product.
                float(&total)[registers] = product[0];
                for_each_kept(total_of_thread(), [&](int r, float sum) { total[r] = sum; });
                add_sent(total, index - S::split);
#pragma unroll
                for (int r = 0; r < registers; r++) chain[r] = total[r] + chain[r];
            }
            if (last_chain)
                add_sent(chain, index);
            else
                keep(chain, total_of_thread());
        }
    }

    // The thread's numbers among the sums of a tile in shared memory, 16 bytes at every 2048.
    __device__ __forceinline__ static uint32_t of_thread(uint32_t sums) {
        return sums + (threadIdx.x / 128 * (registers / 4 * 128) + threadIdx.x % 128) * 16;
    }
    __device__ __forceinline__ uint32_t total_of_thread() const { return of_thread(shared.totals); }
    template <typename F>
    __device__ __forceinline__ static void for_each_kept(uint32_t kept, F&& f) {
#pragma unroll
        for (int r = 0; r < registers; r += 4, kept += 2048) {
            const uint4 sum = ptx::load_shared_16(kept);
            f(r, __uint_as_float(sum.x));
            f(r + 1, __uint_as_float(sum.y));
            f(r + 2, __uint_as_float(sum.z));
            f(r + 3, __uint_as_float(sum.w));
        }
    }
    __device__ __forceinline__ static uint4 four_of(const float (&sums)[registers], int r) {
        return make_uint4(__float_as_uint(sums[r]), __float_as_uint(sums[r + 1]),
                          __float_as_uint(sums[r + 2]), __float_as_uint(sums[r + 3]));
    }
    __device__ __forceinline__ static void keep(const float (&sums)[registers], uint32_t kept) {
#pragma unroll
        for (int r = 0; r < registers; r += 4, kept += 2048) ptx::store_shared_16(kept, four_of(sums, r));
    }

    // Of a split tile. Any CTA but the first sends its chain to the first, when that has taken the one
    // before.
    __device__ __forceinline__ bool send_if_other(const float (&chain)[registers]) {
        if (S::split == 1 || ptx::cluster_rank() == 0) return false;
        const uint32_t other = ptx::cluster_rank() - 1;
        ptx::wait(shared.taken, taken_parity ^ 1);
        taken_parity ^= 1;
        uint32_t to = ptx::in_cluster(of_thread(shared.sent + other * S::sum_bytes), 0);
        const uint32_t arrived = ptx::in_cluster(shared.arrived + 8 * other, 0);
#pragma unroll
        for (int r = 0; r < registers; r += 4, to += 2048)
            ptx::store_in_cluster(to, four_of(chain, r), arrived);
        return true;
    }
    // By the first: the chains of the others that follow this one of its own, in order. It does so when its
    // next has ended, so that it need not wait for them.
    __device__ __forceinline__ void add_sent(float (&sums)[registers], uint32_t own) {
        for (uint32_t other = 0; other + 1 < S::split && own + other + 1 < p.chains(); other++) {
            const uint32_t arrived = shared.arrived + 8 * other;
            if (threadIdx.x == 0) ptx::arrive_and_expect(arrived, S::sum_bytes);
            ptx::wait(arrived, arrived_parity >> other & 1);
            arrived_parity ^= 1u << other;
            for_each_kept(of_thread(shared.sent + other * S::sum_bytes),
                          [&](int r, float sum) { sums[r] += sum; });
            __syncwarp();
            if (threadIdx.x % 32 == 0) ptx::arrive_at(shared.taken, other + 1);
        }
    }

    template <bool special>
    __device__ __forceinline__ void sum_tile(float (&sums)[registers]) {
        if constexpr (S::contract)
            accumulate_blocks<special>(sums);
        else if constexpr (S::stages_a_step == S::stages)
            accumulate_ring<special>(sums);
        else
            accumulate<special>(sums);
    }

    __device__ __forceinline__ void run() {
        for (uint32_t index = blockIdx.x / S::ctas; index < p.row_tiles * p.token_tiles;
             index += gridDim.x / S::ctas) {
            float sums[registers];
            if (S::weight == PrefillWeight::packed && is_special(first_strip(PrefillTile(p, index))))
                sum_tile<true>(sums);
            else
                sum_tile<false>(sums);
            if (S::split > 1 && ptx::cluster_rank() > 0) continue;
            // Found anew: while a tile is summed there is no register for what it was before.
            ptx::keep_register(index);
            const PrefillTile tile(p, index);
            __syncwarp();  // the totals have been read
            store_tile(p, transpose_of_warp(), tile.token * S::tile_tokens + token_warpgroup * S::tokens,
                       (first_strip(tile) + threadIdx.x / 32 % 4) * uint32_t(gpu_strip_rows), sums);
        }
    }

    // The contract's is what the warp's threads have of total_of_thread() for the first four registers.
    __device__ __forceinline__ uint32_t transpose_of_warp() const {
        return S::contract ? total_of_thread() - threadIdx.x % 32 * 16
                           : shared.totals + threadIdx.x / 32 * S::transpose_bytes;
    }
    // Of the warpgroup's four strips.
    __device__ __forceinline__ uint32_t first_strip(const PrefillTile& tile) const {
        const uint32_t rank = S::cluster > 1 ? ptx::cluster_rank() : 0;
        return (tile.row * S::cluster + rank) * S::strips + row_warpgroup * 4;
    }
    __device__ __forceinline__ bool is_special(uint32_t first) const {
        bool special = false;
        for (uint32_t i = first; i < min(first + 4, p.strips); i++) special |= p.special[i] != 0;
        return special;
    }
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::threads, S::resident)
    prefill_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                   const PrefillProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t memory[];
    const PrefillShared<S> shared(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::stages; i++) {
            ptx::init_barrier(shared.full + 8 * i, 1);
            ptx::init_barrier(shared.empty + 8 * i, S::cluster * S::warpgroups * 4);
        }
        if (S::split > 1) ptx::init_barrier(shared.taken, S::warpgroups * 4);
        for (int i = 0; i + 1 < S::split; i++) ptx::init_barrier(shared.arrived + 8 * i, 1);
        ptx::publish_barriers();
    }
    if constexpr (S::ctas > 1)
        ptx::meet_cluster_relaxed();
    else
        __syncthreads();
    ptx::wait_for_previous_kernel();
    if (threadIdx.x / 128 == S::warpgroups) {
        if constexpr (S::warpgroups > 1) ptx::give_registers_back<S::filling>();
        if (threadIdx.x == S::warpgroups * 128) fill_stages<S>(shared, x_map, w_map, p);
    } else {
        if constexpr (S::warpgroups > 1) ptx::take_registers<S::registers>();
        Multiplier<T, S>{shared, p}.run();
    }
    // A CTA stays while others of its cluster may still arrive at its barriers.
    if constexpr (S::ctas > 1) {
        __syncwarp();
        ptx::meet_cluster_relaxed();
    }
#else
    __trap();  // the CUDA code of another architecture: explain() refuses it
#endif
}

// The driver's cuTensorMapEncodeTiled, asked for at run time, so that nothing links libcuda.
inline CUtensorMap encode_map(CUtensorMapDataType type, uint32_t rank, const void* data,
                              const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                              CUtensorMapSwizzle swizzle) {
    static const auto encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                    cudaEnableDefault, &found),
                   "cuTensorMapEncodeTiled");
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
    }();
    CUtensorMap map;
    const cuuint32_t steps[3] = {1, 1, 1};
    const CUresult result = encode(&map, type, rank, const_cast<void*>(data), sizes, strides, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        throw Error(ErrorKind::failure,
                    "matmul: cuTensorMapEncodeTiled gives CUDA error " + std::to_string(int(result)));
    return map;
}

// x [rows, cols] of 16-bit elements in boxes of a group's columns; zeros around the matrix.
inline CUtensorMap map_of_activations(const ConstMatrix& x, uint32_t box_rows) {
    const cuuint64_t sizes[2] = {cuuint64_t(x.cols), cuuint64_t(x.rows)},
                     strides[1] = {cuuint64_t(x.stride) * 2};
    const cuuint32_t box[2] = {uint32_t(gpu_group_k), box_rows};
    return encode_map(
        x.type == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, x.data,
        sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

// The groups of a packed weight [strips, groups, 576 bytes] in boxes of one group of several strips.
inline CUtensorMap map_of_weight(const PrefillProblem& p, uint32_t box_strips) {
    const cuuint64_t sizes[3] = {gpu_group_bytes / 4, p.groups, p.strips},
                     strides[2] = {gpu_group_bytes, cuuint64_t(gpu_group_bytes) * p.groups};
    const cuuint32_t box[3] = {gpu_group_bytes / 4, 1, box_strips};
    return encode_map(CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, p.weight, sizes, strides, box,
                      CU_TENSOR_MAP_SWIZZLE_NONE);
}

// x: what TMA can address; [M, K], K at least the weight's.
template <typename T, typename S>
void launch_prefill(const ConstMatrix& x, PrefillProblem problem, const Launch& launch,
                    const DeviceInfo& device) {
    const auto kernel = prefill_kernel<T, S>;
    problem.scale_exponent = Fragments<T>::scale_exponent;
    const int64_t tile_rows = int64_t(S::cluster) * S::row_warpgroups * 64;
    problem.row_tiles = uint32_t((problem.output.columns + tile_rows - 1) / tile_rows);
    problem.token_tiles = uint32_t((problem.output.rows + S::tile_tokens - 1) / S::tile_tokens);
    const CUtensorMap x_map = map_of_activations(x, S::tile_tokens / S::cluster),
                      w_map = S::weight == PrefillWeight::packed ? map_of_weight(problem, S::strips)
                                                                 : CUtensorMap();

    const int64_t resident = active_clusters(reinterpret_cast<const void*>(kernel), S::ctas, S::resident,
                                             S::threads, S::shared_bytes, device);
    const int64_t tiles = int64_t(problem.row_tiles) * problem.token_tiles;
    launch_clusters(kernel, S::ctas, unsigned(std::min(resident, tiles)), S::threads, S::shared_bytes, launch,
                    x_map, w_map, problem);
}

}  // namespace halfbyte::cuda
