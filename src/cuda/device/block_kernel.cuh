// The kernels in which a thread makes blocks of 16 by itself: a Source fetches what a block is made of and
// makes its values, the rule of NVFP4 turns them into codes. A Source has
//
//   blocks                  neighbouring ones that a thread makes at a time, 1 or 2
//   ctas                    of quantize_given on a multiprocessor: as many as leave registers enough
//   unrolled                turns of its loop in one, 1 or 2: measured
//   vector_columns()        on the host: the columns below need no care, whole blocks, aligned to 16 bytes
//   Cursor at(row, column)  the blocks from `column` on, of a row; step(cursor, rows): of a row below it
//
//   Raw fetch_vector(cursor), Raw fetch(cursor, column)
//                           as they lie in memory, +0 beyond the row's end; the first for columns below
//                           vector_columns()
//   make(raw, column, values)
//                           all threads of a warp together; Raw() where there are no elements
//
// and, if it can make what the codes need with less work than the values,
//
//   make_ordinary(raw, column, ordinary_values)
//   allows(G)               false: not with this encode scale
#pragma once

#include "cuda/device/grid.cuh"
#include "cuda/device/output.cuh"
#include "cuda/device/tiles.cuh"
#include "cuda/launch.h"
#include "cuda/ptx/launch.cuh"

namespace halfbyte::cuda {

struct Values {
    float value[block_elements];
    float amax;  // the largest magnitude, NaN if one of them is
};

// An infinity or a NaN adds nothing.
__device__ __forceinline__ float largest_finite_magnitude(const float (&values)[block_elements]) {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < block_elements; i++) amax = fmaxf(amax, finite_magnitude(values[i]));
    return amax;
}

// As much of values as quantize_ordinary_block needs.
__device__ __forceinline__ OrdinaryValues ordinary_values(const float (&values)[block_elements], float amax) {
    OrdinaryValues v;
#pragma unroll
    for (int i = 0; i < block_elements; i++) v.magnitude[i] = v.sign[i] = values[i];
    v.factor = 1.0f;
    v.amax = amax;
    return v;
}

// Of values * scale, scale > 0.
__device__ __forceinline__ OrdinaryValues scaled_ordinary(const float (&values)[block_elements],
                                                          float scale) {
    OrdinaryValues v;
#pragma unroll
    for (int i = 0; i < block_elements; i++) {
        v.magnitude[i] = fabsf(values[i]) * scale;
        v.sign[i] = values[i];
    }
    v.factor = 1.0f;
    v.amax = largest_or_nan(v.magnitude);
    return v;
}

template <typename Source>
concept MakesOrdinary = requires(const Source& source) { source.allows(1.0f); };

template <typename Source>
__device__ __forceinline__ bool allows(const Source& source, float G) {
    if constexpr (MakesOrdinary<Source>)
        return source.allows(G);
    else
        return true;
}

template <typename Source>
__device__ __forceinline__ void make_ordinary(const Source& source, const typename Source::Raw& raw,
                                              uint32_t column, OrdinaryValues (&ordinary)[Source::blocks]) {
    if constexpr (MakesOrdinary<Source>) {
        source.make_ordinary(raw, column, ordinary);
    } else {
        Values values[Source::blocks];
        source.make(raw, column, values);
#pragma unroll
        for (int i = 0; i < Source::blocks; i++)
            ordinary[i] = ordinary_values(values[i].value, values[i].amax);
    }
}

// Quantises the block where there are elements, writes zeros elsewhere; for kernels that end with a block.
__device__ __forceinline__ void store_quantized(const NvFp4Output& output, uint32_t row, uint32_t column,
                                                const float (&values)[block_elements], float G) {
    bool ordinary;
    QuantizedBlock block =
        quantize_ordinary_block(ordinary_values(values, largest_magnitude_or_nan(values)), G, ordinary);
    if (!ordinary) block = quantize_block(values, G);
    if (!output.holds_elements(row, column)) block = {};
    output.store(row, column, block);
}

// Puts the lowest one or two bytes of `scales` behind those in `gathered`, of which the first ones leave.
__device__ __forceinline__ void append_scales(uint32_t (&gathered)[1], uint32_t scales) {
    gathered[0] = __byte_perm(gathered[0], scales, 0x4321);
}
__device__ __forceinline__ void append_scales(uint32_t (&gathered)[2], uint32_t scales) {
    gathered[0] = __byte_perm(gathered[0], gathered[1], 0x5432);
    gathered[1] = __byte_perm(gathered[1], scales, 0x5432);
}

// `turns` rows of a tile that has elements everywhere and is aligned: a short loop fetches the next row's
// blocks while it works on one's. A bit for every turn that it must not do (block.cuh), for the whole warp.
template <int turns, typename Source>
__device__ __forceinline__ uint32_t quantize_inner(const Source& source, const NvFp4Output& output,
                                                   const EncodeScales& scales, const Tiles& tiles,
                                                   uint32_t first_row, uint32_t column) {
    constexpr int blocks = Source::blocks;
    constexpr bool may_gather = turns == 4;
    const uint32_t height = tiles.height();
    const uint64_t codes_step = uint64_t(height) * output.padded_columns * 8;
    uint8_t* codes = output.codes_of(first_row, column);
    uint8_t* own_scales = output.scale_of(first_row, column);
    const int64_t scales_step = output.scale_of(height, 0) - output.scales;  // from every first row
    typename Source::Cursor cursor = source.at(first_row, column);
    float G = scales(first_row);
    bool allowed = allows(source, G);
    typename Source::Raw next = source.fetch_vector(cursor);
    uint32_t row = first_row, gathered[blocks] = {}, remaining = 0;
#pragma unroll Source::unrolled
    for (int turn = 0; turn < turns; turn++) {
        const typename Source::Raw raw = next;
        const float own_G = G;
        if (turn + 1 < turns) {
            source.step(cursor, height);
            next = source.fetch_vector(cursor);
            if (scales.per_row) {
                G = scales(row + height);
                allowed = allowed && allows(source, G);
            }
        }
        OrdinaryValues values[blocks];
        make_ordinary(source, raw, column, values);
        uint32_t made_scales = 0;
#pragma unroll
        for (int i = 0; i < blocks; i++) {
            bool ordinary;
            const QuantizedBlock made = quantize_ordinary_block(values[i], own_G, ordinary);
            remaining |= ordinary ? 0 : 1u << turn;
            ptx::store_streaming(reinterpret_cast<uint2*>(codes) + i, made.codes);
            made_scales |= made.scale << (8 * i);
        }
        if (may_gather && tiles.gathers_scales) {
            append_scales(gathered, made_scales);
        } else if (blocks == 2 && output.pairs_aligned) {
            *reinterpret_cast<uint16_t*>(own_scales) = uint16_t(made_scales);
        } else {
#pragma unroll
            for (int i = 0; i < blocks; i++) own_scales[i] = uint8_t(made_scales >> (8 * i));
        }
        codes += codes_step;
        own_scales += scales_step;
        row += height;
    }
    if (may_gather && tiles.gathers_scales) output.store_scales_of_4_rows(first_row, column, gathered);
    if (!allowed) remaining = (1u << turns) - 1;
    remaining = __reduce_or_sync(~0u, remaining);
    __syncwarp();  // before bytes that another lane has written are corrected
    return remaining;
}

// A thread has `turns` rows, a tile's height apart, or, in the last tiles of a grid, one of them: so the
// multiprocessors end together. What the loop above must not do is done by one with care for everything.
template <typename Source, int turns>
__global__ void __launch_bounds__(tile_threads, Source::ctas)
    quantize_given(const __grid_constant__ Source source, const __grid_constant__ NvFp4Output output,
                   const __grid_constant__ EncodeScales scales, const __grid_constant__ Tiles tiles) {
    constexpr int blocks = Source::blocks;
    const uint32_t height = tiles.height();
    uint32_t down = own_down(), only = 0;  // turn
    const bool whole = turns == 1 || down < tiles.whole_down;
    if (!whole) {
        only = (down - tiles.whole_down) % turns;
        down = tiles.whole_down + (down - tiles.whole_down) / turns;
    }
    const Position first = position_in(tiles, blockIdx.x, down);
    const uint32_t column = first.column * blocks;
    ptx::wait_for_previous_kernel();
    uint32_t remaining = whole ? (1u << turns) - 1 : 1u << only;  // a bit for every turn
    if (blockIdx.x < tiles.inner_across && down < tiles.inner_down) {
        if (whole)
            remaining = quantize_inner<turns>(source, output, scales, tiles, first.row, column);
        else
            remaining = quantize_inner<1>(source, output, scales, tiles, first.row + only * height, column)
                        << only;
    }
#pragma unroll 1
    for (int turn = 0; turn < turns && remaining != 0; turn++) {
        if ((remaining >> turn & 1) == 0) continue;
        const uint32_t row = first.row + turn * height;
        const bool valid = output.holds_elements(row, column);
        typename Source::Raw raw = {};
        if (valid) raw = source.fetch(source.at(row, column), column);
        Values values[blocks];
        source.make(raw, column, values);
#pragma unroll
        for (int i = 0; i < blocks; i++) {
            QuantizedBlock block;
            if (output.holds_elements(row, column + i)) block = quantize_block(values[i].value, scales(row));
            output.store(row, column + i, block);
        }
    }
}

template <typename Source>
__global__ void __launch_bounds__(tile_threads)
    quantize_dynamic(const __grid_constant__ Source source, const __grid_constant__ NvFp4Output output,
                     const __grid_constant__ DynamicScales dynamic, const __grid_constant__ Tiles tiles) {
    constexpr int blocks = Source::blocks;
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        for_each_block(tiles, [&](uint32_t row, uint32_t unit) {
            const uint32_t column = unit * blocks;
            const bool valid = output.holds_elements(row, column);
            typename Source::Raw raw = {};
            if (valid) raw = source.fetch(source.at(row, column), column);
            Values values[blocks];
            source.make(raw, column, values);
#pragma unroll
            for (int i = 0; i < blocks; i++) {
                if (pass == 0) {
                    add_amax(dynamic, row, valid,
                             values[i].amax <= FLT_MAX ? values[i].amax
                                                       : largest_finite_magnitude(values[i].value));
                } else {
                    QuantizedBlock block;
                    if (output.holds_elements(row, column + i))
                        block = quantize_block(values[i].value, found_encode_scale(dynamic, row));
                    output.store(row, column + i, block);
                }
            }
        });
        if (pass == 0) meet_all_blocks(dynamic.workspace);
    }
    finish_dynamic(dynamic);
}

template <typename Source>
int64_t units(const NvFp4Output& output) {
    return (int64_t(output.grid_columns) + Source::blocks - 1) / Source::blocks;
}

template <typename Source, int turns>
void launch_turns(const Source& source, const NvFp4Output& output, const QuantizeArgs& args,
                  const Launch& launch, Tiles tiles) {
    tiles.inner_down = output.rows / (turns * tiles.height());
    if (output.aligned)
        tiles.inner_across =
            std::min(output.columns, source.vector_columns()) / Source::blocks / tiles.width();
    launch_grid(quantize_given<Source, turns>, grid_of(tiles), tile_threads, 0, launch, source, output,
                EncodeScales{args.encode_scale, args.scale_per_row}, tiles);
}

// The scales of a tile's four rows a thread are equally far apart.
inline bool has_scales_step(ScaleLayout layout, uint32_t height) {
    return layout == ScaleLayout::tiled_8x4     ? height != 4
           : layout == ScaleLayout::tiled_128x4 ? height != 16
                                                : true;
}

// Four rows a thread where that leaves two CTAs for every multiprocessor, else one. Scales that are gathered
// want tiles that are narrow and high.
template <typename Source>
void launch_given(const Source& source, const QuantizeArgs& args, const Launch& launch,
                  const DeviceInfo& device) {
    const NvFp4Output output = output_of(args);
    const bool gather =
        output.layout == ScaleLayout::tiled_128x4 && is_aligned(output.scales, Source::blocks * 4);
    TileChoice choice{.rows_per_thread = 4};
    if (gather) choice.widest_log2 = 3;
    Tiles tiles = make_tiles(output.grid_rows, units<Source>(output), choice);
    if (!has_scales_step(output.layout, tiles.height())) {
        choice.widest_log2 = tiles.width_log2 - 1;
        tiles = make_tiles(output.grid_rows, units<Source>(output), choice);
    }
    tiles.gathers_scales = gather;
    // The tiles beyond the last wave in which every place for a CTA is taken are shared out finer.
    const int64_t places = int64_t(Source::ctas) * device.multiprocessors;
    if (tiles.count() > places) {
        const int64_t fine = tiles.count() % places;
        tiles.whole_down = tiles.down - uint32_t((fine + tiles.across - 1) / tiles.across);
    }
    if (tiles.count() >= 2 * device.multiprocessors)
        return launch_turns<Source, 4>(source, output, args, launch, tiles);
    tiles = make_tiles(output.grid_rows, units<Source>(output));
    if (tiles.rows == 0 || tiles.columns == 0) return;
    launch_turns<Source, 1>(source, output, args, launch, tiles);
}

template <typename Source>
void launch_dynamic(const Source& source, const QuantizeArgs& args, const Launch& launch,
                    const DeviceInfo& device) {
    const NvFp4Output output = output_of(args);
    const Tiles tiles = make_tiles(output.grid_rows, units<Source>(output));
    launch_cooperative(quantize_dynamic<Source>, tiles.count(), tile_threads, 0, launch, device, source,
                       output, dynamic_scales_of(args, launch), tiles);
}

}  // namespace halfbyte::cuda
