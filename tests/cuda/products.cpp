#include "cuda/products.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/element.h"
#include "cuda/matmul_scratch.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "reference/reference.h"

namespace halfbyte::conformance {
namespace {

constexpr int64_t chain = cuda::matmul_chain_k;

// code * SF, exact, at k * n + column.
std::vector<float> values_of(const cuda::PackedWeight& w) {
    const NvFp4Shape shape = NvFp4Shape::of(w.n, w.k);
    std::vector<uint8_t> codes(size_t(shape.code_bytes())), scales(size_t(shape.scale_bytes()));
    reference::unpack_weight({w, codes.data(), scales.data()});
    std::vector<float> values(size_t(w.n * w.k));
    for (int64_t row = 0; row < w.n; row++)
        for (int64_t k = 0; k < w.k; k++)
            values[size_t(k * w.n + row)] =
                decode_e2m1(codes[size_t(row * (shape.padded_k / 2) + k / 2)] >> (k % 2 * 4) & 15) *
                decode_e4m3(scales[size_t(row * shape.blocks() + k / 16)]);
    return values;
}

// What the two products take as activations: [m, k], exact in FP32; and alpha.
std::vector<float> activations_of(const cuda::MatmulW4A16Args& args) {
    std::vector<float> x;
    for (int64_t row = 0; row < args.x.rows; row++)
        for (int64_t k = 0; k < args.x.cols; k++)
            x.push_back(load_element(args.x.data, args.x.type, row * args.x.stride + k));
    return x;
}
std::vector<float> activations_of(const cuda::MatmulW4A4Args& args) {
    const int64_t m = args.d.rows, k = args.w.k;
    const NvFp4Shape shape = NvFp4Shape::of(m, k);
    std::vector<uint8_t> codes(size_t(shape.code_bytes())), scales(size_t(shape.scale_bytes()));
    NvFp4View a = args.a;
    if (args.encode_scale != nullptr) {
        reference::quantize({.x = args.x,
                             .encode_scale = args.encode_scale,
                             .scale_per_row = args.encode_scale_per_row,
                             .shape = shape,
                             .codes = codes.data(),
                             .block_scales = scales.data()});
        a = {codes.data(), scales.data(), shape};
    }
    const float one = 1.0f;
    std::vector<float> x(size_t(m * k));
    reference::dequantize({.a = a, .decode_scale = &one, .y = {x.data(), DType::f32, m, k, k}});
    return x;
}
float alpha_of(const cuda::MatmulW4A16Args& args, int64_t, int64_t column) {
    return args.column_decode[column];
}
float alpha_of(const cuda::MatmulW4A4Args& args, int64_t row, int64_t column) {
    if (args.row_decode == nullptr) return args.column_decode[column];
    return args.row_decode[args.row_decode_per_row ? row : 0] * args.column_decode[column];
}

template <typename Args>
float with_epilogue(const Args& args, float sum, int64_t row, int64_t column) {
    float d = sum * alpha_of(args, row, column);
    if (args.bias != nullptr) d += load_element(args.bias, args.bias_type, column);
    return round_to_type(d, args.d.type);
}

// Where an element of d may lie if a matrix unit makes acc ~ sum_k x w, w = code * SF: the products of x with
// w are exact. A step adds m >= 4 products and the sum so far and loses, by aligning to the largest term and
// by cutting off, at most m + 1 times 2^-23 A, A = sum_k |x w| (special.cpp tells it at length). W4A16 has
// chains of L = min(K, 1024) products, all else one of L = K. A chain has L / m steps, so L + L/4 losses at
// most of its part of A; the additions of the chains lose ceil(K / 1024) times 2^-24 A at most:
//   |acc - S| <= gamma(L + L/4 + ceil(K / 1024)) A,  gamma(p) = p u / (1 - p u), u = 2^-23.
// cuBLASLt adds in an order of its own, at most K additions one after the other, each of which loses less
// than that. Everything that follows is monotone in acc. Sums of small whole numbers are exact: the error is
// 0 then.
struct Bounds {
    float low, high;  // both NaN: NaN
};
template <typename Args>
std::vector<Bounds> bounds_of(const Args& args, bool exact) {
    const int64_t m = args.d.rows, n = args.w.n, k = args.w.k;
    const std::vector<float> w = values_of(args.w), x = activations_of(args);
    const bool chains =
        std::is_same_v<Args, cuda::MatmulW4A16Args> && args.accumulation == Accumulation::tensor_core;
    const double length = double(chains ? std::min(k, chain) : k);
    const int64_t chain_count = (k + chain - 1) / chain;
    const double losses = exact ? 0 : length * 1.25 + double(chain_count);
    const double gamma = losses * 0x1p-23 / (1 - losses * 0x1p-23);
    std::vector<Bounds> all;
    std::vector<double> sum(static_cast<size_t>(n)), magnitude(static_cast<size_t>(n));
    for (int64_t row = 0; row < m; row++) {
        std::fill(sum.begin(), sum.end(), 0.0);
        std::fill(magnitude.begin(), magnitude.end(), 0.0);
        for (int64_t i = 0; i < k; i++)
            for (int64_t column = 0; column < n; column++) {
                const double product = double(x[size_t(row * k + i)]) * double(w[size_t(i * n + column)]);
                sum[size_t(column)] += product, magnitude[size_t(column)] += std::fabs(product);
            }
        for (int64_t column = 0; column < n; column++) {
            const double S = sum[size_t(column)], error = gamma * magnitude[size_t(column)];
            float low = float(S), high = float(S);
            if (std::isfinite(S) && error > 0) {
                low = std::nextafter(float(S - error), -INFINITY);
                high = std::nextafter(float(S + error), INFINITY);
            }
            const float one = with_epilogue(args, low, row, column);
            const float other = with_epilogue(args, high, row, column);
            const bool ordered = std::isnan(one) || one <= other;
            all.push_back(ordered ? Bounds{one, other} : Bounds{other, one});
        }
    }
    return all;
}

// d of both kinds lies in a region of this name.
const Region& region_of_d(const Image& image) {
    return *std::find_if(image.regions.begin(), image.regions.end(),
                         [](const Region& region) { return region.name == "d"; });
}

std::string check_bounds(const Image& image, const std::vector<Bounds>& bounds,
                         const std::vector<uint8_t>& given) {
    const Region& d = region_of_d(image);
    for (int64_t row = 0; row < d.rows; row++)
        for (int64_t column = 0; column < d.cols; column++) {
            const auto [low, high] = bounds[size_t(row * d.cols + column)];
            const float value = load_element(given.data() + d.offset, d.type, row * d.stride + column);
            const bool right = std::isnan(low) ? std::isnan(value) : value >= low && value <= high;
            if (!right)
                return fmt::format("d (row {}, column {}): expected {} to {}, given {}", row, column, low,
                                   high, value);
        }
    // All else is as it was: with the results taken from `expected`.
    std::vector<uint8_t> expected = image.bytes;
    const size_t size = size_of(d.type);
    for (int64_t row = 0; row < d.rows && d.cols > 0; row++)
        std::memcpy(expected.data() + size_t(d.offset) + size_t(row * d.stride) * size,
                    given.data() + size_t(d.offset) + size_t(row * d.stride) * size, size_t(d.cols) * size);
    return image.first_difference(expected, given);
}

// The arguments for `count` rows from `first` on; a and its scales are linear.
template <typename Args>
Args slice(Args args, int64_t first, int64_t count) {
    const auto cut = [&](auto& matrix) {
        using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(matrix.data)>>,
                                        const uint8_t, uint8_t>;
        if (matrix.data != nullptr)
            matrix.data =
                static_cast<Byte*>(matrix.data) + first * matrix.stride * int64_t(size_of(matrix.type));
        matrix.rows = count;
    };
    cut(args.d), cut(args.x);
    if constexpr (std::is_same_v<Args, cuda::MatmulW4A4Args>) {
        if (args.encode_scale == nullptr) {
            NvFp4View& a = args.a;
            a.codes += first * (a.shape.padded_k / 2);
            a.block_scales += first * a.shape.padded_blocks();
            a.shape.rows = a.shape.padded_rows = count;
            args.x = {};
        } else if (args.encode_scale_per_row) {
            args.encode_scale += first;
        }
        if (args.row_decode != nullptr && args.row_decode_per_row) args.row_decode += first;
    }
    return args;
}

struct Size {
    int64_t m, n, k;
};

template <typename Args>
Case product_case(const char* group, const Size& size, uint64_t seed) {
    Case c{.group = group, .seed = seed, .rows = size.m, .k = size.k, .G = 37.5f};
    c.columns = size.n;
    c.type = seed % 2 == 0 ? DType::bf16 : DType::f16;
    c.other_type = seed % 3 == 0 ? DType::f32 : seed % 3 == 1 ? DType::bf16 : DType::f16;
    c.scales = seed % 4 < 2 ? Scales::per_row : Scales::one;
    c.on_the_way = std::is_same_v<Args, cuda::MatmulW4A4Args> && seed % 5 < 2;
    c.special_weight = seed % 7 == 0;
    return c;
}

}  // namespace

void host_matmul_w4a16(const cuda::MatmulW4A16Args& args) {
    const int64_t n = args.w.n, k = args.w.k;
    const std::vector<float> w = values_of(args.w);
    std::vector<float> accumulator(static_cast<size_t>(n)), sum(static_cast<size_t>(n));
    for (int64_t m = 0; m < args.d.rows; m++) {
        std::fill(accumulator.begin(), accumulator.end(), 0.0f);
        for (int64_t first = 0; first < k; first += chain) {
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (int64_t i = first; i < std::min(first + chain, k); i++) {
                const float x = load_element(args.x.data, args.x.type, m * args.x.stride + i);
                for (int64_t column = 0; column < n; column++)
                    sum[size_t(column)] += x * w[size_t(i * n + column)];
            }
            for (int64_t column = 0; column < n; column++) accumulator[size_t(column)] += sum[size_t(column)];
        }
        for (int64_t column = 0; column < n; column++)
            store_element(args.d.data, args.d.type, m * args.d.stride + column,
                          with_epilogue(args, accumulator[size_t(column)], m, column));
    }
}

template <typename Args>
void compare_with_bound(const Operation<Args>& operation, const Case& c, Device& device, Report& report) {
    bool wanted = !report.filtered();
    for (const auto& kernel : operation.kernels) wanted |= report.wants(operation.name, kernel.name, c.group);
    if (!wanted) return;
    const FloatEnvironment environment;
    const Problem<Args> problem = operation.make(c);
    std::vector<uint8_t> image = problem.image.bytes;
    const std::vector<Bounds> bounds = bounds_of(problem.args(image.data()), c.values == Values::integers);
    const bool computed =
        for_each_kernel(operation, problem, c, device, report, [&](const auto& kernel, const Args& args) {
            std::vector<uint8_t> first;
            std::string difference;
            for (const auto& [info, name] : variants_of(kernel, args, device.info())) {
                if (!first.empty()) device.load(problem.image.bytes);
                device.launch(problem.workspace_bytes, launch_of(kernel, args, info), problem.scratch_bytes);
                const std::vector<uint8_t> given = device.fetch();
                difference = check_bounds(problem.image, bounds, given);
                if (difference.empty() && !first.empty())
                    difference = problem.image.first_difference(first, given);
                if (difference.empty() && !device.workspace_is_zero(problem.workspace_bytes))
                    difference = "the workspace is not zero afterwards";
                first = given;
                if (difference.empty()) continue;
                difference += name;
                break;
            }
            return difference;
        });
    // W4A16 by the matrix unit is what every device has; other arithmetics are extras.
    const bool promised =
        std::is_same_v<Args, cuda::MatmulW4A16Args> && c.accumulation != Accumulation::library;
    if (!computed && promised && !report.filtered())
        report.add(operation.name, "(none)", c.group, 0, "no kernel computes the problem: " + c.describe());
}
template void compare_with_bound(const Operation<cuda::MatmulW4A4Args>&, const Case&, Device&, Report&);
template void compare_with_bound(const Operation<cuda::MatmulW4A16Args>&, const Case&, Device&, Report&);

template <typename Args>
void check_batches(const Operation<Args>& operation, Device& device, Report& report, uint64_t seed,
                   bool quick) {
    constexpr int64_t counts[] = {1, 2, 3, 5, 8, 15, 16, 17, 33, 64, 65, 100, 128, 129, 257};
    const FloatEnvironment environment;
    for (const Size& size : {Size{257, 100, 1040},
                             {257, 129, 80},
                             {257, 256, 4096},
                             {257, 1000, 2048},
                             {257, 33, 17},
                             {257, 16, 8192},
                             {300, 528, 1024},
                             {1030, 129, 1040}}) {
        if (quick && size.n * size.k > 200000) continue;
        const Case c = product_case<Args>("batches", size, ++seed);
        const Problem<Args> problem = operation.make(c);
        const Region& d = region_of_d(problem.image);
        const int64_t row_bytes = d.stride * int64_t(size_of(d.type));
        std::vector<uint8_t> whole;  // what the first kernel made of all rows
        for_each_kernel(operation, problem, c, device, report, [&](const auto& kernel, const Args& args) {
            const auto run = [&](int64_t first, int64_t count) {
                uint8_t* const base = device.load(problem.image.bytes);
                const Args part = slice(problem.args(base), first, count);
                if (!kernel.unsupported_reason(part, device.info()).empty()) return std::vector<uint8_t>();
                device.launch(problem.workspace_bytes, launch_of(kernel, part, device.info()),
                              problem.scratch_bytes);
                return device.fetch();
            };
            (void)args;
            if (whole.empty()) whole = run(0, d.rows);
            const auto difference_of = [&](int64_t first, int64_t count) -> std::string {
                const std::vector<uint8_t> given = run(first, count);
                if (given.empty()) return {};  // the kernel does not compute so few or so many rows
                std::vector<uint8_t> expected = problem.image.bytes;
                std::copy_n(whole.begin() + d.offset + first * row_bytes, count * row_bytes,
                            expected.begin() + d.offset + first * row_bytes);
                const std::string difference = problem.image.first_difference(expected, given);
                return difference.empty()
                           ? ""
                           : fmt::format("rows {} to {} alone: {}", first, first + count - 1, difference);
            };
            for (const int64_t count : counts) {
                std::string difference = difference_of((d.rows - count) / 2, count);
                if (!difference.empty()) return difference;
            }
            for (int64_t row = 0; row < d.rows; row += quick ? 50 : 1) {
                std::string difference = difference_of(row, 1);
                if (!difference.empty()) return difference;
            }
            return difference_of(0, d.rows);
        });
    }
}

template <typename Args>
void check_product_graph(const Operation<Args>& operation, Device& device, Report& report, uint64_t seed,
                         bool quick) {
    const FloatEnvironment environment;
    for (const auto& [rows, live] : {std::pair<int64_t, int64_t>(64, 5), {8, 1}, {300, 130}, {1100, 130}})
        for (const ScaleLayout layout :
             {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4}) {
            const int64_t k = quick ? 1040 : 4096;
            Case c = product_case<Args>("graph", {rows, quick ? 40 : 520, k}, ++seed);
            c.layout = layout;
            const Problem<Args> problem = operation.make(c);
            Image padded = problem.image;  // the rows from `live` on hold NaN
            for (const Region& region : padded.regions) {
                if (region.name != "x" && region.name != "codes" && region.name != "block_scales") continue;
                for (int64_t i = 0; i < region.bytes; i++)
                    if (region.position(i).row >= live) padded.bytes[size_t(region.offset + i)] = 0xFF;
            }
            for_each_kernel(operation, problem, c, device, report, [&](const auto& kernel, const Args& args) {
                const LaunchFunction launch = launch_of(kernel, args, device.info());
                device.launch(problem.workspace_bytes, launch, problem.scratch_bytes);
                const std::vector<uint8_t> plain = device.fetch();
                const auto replay = device.capture(problem.workspace_bytes, launch, problem.scratch_bytes);
                device.load(problem.image.bytes);
                replay();
                std::vector<uint8_t> expected = device.fetch();
                std::string difference = problem.image.first_difference(plain, expected);
                if (!difference.empty()) return "against a launch without a graph: " + difference;
                device.load(padded.bytes);
                replay();
                std::vector<uint8_t> given = device.fetch();
                const Region& d = region_of_d(padded);
                const int64_t end = d.offset + live * d.stride * int64_t(size_of(d.type));
                // The live rows; before them lie the inputs, which are the padded ones.
                std::copy_n(padded.bytes.begin(), d.offset, expected.begin());
                std::copy(given.begin() + end, given.begin() + d.offset + d.bytes, expected.begin() + end);
                difference = padded.first_difference(expected, given);
                if (difference.empty() && !device.workspace_is_zero(problem.workspace_bytes))
                    difference = "the workspace is not zero afterwards";
                return difference;
            });
        }
}

template <typename Args>
void check_repeats(const Operation<Args>& operation, Device& device, Report& report, uint64_t seed,
                   bool quick) {
    for (const Size& size :
         {Size{1, 256, 4096}, {8, 512, 2048}, {40, 256, 2064}, {130, 384, 1040}, {1030, 128, 1040}}) {
        const Case c = product_case<Args>("repeats", size, ++seed);
        const Problem<Args> problem = operation.make(c);
        for_each_kernel(operation, problem, c, device, report, [&](const auto& kernel, const Args& args) {
            const LaunchFunction launch = launch_of(kernel, args, device.info());
            std::vector<uint8_t> first;
            for (int i = 0; i < (quick ? 3 : 1000); i++) {
                device.launch(problem.workspace_bytes, launch, problem.scratch_bytes);
                const std::vector<uint8_t> given = device.fetch();
                if (i == 0) first = given;
                if (given != first)
                    return fmt::format("launch {}: {}", i, problem.image.first_difference(first, given));
            }
            return std::string();
        });
    }
}

template void check_batches(const Operation<cuda::MatmulW4A4Args>&, Device&, Report&, uint64_t, bool);
template void check_batches(const Operation<cuda::MatmulW4A16Args>&, Device&, Report&, uint64_t, bool);
template void check_product_graph(const Operation<cuda::MatmulW4A4Args>&, Device&, Report&, uint64_t, bool);
template void check_product_graph(const Operation<cuda::MatmulW4A16Args>&, Device&, Report&, uint64_t, bool);
template void check_repeats(const Operation<cuda::MatmulW4A4Args>&, Device&, Report&, uint64_t, bool);
template void check_repeats(const Operation<cuda::MatmulW4A16Args>&, Device&, Report&, uint64_t, bool);

// d is the next x. With the weight unsettled one of two is packed to the same place before every second
// product.
template <typename Args>
void check_chain(const Operation<cuda::PackWeightArgs>& pack, const Operation<Args>& product, Device& device,
                 Report& report, uint64_t seed, bool quick) {
    constexpr bool quantised = std::is_same_v<Args, cuda::MatmulW4A4Args>;
    const int64_t n = quick ? 128 : 1072;
    for (const int64_t m : {1, 4, 8, 16, 33, 64, 100, 1030}) {
        if (quick && m > 100) continue;
        const Case c{.group = "chain", .seed = ++seed, .rows = m, .k = n};
        test::Random random(c.seed);
        Problem<Args> problem;
        Image& image = problem.image;
        const NvFp4Shape shape = NvFp4Shape::of(n, n);
        const auto bytes_of = [&](const char* name, Role role, int64_t bytes) {
            return image.matrix(name, role, DType::u8, 1, bytes, bytes);
        };
        Region codes[2], scales[2], d[8];
        for (int i = 0; i < 2; i++) {
            codes[i] = bytes_of(i == 0 ? "codes" : "other codes", Role::input, shape.code_bytes());
            scales[i] = bytes_of(i == 0 ? "scales" : "other scales", Role::input, shape.scale_bytes());
        }
        const Region alpha = image.floats("column_decode", Role::input, n, 0);
        const Region encode = image.floats("encode_scale", Role::input, 1, 0);
        const Region x = image.matrix("x", Role::input, DType::bf16, m, n, n);
        const Region w = bytes_of("w", Role::output, gpu_weight_bytes(n, n));
        for (Region& one : d) one = image.matrix("d", Role::output, DType::bf16, m, n, n);
        uint8_t* const host = image.bytes.data();
        for (int i = 0; i < 2; i++) {
            for (int64_t j = 0; j < shape.code_bytes(); j++)
                codes[i].at<uint8_t>(host)[j] = uint8_t(random.below(256));
            for (int64_t j = 0; j < shape.scale_bytes(); j++)
                scales[i].at<uint8_t>(host)[j] = uint8_t(56 + random.below(8));  // 1 to 1.875
        }
        // d is about as large as x: a row has n products of some 4 each.
        std::fill_n(alpha.at<float>(host), n, float((quantised ? 0.25 / 64 : 0.25) / std::sqrt(double(n))));
        for (int64_t i = 0; i < m * n; i++)
            store_element(x.at<void>(host), DType::bf16, i, float(random.below(257) - 128) / 64);
        *encode.at<float>(host) =
            64;  // so that the block scales are normal numbers; alpha takes it out again
        problem.args = [=](uint8_t* base) {
            Args args;
            args.x = x.input(base);
            args.w = {w.at<uint8_t>(base), n, n};
            args.column_decode = alpha.at<float>(base);
            args.d = d[0].matrix(base);
            if constexpr (quantised) args.encode_scale = encode.at<float>(base);
            return args;
        };
        problem.scratch_bytes = cuda::matmul_scratch_bytes(problem.args(host));
        const auto run = [&](const auto& kernel, bool settled) -> std::string {
            uint8_t* base = nullptr;  // of the image on the device
            const auto pack_one = [&](int i, const cuda::Launch& launch) {
                const cuda::PackWeightArgs args = {.parts = {{codes[i].template at<uint8_t>(base),
                                                              scales[i].template at<uint8_t>(base), shape}},
                                                   .part_count = 1,
                                                   .packed = w.at<uint8_t>(base)};
                pack.kernels[0].launch(args, launch, device.info());
            };
            const auto step = [&](int i, cuda::Launch launch) {
                if (!settled && i % 2 == 0) pack_one(i / 2 % 2, launch);
                Args args = problem.args(base);
                if (i > 0) args.x = d[i - 1].input(base);
                args.d = d[i].matrix(base);
                launch.weight_is_settled = settled;
                launch_of(kernel, args, device.info())(launch);
            };
            const auto begin = [&] {
                base = device.load(image.bytes);
                if (settled) device.launch(0, [&](const cuda::Launch& launch) { pack_one(0, launch); }, 0);
                device.fetch();
            };
            std::vector<uint8_t> expected;
            begin();
            for (int i = 0; i < 8; i++) {  // each waits for the one before
                device.launch(0, [&](const cuda::Launch& launch) { step(i, launch); }, problem.scratch_bytes);
                expected = device.fetch();
            }
            const LaunchFunction all = [&](const cuda::Launch& launch) {
                for (int i = 0; i < 8; i++) step(i, launch);
            };
            const char* how = settled ? "settled, " : "";
            for (int turn = 0; turn < (quick ? 2 : 30); turn++) {
                begin();
                device.launch(0, all, problem.scratch_bytes);
                const std::string difference = image.first_difference(expected, device.fetch());
                if (!difference.empty()) return fmt::format("{}turn {}: {}", how, turn, difference);
            }
            const auto replay = device.capture(0, all, problem.scratch_bytes);
            begin();
            replay();
            const std::string difference = image.first_difference(expected, device.fetch());
            return difference.empty() ? "" : fmt::format("{}in a graph: {}", how, difference);
        };
        for_each_kernel(product, problem, c, device, report, [&](const auto& kernel, const auto&) {
            const std::string difference = run(kernel, false);
            return difference.empty() ? run(kernel, true) : difference;
        });
    }
}

template void check_chain(const Operation<cuda::PackWeightArgs>&, const Operation<cuda::MatmulW4A4Args>&,
                          Device&, Report&, uint64_t, bool);
template void check_chain(const Operation<cuda::PackWeightArgs>&, const Operation<cuda::MatmulW4A16Args>&,
                          Device&, Report&, uint64_t, bool);

void check_range(const Operation<cuda::MatmulW4A16Args>& operation, Device& device, Report& report) {
    for (const int64_t m : {1, 8, 64, 65, 200})
        for (const DType type : {DType::f16, DType::bf16})
            for (const DType out : {DType::f16, DType::bf16, DType::f32}) {
                constexpr int64_t n = 40, k = 32;
                const Case c{.group = "range of FP16", .rows = m, .k = k, .type = type, .other_type = out};
                std::vector<uint8_t> codes(n * k / 2, 0x77), scales(n * k / 16, 0x7E);
                Problem<cuda::MatmulW4A16Args> problem;
                Image& image = problem.image;
                const Region x = image.matrix("x", Role::input, type, m, k, k);
                for (int64_t i = 0; i < m * k; i++)
                    store_element(x.at<void>(image.bytes.data()), type, i, 1.0f);
                const int64_t bytes = gpu_weight_bytes(n, k);
                const Region w = image.matrix("w", Role::input, DType::u8, 1, bytes, bytes);
                reference::pack_weight({.parts = {{codes.data(), scales.data(), NvFp4Shape::of(n, k)}},
                                        .part_count = 1,
                                        .packed = w.at<uint8_t>(image.bytes.data())});
                const Region alpha = image.floats("column_decode", Role::input, n, 0);
                std::fill_n(alpha.at<float>(image.bytes.data()), n, 0x1p-8f);
                const Region d = image.matrix("d", Role::output, out, m, n, n);
                problem.args = [=](uint8_t* base) {
                    return cuda::MatmulW4A16Args{.x = x.input(base),
                                                 .w = {w.at<uint8_t>(base), n, k},
                                                 .column_decode = alpha.at<float>(base),
                                                 .d = d.matrix(base)};
                };
                problem.scratch_bytes = cuda::matmul_scratch_bytes(problem.args(image.bytes.data()));
                std::vector<uint8_t> expected = image.bytes;
                for (int64_t i = 0; i < m * n; i++)
                    store_element(d.at<void>(expected.data()), out, i, 336.0f);
                for_each_kernel(operation, problem, c, device, report,
                                [&](const auto& kernel, const cuda::MatmulW4A16Args& args) {
                                    device.launch(problem.workspace_bytes,
                                                  launch_of(kernel, args, device.info()),
                                                  problem.scratch_bytes);
                                    return problem.image.first_difference(expected, device.fetch());
                                });
            }
}

}  // namespace halfbyte::conformance
