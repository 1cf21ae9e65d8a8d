#include "cuda/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "core/element.h"
#include "format/e4m3.h"
#include "support/random.h"

namespace halfbyte::conformance {

using test::Random;

static constexpr DType types[] = {DType::bf16, DType::f16, DType::f32};
static constexpr ScaleLayout layouts[] = {ScaleLayout::linear, ScaleLayout::tiled_128x4,
                                          ScaleLayout::tiled_8x4};
static constexpr Scales all_scales[] = {Scales::one, Scales::per_row, Scales::dynamic,
                                        Scales::dynamic_per_row};

template <typename T, size_t size>
static T any(Random& random, const T (&choices)[size]) {
    return choices[random.below(int64_t(size))];
}

std::string Case::describe() const {
    static constexpr const char* layout_names[] = {"linear", "tiled_128x4", "tiled_8x4"};
    static constexpr const char* value_names[] = {"normal",   "ties",  "zeros",   "subnormal", "special",
                                                  "huge",     "tiny",  "bits",    "mixed",     "rare",
                                                  "patterns", "edges", "integers"};
    static constexpr const char* scale_names[] = {"one", "per row", "dynamic", "dynamic per row"};
    return fmt::format(
        "{} x {} {}, other type {}, padded to {} x {}, {} (to {}), stride +{}, misaligned by {} elements and "
        "{} bytes, scales {}, G {}, rounding {}, values {}, in place {}, residual {}, seed {}; of a "
        "transform: "
        "K {}, n {}, {}{}, T {}, normalised {}, {}; of a product: N {}, x quantised on the way {}, special "
        "scales of "
        "the weight {}",
        rows, k, name_of(type), name_of(other_type), padded_rows(), padded_k(16), layout_names[int(layout)],
        layout_names[int(target_layout)], extra_stride, misaligned_input, misaligned_output,
        scale_names[int(scales)], G, rounding == Rounding::contract ? "contract" : "vllm",
        value_names[int(values)], in_place, residual, seed, round_up(k, n), n,
        hadamard ? "Hadamard" : "general", signs ? " with signs" : "", name_of(matrix_type), normalised,
        accumulation == Accumulation::contract ? "contract" : "tensor_core", columns, on_the_way,
        special_weight);
}

// Everything by chance; the groups then set what they are about.
static Case random_case(const std::string& group, uint64_t seed) {
    Random random(seed);
    Case c{.group = group, .seed = seed};
    c.rows = random.below(random.below(4) == 0 ? 300 : 40);
    c.k = random.below(random.below(4) == 0 ? 3000 : 300);
    c.type = any(random, types);
    c.other_type = any(random, types);
    c.layout = any(random, layouts);
    c.target_layout = any(random, layouts);
    if (random.below(2) == 0) {  // the other half is aligned and without gaps, as fast paths want it
        c.extra_k = any(random, {int64_t(0), int64_t(16), int64_t(48), int64_t(-1)});
        c.extra_rows = any(random, {int64_t(0), int64_t(1), int64_t(-1)});
        c.extra_stride = any(random, {int64_t(0), int64_t(1), int64_t(7), int64_t(8), int64_t(64)});
        c.misaligned_input = random.below(2);
        c.misaligned_output = any(random, {int64_t(0), int64_t(0), int64_t(1), int64_t(3), int64_t(8)});
    }
    c.scales = any(random, all_scales);
    c.G = std::ldexp(random.uniform(1, 2), int(random.below(20)) - 6);
    c.values = any(random, block_values);
    if (c.values == Values::ties)
        c.G = std::ldexp(1.0f, int(random.below(8)) - 4);  // exact for every midpoint
    c.in_place = random.below(3) == 0;
    c.residual = random.below(2) == 0;
    c.n = any(random, {int64_t(16), int64_t(32), int64_t(64), int64_t(128)});
    c.hadamard = random.below(2) == 0;
    c.signs = c.hadamard && random.below(2) == 0;
    c.normalised = random.below(2) == 0;
    c.matrix_type = any(random, {DType::bf16, DType::f32});
    return c;
}

// Large enough for four rows a thread on one multiprocessor, and for tiles that need no care.
static constexpr const char* four_rows = "four rows a thread";

std::vector<Case> make_cases(bool quick, uint64_t seed) {
    std::vector<Case> cases;
    uint64_t next_seed = seed * 1000003;
    const auto add = [&](const char* group, const std::function<void(Case&)>& change) {
        Case c = random_case(group, next_seed++);
        change(c);
        cases.push_back(c);
    };
    for (const auto& [rows, k] : {std::pair(128, 48), {128, 80}, {150, 48}, {150, 80}, {64, 7152}})
        for (const DType type : types)
            for (const ScaleLayout layout : layouts)
                for (const bool plain : {true, false})
                    add("shapes", [&, r = rows, columns = k](Case& c) {
                        if (plain)
                            c.extra_k = c.extra_rows = c.extra_stride = c.misaligned_input =
                                c.misaligned_output = 0;
                        c.rows = r, c.k = columns, c.type = type, c.layout = layout,
                        c.values = Values::normal;
                    });
    constexpr int64_t sizes[] = {0, 1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1000};
    for (const int64_t rows : sizes)
        for (const int64_t k : sizes) add("odd sizes", [&](Case& c) { c.rows = rows, c.k = k; });
    for (const int64_t extra_k : {0, 16, 48, -1})
        for (const int64_t extra_rows : {0, 1, -1})
            for (const ScaleLayout layout : layouts)
                for (const int64_t input : {0, 1})
                    for (const int64_t output : {0, 1, 3, 8})
                        add("padding and alignment", [&](Case& c) {
                            c.rows = 33, c.k = input + output == 0 ? 128 : 65, c.layout = layout;
                            c.extra_k = extra_k, c.extra_rows = extra_rows;
                            c.misaligned_input = input, c.misaligned_output = output;
                        });
    for (const Scales scales : all_scales)
        for (const DType type : types)
            for (const int64_t rows : {0, 1, 5, 64, 300})
                for (const int64_t k : {0, 16, 100, 2048})
                    add("scales", [&](Case& c) { c.rows = rows, c.k = k, c.type = type, c.scales = scales; });
    for (const Values values : block_values)
        for (const DType type : types)
            for (const float G : {1.0f, 1344.0f, 0.0371f, 0x1p-20f, 1e-30f, 1e30f})
                add("values", [&](Case& c) {
                    c.rows = 37, c.k = 400, c.type = type, c.values = values, c.G = G;
                    if (c.seed % 4 != 0) c.scales = Scales::one;
                });
    for (const DType type : types)
        for (const Values values : block_values)
            add("vLLM's rounding", [&](Case& c) {
                c.rows = 50, c.k = 400, c.type = type, c.values = values, c.rounding = Rounding::vllm;
            });
    for (const DType type : {DType::bf16, DType::f16})
        for (const float G : {1.0f, 37.5f, 1e-20f})
            for (const int64_t k : {16, 4096})  // neighbours in a block, then far apart
                add("bit patterns", [&](Case& c) {
                    c.rows = 65536 / k, c.k = k, c.type = type, c.values = Values::patterns, c.G = G;
                    c.scales = Scales::one, c.misaligned_input = 0, c.extra_stride = 0;
                });
    for (const Scales scales : {Scales::dynamic, Scales::dynamic_per_row})
        for (const bool hadamard : {true, false})
            for (const int64_t n : {16, 32, 64, 128})
                for (const auto& [rows, k] : {std::pair(0, 128), {5, 0}, {0, 0}})
                    add("empty", [&, r = rows, columns = k](Case& c) {
                        c.rows = r, c.k = columns, c.scales = scales, c.hadamard = hadamard, c.n = n;
                    });
    for (const ScaleLayout layout : layouts)
        for (const DType type : types)
            for (const Scales scales : {Scales::one, Scales::per_row})
                for (const int64_t n : {16, 32, 64, 128})
                    for (const bool aligned : {true, false})
                        add(four_rows, [&](Case& c) {
                            Random random(c.seed + 1);
                            c.rows = 128 + random.below(573), c.k = 128 + 16 * random.below(121), c.n = n;
                            c.type = type, c.layout = layout, c.scales = scales;
                            c.values = random.below(4) == 0 ? Values::mixed : Values::rare;
                            if (!aligned) {
                                c.k -= random.below(16);
                                return;
                            }
                            c.hadamard = true;
                            c.extra_stride = any(random, {int64_t(0), int64_t(8), int64_t(64)});
                            c.extra_k = any(random, {int64_t(0), int64_t(16), int64_t(48), int64_t(-1)});
                            c.misaligned_input = c.misaligned_output = 0;
                        });
    for (int i = 0; i < 300; i++) add("random", [](Case&) {});
    if (quick) {  // each eleventh case that is small: 11 divides the count of no loop above
        std::vector<Case> few;
        for (size_t i = 0; i < cases.size(); i += 11)
            if (cases[i].rows * cases[i].k <= (cases[i].group == four_rows ? 1 << 19 : 65536))
                few.push_back(cases[i]);
        return few;
    }
    return cases;
}

// The codes hide the last bits of y. A row of one element with a dynamic scale of its own shows them: G =
// fl(2688 / y).
std::vector<Case> make_silu_cases(bool quick, uint64_t seed) {
    std::vector<Case> cases;
    const auto add = [&](DType type, Values values, int64_t rows, int64_t k) {
        Case c = random_case("gates", seed * 7919 + cases.size());
        c.rows = rows, c.k = k, c.type = type, c.values = values, c.scales = Scales::dynamic_per_row;
        c.extra_rows = c.extra_k = 0;
        cases.push_back(c);
    };
    for (const DType type : {DType::bf16, DType::f16})
        for (int i = 0; i < (quick ? 1 : 6); i++)
            add(type, Values::patterns, 65536 / (quick ? 16 : 1), quick ? 16 : 1);
    add(DType::f32, Values::edges, 6 * 4096 / (quick ? 16 : 1), 1);
    if (!quick)
        for (int i = 0; i < 16; i++) add(DType::f32, Values::patterns, 1 << 20, 1);
    return cases;
}

// BF16 and FP32 around the 47 KiB that a kernel may stage and the 48 KiB that it has.
std::vector<Case> make_rms_norm_cases(bool quick, uint64_t seed) {
    std::vector<Case> cases;
    for (const auto& [type, k] : {std::pair(DType::bf16, 24064),
                                  {DType::bf16, 24080},
                                  {DType::bf16, 24560},
                                  {DType::bf16, 24576},
                                  {DType::bf16, 24592},
                                  {DType::bf16, 30000},
                                  {DType::f32, 12032},
                                  {DType::f32, 12048},
                                  {DType::f32, 12288},
                                  {DType::f32, 12304}})
        for (const bool residual : {false, true})
            for (const Scales scales : all_scales) {
                Case c = random_case("rows of 48 KiB", seed * 6007 + cases.size());
                c.rows = 3, c.k = k, c.type = type, c.residual = residual, c.scales = scales;
                c.values = Values::normal;
                cases.push_back(c);
            }
    if (!quick) return cases;
    std::vector<Case> few;
    for (size_t i = 0; i < cases.size(); i += 7) few.push_back(cases[i]);
    return few;
}

// Every M and K with some N, as long as the reference takes no longer than for `most` multiplications.
std::vector<Case> make_product_cases(bool quick, uint64_t seed) {
    constexpr int64_t rows[] = {0, 1, 2, 3, 5, 8, 15, 16, 17, 33, 64, 65, 100, 128, 129, 257, 1000, 1030};
    constexpr int64_t ks[] = {0, 1, 15, 16, 17, 80, 1008, 1024, 1040, 2048, 3072, 4096, 5120, 28672};
    constexpr int64_t columns[] = {0, 1, 7, 16, 17, 31, 100, 128, 129, 256, 1000};
    constexpr Values values[] = {Values::normal, Values::normal, Values::mixed, Values::rare,
                                 Values::special};
    const int64_t most = quick ? 1 << 19 : 1 << 25;
    std::vector<Case> cases;
    uint64_t next_seed = seed * 900007;
    const auto add = [&](const char* group, int64_t m, int64_t n, int64_t k,
                         const std::function<void(Case&)>& change = {}) {
        Case c = random_case(group, next_seed++);
        Random random(c.seed + 5);
        c.rows = m, c.columns = n, c.k = k;
        c.values = any(random, values);
        c.on_the_way = random.below(3) == 0;
        c.special_weight = random.below(3) == 0;
        if (c.dynamic()) c.scales = c.scales == Scales::dynamic ? Scales::one : Scales::per_row;
        if (change) change(c);
        cases.push_back(c);
    };
    size_t turn = 0;
    for (const int64_t m : rows)
        for (const int64_t k : ks)
            for (int i = 0; i < (quick ? 1 : 3); i++) {
                int64_t n = columns[turn++ % std::size(columns)];
                if (quick && m * k > 0) n = std::min(n, most / (m * k));
                while (m * n * k > most) n /= 3;
                if (n > 0 || m * k < most) add("sizes", m, std::max<int64_t>(n, 1), k);
            }
    for (const ScaleLayout layout : layouts)
        for (const int64_t extra_k : {0, 16, 48, -1})
            for (const int64_t extra_rows : {0, 1, -1})
                for (const int64_t misaligned : {0, 1, 8})
                    for (const int64_t m : {7, 150}) {
                        if (quick && (extra_k + misaligned) % 3 != 0) continue;
                        add("padding and alignment", m, 50, 208, [&](Case& c) {
                            c.layout = layout, c.extra_k = extra_k, c.extra_rows = extra_rows;
                            c.misaligned_output = misaligned, c.misaligned_input = misaligned % 2;
                            c.extra_stride = misaligned;
                            c.on_the_way = false;
                        });
                    }
    for (const DType type : types)
        for (const DType other_type : types)
            for (const int64_t m : {1, 4, 48, 200, 1030})
                for (const bool on_the_way : {false, true})
                    for (const bool special : {false, true})
                        add("types", m, 72, quick || m == 1030 ? 128 : 1104, [&](Case& c) {
                            c.type = type, c.other_type = other_type;
                            c.on_the_way = on_the_way, c.special_weight = special;
                            if (special) return;  // as fast paths want it
                            c.extra_k = c.extra_rows = c.extra_stride = c.misaligned_input =
                                c.misaligned_output = 0;
                        });
    for (const int64_t m : {1, 16, 33, 100, 300, 1100})
        for (const int64_t k : {64, 1000, 4096})
            add("exact sums", m, quick || m == 1100 ? 40 : 136, k, [&](Case& c) {
                c.values = Values::integers, c.special_weight = c.on_the_way = false;
                c.extra_stride = c.misaligned_input = 0;
            });
    if (quick) return cases;
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{8, 4096, 4096},
                                  {64, 1008, 8192},
                                  {1000, 1000, 4096},
                                  {513, 2048, 2048},
                                  {704, 8448, 80},
                                  {64, 520, 28672},
                                  {65536, 40, 64}})
        for (int i = 0; i < 2; i++)
            add("large", m, n, k, [&](Case& c) {
                c.extra_k = c.extra_rows = c.extra_stride = c.misaligned_input = c.misaligned_output = 0;
                c.on_the_way = i == 1, c.special_weight = false;
            });
    return cases;
}

std::vector<Case> make_product_cases(bool quick, uint64_t seed, Accumulation accumulation) {
    std::vector<Case> few;
    for (Case& c : make_product_cases(quick, seed)) {
        if (c.seed % (quick ? 7 : 3) != 0) continue;
        c.group = accumulation == Accumulation::library ? "library" : "tensor core";
        c.accumulation = accumulation;
        few.push_back(c);
    }
    return few;
}

static float largest_of(DType type) {
    return type == DType::f16 ? 65504.0f : type == DType::bf16 ? 0x1.FEp127f : 0x1.FFFFFEp127f;
}

static void fill_block(Random& random, Values values, DType type, float G, float v[16]) {
    constexpr float middles[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    constexpr float specials[] = {INFINITY, -INFINITY, NAN, -NAN, 0.0f, -0.0f};
    if (values == Values::rare) values = random.below(64) == 0 ? Values::mixed : Values::normal;
    if (values == Values::mixed) values = any(random, block_values);
    const float size = std::ldexp(1.0f, int(random.below(9)) - 4),
                SF = decode_e4m3(uint8_t(1 + random.below(126)));
    for (int i = 0; i < 16; i++) {
        const float sign = random.below(2) == 0 ? 1.0f : -1.0f;
        switch (values) {
            case Values::ties: {
                v[i] = sign * (i == 0 ? 6.0f : any(random, middles)) * SF / G;
                const int64_t beside = random.below(4) - 1;  // half of them exact
                if (i > 0 && beside < 2)
                    v[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(v[i]) + uint32_t(int32_t(beside)));
                break;
            }
            case Values::zeros:
                v[i] = sign * 0.0f;
                break;
            case Values::integers:
                v[i] = float(random.below(9)) - 4;
                break;
            case Values::subnormal:
                v[i] = sign * (type == DType::f16 ? std::ldexp(float(random.below(1024)), -24)
                                                  : std::bit_cast<float>(random.bits() & 0x007FFFFF));
                break;
            case Values::huge:
                v[i] = sign * largest_of(type) * random.uniform(0.5f, 1.0f);
                break;
            case Values::tiny:
                v[i] = sign * random.uniform(0.0f, 0x1p-8f) / G;
                break;
            case Values::bits: {
                const uint32_t bits = random.bits();
                v[i] = load_element(&bits, type, 0);
                break;
            }
            default:
                v[i] = size * random.normal() * (random.below(64) == 0 ? 50.0f : 1.0f);
                if (values == Values::special && random.below(8) == 0) v[i] = any(random, specials);
        }
    }
}

void fill(Image& image, const Region& region, const Case& c, Values values) {
    uint8_t* data = region.at<uint8_t>(image.bytes.data());
    const uint64_t seed = c.seed * 0x9E3779B97F4A7C15 + std::hash<std::string>()(region.name);
    const float G = c.dynamic() ? 1.0f : c.G;
    Random whole(seed);
    for (int64_t row = 0; row < region.rows; row++) {
        if (values == Values::patterns || values == Values::edges) {
            for (int64_t k = 0; k < region.cols; k++) {
                const int64_t i = row * region.cols + k;
                constexpr float places[] = {-104.0f, -88.7228f, -0.0f, 0.0f, 88.7228f, 104.0f};
                uint32_t bits = region.type == DType::f32 ? whole.bits() : uint32_t(i & 0xFFFF);
                if (values == Values::edges) {  // units in the last place around each; from 0 the subnormals
                    const float place = places[i % 6];
                    const int64_t middle = place == 0 ? 0 : region.rows * region.cols / 12;
                    bits = std::bit_cast<uint32_t>(place) + uint32_t(i / 6 - middle);
                }
                std::memcpy(data + (row * region.stride + k) * int64_t(size_of(region.type)), &bits,
                            size_of(region.type));
            }
            continue;
        }
        Random random(seed + uint64_t(row) * 0xD1342543DE82EF95);
        for (int64_t k = 0; k < region.cols; k += 16) {
            float v[16];
            fill_block(random, values, region.type, G, v);
            for (int64_t i = 0; i < std::min<int64_t>(16, region.cols - k); i++)
                store_element(data, region.type, row * region.stride + k + i, v[i]);
        }
    }
}

}  // namespace halfbyte::conformance
