#include "cuda/special.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <span>

#include "core/element.h"
#include "cuda/device_code.h"
#include "format/dynamic_scale.h"
#include "format/nvfp4_block.h"
#include "reference/reference.h"

namespace halfbyte::conformance {

static Case plain_case(const char* group, int64_t rows, int64_t k, uint64_t seed) {
    return {.group = group, .seed = seed, .rows = rows, .k = k, .G = 37.5f};
}

template <typename Args>
void check_graph(const Operation<Args>& operation, Device& device, Report& report, uint64_t seed,
                 bool quick) {
    const FloatEnvironment environment;
    for (const Scales scales : {Scales::one, Scales::dynamic, Scales::dynamic_per_row})
        for (const ScaleLayout layout :
             {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4})
            for (const int64_t k : {256, 2048, 7168}) {
                if (quick && k != 2048) continue;
                Case c = plain_case("graph", 64, k, seed++);
                c.scales = scales, c.layout = layout, c.residual = true;
                Case five = c;
                five.rows = 5;
                const Problem<Args> captured = operation.make(c), live = operation.make(five);
                std::vector<uint8_t> expected = live.image.bytes;
                operation.reference(live.args(expected.data()));

                Image padded = captured.image;
                for (const Region& region : padded.regions)
                    if (region.role != Role::output && region.rows == 64 && region.cols == k)
                        std::memset(
                            padded.bytes.data() + region.offset + 5 * k * int64_t(size_of(region.type)), 0xFF,
                            size_t(59 * k) * size_of(region.type));
                const auto compare = [&](const std::vector<uint8_t>& given) -> std::string {
                    for (size_t r = 0; r < padded.regions.size(); r++) {
                        const Region &small = live.image.regions[r], &large = padded.regions[r];
                        if (small.role == Role::input) continue;
                        for (int64_t i = 0; i < small.bytes; i++) {
                            const uint8_t right = expected[size_t(small.offset + i)];
                            const uint8_t wrong = given[size_t(large.offset + i)];
                            const ScalePosition place = small.position(i);
                            if (place.row < 5 && right != wrong)
                                return fmt::format(
                                    "{} byte {} (row {}, k {}): expected 0x{:02X}, given 0x{:02X}",
                                    small.name, i, place.row, place.block, right, wrong);
                        }
                    }
                    return {};
                };
                for_each_kernel(
                    operation, captured, c, device, report, [&](const auto& kernel, const Args& args) {
                        const cuda::DeviceInfo info =
                            c.seed % 2 == 0 ? with_multiprocessors(device.info(), 1) : device.info();
                        const auto replay =
                            device.capture(captured.workspace_bytes, launch_of(kernel, args, info));
                        replay();
                        device.load(padded.bytes);
                        replay();
                        std::string difference = compare(device.fetch());
                        if (difference.empty() && !device.workspace_is_zero(captured.workspace_bytes))
                            difference = "the workspace is not zero afterwards";
                        return difference;
                    });
            }
}

template void check_graph(const Operation<QuantizeArgs>&, Device&, Report&, uint64_t, bool);
template void check_graph(const Operation<SiluMulQuantizeArgs>&, Device&, Report&, uint64_t, bool);
template void check_graph(const Operation<RmsNormQuantizeArgs>&, Device&, Report&, uint64_t, bool);
template void check_graph(const Operation<TransformQuantizeArgs>&, Device&, Report&, uint64_t, bool);

namespace {

struct Interval {
    float low, high;
};

// Where x'_j = fl(c * S) may lie if a matrix unit makes S ~ sum_k x_k T_kj. The products of BF16 numbers are
// exact. A step adds m >= 4 products and the sum so far: it aligns these m + 1 terms to the largest one and
// keeps at least 24 bits of each, cut off or rounded, so that each but the largest loses less than 2^-23
// times the largest; then the step's result is cut off or rounded to 24 bits. No term or partial sum exceeds
// A = sum_k |x_k T_kj| but for such losses. So a step has at most m + 1 losses of 2^-23 A, n / m steps have n
// + n/m <= n + n/4, and the factor c adds a rounding:
//   |x'_j - c S| <= gamma(n + n/4 + 1) |c| A,  gamma(p) = p u / (1 - p u), u = 2^-23.
std::vector<Interval> transformed(const ConstMatrix& x, const BlockTransform& t, int64_t row) {
    const auto T = [&](int64_t k, int64_t j) -> double {
        if (t.matrix != nullptr) return load_element(t.matrix, t.matrix_type, k * t.n + j);
        const double sign = t.signs != nullptr ? t.signs[k] : 1.0f;
        return __builtin_popcountll(uint64_t(k & j)) % 2 == 0 ? sign : -sign;  // Sylvester's matrix
    };
    std::vector<double> matrix(size_t(t.n * t.n));
    for (int64_t k = 0; k < t.n; k++)
        for (int64_t j = 0; j < t.n; j++) matrix[size_t(k * t.n + j)] = T(k, j);
    const double losses = double(t.n) * 1.25 + 1, gamma = losses * 0x1p-23 / (1 - losses * 0x1p-23);
    std::vector<Interval> result;
    for (int64_t first = 0; first < x.cols; first += t.n)
        for (int64_t j = 0; j < t.n; j++) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < t.n; k++) {
                const double product = double(load_element(x.data, x.type, row * x.stride + first + k)) *
                                       matrix[size_t(k * t.n + j)];
                sum += product, magnitude += std::fabs(product);
            }
            const double middle = t.scale * sum, error = gamma * std::fabs(t.scale) * magnitude;
            Interval v = {float(middle - error), float(middle + error)};
            if (v.low == 0) v.low = -0.0f;  // either zero is right
            if (v.high == 0) v.high = 0.0f;
            result.push_back(v);
        }
    return result;
}

// Codes in the order of their values, -0 before +0.
int rank(uint8_t code) {
    return code < 8 ? code : 7 - code;
}

uint8_t code_of(float v, float G, float SF) {
    return SF == 0 ? uint8_t(std::signbit(v) ? 8 : 0) : encode_e2m1(v * G / SF);
}

// Where the amax of values in these intervals may lie.
Interval amax_of(std::span<const Interval> values) {
    Interval amax = {0, 0};
    for (const auto& [low, high] : values) {
        const bool zero_inside = std::signbit(low) != std::signbit(high);
        amax.low = std::max(amax.low, zero_inside ? 0.0f : std::min(std::fabs(low), std::fabs(high)));
        amax.high = std::max({amax.high, std::fabs(low), std::fabs(high)});
    }
    return amax;
}

// Each G that was written lies between those of the largest and the smallest amax, and D = fl(1 / G).
std::string check_dynamic_scales(const QuantizeArgs& q, const std::vector<std::vector<Interval>>& values) {
    std::vector<Interval> amax(size_t(q.scale_per_row ? q.shape.rows : 1), Interval{0, 0});
    for (size_t row = 0; row < values.size(); row++) {
        const Interval own = amax_of(values[row]);
        Interval& whole = amax[q.scale_per_row ? row : 0];
        whole = {std::max(whole.low, own.low), std::max(whole.high, own.high)};
    }
    for (size_t i = 0; i < amax.size(); i++) {
        const float G = q.dynamic_encode_scale[i];
        const float least = dynamic_encode_scale(amax[i].high);
        const float most = amax[i].high > 0 && amax[i].low == 0 ? FLT_MAX : dynamic_encode_scale(amax[i].low);
        if (!(G >= least && G <= most))
            return fmt::format("dynamic encode scale {}: expected {:a} to {:a}, given {:a}", i, least, most,
                               G);
        if (q.dynamic_decode_scale != nullptr && q.dynamic_decode_scale[i] != 1.0f / G)
            return fmt::format("dynamic decode scale {}: expected {:a}, given {:a}", i, 1.0f / G,
                               q.dynamic_decode_scale[i]);
    }
    return {};
}

// The scale byte lies between those of the smallest and the largest amax that the intervals allow; with that
// scale each code lies between the codes of its interval's ends. G is the given one or, if it is dynamic, the
// one that was written.
std::string check_bytes(const TransformQuantizeArgs& given) {
    const QuantizeArgs& q = given.quantize;
    std::vector<std::vector<Interval>> values;
    for (int64_t row = 0; row < q.shape.rows; row++)
        values.push_back(transformed(given.x, given.transform, row));
    const bool dynamic = q.dynamic_encode_scale != nullptr;
    if (dynamic) {
        const std::string difference = check_dynamic_scales(q, values);
        if (!difference.empty()) return difference;
    }
    for (int64_t row = 0; row < q.shape.rows; row++) {
        const std::vector<Interval>& v = values[size_t(row)];
        const float G = (dynamic ? q.dynamic_encode_scale : q.encode_scale)[q.scale_per_row ? row : 0];
        for (int64_t block = 0; block < q.shape.blocks(); block++) {
            const auto [least, most] = amax_of(std::span(v).subspan(size_t(block * 16), 16));
            const uint8_t byte =
                q.block_scales[scale_offset(q.shape.layout, row, block, q.shape.padded_blocks())];
            const uint8_t first = encode_e4m3(G * (least * one_sixth)),
                          last = encode_e4m3(G * (most * one_sixth));
            if (byte < first || byte > last)
                return fmt::format(
                    "block scale of row {}, k {}: expected 0x{:02X} to 0x{:02X}, given 0x{:02X}", row,
                    block * 16, first, last, byte);
            for (int64_t k = block * 16; k < block * 16 + 16; k++) {
                const uint8_t code = q.codes[row * (q.shape.padded_k / 2) + k / 2] >> (k % 2 * 4) & 15;
                const uint8_t low = code_of(v[size_t(k)].low, G, decode_e4m3(byte));
                const uint8_t high = code_of(v[size_t(k)].high, G, decode_e4m3(byte));
                if (rank(code) < rank(low) || rank(code) > rank(high))
                    return fmt::format("code of row {}, k {}: expected {} to {}, given {}", row, k, low, high,
                                       code);
            }
        }
    }
    return {};
}

std::string check_bytes(const TransformArgs& given) {
    for (int64_t row = 0; row < given.y.rows; row++) {
        const std::vector<Interval> v = transformed(given.x, given.transform, row);
        for (int64_t k = 0; k < given.y.cols; k++) {
            const float y = load_element(given.y.data, given.y.type, row * given.y.stride + k);
            const float low = round_to_type(v[size_t(k)].low, given.y.type);
            const float high = round_to_type(v[size_t(k)].high, given.y.type);
            if (!(y >= low && y <= high))
                return fmt::format("y of row {}, k {}: expected {} to {}, given {}", row, k, low, high, y);
        }
    }
    return {};
}

bool is_dynamic_scale(const Region& region) {
    return region.name == "dynamic_encode_scale" || region.name == "dynamic_decode_scale";
}

// Padding, gaps, guards and inputs are the contract's: its bytes, with what was given for the results.
std::string check_surroundings(const Image& image, const Case& c, std::vector<uint8_t> expected,
                               const std::vector<uint8_t>& given) {
    for (const Region& region : image.regions)
        for (int64_t i = 0; region.role == Role::output && i < region.bytes; i++) {
            const auto [row, k] = region.position(i);
            if (is_dynamic_scale(region) || (row < c.rows && k < c.k))
                expected[size_t(region.offset + i)] = given[size_t(region.offset + i)];
        }
    return image.first_difference(expected, given);
}

// How many bytes (of codes: nibbles) of the results are not the contract's.
struct Unequal {
    int64_t scales = 0, codes = 0, values = 0, all_scales = 0, all_codes = 0, all_values = 0;

    void add(const Image& image, const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
        for (const Region& region : image.regions) {
            if (region.role != Role::output || is_dynamic_scale(region)) continue;
            const int64_t size = int64_t(size_of(region.type));
            for (int64_t i = region.offset; i < region.offset + region.bytes; i += size) {
                const int different = a[size_t(i)] ^ b[size_t(i)];
                if (region.name == "block_scales")
                    all_scales++, scales += different != 0;
                else if (region.name == "codes")
                    all_codes += 2, codes += (different & 15) != 0, codes += (different >> 4) != 0;
                else
                    all_values++, values += std::memcmp(&a[size_t(i)], &b[size_t(i)], size_t(size)) != 0;
            }
        }
    }
    std::string text() const {
        const auto percent = [](int64_t part, int64_t all) {
            return all == 0 ? 0.0 : 100.0 * double(part) / double(all);
        };
        if (all_values > 0)
            return fmt::format("{:.4f} % of y differ from the contract's", percent(values, all_values));
        return fmt::format(
            "{:.4f} % of the codes and {:.4f} % of the block scales differ from the contract's",
            percent(codes, all_codes), percent(scales, all_scales));
    }
};

// Whether G of a row is the same in both images; given scales always are.
bool same_scale(const Image& image, const Case& c, int64_t row, const std::vector<uint8_t>& a,
                const std::vector<uint8_t>& b) {
    for (const Region& region : image.regions)
        if (region.name == "dynamic_encode_scale") {
            const size_t at = size_t(region.offset + (c.per_row() ? row * 4 : 0));
            return std::memcmp(&a[at], &b[at], 4) == 0;
        }
    return true;
}

// A non-finite x leaves the results outside of its n elements as they were, in rows that keep their G.
std::string check_non_finite(const Image& image, const Case& c, int64_t bad_row, int64_t bad_k,
                             const std::vector<uint8_t>& given, const std::vector<uint8_t>& with_nan) {
    for (const Region& region : image.regions)
        for (int64_t i = 0; region.role == Role::output && i < region.bytes; i++) {
            const auto [row, k] = region.position(i);
            const size_t at = size_t(region.offset + i);
            const bool own = row == bad_row && k / c.n == bad_k / c.n;
            if (own || given[at] == with_nan[at]) continue;
            const bool may_lose_amax = c.dynamic() && row < c.rows && (!c.per_row() || row == bad_row);
            if (!may_lose_amax || same_scale(image, c, row, given, with_nan))
                return fmt::format("a non-finite x at row {}, k {} changes {} of row {}, k {}", bad_row,
                                   bad_k, region.name, row, k);
        }
    return {};
}

template <typename T, size_t size>
T any(test::Random& random, const T (&choices)[size]) {
    return choices[random.below(int64_t(size))];
}

// Scales, padding and alignment by the seed.
Case tensor_core_case(int64_t rows, int64_t blocks, int64_t n, bool hadamard, uint64_t seed) {
    constexpr Scales scales[] = {Scales::one, Scales::per_row, Scales::dynamic, Scales::dynamic_per_row};
    test::Random random(seed);
    Case c = plain_case("tensor core", rows, n * blocks, seed);
    c.accumulation = Accumulation::tensor_core, c.n = n, c.hadamard = hadamard;
    c.layout = ScaleLayout(random.below(3)), c.normalised = random.below(2) == 0;
    c.other_type = random.below(2) == 0 ? DType::f32 : DType::bf16;
    c.scales = any(random, scales);
    if (random.below(2) == 0) return c;  // aligned and without gaps, as the short way wants it
    c.extra_k = any(random, {int64_t(0), int64_t(16), int64_t(48), int64_t(-1)});
    c.extra_rows = any(random, {int64_t(0), int64_t(1), int64_t(-1)});
    c.extra_stride = any(random, {int64_t(0), int64_t(1), int64_t(8)});
    c.misaligned_input = random.below(2);
    c.misaligned_output = any(random, {int64_t(0), int64_t(1), int64_t(3), int64_t(8)});
    return c;
}

template <typename Args>
void check_tensor_core_of(const Operation<Args>& operation, Device& device, Report& report, uint64_t seed,
                          bool quick) {
    const FloatEnvironment environment;
    std::map<std::string, Unequal> unequal;
    for (const int64_t n : {16, 32, 64, 128})
        for (const bool hadamard : {true, false})
            for (const int64_t rows : {0, 1, 17, 64, 150})
                for (const int64_t blocks : {0, 1, 3, 16}) {
                    const Case c = tensor_core_case(rows, blocks, n, hadamard, seed++);
                    if (quick && c.seed % 8 != 0) continue;
                    const Problem<Args> problem = operation.make(c);
                    std::vector<uint8_t> contract = problem.image.bytes;
                    operation.reference(problem.args(contract.data()));
                    // One NaN or infinity: what differs then lies in its row and its n elements.
                    Image wrong = problem.image;
                    const Region& x = wrong.regions.front();
                    const int64_t bad_row = rows / 2, bad_k = c.k / 2;
                    if (x.bytes > 0)
                        store_element(wrong.bytes.data() + x.offset, x.type, bad_row * x.stride + bad_k,
                                      c.seed % 3 == 0 ? INFINITY : NAN);
                    const cuda::DeviceInfo info =
                        c.seed % 3 == 1 ? with_multiprocessors(device.info(), 1) : device.info();
                    for_each_kernel(
                        operation, problem, c, device, report, [&](const auto& kernel, const Args& args) {
                            const LaunchFunction launch = launch_of(kernel, args, info);
                            device.launch(problem.workspace_bytes, launch);
                            std::vector<uint8_t> given = device.fetch();
                            std::string difference = check_bytes(problem.args(given.data()));
                            unequal[std::string(kernel.name)].add(problem.image, contract, given);
                            device.load(wrong.bytes);
                            device.launch(problem.workspace_bytes, launch);
                            const std::vector<uint8_t> with_nan = device.fetch();
                            if (difference.empty())
                                difference = check_surroundings(problem.image, c, contract, given);
                            if (difference.empty())
                                difference =
                                    check_non_finite(problem.image, c, bad_row, bad_k, given, with_nan);
                            if (difference.empty() && !device.workspace_is_zero(problem.workspace_bytes))
                                difference = "the workspace is not zero afterwards";
                            return difference;
                        });
                }
    for (const auto& [kernel, counts] : unequal)
        report.note(operation.name, kernel, "tensor core", counts.text());
}

}  // namespace

void check_tensor_core(const Operation<TransformArgs>& operation, Device& device, Report& report,
                       uint64_t seed, bool quick) {
    check_tensor_core_of(operation, device, report, seed, quick);
}

void check_tensor_core(const Operation<TransformQuantizeArgs>& operation, Device& device, Report& report,
                       uint64_t seed, bool quick) {
    check_tensor_core_of(operation, device, report, seed, quick);
}

void check_bad_scales(const Operation<QuantizeArgs>& operation, Device& device, Report& report,
                      uint64_t seed) {
    for (const float G : {0.0f, -1.0f, INFINITY, -INFINITY, NAN})
        for (const Values values : {Values::normal, Values::zeros, Values::special, Values::subnormal}) {
            Case c = plain_case("bad global scale", 20, 200, seed++);
            c.values = values;
            Problem<QuantizeArgs> problem = operation.make(c);
            std::memcpy(problem.image.bytes.data() + problem.image.regions[1].offset, &G, 4);
            for_each_kernel(
                operation, problem, c, device, report, [&](const auto& kernel, const QuantizeArgs& args) {
                    device.launch(0, launch_of(kernel, args, device.info()));
                    std::vector<uint8_t> given = device.fetch();
                    const QuantizeArgs q = problem.args(given.data());
                    for (int64_t i = 0; i < q.shape.scale_bytes(); i++)
                        if ((q.block_scales[i] & 0x7F) == 0x7F)
                            return fmt::format("G = {} gives the block scale 0x{:02X}, NaN, at byte {}", G,
                                               q.block_scales[i], i);
                    return std::string();
                });
        }
}

void check_count_bad_scales(void (*count_bad_scales)(cuda::Stream, const float*, int64_t, int32_t*),
                            Device& device, Report& report) {
    if (!report.wants("count_bad_scales", "", "all")) return;
    const float bad[] = {0.0f, -0.0f, -1.0f, INFINITY, -INFINITY, NAN, -NAN};
    for (const int64_t count : {0, 1, 31, 33, 1000, 100003}) {
        test::Random random(uint64_t(count) + 1);
        Image image;
        const Region scales = image.floats("scales", Role::input, count, count % 2);
        const Region found = image.floats("bad", Role::in_place, 1, 1);
        int32_t sum = 1000;  // what was there before
        std::memcpy(image.bytes.data() + found.offset, &sum, 4);
        for (int64_t i = 0; i < count; i++) {
            float value =
                std::bit_cast<float>(uint32_t(1 + random.below(0x7F7FFFFF)));  // every finite positive one
            if (random.below(10) == 0) value = bad[random.below(7)], sum++;
            scales.at<float>(image.bytes.data())[i] = value;
        }
        std::vector<uint8_t> expected = image.bytes;
        std::memcpy(expected.data() + found.offset, &sum, 4);
        uint8_t* base = device.load(image.bytes);
        device.launch(0, [&](const cuda::Launch& launch) {
            count_bad_scales(launch.stream, scales.at<float>(base), count, found.at<int32_t>(base));
        });
        std::string difference = image.first_difference(expected, device.fetch());
        if (!difference.empty()) difference += fmt::format("; problem: {} scales, {} expected", count, sum);
        report.add("count_bad_scales", "", "all", 4, difference);
    }
}

void check_device_code(Report& report) {
    if (!report.wants("device code", "", "all bit patterns")) return;
    Count counts[code_counts];
    check_cuda(count_code_differences(counts), "count_code_differences");
    for (const Count& count : counts) {
        const std::string difference = count.differing == 0
                                           ? ""
                                           : fmt::format("{} of {} patterns differ, the first is 0x{:X}",
                                                         count.differing, count.patterns, count.first);
        report.add("device code", count.name, "all bit patterns", 0, difference);
        report.note("device code", count.name, "all bit patterns",
                    fmt::format("{} patterns", count.patterns));
    }
}

}  // namespace halfbyte::conformance
