#include "products.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>

#include "core/element.h"
#include "cuda/cublaslt.h"
#include "cuda/matmul_choice.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "monitor.h"
#include "verify.h"

namespace halfbyte::bench {
namespace {

using conformance::DeviceMemory;

constexpr float G = 33.6f;  // 2688 / 80: the largest outliers of Content::normal reach 80
constexpr int64_t rotated_bytes = 1100 << 20;

// Weights of one shape that rotate, and activations for `rows` rows.
class Weights {
  public:
    Weights(const Bench& bench, int64_t n, int64_t k, int64_t rows)
        : n_(n),
          k_(k),
          bytes_(round_up(gpu_weight_bytes(n, k), 256)),
          sets_(rotated_bytes / bytes_ + 1),
          dense_sets_(rotated_bytes / (n * k * 2) + 1),
          packed_(sets_ * bytes_),
          dense_(dense_sets_ * n * k * 2),
          x_(rows * k * 2),
          codes_(rows * k / 2),
          scales_(rows * k / 16),
          d_(rows * n * 2),
          encode_(4),
          product_decode_(n * 4),
          weight_decode_(n * 4) {
        const cuda::Launch launch = bench.gpu.launch();
        fill(launch.stream, encode_.data(), Content::value, DType::f32, 1, 0, G);
        const std::vector<float> product_decode(size_t(n), 1 / (G * G)), weight_decode(size_t(n), 1 / G);
        upload(product_decode_, product_decode);
        upload(weight_decode_, weight_decode);
        fill(launch.stream, x_.data(), Content::normal, DType::bf16, rows * k, 1, 0);
        quantise(bench, {x_.data(), DType::bf16, rows, k, k}, codes_.data(), scales_.data());
        const DeviceMemory values(n * k * 2), codes(n * k / 2), scales(n * k / 16);
        for (int64_t i = 0; i < dense_sets_; i++)
            fill(launch.stream, dense_.data() + i * n * k * 2, Content::normal, DType::bf16, n * k,
                 uint64_t(i) + 2, 0);
        for (int64_t i = 0; i < sets_; i++) {
            fill(launch.stream, values.data(), Content::normal, DType::bf16, n * k, uint64_t(i) + 2, 0);
            quantise(bench, {values.data(), DType::bf16, n, k, k}, codes.data(), scales.data());
            const cuda::PackWeightArgs args = {.parts = {{codes.data(), scales.data(), NvFp4Shape::of(n, k)}},
                                               .part_count = 1,
                                               .packed = packed_.data() + i * bytes_};
            first_of(bench.kernels.pack_weight, args, bench.gpu.info())
                .launch(args, launch, bench.gpu.info());
        }
        conformance::check_cuda(cudaStreamSynchronize(launch.stream), "making the weights");
    }

    int64_t sets() const { return sets_; }
    cuda::PackedWeight packed(int64_t set) const { return {packed_.data() + set % sets_ * bytes_, n_, k_}; }
    const void* dense(int64_t set) const { return dense_.data() + set % dense_sets_ * n_ * k_ * 2; }
    const void* x() const { return x_.data(); }
    void* d() const { return d_.data(); }

    cuda::MatmulW4A4Args w4a4(int64_t m, bool fused, Accumulation accumulation) const {
        cuda::MatmulW4A4Args args = {.w = packed(0),
                                     .column_decode = numbers(product_decode_),
                                     .d = {d_.data(), DType::bf16, m, n_, n_},
                                     .accumulation = accumulation};
        if (fused)
            args.x = {x_.data(), DType::bf16, m, k_, k_}, args.encode_scale = numbers(encode_);
        else
            args.a = {codes_.data(), scales_.data(), NvFp4Shape::of(m, k_)};
        return args;
    }
    cuda::MatmulW4A16Args w4a16(int64_t m, Accumulation accumulation) const {
        return {.x = {x_.data(), DType::bf16, m, k_, k_},
                .w = packed(0),
                .column_decode = numbers(weight_decode_),
                .d = {d_.data(), DType::bf16, m, n_, n_},
                .accumulation = accumulation};
    }

  private:
    template <typename Args>
    static const cuda::Kernel<Args>& first_of(cuda::KernelList<Args> list, const Args& args,
                                              const cuda::DeviceInfo& info) {
        for (const cuda::Kernel<Args>& kernel : list)
            if (kernel.unsupported_reason(args, info).empty()) return kernel;
        throw std::runtime_error("no kernel to make the weights with");
    }
    void quantise(const Bench& bench, const ConstMatrix& x, uint8_t* codes, uint8_t* scales) const {
        const QuantizeArgs args = {.x = x,
                                   .encode_scale = numbers(encode_),
                                   .shape = NvFp4Shape::of(x.rows, x.cols),
                                   .codes = codes,
                                   .block_scales = scales};
        first_of(bench.kernels.quantize, args, bench.gpu.info())
            .launch(args, bench.gpu.launch(), bench.gpu.info());
    }
    static const float* numbers(const DeviceMemory& memory) {
        return reinterpret_cast<const float*>(memory.data());
    }
    static void upload(const DeviceMemory& memory, const std::vector<float>& values) {
        conformance::check_cuda(
            cudaMemcpy(memory.data(), values.data(), values.size() * 4, cudaMemcpyHostToDevice),
            "cudaMemcpy");
    }

    int64_t n_, k_, bytes_, sets_, dense_sets_;
    DeviceMemory packed_, dense_, x_, codes_, scales_, d_, encode_, product_decode_, weight_decode_;
};

// ---- Sampled rows and strips of a product, as a problem on the host.

class Sample {
  public:
    Sample(Gpu& gpu, const cuda::PackedWeight& w, int64_t m) : k_(w.k) {
        std::mt19937_64 random(1);
        for (int i = 0; i < 8; i++) {
            rows_.push_back(i == 0 ? m - 1 : int64_t(random() % uint64_t(m)));
            strips_.push_back(i == 0 ? gpu_strips(w.n) - 1 : int64_t(random() % uint64_t(gpu_strips(w.n))));
        }
        const int64_t n = columns(), strip_bytes = gpu_groups(k_) * gpu_group_bytes;
        packed_.resize(size_t(gpu_weight_bytes(n, k_)));
        for (size_t i = 0; i < strips_.size(); i++) {
            const auto copy = [&](int64_t from, int64_t to, int64_t bytes) {
                const std::vector<uint8_t> part = gpu.fetch(w.data + from, bytes);
                std::copy(part.begin(), part.end(), packed_.begin() + to);
            };
            copy(strips_[i] * strip_bytes, int64_t(i) * strip_bytes, strip_bytes);
            copy(gpu_weight_flags(w.n, k_) + strips_[i], gpu_weight_flags(n, k_) + int64_t(i), 1);
        }
    }
    cuda::PackedWeight weight() const { return {packed_.data(), columns(), k_}; }
    int64_t rows() const { return int64_t(rows_.size()); }
    int64_t columns() const { return int64_t(strips_.size()) * gpu_strip_rows; }

    // The sampled rows of a matrix on the device, whose rows have that many bytes.
    std::vector<uint8_t> rows_of(Gpu& gpu, const void* data, int64_t row_bytes) const {
        std::vector<uint8_t> all;
        for (const int64_t row : rows_) {
            const auto one = gpu.fetch(static_cast<const uint8_t*>(data) + row * row_bytes, row_bytes);
            all.insert(all.end(), one.begin(), one.end());
        }
        return all;
    }
    // Empty if right(row, column, value) holds for all of d that was sampled.
    template <typename Right>
    std::string compare(Gpu& gpu, const Matrix& d, const Right& right) const {
        const std::vector<uint8_t> given = rows_of(gpu, d.data, d.stride * int64_t(size_of(d.type)));
        for (int64_t row = 0; row < rows(); row++)
            for (int64_t column = 0; column < columns(); column++) {
                const int64_t place = strips_[size_t(column / 16)] * 16 + column % 16;
                const float value = load_element(given.data(), d.type, row * d.stride + place);
                if (const std::string expected = right(row, column, value); !expected.empty())
                    return fmt::format("row {}, column {}: expected {}, given {}", rows_[size_t(row)], place,
                                       expected, value);
            }
        return {};
    }

  private:
    int64_t k_;
    std::vector<int64_t> rows_, strips_;
    std::vector<uint8_t> packed_;
};

// The reference's bytes.
std::string verify_product(Gpu& gpu, const cuda::MatmulW4A4Args& args, const Sample& sample) {
    const int64_t rows = sample.rows(), n = sample.columns(), k = args.w.k;
    const std::vector<float> decode(size_t(n), 1 / (G * G));
    std::vector<float> expected(size_t(rows * n));
    std::vector<uint8_t> first, second;
    cuda::MatmulW4A4Args host = {
        .w = sample.weight(), .column_decode = decode.data(), .d = {expected.data(), DType::f32, rows, n, n}};
    if (args.encode_scale != nullptr) {
        first = sample.rows_of(gpu, args.x.data, k * 2);
        host.x = {first.data(), DType::bf16, rows, k, k}, host.encode_scale = &G;
    } else {
        first = sample.rows_of(gpu, args.a.codes, k / 2);
        second = sample.rows_of(gpu, args.a.block_scales, k / 16);
        host.a = {first.data(), second.data(), NvFp4Shape::of(rows, k)};
    }
    reference::matmul_w4a4_packed(host);
    // An arithmetic of another order: rounding to BF16, and 2^-12 of the size that sums have.
    const double slack = args.accumulation == Accumulation::contract ? 0 : 0x1p-12 * std::sqrt(double(k));
    return sample.compare(gpu, args.d, [&](int64_t row, int64_t column, float value) {
        const float wanted = expected[size_t(row * n + column)], rounded = round_to_type(wanted, args.d.type);
        const bool right = slack == 0 ? value == rounded
                                      : std::fabs(double(value) - double(wanted)) <=
                                            0x1p-8 * std::fabs(double(wanted)) + slack;
        return right ? std::string() : fmt::format("{}", rounded);
    });
}

// Within one rounding to BF16 and 2^-12 of the sum of magnitudes, which is above the bound of any order of
// addition of 8192 elements in 24 bits that adds 1,024 at most one after the other.
std::string verify_product(Gpu& gpu, const cuda::MatmulW4A16Args& args, const Sample& sample) {
    const int64_t n = sample.columns(), k = args.w.k;
    const NvFp4Shape shape = NvFp4Shape::of(n, k);
    std::vector<uint8_t> codes(size_t(shape.code_bytes())), scales(size_t(shape.scale_bytes()));
    reference::unpack_weight({sample.weight(), codes.data(), scales.data()});
    const std::vector<uint8_t> x = sample.rows_of(gpu, args.x.data, k * 2);
    return sample.compare(gpu, args.d, [&](int64_t row, int64_t column, float value) {
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < k; i++) {
            const uint8_t pair = codes[size_t(column * k / 2 + i / 2)];
            const double product = double(load_element(x.data(), DType::bf16, row * k + i)) *
                                   double(decode_e2m1(pair >> (i % 2 * 4) & 15)) *
                                   double(decode_e4m3(scales[size_t(column * k / 16 + i / 16)])) / double(G);
            sum += product, magnitude += std::fabs(product);
        }
        const bool right = std::fabs(double(value) - sum) <= 0x1p-8 * std::fabs(sum) + 0x1p-12 * magnitude;
        return right ? std::string() : fmt::format("{}", sum);
    });
}

// Launches of a graph: every set once where that is short.
int64_t launches_of(const ProductRow& row, int64_t sets) {
    if (row.m >= 1024) return 5;
    return row.m > 64 ? 16 : std::max<int64_t>(sets, 16);
}

struct Context {
    const Bench& bench;
    Monitor& monitor;
    const Weights& weights;
    const DeviceMemory& scratch;

    cuda::Launch launch() const {
        cuda::Launch launch = bench.gpu.launch();
        launch.scratch = scratch.data(), launch.scratch_bytes = scratch.bytes();
        launch.weight_is_settled = true;
        return launch;
    }
};

template <typename Args>
std::vector<ProductOutcome> run_kernels(const Context& context, cuda::KernelList<Args> list, const Args& args,
                                        const ProductRow& row) {
    Gpu& gpu = context.bench.gpu;
    std::vector<ProductOutcome> outcomes;
    std::string reasons;
    for (const cuda::Kernel<Args>* kernel : cuda::in_order(list, args, gpu.info())) {
        const std::string reason = kernel->unsupported_reason(args, gpu.info());
        if (!reason.empty()) {
            reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", kernel->name, reason);
            continue;
        }
        const auto launch = [&](int64_t set) {
            Args rotated = args;
            rotated.w = context.weights.packed(set);
            cuda::Launch named = context.launch();
            named.kernel = kernel->name;
            kernel->launch(rotated, named, gpu.info());
        };
        ProductOutcome outcome{.kernel = std::string(kernel->name)};
        fill(gpu.launch().stream, args.d.data, Content::poison, args.d.type, args.d.rows * args.d.stride, 0,
             0);
        launch(0);
        const FloatEnvironment environment;
        outcome.difference = verify_product(gpu, args, Sample(gpu, args.w, row.m));
        if (outcome.difference.empty()) {
            context.monitor.begin();
            outcome.microseconds = gpu.time(launches_of(row, context.weights.sets()), launch);
            const Conditions found = context.monitor.end();
            outcome.sm_mhz = found.sm_mhz, outcome.watts = found.watts;
        }
        outcomes.push_back(outcome);
    }
    if (outcomes.empty()) outcomes.push_back({.note = "no kernel (" + reasons + ")"});
    return outcomes;
}

// x [m,k] in BF16 times a weight in BF16; 0 without cuBLASLt, and the note says why.
double time_cublas(const Context& context, const ProductRow& row, std::string& note) {
    const cuda::LtProduct product = {
        .m = row.m, .n = row.n, .k = row.k, .x_stride = row.k, .w_stride = row.k, .d_stride = row.n};
    note = cuda::lt_unsupported_reason(product);
    if (!note.empty()) return 0;
    Gpu& gpu = context.bench.gpu;
    const Weights& weights = context.weights;
    return gpu.time(launches_of(row, row.m > 64 ? 16 : rotated_bytes / (row.n * row.k * 2) + 1),
                    [&](int64_t set) {
                        cuda::lt_matmul(product, weights.x(), weights.dense(set), weights.d(),
                                        context.scratch.data(), gpu.launch().stream);
                    });
}

bool is_w4a16(const ProductRow& row) {
    return row.operation.starts_with("matmul_w4a16");
}
Accumulation accumulation_of(const ProductRow& row) {
    if (row.operation.ends_with("_library")) return Accumulation::library;
    return is_w4a16(row) || row.operation.ends_with("_tensor_core") ? Accumulation::tensor_core
                                                                    : Accumulation::contract;
}

std::vector<ProductOutcome> run_row(const Context& context, const ProductRow& row) {
    if (is_w4a16(row))
        return run_kernels(context, context.bench.kernels.matmul_w4a16,
                           context.weights.w4a16(row.m, accumulation_of(row)), row);
    return run_kernels(context, context.bench.kernels.matmul_w4a4,
                       context.weights.w4a4(row.m, row.operation.ends_with("_fused"), accumulation_of(row)),
                       row);
}

int64_t scratch_bytes_of(const ProductRow& row) {
    const Matrix d = {.rows = row.m, .cols = row.n};
    if (is_w4a16(row))
        return cuda::matmul_scratch_bytes(cuda::MatmulW4A16Args{
            .w = {nullptr, row.n, row.k}, .d = d, .accumulation = accumulation_of(row)});
    return cuda::matmul_scratch_bytes(
        cuda::MatmulW4A4Args{.w = {nullptr, row.n, row.k}, .d = d, .accumulation = accumulation_of(row)});
}

}  // namespace

std::vector<ProductRow> make_product_rows() {
    std::vector<ProductRow> rows;
    const std::pair<int64_t, int64_t> shapes[] = {{8192, 8192}, {28672, 8192}, {4096, 4096}};
    for (const auto& [n, k] : shapes)
        for (const int64_t m : {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096})
            for (const bool w4a4 : {true, false}) {
                ProductRow row{w4a4 ? "matmul_w4a4" : "matmul_w4a16", m, n, k};
                if (m <= 8) {
                    row.target = n == 8192 ? 14 : n == 28672 ? 40 : 5.5;
                    row.ratio = n == 28672 ? 2.75 : 2.4;
                } else if (n == 8192 && m <= 256) {
                    const std::map<int64_t, double> targets = {
                        {16, 15}, {32, 18}, {64, 24}, {128, 37.5}, {256, w4a4 ? 65 : 49}};
                    row.target = targets.at(m);
                }
                if (w4a4 && m >= 1024) row.teraflops = 500;
                if (!w4a4 && m >= 2048) row.ratio = 0.93;
                rows.push_back(row);
                if (w4a4) {
                    row.operation = "matmul_w4a4_fused";
                    row.target = row.ratio = row.teraflops = 0;
                    if (n == 8192 && m == 1) row.times_product = 1.15;
                    rows.push_back(row);
                    row.times_product = 0;
                    row.operation = "matmul_w4a4_tensor_core";
                } else {
                    row.operation = "matmul_w4a16_library";
                }
                row.target = row.ratio = row.teraflops = 0;
                if (m >= 128) rows.push_back(row);
            }
    return rows;
}

void run_products(const Bench& bench, const std::vector<ProductRow>& rows,
                  const std::function<void(const ProductRow&, const std::vector<ProductOutcome>&)>& done) {
    Monitor monitor(bench.gpu.info().ordinal);
    for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
        const int64_t n = rows[begin].n, k = rows[begin].k;
        int64_t most_rows = 0, scratch = cuda::lt_workspace_bytes;
        for (end = begin; end < rows.size() && rows[end].n == n && rows[end].k == k; end++) {
            most_rows = std::max(most_rows, rows[end].m);
            scratch = std::max(scratch, scratch_bytes_of(rows[end]));
        }
        const Weights weights(bench, n, k, most_rows);
        const DeviceMemory memory(scratch);
        const Context context = {bench, monitor, weights, memory};
        std::map<int64_t, std::pair<double, std::string>> cublas;
        double product = 0;  // of the row ahead
        for (size_t i = begin; i < end; i++) {
            ProductRow row = rows[i];
            if (product > 0 && row.times_product > 0) row.target = row.times_product * product;
            if (!cublas.contains(row.m)) {
                std::string note;
                const double microseconds = time_cublas(context, row, note);
                cublas[row.m] = {microseconds, note};
            }
            std::vector<ProductOutcome> outcomes = run_row(context, row);
            for (ProductOutcome& outcome : outcomes) {
                outcome.cublas_microseconds = cublas[row.m].first;
                for (const std::string& note : {cublas[row.m].second, monitor.reason()})
                    if (!note.empty()) outcome.note += (outcome.note.empty() ? "" : "; ") + note;
            }
            product = 0;
            for (const ProductOutcome& outcome : outcomes)
                if (outcome.microseconds > 0 && (product == 0 || outcome.microseconds < product))
                    product = outcome.microseconds;
            done(row, outcomes);
        }
    }
}

std::string tuning_lines(const std::string& operation,
                         const std::vector<std::pair<ProductRow, std::vector<ProductOutcome>>>& results) {
    // The fastest kernels of each size, those for activations that are quantised on the way behind them.
    std::map<int64_t, std::map<int64_t, std::vector<std::string>>> best;
    for (const std::string& name : {operation, operation + "_fused"})
        for (const auto& [row, outcomes] : results) {
            if (row.operation != name) continue;
            std::vector<std::pair<double, std::string>> timed;
            for (const ProductOutcome& outcome : outcomes)
                if (outcome.microseconds > 0) timed.emplace_back(outcome.microseconds, outcome.kernel);
            std::sort(timed.begin(), timed.end());
            std::vector<std::string>& kernels = best[row.m][row.n * row.k];
            for (size_t i = 0; i < std::min<size_t>(timed.size(), 2); i++)
                if (std::find(kernels.begin(), kernels.end(), timed[i].second) == kernels.end())
                    kernels.push_back(timed[i].second);
        }
    std::string text;
    for (auto line = best.begin(); line != best.end(); ++line) {
        const auto next = std::next(line);
        if (next != best.end() && next->second == line->second) continue;  // the same for more rows
        for (auto weight = line->second.begin(); weight != line->second.end(); ++weight) {
            const auto larger = std::next(weight);
            if (larger != line->second.end() && larger->second == weight->second) continue;
            const auto number = [](int64_t value, bool last) {
                return last ? std::string("INT64_MAX") : fmt::format("{}", value);
            };
            text += fmt::format("    {{{}, {}, {{\"{}\"}}}},\n", number(line->first, next == best.end()),
                                number(weight->first, larger == line->second.end()),
                                fmt::join(weight->second, "\", \""));
        }
    }
    return text;
}

}  // namespace halfbyte::bench
