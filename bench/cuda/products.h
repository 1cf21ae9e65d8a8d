// The products: every kernel beside cuBLAS with BF16 in the same run.
#pragma once

#include <string>
#include <vector>

#include "rows.h"

namespace halfbyte::bench {

struct ProductRow {
    // matmul_w4a4, matmul_w4a4_fused (x is quantised on the way), matmul_w4a4_tensor_core, matmul_w4a16,
    // matmul_w4a16_library
    std::string operation;
    int64_t m, n, k;
    double target = 0, ratio = 0;  // us, and times cuBLAS's speed; 0: none
    double teraflops = 0;          // 0: none
    double times_product = 0;      // a target in times of the row ahead, in the same run; 0: none

    std::string full_name() const { return fmt::format("{}/{}x{}/M{}", operation, n, k, m); }
};

std::vector<ProductRow> make_product_rows();

struct ProductOutcome {
    std::string kernel, difference, note;
    double microseconds = 0, sm_mhz = 0, watts = 0;
    double cublas_microseconds = 0;  // BF16, of the same run; 0: not there
};

// Each call has the rows of one weight; the kernels of each row, in the order of the choice.
void run_products(const Bench& bench, const std::vector<ProductRow>& rows,
                  const std::function<void(const ProductRow&, const std::vector<ProductOutcome>&)>& done);

// The lines of src/cuda/matmul_choice.h for an operation, out of what run_products() found.
std::string tuning_lines(const std::string& operation,
                         const std::vector<std::pair<ProductRow, std::vector<ProductOutcome>>>& results);

}  // namespace halfbyte::bench
