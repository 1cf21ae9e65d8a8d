// codes, block_scales = NVFP4(x'), x' = x T for every n elements of x [rows, k], on the matrix units: x and T
// BF16, sums in FP32 as those make them, not rounded before they are quantised.
// Accumulation::tensor_core: another arithmetic than the contract's, run only when asked for; its bits are
// those of the device.
//
// A CTA has 64 rows, 16 for each warp, and a group of 64 or 128 columns; T of n < 64 stands in the group's
// matrix as blocks on the diagonal. The order of k and of the columns is chosen so that lane q of the four
// that share a row reads whole blocks of 16 inputs and ends up with whole blocks of 16 outputs: k 2q, 2q+1,
// 2q+8, 2q+9 of k-tile t are the elements 16q + 4t .. + 3, and columns 2q, 2q+1 of column tile t are 16q +
// 2t, + 1. T lies in shared memory as wgmma reads it, which multiplies where all is ordinary; elsewhere, and
// on other architectures, mma.sync does, with the same layout of x and of the sums.
#include "cuda/device/elements_kernel.cuh"
#include "cuda/operations.h"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/transforms.h"

namespace halfbyte::cuda {
namespace {

constexpr int threads = 128, warps = threads / 32;
using Element = __nv_bfloat16;

struct Input {
    BlockMatrix<const Element> x;
    uint32_t rows, columns;  // of whole blocks
    const Element* matrix;   // [n, n]
    float scale;
};

template <int n>
struct Group {
    static constexpr int columns = n < 64 ? 64 : n;
    static constexpr int blocks = columns / block_elements;
    static constexpr int ctas = n == 64 ? 5 : 4;  // on a multiprocessor: as many as leave registers enough
    static constexpr int halves = columns / 64;   // of 64 columns: a lane has one block in each
    static constexpr int k_tiles = columns / 16;
    static constexpr int transforms = columns / n;  // in the group
    static constexpr size_t shared_bytes = size_t(columns) * columns * sizeof(Element);
};

// [k / 64][column][k % 64] in the order of tiles, the 16-byte parts of a row of 128 swizzled (ptx/wgmma.cuh).
extern __shared__ __align__(1024) uint8_t shared_matrix[];

// T[k][first..first + 7] of the group's matrix
template <int n>
__device__ __forceinline__ uint4 entries(const Element* matrix, bool aligned, int k, int first) {
    if (k / n != first / n) return make_uint4(0, 0, 0, 0);
    const Element* const source = matrix + k % n * n + first % n;
    if (aligned) return *reinterpret_cast<const uint4*>(source);
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        word[i] = reinterpret_cast<const uint16_t*>(source)[2 * i] |
                  uint32_t(reinterpret_cast<const uint16_t*>(source)[2 * i + 1]) << 16;
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Where word q of the 16-byte part `part` of 8 along k lies, in the row of column c of column tile t.
template <int n>
__device__ __forceinline__ uint32_t matrix_word(int part, int t, int c, int q) {
    return uint32_t(part / 8 * (Group<n>::columns * 128) + (t * 8 + c) * 128 + ((part % 8) ^ c) * 16 + q * 4);
}

template <int n>
__device__ void load_matrix(const Element* matrix) {
    using G = Group<n>;
    const bool aligned = reinterpret_cast<uintptr_t>(matrix) % 16 == 0;
    const int lane = int(threadIdx.x) % 32, eight = lane % 8, q = lane / 8;
    // A warp: 4 pairs of rows of T, 64 columns.
    for (int i = int(threadIdx.x) / 32; i < G::k_tiles * 2 * G::halves; i += warps) {
        const int half = i % G::halves, part = i / G::halves;
        const int k = part / 8 * 64 + q * 16 + part % 8 * 2, first = half * 64 + eight * 8;
        const uint4 low = entries<n>(matrix, aligned, k, first),
                    high = entries<n>(matrix, aligned, k + 1, first);
        const uint32_t lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int t = half * 8 + eight % 2 * 4 + j / 2, c = eight / 2 * 2 + j % 2;
            *reinterpret_cast<uint32_t*>(shared_matrix + matrix_word<n>(part, t, c, q)) =
                __byte_perm(lows[j / 2], highs[j / 2], j % 2 == 0 ? 0x5410 : 0x7632);
        }
    }
    ptx::fence_shared_for_wgmma();
    __syncthreads();
}

// The blocks of this lane's two rows in one half of the group's columns, 0 beyond the matrix.
using Outputs = float[2][block_elements];

__device__ __forceinline__ void outputs_of(const float (&sums)[32], Outputs& outputs) {
#pragma unroll
    for (int tile = 0; tile < 8; tile++) {
        outputs[0][2 * tile] = sums[4 * tile];
        outputs[0][2 * tile + 1] = sums[4 * tile + 1];
        outputs[1][2 * tile] = sums[4 * tile + 2];
        outputs[1][2 * tile + 1] = sums[4 * tile + 3];
    }
}

// a[t]: fragments of k-tile t. Every warp by itself.
template <int n>
__device__ __forceinline__ void multiply(const uint32_t (&a)[Group<n>::k_tiles][4], int half,
                                         Outputs& outputs) {
    const int lane = int(threadIdx.x) % 32, c = lane / 4, q = lane % 4;
    const auto word = [&](int part, int t) {
        return *reinterpret_cast<const uint32_t*>(shared_matrix + matrix_word<n>(part, half * 8 + t, c, q));
    };
    float sums[8][4] = {};
#pragma unroll
    for (int tile = 0; tile < Group<n>::k_tiles; tile++)
#pragma unroll
        for (int t = 0; t < 8; t++)
            ptx::mma_bf16_16x8x16(sums[t], a[tile], word(2 * tile, t), word(2 * tile + 1, t));
    float flat[32];
#pragma unroll
    for (int i = 0; i < 32; i++) flat[i] = sums[i / 4][i % 4];
    outputs_of(flat, outputs);
}

// The same for the four warps of a CTA together, a step of each.
template <int n>
__device__ __forceinline__ void multiply_together(const uint32_t (&a)[Group<n>::k_tiles][4], int half,
                                                  Outputs& outputs) {
    if constexpr (ptx::has_wgmma) {
        const uint32_t matrix = uint32_t(__cvta_generic_to_shared(shared_matrix)) / 16 + half * 512;
        float sums[32];
        ptx::wgmma_fence();
#pragma unroll
        for (int tile = 0; tile < Group<n>::k_tiles; tile++)
            ptx::wgmma_bf16(sums, a[tile],
                            ptx::wgmma_descriptor(matrix + tile / 4 * (Group<n>::columns * 8) + tile % 4 * 2),
                            tile > 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::keep_registers(sums);
        outputs_of(sums, outputs);
    } else {
        multiply<n>(a, half, outputs);
    }
}

__device__ __forceinline__ bool is_finite(const Block<Element>& block) {
    return largest_magnitude_or_nan(block) <= FLT_MAX;
}

// The blocks of a warp's lane in a group: rows lane / 4 and + 8, column lane % 4 of each half.
template <int n>
struct GroupBlocks {
    Block<Element> block[Group<n>::halves][2];

    // The fragments of the k-tiles.
    __device__ __forceinline__ void fragments_of(uint32_t (&a)[Group<n>::k_tiles][4]) const {
#pragma unroll
        for (int tile = 0; tile < Group<n>::k_tiles; tile++) {
            const Block<Element>(&own)[2] = block[tile / 4];
            a[tile][0] = own[0].word[tile % 4 * 2];
            a[tile][1] = own[1].word[tile % 4 * 2];
            a[tile][2] = own[0].word[tile % 4 * 2 + 1];
            a[tile][3] = own[1].word[tile % 4 * 2 + 1];
        }
    }
};

// Groups of 64 rows in the order in which CTAs take them, along a row of groups first; a step is kept as rows
// and columns.
template <int n>
struct GroupWalk {
    uint32_t across, down, step_across, step_down;
    uint32_t group, row_tile;  // of 64 rows

    __device__ GroupWalk(uint32_t grid_rows, uint32_t grid_columns)
        : across(max(1u, (grid_columns + Group<n>::blocks - 1) / Group<n>::blocks)),
          down(grid_columns == 0 ? 0 : (grid_rows + 63) / 64) {
        step_across = gridDim.x % across, step_down = gridDim.x / across;
        group = blockIdx.x % across, row_tile = blockIdx.x / across;
    }
    __device__ bool done() const { return row_tile >= down; }
    __device__ void advance() {
        row_tile += step_down;
        group += step_across;
        if (group >= across) group -= across, row_tile++;
    }
    __device__ uint32_t row() const { return row_tile * 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
    __device__ uint32_t column(int half) const {
        return group * Group<n>::blocks + half * 4 + threadIdx.x % 4;
    }
};

// body(row, column, values, mine) for every block of a group, those without elements included, once with mine
// = true; all threads of a warp together.
//
// An infinity or NaN times a zero of the group's matrix is NaN and would reach the other transforms of the
// group. So where there is one, each transform is computed by itself, with zeros for the others' inputs.
template <int n, typename Body>
__device__ void transform_group(const Input& input, const GroupWalk<n>& at, const Body& body) {
    using G = Group<n>;
    const int own = int(threadIdx.x) % 4 * block_elements / n;
#pragma unroll 1
    for (int only = G::transforms == 1 ? 0 : -1; only < G::transforms; only++) {
        const bool mine = G::transforms == 1 || only < 0 || only == own;
        GroupBlocks<n> blocks = {};
        bool finite = true;
#pragma unroll
        for (int half = 0; half < G::halves; half++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (mine && at.row() + 8 * i < input.rows && at.column(half) < input.columns)
                    blocks.block[half][i] = input.x.load(at.row() + 8 * i, at.column(half));
                if (G::transforms > 1) finite = finite && is_finite(blocks.block[half][i]);
            }
        const bool together = G::transforms > 1 && only < 0 && __all_sync(~0u, finite);
        if (G::transforms > 1 && only < 0 && !together) continue;
        uint32_t a[G::k_tiles][4];
        blocks.fragments_of(a);
#pragma unroll
        for (int half = 0; half < G::halves; half++) {
            Outputs outputs;
            multiply<n>(a, half, outputs);
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int j = 0; j < block_elements; j++) outputs[i][j] *= input.scale;
                body(at.row() + 8 * i, at.column(half), outputs[i], mine);
            }
        }
        if (together) return;
    }
}

template <int n, typename Body>
__device__ void for_each_transformed_block(const Input& input, uint32_t grid_rows, uint32_t grid_columns,
                                           const Body& body) {
    for (GroupWalk<n> at(grid_rows, grid_columns); !at.done(); at.advance())
        transform_group<n>(input, at, body);
}

// Groups that are whole, aligned and ordinary (device/block.cuh) take a short way, on which the next group's
// inputs are fetched before this one's are used. The warps of a CTA multiply together; one whose 16 rows are
// not whole takes the long way after that.
template <int n>
__global__ void __launch_bounds__(threads, Group<n>::ctas)
    matrix_quantize_tensor_core(const __grid_constant__ Input input,
                                const __grid_constant__ NvFp4Output output,
                                const __grid_constant__ EncodeScales scales) {
    using G = Group<n>;
    ptx::wait_for_previous_kernel();
    load_matrix<n>(input.matrix);
    const uint32_t inner_rows = output.rows / 16;
    // The short way has 32 bits for steps in codes and scales and wants scale > 0.
    const bool short_way = output.aligned && output.padded_columns < 1u << 24 && input.scale > 0.0f;
    const uint32_t inner_groups = short_way ? input.x.vector_columns / G::blocks : 0;
    const auto is_inner = [&](const GroupWalk<n>& at) {  // for this warp
        return at.row_tile * warps + threadIdx.x / 32 < inner_rows && at.group < inner_groups;
    };
    const int64_t x_step = 8 * input.x.stride;
    const auto fetch = [&](const GroupWalk<n>& at, GroupBlocks<n>& blocks) {
        const Element* const x = input.x.at(at.row(), at.column(0));
#pragma unroll
        for (int half = 0; half < G::halves; half++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                blocks.block[half][i] = load_vector<Reuse::none, Element>(x + i * x_step + half * 64);
    };
    // From a lane's first row to its second, and from one half to the next.
    const uint32_t codes_step = output.padded_columns * 64;
    const uint32_t scales_step = uint32_t(output.scale_of(8, 0) - output.scales);
    const uint32_t scales_half = uint32_t(output.scale_of(0, 4) - output.scales);
    GroupWalk<n> at(output.grid_rows, output.grid_columns);
    GroupBlocks<n> next = {};
    if (!at.done() && is_inner(at)) fetch(at, next);
    while (!at.done()) {
        const GroupWalk<n> here = at;
        uint32_t a[G::k_tiles][4];
        next.fragments_of(a);
        at.advance();
        if (!at.done() && is_inner(at)) fetch(at, next);
        bool all_ordinary = is_inner(here);
        if (here.group < inner_groups) {
            uint8_t* const codes = output.codes_of(here.row(), here.column(0));
            uint8_t* const own_scales = output.scale_of(here.row(), here.column(0));
#pragma unroll
            for (int half = 0; half < G::halves; half++) {
                Outputs outputs;
                multiply_together<n>(a, half, outputs);
                if (!is_inner(here)) continue;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    bool ordinary;
                    const QuantizedBlock made = quantize_ordinary_block(
                        scaled_ordinary(outputs[i], input.scale), scales(here.row() + 8 * i), ordinary);
                    all_ordinary = all_ordinary && ordinary;
                    ptx::store_streaming(reinterpret_cast<uint2*>(codes + i * codes_step + half * 32),
                                         made.codes);
                    own_scales[i * scales_step + half * scales_half] = uint8_t(made.scale);
                }
            }
        }
        if (__all_sync(~0u, all_ordinary)) continue;
        transform_group<n>(
            input, here, [&](uint32_t row, uint32_t column, const float(&values)[block_elements], bool mine) {
                QuantizedBlock block;
                if (output.holds_elements(row, column)) block = quantize_block(values, scales(row));
                if (mine) output.store(row, column, block);
            });
    }
}

template <int n>
__global__ void __launch_bounds__(threads, 4)
    matrix_quantize_tensor_core_dynamic(const __grid_constant__ Input input,
                                        const __grid_constant__ NvFp4Output output,
                                        const __grid_constant__ DynamicScales dynamic) {
    load_matrix<n>(input.matrix);
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        for_each_transformed_block<n>(
            input, output.grid_rows, output.grid_columns,
            [&](uint32_t row, uint32_t column, const float(&values)[block_elements], bool mine) {
                if (pass == 0)
                    add_amax(dynamic, row, mine && output.holds_elements(row, column),
                             largest_finite_magnitude(values));
                else if (mine)
                    store_quantized(
                        output, row, column, values,
                        output.holds_elements(row, column) ? found_encode_scale(dynamic, row) : 1.0f);
            });
        if (pass == 0) meet_all_blocks(dynamic.workspace);
    }
    finish_dynamic(dynamic);
}

template <int n>
__global__ void __launch_bounds__(threads)
    matrix_tensor_core(const __grid_constant__ Input input, const __grid_constant__ ElementOutput output) {
    ptx::wait_for_previous_kernel();
    load_matrix<n>(input.matrix);
    for_each_transformed_block<n>(
        input, input.rows, input.columns,
        [&](uint32_t row, uint32_t column, const float(&values)[block_elements], bool mine) {
            if (mine && row < input.rows && column < input.columns) output.store(row, column, values);
        });
}

Input input_of(const ConstMatrix& x, const BlockTransform& transform) {
    return {blocks_of<const Element>(x), uint32_t(x.rows), uint32_t(x.cols / block_elements),
            static_cast<const Element*>(transform.matrix), transform.scale};
}

template <int n>
int64_t ctas(int64_t grid_rows, int64_t grid_columns) {
    return (grid_rows + 63) / 64 * ((grid_columns + Group<n>::blocks - 1) / Group<n>::blocks);
}

void launch_with_given_scales(const TransformQuantizeArgs& args, const Launch& launch,
                              const DeviceInfo& device) {
    const NvFp4Output output = output_of(args.quantize);
    with_transform_size(args.transform.n, [&](auto n) {
        const int64_t count = ctas<n>(output.grid_rows, output.grid_columns);
        if (count == 0) return;
        launch_resident(matrix_quantize_tensor_core<n>, count, threads, Group<n>::shared_bytes, launch,
                        device, input_of(args.x, args.transform), output,
                        EncodeScales{args.quantize.encode_scale, args.quantize.scale_per_row});
    });
}

void launch_with_dynamic_scales(const TransformQuantizeArgs& args, const Launch& launch,
                                const DeviceInfo& device) {
    const NvFp4Output output = output_of(args.quantize);
    with_transform_size(args.transform.n, [&](auto n) {
        launch_cooperative(matrix_quantize_tensor_core_dynamic<n>,
                           ctas<n>(output.grid_rows, output.grid_columns), threads, Group<n>::shared_bytes,
                           launch, device, input_of(args.x, args.transform), output,
                           dynamic_scales_of(args.quantize, launch));
    });
}

void launch_transform(const TransformArgs& args, const Launch& launch, const DeviceInfo& device) {
    with_transform_size(args.transform.n, [&](auto n) {
        const int64_t count = ctas<n>(args.x.rows, args.x.cols / block_elements);
        if (count == 0) return;
        launch_resident(matrix_tensor_core<n>, count, threads, Group<n>::shared_bytes, launch, device,
                        input_of(args.x, args.transform), element_output_of(args.y));
    });
}

std::string tensor_core_reason(const ConstMatrix& x, const BlockTransform& transform) {
    if (transform.matrix == nullptr) return "the transform is Hadamard, not a given matrix";
    if (transform.accumulation != Accumulation::tensor_core)
        return "its sums are the matrix unit's; the contract's are asked for";
    if (x.type != DType::bf16)
        return "x is " + std::string(name_of(x.type)) + "; the matrix unit takes BF16 here";
    if (transform.matrix_type != DType::bf16)
        return "the matrix is " + std::string(name_of(transform.matrix_type)) +
               "; the matrix unit takes BF16 here";
    return "";
}

}  // namespace

const Kernel<TransformQuantizeArgs> kernel::matrix_quantize_tensor_core = {
    "matrix_quantize_tensor_core",
    [](const TransformQuantizeArgs& args, const DeviceInfo&) {
        return first_reason(tensor_core_reason(args.x, args.transform), given_scales_reason(args.quantize));
    },
    launch_with_given_scales};
const Kernel<TransformQuantizeArgs> kernel::matrix_quantize_tensor_core_dynamic = {
    "matrix_quantize_tensor_core_dynamic",
    [](const TransformQuantizeArgs& args, const DeviceInfo&) {
        return first_reason(tensor_core_reason(args.x, args.transform), dynamic_scales_reason(args.quantize));
    },
    launch_with_dynamic_scales};
const Kernel<TransformArgs> kernel::matrix_tensor_core = {
    "matrix_tensor_core",
    [](const TransformArgs& args, const DeviceInfo&) { return tensor_core_reason(args.x, args.transform); },
    launch_transform};

}  // namespace halfbyte::cuda
