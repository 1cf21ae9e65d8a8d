// The rows of `halfbyte bench kernels`: an operation on a shape, with operands in L2 or in memory. A row is
// compared with src/reference before it is timed.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/limits.h"
#include "bench/timing.h"
#include "halfbyte/context.h"

namespace halfbyte::bench {

// An operation with its operands, several sets of them where they shall come from memory.
class Operation {
  public:
    virtual ~Operation() = default;
    virtual void run(const Context& context, int64_t set) = 0;
    // What run(context, 0) wrote.
    virtual std::span<uint8_t> output() = 0;
    // What a call overwrites of its input is put aside, before a call that is compared.
    virtual void prepare() {}
    // Compares it with the reference, byte for byte on a sample of rows and columns: empty, or the first
    // place that differs. Needs prepare() and
    // one run(context, 0).
    virtual std::string difference(const Context& context) = 0;
};

struct Row {
    std::string kernel;  // "matmul_w4a4"
    std::string shape;   // "M=8 N=4096 K=4096"
    double items = 0;    // of a call: multiply-adds or values
    std::string unit;    // of 10^9 items a second: "GMAC/s", "Gvalue/s"
    Work work;
    double set_bytes = 0;  // of one set of operands
    std::function<std::unique_ptr<Operation>(const Context&, int64_t sets)> make;
    std::string note;

    std::string place() const { return work.in_l2 ? "L2" : "memory"; }
    std::string name() const { return kernel + " " + shape + " " + place(); }  // what --filter sees
};

// kernel: "matmul_w4a4", "matmul_w4a16" or "matmul_bf16"; d [M, N], FP32.
Row product_row(const std::string& kernel, int64_t m, int64_t n, int64_t k, bool in_l2);

// All there are, in the order in which they are printed.
std::vector<Row> all_rows();

struct Measurement {
    std::string difference;  // not empty: wrong, and not timed
    double value = 0;        // median, in row.unit
    double limit = 0;        // in row.unit; 0: none
    double share = 0;        // the median over the samples; limit = value / share
    std::string bound;       // what the limit is
    Timing timing;
};

// As many sets of operands as are needed to get past the caches; 1 for operands in L2.
int64_t sets_of(const Row& row);

// operation: made for sets_of(row). Which limit bounds the row is decided by `limits`; rate_now measures it
// again beside every sample, since on a machine with other users both move. Without it, it is that of limits.
using RateNow = std::function<double(LimitKind kind, double seconds)>;
Measurement measure(const Row& row, Operation& operation, const Context& context, const Limits& limits,
                    const RateNow& rate_now, double min_seconds, const std::function<void()>& between);

}  // namespace halfbyte::bench
