// How the 16-element blocks of a matrix are shared out: a thread has one block; the 256 threads of a CTA form
// a tile of `width` neighbouring blocks of 256 / width rows, width a power of two, so that 32 threads read
// whole 128-byte lines and no thread divides.
#pragma once

#include <algorithm>
#include <cstdint>

namespace halfbyte::cuda {

inline constexpr int tile_threads = 256;

struct Tiles {
    uint32_t rows = 0, columns = 0;  // of blocks, padding included
    uint32_t width_log2 = 0;
    uint32_t across = 0, down = 0;  // tiles
    uint32_t rows_per_thread = 1;   // a tile's height apart
    bool gathers_scales = false;    // output.cuh, store_scales_of_4_rows
    uint32_t whole_down = ~0u;      // tile rows of one CTA a tile; below, it has one for each row of a thread
    uint32_t inner_across = 0, inner_down = 0;  // the tiles that need no care, counted from the first

    __host__ __device__ uint32_t width() const { return 1u << width_log2; }
    __host__ __device__ uint32_t height() const { return tile_threads >> width_log2; }
    __host__ __device__ int64_t count() const { return int64_t(across) * down; }
    uint32_t ctas_down() const {
        const uint32_t whole = std::min(whole_down, down);
        return whole + (down - whole) * rows_per_thread;
    }
};

struct TileChoice {
    int64_t threads = tile_threads;
    int64_t rows_per_thread = 1;  // how many rows, a tile's height apart, a thread has
    uint32_t widest_log2 = 8;
};

// The widest tile that wastes at most 1/16 of its threads at the right edge, or else wastes least; not below
// 8, which the lanes of the largest fused transform need.
inline Tiles make_tiles(int64_t rows, int64_t columns, const TileChoice& choice = {}) {
    Tiles tiles{uint32_t(rows), uint32_t(columns), 3};
    int64_t least = INT64_MAX;
    for (uint32_t width_log2 = choice.widest_log2; width_log2 >= 3; width_log2--) {
        const int64_t width = int64_t(1) << width_log2;
        const int64_t covered = (columns + width - 1) / width * width;
        if (covered >= least) continue;
        least = covered;
        tiles.width_log2 = width_log2;
        if (covered - columns <= columns / 16) break;
    }
    const int64_t height = (choice.threads >> tiles.width_log2) * choice.rows_per_thread;
    tiles.rows_per_thread = uint32_t(choice.rows_per_thread);
    tiles.across = uint32_t((columns + (int64_t(1) << tiles.width_log2) - 1) >> tiles.width_log2);
    tiles.down = uint32_t((rows + height - 1) / height);
    return tiles;
}

// A grid of ctas_down() rows of CTAs. A grid has at most 65,535 rows of CTAs: beyond, it has layers.
inline dim3 grid_of(const Tiles& tiles) {
    const uint32_t down = tiles.ctas_down(), layers = (down + 65534) / 65535;
    return dim3(tiles.across, layers <= 1 ? down : 65535, std::max(layers, 1u));
}

struct Position {
    uint32_t row, column;  // may lie beyond the tiles' rows and columns
};

// This thread's first block of tile (across, down).
__device__ __forceinline__ Position position_in(const Tiles& tiles, uint32_t across, uint32_t down) {
    return {down * tiles.height() * tiles.rows_per_thread + (threadIdx.x >> tiles.width_log2),
            (across << tiles.width_log2) + (threadIdx.x & (tiles.width() - 1))};
}
__device__ __forceinline__ uint32_t own_down() {
    return blockIdx.z * gridDim.y + blockIdx.y;
}
__device__ __forceinline__ Position own_position(const Tiles& tiles) {
    return position_in(tiles, blockIdx.x, own_down());
}

// body(row, column) for each of this thread's blocks, in a one-dimensional grid of any size; positions beyond
// the tiles' rows and columns included, so that all threads of a warp take every step together.
template <typename Body>
__device__ __forceinline__ void for_each_block(const Tiles& tiles, const Body& body) {
    const uint64_t count = uint64_t(tiles.across) * tiles.down;
    for (uint64_t tile = blockIdx.x; tile < count; tile += gridDim.x) {
        const Position at = position_in(tiles, uint32_t(tile % tiles.across), uint32_t(tile / tiles.across));
        body(at.row, at.column);
    }
}

}  // namespace halfbyte::cuda
