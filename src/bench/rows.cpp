#include "bench/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <optional>

#include "bench/operands.h"
#include "core/aligned_memory.h"
#include "core/float_environment.h"
#include "reference/reference.h"

namespace halfbyte::bench {
namespace {

constexpr double nvfp4_bytes = 0.5625;  // of a value: half a byte of code, a sixteenth of a byte of scale

template <typename Args>
void by_reference(void (*operation)(const Args&), const Args& args) {
    const FloatEnvironment environment;
    operation(args);
}

// "row 3: byte 17 is 4a, 4b by the reference" of the rows that were sampled; empty if all are the same.
std::string difference_of_rows(std::span<const int64_t> rows, const OwnedMatrix& given,
                               const OwnedMatrix& expected) {
    for (size_t i = 0; i < rows.size(); i++) {
        const auto a = given.row(rows[i]), b = expected.row(int64_t(i));
        const auto [found, right] = std::ranges::mismatch(a, b);
        if (found != a.end())
            return fmt::format("row {}, column {}: byte {:02x}, {:02x} by the reference", rows[i],
                               (found - a.begin()) / int64_t(size_of(given.type)), *found, *right);
    }
    return {};
}

// ---- products: what varies is the weight

// Columns of the weight that the reference computes too.
struct SampledProduct {
    std::vector<int64_t> rows, columns;

    SampledProduct(int64_t m, int64_t n) : rows(sample_of(m, 4)), columns(sample_of(n, 24)) {}
    std::string difference(const OwnedMatrix& given, const OwnedMatrix& expected) const {
        for (size_t i = 0; i < rows.size(); i++)
            for (size_t j = 0; j < columns.size(); j++) {
                const auto at = [](const OwnedMatrix& d, int64_t row, int64_t column) {
                    float value;
                    std::memcpy(&value, d.row(row).data() + column * 4, 4);
                    return value;
                };
                const float a = at(given, rows[i], columns[j]), b = at(expected, int64_t(i), int64_t(j));
                if (std::bit_cast<uint32_t>(a) != std::bit_cast<uint32_t>(b))
                    return fmt::format("row {}, column {}: {}, {} by the reference", rows[i], columns[j], a,
                                       b);
            }
        return {};
    }
};

// Sets of one packed weight.
struct PackedSets {
    HugePages memory;
    std::vector<PackedWeight> weights;

    PackedSets(const Context& context, const OwnedNvFp4& w, int64_t sets) {
        for (int64_t i = 0; i < sets; i++) weights.push_back(pack_weight(context, w.view(), &memory));
    }
};

class MatmulW4A4 : public Operation {
  public:
    MatmulW4A4(const Context& context, int64_t m, int64_t n, int64_t k, int64_t sets)
        : a_(random_nvfp4(m, k, 1)),
          w_(random_nvfp4(n, k, 2)),
          packed_(context, w_, sets),
          decode_(size_t(n), 1e-3f),
          d_(DType::f32, m, n) {}
    void run(const Context& context, int64_t set) override {
        matmul_w4a4(context, args(a_, packed_.weights[size_t(set)], d_));
    }
    std::span<uint8_t> output() override { return d_.data.bytes(); }
    std::string difference(const Context& context) override {
        const SampledProduct sample(d_.rows, d_.cols);
        const OwnedNvFp4 a = rows_of(a_, sample.rows);
        const PackedWeight w = pack_weight(context, rows_of(w_, sample.columns).view());
        const OwnedMatrix d(DType::f32, a.shape.rows, w.n);
        by_reference(reference::matmul_w4a4, args(a, w, d));
        return sample.difference(d_, d);
    }

  private:
    MatmulW4A4Args args(const OwnedNvFp4& a, const PackedWeight& w, const OwnedMatrix& d) const {
        return {.a = a.view(),
                .w = &w,
                .row_decode = &row_decode_,
                .column_decode = decode_.data(),
                .d = d.view()};
    }
    OwnedNvFp4 a_, w_;
    PackedSets packed_;
    std::vector<float> decode_;
    float row_decode_ = 1.0f;
    OwnedMatrix d_;
};

class MatmulW4A16 : public Operation {
  public:
    MatmulW4A16(const Context& context, int64_t m, int64_t n, int64_t k, int64_t sets)
        : x_(random_matrix(DType::f32, m, k, 1)),
          w_(random_nvfp4(n, k, 2)),
          packed_(context, w_, sets),
          decode_(size_t(n), 1e-3f),
          d_(DType::f32, m, n) {}
    void run(const Context& context, int64_t set) override {
        matmul_w4a16(context, args(x_, packed_.weights[size_t(set)], d_));
    }
    std::span<uint8_t> output() override { return d_.data.bytes(); }
    std::string difference(const Context& context) override {
        const SampledProduct sample(d_.rows, d_.cols);
        const OwnedMatrix x = rows_of(x_, sample.rows);
        const PackedWeight w = pack_weight(context, rows_of(w_, sample.columns).view());
        const OwnedMatrix d(DType::f32, x.rows, w.n);
        by_reference(reference::matmul_w4a16, args(x, w, d));
        return sample.difference(d_, d);
    }

  private:
    MatmulW4A16Args args(const OwnedMatrix& x, const PackedWeight& w, const OwnedMatrix& d) const {
        return {.x = x.input(), .w = &w, .column_decode = decode_.data(), .d = d.view()};
    }
    OwnedMatrix x_;
    OwnedNvFp4 w_;
    PackedSets packed_;
    std::vector<float> decode_;
    OwnedMatrix d_;
};

class MatmulBf16 : public Operation {
  public:
    MatmulBf16(const Context&, int64_t m, int64_t n, int64_t k, int64_t sets)
        : x_(random_matrix(DType::f32, m, k, 1)),
          w_(size_t(sets), random_matrix(DType::bf16, n, k, 2)),
          d_(DType::f32, m, n) {}
    void run(const Context& context, int64_t set) override {
        matmul_dense(context, {.x = x_.input(), .w = w_[size_t(set)].input(), .d = d_.view()});
    }
    std::span<uint8_t> output() override { return d_.data.bytes(); }
    std::string difference(const Context&) override {
        const SampledProduct sample(d_.rows, d_.cols);
        const OwnedMatrix x = rows_of(x_, sample.rows), w = rows_of(w_[0], sample.columns);
        const OwnedMatrix d(DType::f32, x.rows, w.rows);
        by_reference(reference::matmul_dense, MatmulDenseArgs{.x = x.input(), .w = w.input(), .d = d.view()});
        return sample.difference(d_, d);
    }

  private:
    OwnedMatrix x_;
    std::vector<OwnedMatrix> w_;
    OwnedMatrix d_;
};

template <typename Product>
std::unique_ptr<Operation> make_product(const Context& context, int64_t m, int64_t n, int64_t k,
                                        int64_t sets) {
    return std::make_unique<Product>(context, m, n, k, sets);
}

// Row::make of an operation that takes these arguments and the number of sets.
template <typename Made, typename... Arguments>
auto maker_of(Arguments... arguments) {
    return [=](const Context&, int64_t sets) -> std::unique_ptr<Operation> {
        return std::make_unique<Made>(arguments..., sets);
    };
}

void add_products(std::vector<Row>& rows, const char* kernel) {
    struct Shape {
        int64_t n, k;
        bool in_l2;
    };
    // In L2: 288 KiB of NVFP4, 256 KiB of BF16. From memory: a layer of a model of 8 billion weights.
    const bool bf16 = std::string_view(kernel) == "matmul_bf16";
    const Shape small = bf16 ? Shape{128, 1024, true} : Shape{256, 2048, true}, large = {4096, 4096, false};
    for (const Shape& shape : {small, large})
        for (const int64_t m : {1, 2, 4, 8, 16, 64, 512})
            rows.push_back(product_row(kernel, m, shape.n, shape.k, shape.in_l2));
}

// ---- row by row

// What ends in codes and block scales, from 16-bit or 32-bit rows: by itself, or behind a producer.
class Quantizing : public Operation {
  public:
    std::span<uint8_t> output() override { return q_[0].codes.bytes(); }

  protected:
    Quantizing(DType type, int64_t rows, int64_t k, ScaleLayout layout, int64_t sets)
        : type_(type), q_(size_t(sets), OwnedNvFp4(NvFp4Shape::of(rows, k, layout))) {}
    // x is the producer's if it is not given.
    QuantizeArgs args(const OwnedNvFp4& q, const void* x = nullptr) const {
        return {.x = {x, type_, q.shape.rows, q.shape.k, q.shape.k},
                .encode_scale = &encode_scale_,
                .shape = q.shape,
                .codes = q.codes.data(),
                .block_scales = q.scales.data()};
    }
    const OwnedNvFp4& result(int64_t set) const { return q_[size_t(set)]; }
    std::vector<int64_t> sampled() const { return sample_of(q_[0].shape.rows, 32); }
    OwnedNvFp4 expected() const {
        return OwnedNvFp4(NvFp4Shape::of(int64_t(sampled().size()), q_[0].shape.k));
    }
    std::string difference_to(const OwnedNvFp4& expected) const {
        const OwnedNvFp4 given = rows_of(q_[0], sampled());
        if (!std::ranges::equal(given.codes.bytes(), expected.codes.bytes()))
            return "the codes are not the reference's";
        if (!std::ranges::equal(given.scales.bytes(), expected.scales.bytes()))
            return "the block scales are not the reference's";
        return {};
    }

  private:
    DType type_;
    float encode_scale_ = 600.0f;
    std::vector<OwnedNvFp4> q_;
};

class Quantize : public Quantizing {
  public:
    Quantize(DType type, int64_t rows, int64_t k, ScaleLayout layout, int64_t sets)
        : Quantizing(type, rows, k, layout, sets), x_(size_t(sets), random_matrix(type, rows, k, 1)) {}
    void run(const Context& context, int64_t set) override {
        quantize(context, args(result(set), x_[size_t(set)].data.data()));
    }
    std::string difference(const Context&) override {
        const OwnedMatrix x = rows_of(x_[0], sampled());
        const OwnedNvFp4 q = expected();
        by_reference(reference::quantize, args(q, x.data.data()));
        return difference_to(q);
    }

  private:
    std::vector<OwnedMatrix> x_;
};

class HadamardQuantize : public Quantizing {
  public:
    HadamardQuantize(int64_t rows, int64_t k, int64_t n, int64_t sets)
        : Quantizing(DType::f32, rows, k, ScaleLayout::linear, sets),
          n_(n),
          x_(size_t(sets), random_matrix(DType::bf16, rows, k, 1)) {}
    void run(const Context& context, int64_t set) override {
        transform_quantize(context, all_args(x_[size_t(set)], result(set)));
    }
    std::string difference(const Context&) override {
        const OwnedMatrix x = rows_of(x_[0], sampled());
        const OwnedNvFp4 q = expected();
        by_reference(reference::transform_quantize, all_args(x, q));
        return difference_to(q);
    }

  private:
    TransformQuantizeArgs all_args(const OwnedMatrix& x, const OwnedNvFp4& q) const {
        return {.x = x.input(), .transform = {.n = n_, .scale = 0.25f}, .quantize = args(q)};
    }
    int64_t n_;
    std::vector<OwnedMatrix> x_;
};

class SiluMulQuantize : public Quantizing {
  public:
    SiluMulQuantize(int64_t rows, int64_t k, int64_t sets)
        : Quantizing(DType::bf16, rows, k, ScaleLayout::linear, sets),
          gate_(size_t(sets), random_matrix(DType::bf16, rows, k, 1)),
          up_(size_t(sets), random_matrix(DType::bf16, rows, k, 2)) {}
    void run(const Context& context, int64_t set) override {
        silu_mul_quantize(context, {.gate = gate_[size_t(set)].input(),
                                    .up = up_[size_t(set)].input(),
                                    .quantize = args(result(set))});
    }
    std::string difference(const Context&) override {
        const OwnedMatrix gate = rows_of(gate_[0], sampled()), up = rows_of(up_[0], sampled());
        const OwnedNvFp4 q = expected();
        by_reference(reference::silu_mul_quantize,
                     SiluMulQuantizeArgs{.gate = gate.input(), .up = up.input(), .quantize = args(q)});
        return difference_to(q);
    }

  private:
    std::vector<OwnedMatrix> gate_, up_;
};

class RmsNormQuantize : public Quantizing {
  public:
    RmsNormQuantize(int64_t rows, int64_t k, int64_t sets)
        : Quantizing(DType::bf16, rows, k, ScaleLayout::linear, sets),
          x_(size_t(sets), random_matrix(DType::bf16, rows, k, 1)),
          residual_(size_t(sets), random_matrix(DType::bf16, rows, k, 2)),
          weight_(random_matrix(DType::bf16, 1, k, 3)) {}
    void run(const Context& context, int64_t set) override {
        rms_norm_quantize(context, all_args(x_[size_t(set)], residual_[size_t(set)], result(set)));
    }
    void prepare() override { before_.emplace(rows_of(residual_[0], sampled())); }
    std::string difference(const Context&) override {
        const OwnedMatrix x = rows_of(x_[0], sampled()), residual = *before_;
        const OwnedNvFp4 q = expected();
        by_reference(reference::rms_norm_quantize, all_args(x, residual, q));
        const std::string found = difference_of_rows(sampled(), residual_[0], residual);
        return found.empty() ? difference_to(q) : "residual, " + found;
    }

  private:
    RmsNormQuantizeArgs all_args(const OwnedMatrix& x, const OwnedMatrix& residual,
                                 const OwnedNvFp4& q) const {
        return {.x = x.input(),
                .residual = residual.view(),
                .weight = weight_.input(),
                .epsilon = 1e-5f,
                .quantize = args(q)};
    }
    std::vector<OwnedMatrix> x_, residual_;
    OwnedMatrix weight_;
    std::optional<OwnedMatrix> before_;  // the sampled rows of the residual; a call adds x to them
};

class TransformRows : public Operation {
  public:
    TransformRows(int64_t rows, int64_t k, int64_t n, bool matrix, int64_t sets)
        : x_(size_t(sets), random_matrix(DType::f32, rows, k, 1)),
          y_(size_t(sets), OwnedMatrix(DType::f32, rows, k)),
          matrix_(random_matrix(DType::f32, matrix ? n : 0, n, 2)),
          transform_{.n = n, .scale = 0.25f} {
        if (matrix) transform_.matrix = matrix_.data.data();
    }
    void run(const Context& context, int64_t set) override {
        transform(context, args(x_[size_t(set)], y_[size_t(set)]));
    }
    std::span<uint8_t> output() override { return y_[0].data.bytes(); }
    std::string difference(const Context&) override {
        const std::vector<int64_t> rows = sample_of(x_[0].rows, 8);
        const OwnedMatrix x = rows_of(x_[0], rows), y(DType::f32, x.rows, x.cols);
        by_reference(reference::transform, args(x, y));
        return difference_of_rows(rows, y_[0], y);
    }

  private:
    TransformArgs args(const OwnedMatrix& x, const OwnedMatrix& y) const {
        return {.x = x.input(), .transform = transform_, .y = y.view()};
    }
    std::vector<OwnedMatrix> x_, y_;
    OwnedMatrix matrix_;
    BlockTransform transform_;
};

class RmsNorm : public Operation {
  public:
    RmsNorm(int64_t rows, int64_t k, int64_t sets)
        : x_(size_t(sets), random_matrix(DType::f32, rows, k, 1)),
          residual_(size_t(sets), random_matrix(DType::f32, rows, k, 2)),
          y_(size_t(sets), OwnedMatrix(DType::f32, rows, k)),
          weight_(random_matrix(DType::bf16, 1, k, 3)) {}
    void run(const Context& context, int64_t set) override {
        const auto i = size_t(set);
        rms_norm(context, args(x_[i], residual_[i], y_[i]));
    }
    std::span<uint8_t> output() override { return y_[0].data.bytes(); }
    void prepare() override { before_.emplace(rows_of(residual_[0], sampled())); }
    std::string difference(const Context&) override {
        const std::vector<int64_t> rows = sampled();
        const OwnedMatrix x = rows_of(x_[0], rows), y(DType::f32, x.rows, x.cols);
        const OwnedMatrix residual = *before_;
        by_reference(reference::rms_norm, args(x, residual, y));
        const std::string found = difference_of_rows(rows, residual_[0], residual);
        return found.empty() ? difference_of_rows(rows, y_[0], y) : "residual, " + found;
    }

  private:
    RmsNormArgs args(const OwnedMatrix& x, const OwnedMatrix& residual, const OwnedMatrix& y) const {
        return {.x = x.input(),
                .residual = residual.view(),
                .weight = weight_.input(),
                .epsilon = 1e-5f,
                .y = y.view()};
    }
    std::vector<int64_t> sampled() const { return sample_of(x_[0].rows, 8); }
    std::vector<OwnedMatrix> x_, residual_, y_;
    std::optional<OwnedMatrix> before_;  // the sampled rows of the residual; a call adds x to them
    OwnedMatrix weight_;
};

class SiluMul : public Operation {
  public:
    SiluMul(int64_t rows, int64_t k, int64_t sets)
        : gate_(size_t(sets), random_matrix(DType::f32, rows, k, 1)),
          up_(size_t(sets), random_matrix(DType::f32, rows, k, 2)),
          y_(size_t(sets), OwnedMatrix(DType::f32, rows, k)) {}
    void run(const Context& context, int64_t set) override {
        const auto i = size_t(set);
        silu_mul(context, {.gate = gate_[i].input(), .up = up_[i].input(), .y = y_[i].view()});
    }
    std::span<uint8_t> output() override { return y_[0].data.bytes(); }
    std::string difference(const Context&) override {
        const std::vector<int64_t> rows = sample_of(gate_[0].rows, 8);
        const OwnedMatrix gate = rows_of(gate_[0], rows), up = rows_of(up_[0], rows);
        const OwnedMatrix y(DType::f32, gate.rows, gate.cols);
        by_reference(reference::silu_mul, SiluMulArgs{.gate = gate.input(), .up = up.input(), .y = y.view()});
        return difference_of_rows(rows, y_[0], y);
    }

  private:
    std::vector<OwnedMatrix> gate_, up_, y_;
};

// `values` of a call, each of which moves so many bytes and takes so many additions or multiply-adds.
void add_elementwise(std::vector<Row>& rows, const std::string& kernel, int64_t height, int64_t k, bool in_l2,
                     double read, double written, double fp32,
                     std::function<std::unique_ptr<Operation>(const Context&, int64_t)> make) {
    const double values = double(height * k);
    rows.push_back({.kernel = kernel,
                    .shape = fmt::format("{}x{}", height, k),
                    .items = values,
                    .unit = "Gvalue/s",
                    .work = {.bytes_read = values * read,
                             .bytes_written = values * written,
                             .int8 = 0,
                             .fp32 = values * fp32,
                             .in_l2 = in_l2},
                    .set_bytes = values * (read + written),
                    .make = std::move(make),
                    .note = {}});
}

void add_rows_by_row(std::vector<Row>& rows) {
    struct Shape {
        int64_t height, k;
        bool in_l2;
    };
    // One token of a small model; 1/4 MiB of FP32 in L2; 64 MiB in memory.
    for (const Shape& shape : {Shape{1, 1536, true}, Shape{16, 4096, true}, Shape{4096, 4096, false}}) {
        const int64_t height = shape.height, k = shape.k;
        const bool in_l2 = shape.in_l2;
        struct Form {
            const char* name;
            DType type;
            ScaleLayout layout;
        };
        for (const Form& form : {Form{"quantize_bf16", DType::bf16, ScaleLayout::linear},
                                 Form{"quantize_bf16_128x4", DType::bf16, ScaleLayout::tiled_128x4},
                                 Form{"quantize_bf16_8x4", DType::bf16, ScaleLayout::tiled_8x4},
                                 Form{"quantize_f32", DType::f32, ScaleLayout::linear}})
            add_elementwise(rows, form.name, height, k, in_l2, double(size_of(form.type)), nvfp4_bytes, 0,
                            maker_of<Quantize>(form.type, height, k, form.layout));
        for (const int64_t n : {16, 128})
            add_elementwise(rows, fmt::format("hadamard_{}_quantize_bf16", n), height, k, in_l2, 2,
                            nvfp4_bytes, std::log2(double(n)) + 1, maker_of<HadamardQuantize>(height, k, n));
        add_elementwise(rows, "silu_mul_quantize_bf16", height, k, in_l2, 4, nvfp4_bytes, 0,
                        maker_of<SiluMulQuantize>(height, k));
        add_elementwise(rows, "rms_norm_quantize_bf16", height, k, in_l2, 4, 2 + nvfp4_bytes, 0,
                        maker_of<RmsNormQuantize>(height, k));
        add_elementwise(rows, "rms_norm", height, k, in_l2, 8, 8, 0, maker_of<RmsNorm>(height, k));
        add_elementwise(rows, "silu_mul", height, k, in_l2, 8, 4, 0, maker_of<SiluMul>(height, k));
        for (const int64_t n : {16, 128, 512})
            add_elementwise(rows, fmt::format("hadamard_{}", n), height, k, in_l2, 4, 4,
                            std::log2(double(n)) + 1, maker_of<TransformRows>(height, k, n, false));
        if (in_l2)
            for (const int64_t n : {16, 128})
                add_elementwise(rows, fmt::format("matrix_{}", n), height, k, in_l2, 4, 4, double(n) + 1,
                                maker_of<TransformRows>(height, k, n, true));
    }
}

// ---- attention

struct Heads {
    int64_t heads, kv_heads, head_dim;
};

class Attention : public Operation {
  public:
    Attention(const Heads& heads, int64_t queries, int64_t first, int64_t sets)
        : heads_(heads),
          first_(first),
          q_(random_matrix(DType::f32, queries, heads.heads * heads.head_dim, 1)),
          keys_(size_t(sets), random_matrix(DType::f32, first + queries, heads.kv_heads * heads.head_dim, 2)),
          values_(size_t(sets),
                  random_matrix(DType::f32, first + queries, heads.kv_heads * heads.head_dim, 3)),
          o_(DType::f32, queries, q_.cols) {}
    void run(const Context& context, int64_t set) override { attention(context, args(q_, set, first_, o_)); }
    std::span<uint8_t> output() override { return o_.data.bytes(); }
    std::string difference(const Context&) override {
        for (const int64_t row : sample_of(q_.rows, 4)) {
            const std::vector<int64_t> rows = {row};
            const OwnedMatrix q = rows_of(q_, rows), o(DType::f32, 1, q.cols);
            by_reference(reference::attention, args(q, 0, first_ + row, o));
            const std::string found = difference_of_rows(rows, o_, o);
            if (!found.empty()) return found;
        }
        return {};
    }

  private:
    AttentionArgs args(const OwnedMatrix& q, int64_t set, int64_t first, const OwnedMatrix& o) const {
        return {.q = q.input(),
                .keys = reinterpret_cast<const float*>(keys_[size_t(set)].data.data()),
                .values = reinterpret_cast<const float*>(values_[size_t(set)].data.data()),
                .cache_stride = heads_.kv_heads * heads_.head_dim,
                .heads = heads_.heads,
                .kv_heads = heads_.kv_heads,
                .head_dim = heads_.head_dim,
                .first_position = first,
                .o = o.view()};
    }
    Heads heads_;
    int64_t first_;
    OwnedMatrix q_;
    std::vector<OwnedMatrix> keys_, values_;
    OwnedMatrix o_;
};

void add_attention(std::vector<Row>& rows) {
    struct Case {
        const char* kernel;
        Heads heads;
        int64_t queries, first;
        bool in_l2;
    };
    const Heads small = {9, 3, 64}, large = {32, 8, 128};  // of models of 135 million and 8 billion weights
    for (const Case& one :
         {Case{"attention_token", small, 1, 255, true}, Case{"attention_prompt", small, 512, 0, true},
          Case{"attention_token", large, 1, 4095, false}}) {
        const Heads heads = one.heads;
        const int64_t queries = one.queries, first = one.first;
        const int64_t positions = first + queries;
        const double pairs = double(queries * first) + 0.5 * double(queries * (queries + 1));
        const double products = pairs * double(heads.heads * heads.head_dim * 2);
        const double cache = double(positions * heads.kv_heads * heads.head_dim) * 8;
        rows.push_back(
            {.kernel = one.kernel,
             .shape = fmt::format("T={} from={} heads={}/{} d={}", queries, first, heads.heads,
                                  heads.kv_heads, heads.head_dim),
             .items = products,
             .unit = "GMAC/s",
             .work =
                 {.bytes_read = cache, .bytes_written = 0, .int8 = 0, .fp32 = products, .in_l2 = one.in_l2},
             .set_bytes = cache,
             .make = maker_of<Attention>(heads, queries, first),
             .note = {}});
    }
}

}  // namespace

Row product_row(const std::string& kernel, int64_t m, int64_t n, int64_t k, bool in_l2) {
    const bool int8 = kernel == "matmul_w4a4";
    const auto make = int8                       ? make_product<MatmulW4A4>
                      : kernel == "matmul_w4a16" ? make_product<MatmulW4A16>
                                                 : make_product<MatmulBf16>;
    const double weights = double(n * k), products = double(m) * weights;
    const double weight_bytes = weights * (kernel == "matmul_bf16" ? 2 : nvfp4_bytes);
    Row row{.kernel = kernel,
            .shape = fmt::format("M={} N={} K={}", m, n, k),
            .items = products,
            .unit = "GMAC/s",
            .work = {.bytes_read = weight_bytes + double(m * k) * (int8 ? nvfp4_bytes : 4),
                     .bytes_written = 0,
                     .int8 = int8 ? products : 0,
                     .fp32 = int8 ? 0 : products,
                     .in_l2 = in_l2},
            .set_bytes = weight_bytes,
            .make = [=](const Context& context, int64_t sets) { return make(context, m, n, k, sets); },
            .note = {}};
    // 4 products of 64 beside a conversion, a scale and an addition for 16 outputs of a block: 4 of 7
    // instructions, 4 of 6 where the conversion is hidden in the integers.
    if (int8 && m >= 8) row.note = "block scales and chains leave 57 to 67 % of the int8 peak";
    return row;
}

std::vector<Row> all_rows() {
    std::vector<Row> rows;
    add_rows_by_row(rows);
    for (const char* kernel : {"matmul_w4a4", "matmul_w4a16", "matmul_bf16"}) add_products(rows, kernel);
    add_attention(rows);
    return rows;
}

int64_t sets_of(const Row& row) {
    return row.work.in_l2 ? 1 : std::max<int64_t>(2, int64_t(double(memory_bytes()) / row.set_bytes) + 1);
}

Measurement measure(const Row& row, Operation& operation, const Context& context, const Limits& limits,
                    const RateNow& rate_now, double min_seconds, const std::function<void()>& between) {
    const int64_t sets = sets_of(row);
    between();
    operation.prepare();
    operation.run(context, 0);
    Measurement result;
    result.difference = operation.difference(context);
    if (!result.difference.empty()) return result;
    const bool computes = row.work.int8 > 0 || row.work.fp32 > 0;
    const bool bounded = !computes || limits.fp32;  // a level without vectors has no limit of its own
    const Bound bound = bound_of(row.work, limits);
    std::vector<double> limit_seconds;  // that bound a call, before each sample and after the last
    const auto measure_limit = [&] {
        if (!bounded) return;
        const double now = rate_now ? rate_now(bound.kind, min_seconds / 9) : limits.of(bound.kind);
        limit_seconds.push_back(bound.seconds * limits.of(bound.kind) / now);
    };
    int64_t next = 0;
    result.timing = time_calls(
        context.threads(), min_seconds,
        [&] {
            next = next + 1 < sets ? next + 1 : 0;
            operation.run(context, next);
        },
        [&] {
            between();
            measure_limit();
        });
    measure_limit();
    result.timing.calls++;
    result.value = row.items * 1e-9 / result.timing.median;
    if (!bounded) return result;
    // The first limit is that of the call to warm up.
    assert(limit_seconds.size() == result.timing.samples.size() + 2);
    std::vector<double> shares;
    for (size_t i = 0; i < result.timing.samples.size(); i++)
        shares.push_back((limit_seconds[i + 1] + limit_seconds[i + 2]) / 2 / result.timing.samples[i]);
    result.bound = name_of(bound.kind);
    result.share = median_of(shares);
    result.limit = result.value / result.share;
    return result;
}

}  // namespace halfbyte::bench
