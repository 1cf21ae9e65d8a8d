// The proofs of the products that are more than equal bytes for one problem.
#pragma once

#include "cuda/run.h"

namespace halfbyte::conformance {

// W4A16 on the host, in one of the orders that a matrix unit may add in: that of k.
void host_matmul_w4a16(const cuda::MatmulW4A16Args& args);

// Sums that are the matrix unit's or cuBLASLt's, as all of W4A16: every element of d within the bound of an
// exact sum, all else untouched.
template <typename Args>
void compare_with_bound(const Operation<Args>& operation, const Case& c, Device& device, Report& report);

// Any rows of a batch by themselves, through any kernel, are what one kernel made of them among all.
template <typename Args>
void check_batches(const Operation<Args>& operation, Device& device, Report& report, uint64_t seed,
                   bool quick);

// A graph captured for all rows and replayed with a few live ones among rows of NaN.
template <typename Args>
void check_product_graph(const Operation<Args>& operation, Device& device, Report& report, uint64_t seed,
                         bool quick);

// 1,000 launches give the same bytes.
template <typename Args>
void check_repeats(const Operation<Args>& operation, Device& device, Report& report, uint64_t seed,
                   bool quick);

// A chain of launches that may begin before the one ahead has ended, each of which needs what that one
// writes: the packed weight, x (quantised on the way for W4A4), or the scratch that it has left.
template <typename Args>
void check_chain(const Operation<cuda::PackWeightArgs>& pack, const Operation<Args>& product, Device& device,
                 Report& report, uint64_t seed, bool quick);

// A sum of 86016 that is beyond FP16, times 2^-8: 336 in every type.
void check_range(const Operation<cuda::MatmulW4A16Args>& operation, Device& device, Report& report);

}  // namespace halfbyte::conformance
