// Speed of the CPU kernels on the shapes of SmolLM2-135M, every level and 1 or 2 threads.
//   bench/cpu_kernels --benchmark_filter=matmul_w4a4/avx512
// Every kernel is first compared with the reference on a small shape; a difference ends the program.
// Items are multiply-adds for the products, attention and transforms by a matrix, elements otherwise.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "core/float_environment.h"
#include "cpu/kernels.h"
#include "cpu/packed_weight.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte::test {
namespace {

struct Shape {
    const char* name;
    int64_t n, k;
};
constexpr Shape linears[] = {{"qkv", 960, 576}, {"o", 576, 576}, {"gate_up", 3072, 576}, {"down", 576, 1536}};
constexpr Shape lm_head{"lm_head", 49152, 576};
constexpr int64_t batches[] = {1, 4, 16, 64, 512};

// Operands of every operation; run(kernels, pool) calls one kernel with all that it needs.
struct W4A4 {
    static constexpr const char* name = "matmul_w4a4";
    Quantized a;
    PackedWeight w;
    std::vector<float> decode;
    OwnedMatrix d;
    float row_decode = 1.0f;

    W4A4(int64_t m, const Shape& shape)
        : a(random_quantized(NvFp4Shape::of(m, shape.k), 1)),
          w(cpu::pack_weight(random_quantized(NvFp4Shape::of(shape.n, shape.k), 2).view())),
          decode(size_t(shape.n), 1e-3f),
          d(m, shape.n) {}
    MatmulW4A4Args args() {
        return {.a = a.view(),
                .w = &w,
                .row_decode = &row_decode,
                .row_decode_per_row = false,
                .column_decode = decode.data(),
                .bias = nullptr,
                .bias_type = DType::f32,
                .d = d.view()};
    }
    void run(const cpu::Kernels& kernels, ThreadPool& pool) { kernels.matmul_w4a4(pool, args()); }
    void run_reference() { reference::matmul_w4a4(args()); }
};

struct W4A16 {
    static constexpr const char* name = "matmul_w4a16";
    OwnedMatrix x;
    PackedWeight w;
    std::vector<float> decode;
    OwnedMatrix d;

    W4A16(int64_t m, const Shape& shape)
        : x(random_matrix(m, shape.k, DType::f32, 1)),
          w(cpu::pack_weight(random_quantized(NvFp4Shape::of(shape.n, shape.k), 2).view())),
          decode(size_t(shape.n), 1e-3f),
          d(m, shape.n) {}
    MatmulW4A16Args args() {
        return {.x = x.input(),
                .w = &w,
                .column_decode = decode.data(),
                .bias = nullptr,
                .bias_type = DType::f32,
                .d = d.view()};
    }
    void run(const cpu::Kernels& kernels, ThreadPool& pool) { kernels.matmul_w4a16(pool, args()); }
    void run_reference() { reference::matmul_w4a16(args()); }
};

struct Dense {
    static constexpr const char* name = "matmul_bf16";
    OwnedMatrix x, w, d;

    Dense(int64_t m, const Shape& shape)
        : x(random_matrix(m, shape.k, DType::f32, 1)),
          w(random_matrix(shape.n, shape.k, DType::bf16, 2)),
          d(m, shape.n) {}
    MatmulDenseArgs args() {
        return {.x = x.input(), .w = w.input(), .bias = nullptr, .bias_type = DType::f32, .d = d.view()};
    }
    void run(const cpu::Kernels& kernels, ThreadPool& pool) { kernels.matmul_dense(pool, args()); }
    void run_reference() { reference::matmul_dense(args()); }
};

struct Attention {
    OwnedMatrix q, keys, values, d;
    int64_t first;

    Attention(int64_t queries, int64_t first_position)
        : q(random_matrix(queries, 9 * 64, DType::f32, 1)),
          keys(random_matrix(first_position + queries, 3 * 64, DType::f32, 2)),
          values(random_matrix(first_position + queries, 3 * 64, DType::f32, 3)),
          d(queries, 9 * 64),
          first(first_position) {}
    AttentionArgs args() {
        return {.q = q.input(),
                .keys = static_cast<const float*>(keys.data()),
                .values = static_cast<const float*>(values.data()),
                .cache_stride = 3 * 64,
                .heads = 9,
                .kv_heads = 3,
                .head_dim = 64,
                .first_position = first,
                .o = d.view()};
    }
    void run(const cpu::Kernels& kernels, ThreadPool& pool) { kernels.attention(pool, args()); }
    void run_reference() { reference::attention(args()); }
};

struct Quantize {
    OwnedMatrix x;
    Quantized q;
    float G = 100.0f;

    Quantize(int64_t rows, int64_t k)
        : x(random_matrix(rows, k, DType::f32, 1)), q(NvFp4Shape::of(rows, k)) {}
    QuantizeArgs args() {
        return {.x = x.input(),
                .encode_scale = &G,
                .scale_per_row = false,
                .rounding = Rounding::contract,
                .shape = q.shape,
                .codes = q.codes.data(),
                .block_scales = q.scales.data(),
                .stats = nullptr};
    }
    void run(const cpu::Kernels& kernels, ThreadPool& pool) { kernels.quantize(pool, args()); }
};

struct RmsNorm {
    OwnedMatrix x, residual, weight, d;
    explicit RmsNorm(int64_t rows)
        : x(random_matrix(rows, 576, DType::f32, 1)),
          residual(random_matrix(rows, 576, DType::f32, 2)),
          weight(random_matrix(1, 576, DType::bf16, 3)),
          d(rows, 576) {}
    RmsNormArgs args() {
        return {.x = x.input(),
                .residual = residual.view(),
                .weight = weight.input(),
                .epsilon = 1e-5f,
                .y = d.view()};
    }
    void run(const cpu::Kernels& kernels, ThreadPool& pool) { kernels.rms_norm(pool, args()); }
};

struct SiluMul {
    OwnedMatrix gate, up, d;
    explicit SiluMul(int64_t rows)
        : gate(random_matrix(rows, 1536, DType::f32, 1)),
          up(random_matrix(rows, 1536, DType::f32, 2)),
          d(rows, 1536) {}
    SiluMulArgs args() { return {.gate = gate.input(), .up = up.input(), .y = d.view()}; }
    void run(const cpu::Kernels& kernels, ThreadPool& pool) { kernels.silu_mul(pool, args()); }
};

// Hadamard, or random normal numbers as a given matrix.
struct TransformRows {
    OwnedMatrix x, T, d;
    BlockTransform transform;

    TransformRows(int64_t rows, int64_t k, int64_t n, bool matrix)
        : x(random_matrix(rows, k, DType::f32, 1)),
          T(random_matrix(matrix ? n : 0, n, DType::f32, 2)),
          d(rows, k),
          transform{.n = n, .scale = 0.25f} {}
    TransformArgs args() {
        BlockTransform t = transform;
        if (T.rows() > 0) t.matrix = T.data();
        return {.x = x.input(), .transform = t, .y = d.view()};
    }
    void run(const cpu::Kernels& kernels, ThreadPool& pool) { kernels.transform(pool, args()); }
    void run_reference() { reference::transform(args()); }
};

void require(const testing::AssertionResult& same, const char* name, cpu::Level level) {
    if (same) return;
    std::fprintf(stderr, "%s, %s: %s\n", name, std::string(cpu::name_of(level)).c_str(), same.message());
    std::exit(EXIT_FAILURE);
}

template <typename Operation>
void verify(Operation operation, const char* name, const cpu::Kernels& kernels, ThreadPool& pool) {
    {
        const FloatEnvironment environment;
        operation.run_reference();
    }
    const std::vector<float> expected = operation.d.values();
    operation.d = OwnedMatrix(operation.d.rows(), operation.d.cols());
    operation.run(kernels, pool);
    require(same_values(operation.d.values(), expected, operation.d.cols()), name, kernels.level);
}

template <typename Operation>
void verify_pair(Operation fast, Operation slow, void (*reference)(Operation&), const char* name,
                 const cpu::Kernels& kernels, ThreadPool& pool) {
    {
        const FloatEnvironment environment;
        reference(slow);
    }
    fast.run(kernels, pool);
    if constexpr (std::is_same_v<Operation, Quantize>) {
        require(same_bytes(fast.q.codes.bytes(), slow.q.codes.bytes(), fast.x.cols() / 2), name,
                kernels.level);
        require(same_bytes(fast.q.scales.bytes(), slow.q.scales.bytes(), fast.x.cols() / 16), name,
                kernels.level);
    } else {
        require(same_values(fast.d.values(), slow.d.values(), fast.d.cols()), name, kernels.level);
    }
}

void verify_all(const cpu::Kernels& kernels, ThreadPool& pool) {
    constexpr Shape small{"small", 70, 1072};
    for (const int64_t m : {1, 9}) {
        verify(W4A4(m, small), W4A4::name, kernels, pool);
        verify(W4A16(m, small), W4A16::name, kernels, pool);
        verify(Dense(m, small), Dense::name, kernels, pool);
    }
    verify(Attention(9, 40), "attention", kernels, pool);
    for (const int64_t n : {16, 64, 128, 512})
        verify(TransformRows(9, 1536, n, false), "hadamard", kernels, pool);
    for (const int64_t n : {12, 16, 64, 1536})
        verify(TransformRows(9, 1536, n, true), "matrix", kernels, pool);
    verify_pair<Quantize>(
        {9, 576}, {9, 576}, [](Quantize& op) { reference::quantize(op.args()); }, "quantize", kernels, pool);
    verify_pair(
        RmsNorm(9), RmsNorm(9), +[](RmsNorm& op) { reference::rms_norm(op.args()); }, "rms_norm", kernels,
        pool);
    verify_pair(
        SiluMul(9), SiluMul(9), +[](SiluMul& op) { reference::silu_mul(op.args()); }, "silu_mul", kernels,
        pool);
}

// `items` of work per call; Make builds the operands when the benchmark starts.
template <typename Make>
void add(const std::string& name, cpu::Level level, int threads, int64_t items, Make make) {
    const std::string full = fmt::format("{}/threads:{}", name, threads);
    auto* registered = benchmark::RegisterBenchmark(full.c_str(), [=](benchmark::State& state) {
        ThreadPool pool(threads);
        auto operation = make();
        for (auto _ : state) operation.run(cpu::kernels(level), pool);
        state.SetItemsProcessed(state.iterations() * items);
    });
    registered->Unit(benchmark::kMicrosecond);
    if (threads > 1) registered->UseRealTime();  // one thread is timed by its processor time: less noise
}

template <typename Operation>
void add_products(cpu::Level level, int threads) {
    const std::string prefix = fmt::format("{}/{}", Operation::name, cpu::name_of(level));
    const auto add_shape = [&](const Shape& shape) {
        for (const int64_t m : batches)
            add(fmt::format("{}/{}/M:{}", prefix, shape.name, m), level, threads, m * shape.n * shape.k,
                [=] { return Operation(m, shape); });
    };
    for (const Shape& shape : linears) add_shape(shape);
    if constexpr (std::is_same_v<Operation, Dense>) add_shape(lm_head);
}

}  // namespace
}  // namespace halfbyte::test

int main(int count, char** arguments) {
    using namespace halfbyte;
    using namespace halfbyte::test;
    for (const cpu::Level level : cpu::levels()) {
        if (const std::string reason = cpu::unsupported_reason(level); !reason.empty()) {
            std::fprintf(stderr, "%s does not run here: %s\n", std::string(cpu::name_of(level)).c_str(),
                         reason.c_str());
            continue;
        }
        ThreadPool pool(2);
        verify_all(cpu::kernels(level), pool);
        const std::string_view suffix = cpu::name_of(level);
        for (const int threads : {1, 2}) {
            add_products<W4A4>(level, threads);
            add_products<W4A16>(level, threads);
            add_products<Dense>(level, threads);
            for (const auto& [queries, first] :
                 std::initializer_list<std::pair<int64_t, int64_t>>{{1, 100}, {1, 511}, {512, 0}}) {
                const int64_t pairs = queries * first + queries * (queries + 1) / 2;
                add(fmt::format("attention/{}/T:{}/from:{}", suffix, queries, first), level, threads,
                    pairs * 9 * 64 * 2,
                    [queries = queries, first = first] { return Attention(queries, first); });
            }
            for (const int64_t rows : {1, 512}) {
                for (const int64_t n : {16, 64, 128, 512})
                    add(fmt::format("hadamard/{}/n:{}/M:{}", suffix, n, rows), level, threads, rows * 1536,
                        [=] { return TransformRows(rows, 1536, n, false); });
                for (const int64_t n : {16, 64, 128, 1536})  // items: multiply-adds
                    add(fmt::format("matrix/{}/n:{}/M:{}", suffix, n, rows), level, threads, rows * 1536 * n,
                        [=] { return TransformRows(rows, 1536, n, true); });
                const std::string m = fmt::format("{}/M:{}", suffix, rows);
                add("quantize/" + m, level, threads, rows * 576, [=] { return Quantize(rows, 576); });
                add("rms_norm/" + m, level, threads, rows * 576, [=] { return RmsNorm(rows); });
                add("silu_mul/" + m, level, threads, rows * 1536, [=] { return SiluMul(rows); });
            }
        }
    }
    benchmark::Initialize(&count, arguments);
    benchmark::RunSpecifiedBenchmarks();
}
