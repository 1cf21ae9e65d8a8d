// Runs every operation of src/cpu over odd shapes, types and layouts, at every level of the machine and with
// 1 and 3 threads, compares each result with src/reference bit for bit, and prints one line a case: its name
// and the hash of its result. Built for AArch64 and run by qemu it must print the same lines (neon_test.py).
//   hashes            all cases; 1 if anything differs
//   hashes --levels   only the levels, why one cannot run here, and the one that is chosen
//
// The numbers come from integers and exact scalings alone: no function of a mathematics library, whose last
// bit might differ between machines, makes an input.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/float_environment.h"
#include "cpu/fused_quantize.h"
#include "cpu/kernels.h"
#include "cpu/packed_weight.h"
#include "reference/reference.h"
#include "support/matrix.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace halfbyte::test {
namespace {

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
constexpr ScaleLayout layouts[] = {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4};

// ---- inputs ----

float number(Random& random, int lowest_exponent, int highest_exponent) {
    const int exponent = lowest_exponent + int(random.below(highest_exponent - lowest_exponent + 1));
    const float magnitude = std::ldexp(1.0f + float(random.below(1 << 23)) * 0x1p-23f, exponent);
    return random.below(2) == 0 ? magnitude : -magnitude;
}

// Magnitudes from 1/8 to 4; hard: also zeros, subnormals, huge numbers, infinities and NaN in every third
// row.
OwnedMatrix matrix(int64_t rows, int64_t cols, DType type, uint64_t seed, bool hard = false) {
    OwnedMatrix x(rows, cols, type, cols + 3);
    constexpr float others[] = {0.0f,  -0.0f, 1e-42f,   -0x1p-149f, 3e-24f,
                                -6e4f, 1e38f, INFINITY, -INFINITY,  NAN};
    Random random(seed);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < cols; k++) {
            float value = number(random, -3, 1);
            if (hard && random.below(11) == 0) value = others[random.below(row % 3 == 2 ? 10 : 7)];
            x.set(row, k, value);
        }
    return x;
}

// Every block of its own magnitude, and in one of 40 something special: most groups of 16 blocks are finite.
OwnedMatrix mixed_blocks(int64_t rows, int64_t cols, DType type, int64_t stride, uint64_t seed) {
    OwnedMatrix x(rows, cols, type, stride);
    constexpr float others[] = {NAN, -0.0f, INFINITY, 3e-24f, -INFINITY, -6e4f, 0x1p-24f};
    Random random(seed);
    for (int64_t row = 0; row < rows; row++) {
        int exponent = 0, special = -1;
        for (int64_t k = 0; k < cols; k++) {
            if (k % 16 == 0) {
                exponent = int(random.below(19)) - 12;
                special = random.below(40) == 0 ? int(random.below(16)) : -1;
            }
            x.set(row, k,
                  k % 16 == special ? others[random.below(7)] : number(random, exponent - 4, exponent));
        }
    }
    return x;
}

std::vector<float> positive(int64_t n, uint64_t seed, int lowest_exponent, int highest_exponent) {
    Random random(seed);
    std::vector<float> values;
    for (int64_t i = 0; i < n; i++)
        values.push_back(std::fabs(number(random, lowest_exponent, highest_exponent)));
    return values;
}

NvFp4Shape padded(int64_t rows, int64_t k, ScaleLayout layout) {
    NvFp4Shape shape = NvFp4Shape::of(rows, k, layout);
    shape.padded_rows = rows + rows % 3;
    shape.padded_k += 16 * (rows % 2);
    return shape;
}

// Every code and every byte of a block scale, those of NaN as well.
Quantized quantized(const NvFp4Shape& shape, uint64_t seed, bool every_scale = false) {
    Quantized q = random_quantized(shape, seed);
    if (every_scale)
        for (int64_t i = 0; i < shape.rows * shape.blocks(); i++)
            q.scales[q.scale_place(i / shape.blocks(), i % shape.blocks())] = uint8_t(i + int64_t(seed));
    return q;
}

// ---- results ----

// The bits of every output of a case, in order; a NaN as one pattern, since a NaN equals any NaN.
using Bits = std::vector<uint32_t>;

void append(Bits& bits, const OwnedMatrix& m) {
    for (const float value : m.values())
        bits.push_back(std::isnan(value) ? 0x7FC00000 : std::bit_cast<uint32_t>(value));
    bits.push_back(m.gaps_intact());
}
void append(Bits& bits, const Quantized& q) {
    for (const PoisonedBuffer* buffer : {&q.codes, &q.scales}) {
        bits.insert(bits.end(), buffer->bytes().begin(), buffer->bytes().end());
        bits.push_back(buffer->guards_intact());
    }
}
void append(Bits& bits, const std::vector<float>& values) {
    for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
}
void append(Bits& bits, const std::vector<double>& values) {
    for (const double value : values)
        for (const int shift : {0, 32}) bits.push_back(uint32_t(std::bit_cast<uint64_t>(value) >> shift));
}
void append(Bits& bits, const QuantizeStats& stats) {
    for (const int64_t count : {stats.values, stats.blocks, stats.non_finite, stats.clipped, stats.flushed})
        bits.push_back(uint32_t(count));
}

uint64_t hash_of(const Bits& bits) {  // FNV-1a over words
    uint64_t hash = 0xCBF29CE484222325;
    for (const uint32_t word : bits) hash = (hash ^ word) * 0x100000001B3;
    return hash;
}

// ---- comparing ----

std::vector<cpu::Level> usable_levels() {
    std::vector<cpu::Level> usable;
    for (const cpu::Level level : cpu::levels())
        if (cpu::unsupported_reason(level).empty()) usable.push_back(level);
    return usable;
}

int differing = 0;

// run(operation) calls operation(args) once or more and returns the bits of what that wrote.
template <typename Args, typename Kernel, typename Run>
void compare(const std::string& name, void (*reference)(const Args&), const Kernel& kernel, const Run& run) {
    static ThreadPool one(1), three(3);
    const Bits expected = run([&](const Args& args) {
        const FloatEnvironment environment;
        reference(args);
    });
    for (const cpu::Level level : usable_levels())
        for (ThreadPool* pool : {&one, &three}) {
            const Bits actual = run([&](const Args& args) { kernel(cpu::kernels(level), *pool, args); });
            if (actual == expected) continue;
            differing++;
            size_t i = 0;
            while (i < actual.size() && i < expected.size() && actual[i] == expected[i]) i++;
            std::fprintf(stderr, "%s: level %s, %d threads: word %zu of %zu is %08x, the reference's %08x\n",
                         name.c_str(), std::string(cpu::name_of(level)).c_str(), pool->threads(), i,
                         expected.size(), i < actual.size() ? actual[i] : 0,
                         i < expected.size() ? expected[i] : 0);
        }
    std::printf("%s: %016llx\n", name.c_str(), static_cast<unsigned long long>(hash_of(expected)));
}

// The kernel that is a member of the table.
template <typename Args>
auto member(void (*cpu::Kernels::*kernel)(ThreadPool&, const Args&)) {
    return [kernel](const cpu::Kernels& kernels, ThreadPool& pool, const Args& args) {
        (kernels.*kernel)(pool, args);
    };
}

std::string described(const char* operation, std::initializer_list<int64_t> sizes, DType type) {
    std::string name = operation;
    for (const int64_t size : sizes) name += " " + std::to_string(size);
    return name + " " + std::string(name_of(type));
}

// ---- cases ----

void quantisers() {
    uint64_t seed = 100;
    for (const auto& [rows, k] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 16}, {3, 0}, {1, 1}, {5, 15}, {2, 33}, {33, 64}, {9, 250}, {130, 80}, {4, 1040}})
        for (const DType type : types)
            for (const Rounding rounding : {Rounding::contract, Rounding::vllm}) {
                seed++;
                const NvFp4Shape shape = padded(rows, k, layouts[seed % 3]);
                const bool per_row = seed % 2 == 0;
                const OwnedMatrix x = matrix(rows, k, type, seed, seed % 4 < 2);
                const std::vector<float> G = positive(std::max<int64_t>(1, rows), seed, -3, 12);
                compare(described("quantize", {rows, k, int64_t(shape.layout), int64_t(rounding)}, type),
                        reference::quantize, member(&cpu::Kernels::quantize), [&](const auto& operation) {
                            Quantized q(shape);
                            QuantizeStats stats;
                            operation(QuantizeArgs{.x = x.view(),
                                                   .encode_scale = G.data(),
                                                   .scale_per_row = per_row,
                                                   .rounding = rounding,
                                                   .shape = shape,
                                                   .codes = q.codes.data(),
                                                   .block_scales = q.scales.data(),
                                                   .stats = seed % 5 == 0 ? &stats : nullptr});
                            Bits bits;
                            append(bits, q);
                            append(bits, stats);
                            return bits;
                        });
            }

    // 2^17 values and more of 16 bits and of one scale: src/cpu/quantize.cpp compares them with thresholds.
    // Rows of an odd length, tiled rows of less than a group and of two groups and a rest, and rows that are
    // one row.
    struct Large {
        int64_t rows, k, gap;
        ScaleLayout layout;
    };
    for (const Large& large : {Large{131, 1001, 3, ScaleLayout::tiled_128x4},
                               {67, 1957, 0, ScaleLayout::linear},
                               {1490, 88, 0, ScaleLayout::tiled_8x4},
                               {220, 600, 1, ScaleLayout::tiled_8x4},
                               {8, 16400, 0, ScaleLayout::linear}})
        for (const DType type : {DType::bf16, DType::f16}) {
            seed++;
            const NvFp4Shape shape = padded(large.rows, large.k, large.layout);
            const OwnedMatrix x = mixed_blocks(large.rows, large.k, type, large.k + large.gap, seed);
            const float G = 41.7f;
            compare(described("quantize", {large.rows, large.k, int64_t(large.layout)}, type),
                    reference::quantize, member(&cpu::Kernels::quantize), [&](const auto& operation) {
                        Quantized q(shape);
                        QuantizeStats stats;
                        operation(QuantizeArgs{.x = x.view(),
                                               .encode_scale = &G,
                                               .shape = shape,
                                               .codes = q.codes.data(),
                                               .block_scales = q.scales.data(),
                                               .stats = seed % 3 == 0 ? &stats : nullptr});
                        Bits bits;
                        append(bits, q);
                        append(bits, stats);
                        return bits;
                    });
        }

    for (const auto& [rows, k] : std::vector<std::pair<int64_t, int64_t>>{{1, 17}, {7, 100}, {40, 528}})
        for (const DType type : types)
            for (const bool per_row : {false, true}) {
                seed++;
                const NvFp4Shape shape = padded(rows, k, layouts[seed % 3]);
                const OwnedMatrix gate = matrix(rows, k, type, seed, seed % 2 == 0),
                                  up = matrix(rows, k, type, seed + 1),
                                  weight = matrix(1, k, types[seed % 3], seed);
                const std::vector<float> G = positive(rows, seed, -3, 12);
                // Even seeds: dynamic scales.
                const auto target = [&](Quantized& q, std::vector<float>& scales) {
                    const bool dynamic = seed % 2 == 0;
                    return QuantizeArgs{
                        .x = {.data = nullptr, .type = type, .rows = rows, .cols = k, .stride = k},
                        .encode_scale = dynamic ? nullptr : G.data(),
                        .scale_per_row = per_row,
                        .dynamic_encode_scale = dynamic ? scales.data() : nullptr,
                        .dynamic_decode_scale = dynamic ? scales.data() + rows : nullptr,
                        .shape = shape,
                        .codes = q.codes.data(),
                        .block_scales = q.scales.data()};
                };
                compare(described("silu_mul_quantize", {rows, k, per_row}, type),
                        reference::silu_mul_quantize, cpu::silu_mul_quantize, [&](const auto& operation) {
                            Quantized q(shape);
                            std::vector<float> scales(size_t(2 * rows));
                            operation(SiluMulQuantizeArgs{
                                .gate = gate.view(), .up = up.view(), .quantize = target(q, scales)});
                            Bits bits;
                            append(bits, q);
                            append(bits, scales);
                            return bits;
                        });
                compare(
                    described("rms_norm_quantize", {rows, k, per_row}, type), reference::rms_norm_quantize,
                    cpu::rms_norm_quantize, [&](const auto& operation) {
                        Quantized q(shape);
                        std::vector<float> scales(size_t(2 * rows));
                        OwnedMatrix residual = up;
                        operation(RmsNormQuantizeArgs{.x = gate.view(),
                                                      .residual = seed % 3 == 0 ? Matrix{} : residual.view(),
                                                      .weight = weight.view(),
                                                      .epsilon = 1e-5f,
                                                      .quantize = target(q, scales)});
                        Bits bits;
                        append(bits, q);
                        append(bits, scales);
                        append(bits, residual);
                        return bits;
                    });
            }

    for (const DType type : types)
        for (const ScaleLayout layout : layouts) {
            const Quantized q = quantized(padded(19, 85, layout), ++seed, true);
            const std::vector<float> D = positive(19, seed, -20, 20);
            compare(described("dequantize", {int64_t(layout)}, type), reference::dequantize,
                    member(&cpu::Kernels::dequantize), [&](const auto& operation) {
                        OwnedMatrix y(19, 85, type, 90);
                        operation(
                            {.a = q.view(), .decode_scale = D.data(), .scale_per_row = true, .y = y.view()});
                        Bits bits;
                        append(bits, y);
                        return bits;
                    });
        }
}

// What the kernels of making a checkpoint are defined as; src/reference has no file for them.
void decode_error(const cpu::DecodeErrorArgs& args) {
    const int64_t rows = args.w.rows, k = args.w.cols;
    OwnedMatrix y(rows, k);
    reference::dequantize({.a = args.a, .decode_scale = &args.decode_scale, .y = y.view()});
    for (int64_t row = 0; row < rows; row++) {
        args.signal[row] = args.noise[row] = 0;
        for (int64_t i = 0; i < k; i++) {
            const double value = load_element(args.w.data, args.w.type, row * args.w.stride + i),
                         error = value - double(y.at(row, i));
            args.signal[row] += value * value;
            args.noise[row] += error * error;
        }
    }
}

struct LargestMagnitudesArgs {
    ConstMatrix x;
    float* largest;
};
void largest_magnitudes(const LargestMagnitudesArgs& args) {
    for (int64_t row = 0; row < args.x.rows; row++) {
        uint32_t largest = 0;
        for (int64_t i = 0; i < args.x.cols; i++)
            largest = std::max(largest, std::bit_cast<uint32_t>(
                                            load_element(args.x.data, args.x.type, row * args.x.stride + i)) &
                                            0x7FFFFFFF);
        args.largest[row] = std::bit_cast<float>(largest);
    }
}

void making_checkpoints() {
    uint64_t seed = 150;
    for (const auto& [rows, k] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 16}, {3, 0}, {1, 1}, {7, 33}, {9, 250}, {2, 1040}})
        for (const DType type : types) {
            const NvFp4Shape shape = padded(rows, k, layouts[++seed % 3]);
            const OwnedMatrix w = matrix(rows, k, type, seed);
            const Quantized q = quantized(shape, seed);
            compare(described("decode_error", {rows, k}, type), decode_error,
                    member(&cpu::Kernels::decode_error), [&](const auto& operation) {
                        std::vector<double> signal(size_t(rows), -1), noise(size_t(rows), -1);
                        operation(cpu::DecodeErrorArgs{.w = w.view(),
                                                       .a = q.view(),
                                                       .decode_scale = 0.0371f,
                                                       .signal = signal.data(),
                                                       .noise = noise.data()});
                        Bits bits;
                        append(bits, signal);
                        append(bits, noise);
                        return bits;
                    });
            const OwnedMatrix x = matrix(rows, k, type, seed, true);
            compare(
                described("largest_magnitudes", {rows, k}, type), largest_magnitudes,
                [](const cpu::Kernels& kernels, ThreadPool& pool, const LargestMagnitudesArgs& args) {
                    kernels.largest_magnitudes(pool, args.x, args.largest);
                },
                [&](const auto& operation) {
                    OwnedMatrix largest(1, rows);
                    operation(
                        LargestMagnitudesArgs{.x = x.view(), .largest = static_cast<float*>(largest.data())});
                    Bits bits;
                    append(bits, largest);
                    return bits;
                });
        }
}

void transforms() {
    uint64_t seed = 200;
    for (const DType type : types)
        for (const auto& [rows, k, n] : std::vector<std::array<int64_t, 3>>{
                 {5, 16, 1}, {3, 80, 16}, {2, 96, 32}, {1, 384, 128}, {13, 60, 20}, {7, 72, 36}, {26, 66, 3}})
            for (const bool hadamard : {true, false}) {
                if (hadamard && !std::has_single_bit(uint64_t(n))) continue;
                seed++;
                const OwnedMatrix x = matrix(rows, k, type, seed, seed % 2 == 0);
                OwnedMatrix T(n, n, seed % 2 == 0 ? DType::f32 : DType::bf16);
                std::vector<float> signs;
                Random random(seed);
                for (int64_t i = 0; i < n * n; i++) T.set(i / n, i % n, number(random, -3, 1));
                for (int64_t i = 0; i < n; i++) signs.push_back(random.below(2) == 0 ? 1.0f : -1.0f);
                BlockTransform t{.n = n, .scale = 0.3f};
                if (hadamard) t.signs = seed % 3 == 0 ? nullptr : signs.data();
                if (!hadamard) t.matrix = T.data(), t.matrix_type = T.type();
                compare(described(hadamard ? "hadamard" : "matrix", {rows, k, n}, type), reference::transform,
                        member(&cpu::Kernels::transform), [&](const auto& operation) {
                            OwnedMatrix y(rows, k, types[seed % 3], k + 2);
                            operation(TransformArgs{.x = x.view(), .transform = t, .y = y.view()});
                            Bits bits;
                            append(bits, y);
                            return bits;
                        });
            }
}

void products() {
    uint64_t seed = 300;
    for (const auto& [M, n, k] : std::vector<std::array<int64_t, 3>>{{0, 16, 16},
                                                                     {3, 0, 16},
                                                                     {2, 5, 0},
                                                                     {1, 1, 1},
                                                                     {2, 17, 15},
                                                                     {1, 33, 300},
                                                                     {4, 16, 1040},
                                                                     {5, 20, 47},
                                                                     {9, 50, 100},
                                                                     {17, 3, 2100},
                                                                     {35, 49, 64}})
        for (const DType type : types) {
            seed++;
            const NvFp4Shape shape = padded(M, k, layouts[seed % 3]);
            const Quantized a = quantized(shape, seed, seed % 4 == 0);
            const Quantized weight = quantized(padded(n, k, layouts[(seed + 1) % 3]), seed, seed % 4 == 1);
            const PackedWeight w = cpu::pack_weight(weight.view());
            const OwnedMatrix x = matrix(M, k, type, seed, seed % 4 == 2),
                              dense = matrix(n, k, types[seed / 3 % 3], seed),
                              bias = matrix(1, n, types[seed / 2 % 3], seed);
            const std::vector<float> Da = positive(std::max<int64_t>(1, M), seed, -12, -8),
                                     Dw = positive(n, seed, -12, -8);
            const auto result = [&](const auto& call) {
                OwnedMatrix d(M, n, types[(seed + 1) % 3], n + 2);
                call(d.view());
                Bits bits;
                append(bits, d);
                return bits;
            };
            const void* with_bias = seed % 5 == 0 ? nullptr : bias.data();
            compare(described("matmul_w4a4", {M, n, k}, type), reference::matmul_w4a4,
                    member(&cpu::Kernels::matmul_w4a4), [&](const auto& operation) {
                        return result([&](Matrix d) {
                            operation(MatmulW4A4Args{.a = a.view(),
                                                     .w = &w,
                                                     .row_decode = Da.data(),
                                                     .row_decode_per_row = seed % 2 == 0,
                                                     .column_decode = Dw.data(),
                                                     .bias = with_bias,
                                                     .bias_type = bias.type(),
                                                     .d = d});
                        });
                    });
            compare(described("matmul_w4a16", {M, n, k}, type), reference::matmul_w4a16,
                    member(&cpu::Kernels::matmul_w4a16), [&](const auto& operation) {
                        return result([&](Matrix d) {
                            operation(MatmulW4A16Args{.x = x.view(),
                                                      .w = &w,
                                                      .column_decode = Dw.data(),
                                                      .bias = with_bias,
                                                      .bias_type = bias.type(),
                                                      .d = d});
                        });
                    });
            // Every byte of E4M3; NaN in some columns, and an x too large to be scaled up in some cases.
            OwnedMatrix large = x;
            if (seed % 3 == 0 && M * k > 0) large.set(M / 2, k / 2, 300.0f);
            std::vector<uint8_t> bytes;
            for (int64_t i = 0; i < n * k; i++)
                bytes.push_back(uint8_t(i / std::max<int64_t>(1, k) % 4 == 0 || (i & 0x7F) != 0x7F ? i : 0));
            compare(described("matmul_w8a16", {M, n, k}, type), reference::matmul_w8a16,
                    member(&cpu::Kernels::matmul_w8a16), [&](const auto& operation) {
                        return result([&](Matrix d) {
                            operation(MatmulW8A16Args{.x = large.input(),
                                                      .w = {bytes.data(), DType::f8_e4m3, n, k, k},
                                                      .column_decode = Dw.data(),
                                                      .bias = with_bias,
                                                      .bias_type = bias.type(),
                                                      .d = d});
                        });
                    });
            compare(described("matmul_dense", {M, n, k}, type), reference::matmul_dense,
                    member(&cpu::Kernels::matmul_dense), [&](const auto& operation) {
                        return result([&](Matrix d) {
                            operation(MatmulDenseArgs{.x = x.view(),
                                                      .w = dense.view(),
                                                      .bias = with_bias,
                                                      .bias_type = bias.type(),
                                                      .d = d});
                        });
                    });
        }

    // The largest block sums, of either sign.
    NvFp4Shape shape = NvFp4Shape::of(10, 1100);
    Quantized a = quantized(shape, seed), w(NvFp4Shape::of(16, 1100), 0x77);
    for (int64_t i = 0; i < 10 * 1100; i++) a.set_code(i / 1100, i % 1100, i / 1100 % 2 == 0 ? 7 : 15);
    for (int64_t i = 0; i < 16 * w.shape.blocks(); i++) w.scales[i] = 0x7E;
    const PackedWeight largest = cpu::pack_weight(w.view());
    const std::vector<float> D(16, 1.0f);
    compare("matmul_w4a4 of the largest codes", reference::matmul_w4a4, member(&cpu::Kernels::matmul_w4a4),
            [&](const auto& operation) {
                OwnedMatrix d(10, 16);
                operation(MatmulW4A4Args{.a = a.view(),
                                         .w = &largest,
                                         .row_decode = D.data(),
                                         .column_decode = D.data(),
                                         .d = d.view()});
                Bits bits;
                append(bits, d);
                return bits;
            });
}

void elementwise() {
    uint64_t seed = 400;
    for (const auto& [rows, k] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 16}, {3, 0}, {1, 1}, {9, 15}, {6, 33}, {33, 65}, {4, 1040}})
        for (const DType type : types) {
            seed++;
            const OwnedMatrix x = matrix(rows, k, type, seed, true), other = matrix(rows, k, type, seed + 1),
                              weight = matrix(1, k, types[seed / 2 % 3], seed);
            compare(described("rms_norm", {rows, k}, type), reference::rms_norm,
                    member(&cpu::Kernels::rms_norm), [&](const auto& operation) {
                        OwnedMatrix y(rows, k, type), residual = other;
                        operation(RmsNormArgs{.x = x.view(),
                                              .residual = seed % 2 == 0 ? residual.view() : Matrix{},
                                              .weight = weight.view(),
                                              .epsilon = 1e-5f,
                                              .y = y.view()});
                        Bits bits;
                        append(bits, y);
                        append(bits, residual);
                        return bits;
                    });
            compare(described("silu_mul", {rows, k}, type), reference::silu_mul,
                    member(&cpu::Kernels::silu_mul), [&](const auto& operation) {
                        OwnedMatrix y(rows, k, type, k + 1);
                        operation(SiluMulArgs{.gate = x.view(), .up = other.view(), .y = y.view()});
                        Bits bits;
                        append(bits, y);
                        return bits;
                    });
            if (type != DType::f32) continue;
            compare(described("softmax", {rows, k}, type), reference::softmax, member(&cpu::Kernels::softmax),
                    [&](const auto& operation) {
                        OwnedMatrix y(rows, k, type, k + 1);
                        operation(SoftmaxArgs{.x = x.view(), .y = y.view()});
                        Bits bits;
                        append(bits, y);
                        return bits;
                    });
        }

    // Every binade of the gate, so that exp sees its whole domain.
    OwnedMatrix gate(2 * 256, 9), ones(2 * 256, 9);
    Random random(seed);
    for (int64_t i = 0; i < 2 * 256 * 9; i++) {
        gate.set(i / 9, i % 9, std::bit_cast<float>(uint32_t(i / 9) << 23 | (random.bits() & 0x7FFFFF)));
        ones.set(i / 9, i % 9, 1.0f);
    }
    compare("silu_mul of every exponent", reference::silu_mul, member(&cpu::Kernels::silu_mul),
            [&](const auto& operation) {
                OwnedMatrix y(2 * 256, 9);
                operation(SiluMulArgs{.gate = gate.input(), .up = ones.input(), .y = y.view()});
                Bits bits;
                append(bits, y);
                return bits;
            });

    for (const int64_t head_dim : {2, 6, 34, 64}) {
        const std::vector<float> cos = positive(40 * head_dim / 2, ++seed, -4, -1),
                                 sin = positive(40 * head_dim / 2, ++seed, -4, -1);
        const OwnedMatrix x = matrix(5, 3 * head_dim, DType::f32, seed);
        compare(described("rope", {head_dim}, DType::f32), reference::rope, member(&cpu::Kernels::rope),
                [&](const auto& operation) {
                    OwnedMatrix y = x;
                    operation(RopeArgs{.x = y.view(),
                                       .heads = 3,
                                       .head_dim = head_dim,
                                       .first_position = 7,
                                       .cos = cos.data(),
                                       .sin = sin.data()});
                    Bits bits;
                    append(bits, y);
                    return bits;
                });
    }

    for (const auto& [queries, first, heads, kv_heads, dim] :
         std::vector<std::array<int64_t, 5>>{{0, 4, 3, 1, 64},
                                             {1, 40, 9, 3, 64},
                                             {5, 0, 3, 1, 1},
                                             {7, 31, 4, 2, 33},
                                             {6, 200, 2, 2, 16},
                                             {3, 9, 3, 1, 80}}) {
        const OwnedMatrix q = matrix(queries, heads * dim, DType::f32, ++seed),
                          keys = matrix(first + queries, kv_heads * dim, DType::f32, ++seed);
        OwnedMatrix values = matrix(first + queries, kv_heads * dim, DType::f32, ++seed);
        if (queries > 2) values.set(first + queries - 2, 0, NAN);
        compare(described("attention", {queries, first, heads, kv_heads, dim}, DType::f32),
                reference::attention, member(&cpu::Kernels::attention), [&](const auto& operation) {
                    OwnedMatrix o(queries, heads * dim, DType::f32, heads * dim + 3);
                    operation(AttentionArgs{.q = q.view(),
                                            .keys = static_cast<const float*>(keys.data()),
                                            .values = static_cast<const float*>(values.data()),
                                            .cache_stride = keys.view().stride,
                                            .heads = heads,
                                            .kv_heads = kv_heads,
                                            .head_dim = dim,
                                            .first_position = first,
                                            .o = o.view()});
                    Bits bits;
                    append(bits, o);
                    return bits;
                });
    }
}

// The same results for a caller who has set everything that changes numbers: no subnormals, rounding to zero
// and, on AArch64, FP16 without infinities and only the default NaN.
void under_a_hostile_environment() {
    const FloatEnvironment restored_afterwards;  // at the end of this scope
#if defined(__x86_64__)
    _mm_setcsr(0x1F80 | 0x8040 | 0x6000);
#elif defined(__aarch64__)
    const uint64_t hostile = 1 << 26 | 1 << 25 | 1 << 24 | 3 << 22;  // AHP, DN, FZ, toward zero
    __asm__ volatile("msr fpcr, %0" : : "r"(hostile));
#endif
    const OwnedMatrix x = matrix(9, 66, DType::f16, 1, true), up = matrix(9, 66, DType::f16, 2, true);
    compare("silu_mul under a hostile environment", reference::silu_mul, member(&cpu::Kernels::silu_mul),
            [&](const auto& operation) {
                OwnedMatrix y(9, 66, DType::f16);
                operation(SiluMulArgs{.gate = x.view(), .up = up.view(), .y = y.view()});
                const FloatEnvironment to_read_it;
                Bits bits;
                append(bits, y);
                return bits;
            });
#if defined(__aarch64__)
    uint64_t now = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
    if (now != hostile) differing++, std::fprintf(stderr, "the caller's FPCR is not restored\n");
#endif
}

void print_levels() {
    for (const cpu::Level level : cpu::levels())
        std::printf("%s: %s\n", std::string(cpu::name_of(level)).c_str(),
                    cpu::unsupported_reason(level).empty() ? "yes" : cpu::unsupported_reason(level).c_str());
    std::printf("chosen: %s\n", std::string(cpu::name_of(cpu::best_level())).c_str());
}

}  // namespace
}  // namespace halfbyte::test

int main(int argc, char** argv) {
    using namespace halfbyte::test;
    if (argc == 2 && std::strcmp(argv[1], "--levels") == 0) {
        print_levels();
        return 0;
    }
    quantisers();
    making_checkpoints();
    transforms();
    products();
    elementwise();
    under_a_hostile_environment();
    return differing == 0 ? 0 : 1;
}
