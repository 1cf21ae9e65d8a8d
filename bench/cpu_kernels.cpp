// The kernels of `halfbyte bench kernels` and the products of SmolLM2-135M under Google Benchmark, at every
// level and with 1 or 2 threads: for work on one kernel.
//   cpu_kernels --benchmark_filter=matmul_w4a4/avx512/qkv
// Each is compared with the reference on its own shape before it is timed; a difference ends the program.
// Items are multiply-adds for the products and attention, values otherwise.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "bench/rows.h"

namespace halfbyte::bench {
namespace {

void add(const Row& row, const std::string& shape, CpuLevel level, int threads) {
    const std::string name = fmt::format("{}/{}/{}/threads:{}", row.kernel, name_of(level), shape, threads);
    auto* registered = benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
        const Context context(threads, level);
        const int64_t sets = sets_of(row);
        const auto operation = row.make(context, sets);
        operation->prepare();
        operation->run(context, 0);
        if (const std::string difference = operation->difference(context); !difference.empty()) {
            std::fprintf(stderr, "%s: %s\n", name.c_str(), difference.c_str());
            std::exit(EXIT_FAILURE);
        }
        int64_t set = 0;
        for (auto _ : state) {
            set = set + 1 < sets ? set + 1 : 0;
            operation->run(context, set);
        }
        state.SetItemsProcessed(state.iterations() * int64_t(row.items));
    });
    registered->Unit(benchmark::kMicrosecond);
    if (threads > 1) registered->UseRealTime();  // one thread is timed by its processor time: less noise
}

void add_products(CpuLevel level, int threads) {
    struct Shape {
        const char* name;
        int64_t n, k;
    };
    for (const char* kernel : {"matmul_w4a4", "matmul_w4a16", "matmul_bf16"})
        for (const Shape& shape : {Shape{"qkv", 960, 576}, Shape{"o", 576, 576}, Shape{"gate_up", 3072, 576},
                                   Shape{"down", 576, 1536}, Shape{"lm_head", 49152, 576}})
            for (const int64_t m : {1, 4, 16, 64, 512})
                add(product_row(kernel, m, shape.n, shape.k, true), fmt::format("{}/M:{}", shape.name, m),
                    level, threads);
}

}  // namespace
}  // namespace halfbyte::bench

int main(int count, char** arguments) {
    using namespace halfbyte;
    for (const CpuLevelStatus& status : cpu_levels()) {
        if (!status.unsupported_reason.empty()) {
            std::fprintf(stderr, "%s does not run here: %s\n", std::string(name_of(status.level)).c_str(),
                         status.unsupported_reason.c_str());
            continue;
        }
        for (const int threads : {1, 2}) {
            bench::add_products(status.level, threads);
            for (const bench::Row& row : bench::all_rows())
                bench::add(row, row.shape + "/" + row.place(), status.level, threads);
        }
    }
    benchmark::Initialize(&count, arguments);
    benchmark::RunSpecifiedBenchmarks();
}
