// The rows of the benchmark: what is measured, in which shapes, and what it should reach.
#pragma once

#include <cuda_runtime_api.h>  // before halfbyte/cuda.h, so that Stream is its cudaStream_t
#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "cuda/kernels.h"
#include "gpu.h"

namespace halfbyte::bench {

struct Bench {
    Gpu& gpu;
    const cuda::Kernels& kernels;
};

// What one kernel did in a row.
struct Outcome {
    std::string kernel;      // empty: none computes it, and the note says why
    std::string difference;  // from the reference; it was not timed then
    double microseconds = 0;
    double other_microseconds = 0;  // of what other_name says; 0: nothing
    std::string other_name;
    std::string note;
};

enum class Unit { terabytes, microseconds, saving };

struct Row {
    std::string name;
    int64_t rows, k;
    double bytes_per_value;                                 // algorithmic
    Unit unit;                                              // of the limit
    double limit;                                           // 0: for information
    std::function<std::vector<Outcome>(const Bench&)> run;  // every kernel that computes it

    std::string shape() const { return fmt::format("{}x{}", rows, k); }
    std::string full_name() const { return name + "/" + shape(); }
};

std::vector<Row> make_rows();

}  // namespace halfbyte::bench
