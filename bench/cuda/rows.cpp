#include "rows.h"

#include <cmath>
#include <stdexcept>

#include "verify.h"

namespace halfbyte::bench {
namespace {

using cuda::Kernels;

constexpr float G = 33.6f;         // 2688 / 80: the largest outliers reach 80
constexpr float product_G = 8.4f;  // 2688 / 320: of an outlier and an ordinary value
// Of buffers that rotate: more than L2 holds; or so few that all but the first launches find x there.
constexpr int64_t most_sets = 512, sets_in_l2 = 8;

const char* name_of_layout(ScaleLayout layout) {
    return layout == ScaleLayout::linear        ? "linear"
           : layout == ScaleLayout::tiled_128x4 ? "tiled_128x4"
                                                : "tiled_8x4";
}

// ---- The arguments.

QuantizeArgs add_result(Buffers& buffers, const NvFp4Shape& shape, DType type, bool dynamic = false,
                        float scale = G) {
    return {.x = {nullptr, type, shape.rows, shape.k, shape.k},
            .encode_scale = dynamic ? nullptr : buffers.value(scale),
            .dynamic_encode_scale = dynamic ? buffers.result() : nullptr,
            .dynamic_decode_scale = dynamic ? buffers.result() : nullptr,
            .shape = shape,
            .codes = buffers.codes(shape.padded_rows, shape.padded_k, true),
            .block_scales =
                buffers.scales(shape.layout, shape.padded_rows, shape.padded_blocks(), Content::poison)};
}

Make<QuantizeArgs> quantize(DType type, int64_t k, ScaleLayout layout, int64_t padded_k = 0,
                            bool dynamic = false) {
    return [=](Buffers& buffers, int64_t rows) {
        const ConstMatrix x = buffers.input(rows, k, type);
        NvFp4Shape shape = NvFp4Shape::of(rows, k, layout);
        if (padded_k > 0) shape.padded_k = padded_k;
        QuantizeArgs args = add_result(buffers, shape, type, dynamic);
        args.x = x;
        return args;
    };
}

BlockTransform add_transform(Buffers& buffers, int64_t n, bool hadamard, Accumulation accumulation) {
    const DType type = accumulation == Accumulation::tensor_core ? DType::bf16 : DType::f32;
    return {.n = n,
            .matrix = hadamard ? nullptr : buffers.constant(n * n, type),
            .matrix_type = type,
            .scale = float(1.0 / std::sqrt(double(n))),
            .accumulation = accumulation};
}

Make<TransformQuantizeArgs> transform_quantize(int64_t n, bool hadamard, Accumulation accumulation,
                                               ScaleLayout layout, int64_t k) {
    return [=](Buffers& buffers, int64_t rows) {
        return TransformQuantizeArgs{
            .x = buffers.input(rows, k, DType::bf16),
            .transform = add_transform(buffers, n, hadamard, accumulation),
            .quantize = add_result(buffers, NvFp4Shape::of(rows, k, layout), DType::f32)};
    };
}

Make<TransformArgs> transform(int64_t n, int64_t k) {
    return [=](Buffers& buffers, int64_t rows) {
        return TransformArgs{.x = buffers.input(rows, k, DType::bf16),
                             .transform = add_transform(buffers, n, true, Accumulation::contract),
                             .y = buffers.matrix(rows, k, DType::bf16)};
    };
}

Make<SiluMulQuantizeArgs> silu_mul_quantize(ScaleLayout layout, int64_t k) {
    return [=](Buffers& buffers, int64_t rows) {
        return SiluMulQuantizeArgs{
            .gate = buffers.input(rows, k, DType::bf16),
            .up = buffers.input(rows, k, DType::bf16),
            .quantize = add_result(buffers, NvFp4Shape::of(rows, k, layout), DType::bf16, false, product_G)};
    };
}

Make<RmsNormQuantizeArgs> rms_norm_quantize(bool residual, int64_t k) {
    return [=](Buffers& buffers, int64_t rows) {
        RmsNormQuantizeArgs args{.x = buffers.input(rows, k, DType::bf16)};
        if (residual) args.residual = buffers.matrix(rows, k, DType::bf16, true);
        args.weight = {buffers.constant(k, DType::bf16), DType::bf16, 1, k, k};
        args.epsilon = 1e-6f;
        args.quantize = add_result(buffers, NvFp4Shape::of(rows, k, ScaleLayout::tiled_128x4), DType::bf16,
                                   false, product_G);
        return args;
    };
}

AmaxArgs amax(Buffers& buffers, int64_t rows) {
    return {.x = buffers.input(rows, 8192, DType::bf16),
            .amax = buffers.result(),
            .encode_scale = buffers.result(),
            .decode_scale = buffers.result()};
}

DequantizeArgs dequantize(Buffers& buffers, int64_t rows) {
    const NvFp4Shape shape = NvFp4Shape::of(rows, 8192, ScaleLayout::tiled_128x4);
    return {.a = {buffers.codes(rows, shape.k, false),
                  buffers.scales(shape.layout, rows, shape.blocks(), Content::e4m3), shape},
            .decode_scale = buffers.value(1 / G),
            .y = buffers.matrix(rows, shape.k, DType::bf16)};
}

FakeQuantizeArgs fake_quantize(Buffers& buffers, int64_t rows) {
    return {.x = buffers.input(rows, 8192, DType::bf16),
            .encode_scale = buffers.value(G),
            .y = buffers.matrix(rows, 8192, DType::bf16)};
}

MxFp4QuantizeArgs mxfp4_quantize(Buffers& buffers, int64_t rows) {
    const MxFp4Shape shape = MxFp4Shape::of(rows, 8192, ScaleLayout::tiled_128x4);
    return {.x = buffers.input(rows, shape.k, DType::bf16),
            .shape = shape,
            .codes = buffers.codes(rows, shape.k, true),
            .block_scales = buffers.scales(shape.layout, rows, shape.blocks(), Content::poison)};
}

MxFp4DequantizeArgs mxfp4_dequantize(Buffers& buffers, int64_t rows) {
    const MxFp4Shape shape = MxFp4Shape::of(rows, 8192, ScaleLayout::tiled_128x4);
    return {.codes = buffers.codes(rows, shape.k, false),
            .block_scales = buffers.scales(shape.layout, rows, shape.blocks(), Content::e8m0),
            .shape = shape,
            .y = buffers.matrix(rows, shape.k, DType::bf16)};
}

ConvertScalesArgs convert_scales(Buffers& buffers, int64_t rows) {
    const NvFp4Shape shape = NvFp4Shape::of(rows, 8192);
    return {.shape = shape,
            .source = buffers.scales(shape.layout, rows, shape.blocks(), Content::e4m3),
            .layout = ScaleLayout::tiled_128x4,
            .target = buffers.scales(ScaleLayout::tiled_128x4, rows, shape.blocks(), Content::poison)};
}

// ---- Running them.

template <typename Args>
Work work_of(const Bench& bench, const cuda::Kernel<Args>& kernel, const Make<Args>& make, int64_t rows) {
    Work work;
    make(work.buffers, rows);
    work.launch = [&kernel, make, rows, info = bench.gpu.info()](uint8_t* set, const cuda::Launch& launch) {
        Buffers buffers(set);
        cuda::Launch named = launch;
        named.kernel = kernel.name;
        kernel.launch(make(buffers, rows), named, info);
    };
    return work;
}

// Calls f(kernel) for those that compute it; else says why each does not.
template <typename Args, typename Function>
std::vector<Outcome> for_kernels(const Bench& bench, cuda::KernelList<Args> list, const Make<Args>& make,
                                 int64_t rows, const Function& f) {
    std::vector<Outcome> outcomes;
    std::string reasons;
    Buffers buffers(bench.gpu.memory());
    const Args args = make(buffers, rows);
    for (const cuda::Kernel<Args>& kernel : list) {
        const std::string reason = kernel.unsupported_reason(args, bench.gpu.info());
        if (reason.empty())
            outcomes.push_back(f(kernel));
        else
            reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", kernel.name, reason);
    }
    if (outcomes.empty()) outcomes.push_back({.note = "no kernel (" + reasons + ")"});
    return outcomes;
}

template <typename Args>
Row row_of(const std::string& name, int64_t rows, int64_t k, double bytes_per_value, Unit unit, double limit,
           cuda::KernelList<Args> Kernels::* list, const std::type_identity_t<Make<Args>>& make,
           void (*reference)(const Args&)) {
    const auto run = [=](const Bench& bench) {
        const auto one = [&](const cuda::Kernel<Args>& kernel) {
            const Work work = work_of(bench, kernel, make, rows);
            const Verdict verdict = verify(bench.gpu, work, make, reference, rows);
            Outcome outcome{
                .kernel = std::string(kernel.name), .difference = verdict.difference, .note = verdict.note};
            if (!verdict.difference.empty()) return outcome;
            outcome.microseconds = bench.gpu.time(work, most_sets);
            if (unit == Unit::microseconds) {
                outcome.other_name = "x in L2";
                outcome.other_microseconds = bench.gpu.time(work, sets_in_l2);
            }
            return outcome;
        };
        return for_kernels(bench, bench.kernels.*list, make, rows, one);
    };
    return {name, rows, k, bytes_per_value, unit, limit, run};
}

// ---- Padding: one launch that pads, against quantising and copying into padded buffers afterwards.

constexpr ScaleLayout padded_layout = ScaleLayout::tiled_128x4;

struct Unfused {
    QuantizeArgs quantize;  // to K rounded up to 16
    uint8_t* codes;         // padded, as the scales
    uint8_t* block_scales;
    int64_t scale_tiles, padded_scale_tiles;  // of a row; of one number the quantiser writes the padded ones
};

Unfused make_unfused(Buffers& buffers, int64_t rows, int64_t k, int64_t padded_k) {
    const ConstMatrix x = buffers.input(rows, k, DType::bf16);
    const NvFp4Shape shape = NvFp4Shape::of(rows, k, padded_layout);
    Unfused unfused{.quantize = add_result(buffers, shape, DType::bf16),
                    .codes = buffers.codes(rows, padded_k, true),
                    .block_scales = buffers.scales(padded_layout, rows, padded_k / 16, Content::poison),
                    .scale_tiles = (shape.blocks() + 3) / 4,
                    .padded_scale_tiles = (padded_k / 16 + 3) / 4};
    unfused.quantize.x = x;
    if (unfused.scale_tiles == unfused.padded_scale_tiles)
        unfused.quantize.block_scales = unfused.block_scales;
    return unfused;
}

// The padding is written by the copy, or by a memset of the whole buffer before it.
Work unfused_work(const Bench& bench, const cuda::Kernel<QuantizeArgs>& kernel, int64_t rows, int64_t k,
                  int64_t padded_k, bool with_memset) {
    Work work;
    make_unfused(work.buffers, rows, k, padded_k);
    work.launch = [&kernel, rows, k, padded_k, with_memset, info = bench.gpu.info()](
                      uint8_t* set, const cuda::Launch& launch) {
        Buffers buffers(set);
        const Unfused unfused = make_unfused(buffers, rows, k, padded_k);
        kernel.launch(unfused.quantize, launch, info);
        const auto pad = [&](const uint8_t* source, int64_t source_bytes, uint8_t* target,
                             int64_t target_bytes, int64_t count) {
            if (with_memset)
                conformance::check_cuda(
                    cudaMemsetAsync(target, 0, size_t(count * target_bytes), launch.stream), "memset");
            copy_rows(launch.stream, source, source_bytes, target, target_bytes, count, !with_memset);
        };
        pad(unfused.quantize.codes, unfused.quantize.shape.padded_k / 2, unfused.codes, padded_k / 2, rows);
        if (unfused.quantize.block_scales != unfused.block_scales)
            pad(unfused.quantize.block_scales, unfused.scale_tiles * 512, unfused.block_scales,
                unfused.padded_scale_tiles * 512, round_up(rows, 128) / 128);
    };
    return work;
}

Row padding_row(int64_t rows, int64_t k, int64_t multiple) {
    const int64_t padded_k = round_up(k, multiple);
    const auto run = [=](const Bench& bench) {
        const Make<QuantizeArgs> make = quantize(DType::bf16, k, padded_layout, padded_k);
        const auto one = [&](const cuda::Kernel<QuantizeArgs>& kernel) {
            Gpu& gpu = bench.gpu;
            const NvFp4Shape shape{rows, k, rows, padded_k, padded_layout};
            const auto fetch = [&](const uint8_t* codes, const uint8_t* scales) {
                return std::pair(gpu.fetch(codes, shape.code_bytes()),
                                 gpu.fetch(scales, shape.scale_bytes()));
            };
            const Work fused = work_of(bench, kernel, make, rows);
            Outcome outcome{.kernel = std::string(kernel.name)};
            outcome.difference = verify(gpu, fused, make, reference::quantize, rows).difference;
            if (!outcome.difference.empty()) return outcome;
            Buffers fused_buffers(gpu.memory());
            const QuantizeArgs args = make(fused_buffers, rows);
            const auto expected = fetch(args.codes, args.block_scales);
            for (const bool with_memset : {false, true}) {
                const Work work = unfused_work(bench, kernel, rows, k, padded_k, with_memset);
                gpu.fill_set(work.buffers, gpu.memory());
                work.launch(gpu.memory(), gpu.launch());
                Buffers buffers(gpu.memory());
                const Unfused unfused = make_unfused(buffers, rows, k, padded_k);
                if (fetch(unfused.codes, unfused.block_scales) != expected) {
                    outcome.difference = "quantising and padding in two steps gives other bytes";
                    return outcome;
                }
                const double time = gpu.time(work, most_sets);
                if (with_memset && time >= outcome.other_microseconds) continue;
                outcome.other_microseconds = time;
                outcome.other_name = with_memset ? "quantise, memset, copy" : "quantise, copy";
            }
            outcome.microseconds = gpu.time(fused, most_sets);
            return outcome;
        };
        return for_kernels(bench, bench.kernels.quantize, make, rows, one);
    };
    const double padding = double(padded_k) / double(k);
    return {fmt::format("padding/to_{}", multiple),
            rows,
            k,
            2 + 0.5625 * padding,
            Unit::saving,
            rows >= 1024 ? 20.0 : 40.0,
            run};
}

}  // namespace

std::vector<Row> make_rows() {
    std::vector<Row> rows;
    const auto add = [&](Row row) { rows.push_back(std::move(row)); };
    const Unit terabytes = Unit::terabytes;
    const ScaleLayout linear = ScaleLayout::linear, tiled = ScaleLayout::tiled_128x4;

    for (const ScaleLayout layout : {linear, tiled, ScaleLayout::tiled_8x4})
        for (const int64_t m : {4096, 8192, 16384})
            add(row_of(fmt::format("quantize/{}/bf16", name_of_layout(layout)), m, 8192, 2.5625, terabytes,
                       3.65, &Kernels::quantize, quantize(DType::bf16, 8192, layout), reference::quantize));
    add(row_of("quantize/linear/f16", 8192, 8192, 2.5625, terabytes, 3.65, &Kernels::quantize,
               quantize(DType::f16, 8192, linear), reference::quantize));
    add(row_of("quantize/linear/f32", 8192, 8192, 4.5625, terabytes, 3.65, &Kernels::quantize,
               quantize(DType::f32, 8192, linear), reference::quantize));

    for (const ScaleLayout layout : {linear, tiled})
        for (const int64_t k : {4096, 8192, 28672})
            for (const int64_t m : {1, 8, 16, 64})
                if (k < 28672 || m == 1)
                    add(row_of(fmt::format("quantize_small/{}/bf16", name_of_layout(layout)), m, k, 2.5625,
                               Unit::microseconds, 2.0, &Kernels::quantize, quantize(DType::bf16, k, layout),
                               reference::quantize));

    for (const int64_t k : {48, 80, 464, 720, 7152, 1856, 2880})
        for (const int64_t m : {1, 16, 64, 1024, 8192})
            add(padding_row(m, k, k == 1856 || k == 2880 ? 128 : 32));

    const auto add_transform_quantize = [&](const std::string& name, int64_t n, bool hadamard,
                                            Accumulation accumulation, double limit) {
        for (const ScaleLayout layout : {linear, tiled})
            add(row_of(fmt::format("{}/{}/n{}", name, name_of_layout(layout), n), 8192, 8192, 2.5625,
                       terabytes, limit, &Kernels::transform_quantize,
                       transform_quantize(n, hadamard, accumulation, layout, 8192),
                       reference::transform_quantize));
    };
    struct Transform {
        int64_t n;
        double hadamard, contract, tensor_core;  // TB/s
    };
    const Transform transforms[] = {
        {16, 3.3, 2.2, 3.0}, {32, 3.3, 1.4, 3.0}, {64, 3.0, 0.85, 3.0}, {128, 3.0, 0.47, 2.6}};
    for (const Transform& t : transforms)
        add_transform_quantize("hadamard_quantize", t.n, true, Accumulation::contract, t.hadamard);
    for (const Transform& t : transforms)
        add(row_of(fmt::format("hadamard/n{}", t.n), 8192, 8192, 4, terabytes, 0, &Kernels::transform,
                   transform(t.n, 8192), reference::transform));
    for (const Transform& t : transforms)
        add_transform_quantize("matrix_quantize/contract", t.n, false, Accumulation::contract, t.contract);
    for (const Transform& t : transforms)
        add_transform_quantize("matrix_quantize/tensor_core", t.n, false, Accumulation::tensor_core,
                               t.tensor_core);

    for (const ScaleLayout layout : {linear, tiled})
        add(row_of(fmt::format("silu_mul_quantize/{}", name_of_layout(layout)), 8192, 8192, 4.5625, terabytes,
                   3.2, &Kernels::silu_mul_quantize, silu_mul_quantize(layout, 8192),
                   reference::silu_mul_quantize));
    for (const bool residual : {true, false})
        for (const int64_t k : {4096, 8192})
            add(row_of(residual ? "rms_norm_quantize/residual" : "rms_norm_quantize/plain", 8192, k,
                       residual ? 6.5625 : 2.5625, terabytes, residual ? 3.2 : 0.0,
                       &Kernels::rms_norm_quantize, rms_norm_quantize(residual, k),
                       reference::rms_norm_quantize));

    // x is read twice.
    for (const ScaleLayout layout : {linear, tiled})
        add(row_of(fmt::format("quantize_dynamic/{}", name_of_layout(layout)), 8192, 8192, 4.5625, terabytes,
                   0, &Kernels::quantize, quantize(DType::bf16, 8192, layout, 0, true), reference::quantize));
    add(row_of("amax", 8192, 8192, 2, terabytes, 0, &Kernels::amax, amax, reference::amax));
    add(row_of("dequantize/tiled_128x4", 8192, 8192, 2.5625, terabytes, 0, &Kernels::dequantize, dequantize,
               reference::dequantize));
    add(row_of("fake_quantize", 8192, 8192, 4, terabytes, 0, &Kernels::fake_quantize, fake_quantize,
               reference::fake_quantize));
    add(row_of("mxfp4_quantize/tiled_128x4", 8192, 8192, 2.53125, terabytes, 0, &Kernels::mxfp4_quantize,
               mxfp4_quantize, reference::mxfp4_quantize));
    add(row_of("mxfp4_dequantize/tiled_128x4", 8192, 8192, 2.53125, terabytes, 0, &Kernels::mxfp4_dequantize,
               mxfp4_dequantize, reference::mxfp4_dequantize));
    add(row_of("convert_scales/linear_to_128x4", 8192, 8192, 0.125, terabytes, 0, &Kernels::convert_scales,
               convert_scales, reference::convert_scales));
    return rows;
}

}  // namespace halfbyte::bench
