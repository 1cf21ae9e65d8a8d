#include "model/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "core/float_environment.h"

namespace halfbyte::model {
namespace {

// exp for x <= 0, the same bits on every machine (the library's own may differ in the last place): 2^k times
// a Taylor series over |r| <= ln(2)/2, whose first term left out is below 2^-57.
double portable_exp(double x) {
    if (x < -708) return 0;  // as good as never drawn
    const double k = std::floor(x * 1.4426950408889634 + 0.5);
    const double r = (x - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;  // ln(2) in two parts
    double sum = 0;
    for (int n = 14; n > 0; --n) sum = (sum + 1) * r / n;
    return std::ldexp(1 + sum, int(k));
}

// A number that is the smaller the larger the logit; equal ones, +0 and -0 too, have equal numbers.
uint32_t descending(float logit) {
    const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);
    return bits >> 31 != 0 ? bits : ~bits & 0x7FFFFFFF;
}

// Sorts by the upper 32 bits, a byte at a time from the lowest; equal ones keep their order. (A vocabulary of
// 49,152 in 0.3 ms, which std::sort takes several for.)
void sort_by_logit(std::vector<uint64_t>& entries, std::vector<uint64_t>& scratch) {
    scratch.resize(entries.size());
    for (int shift = 32; shift < 64; shift += 8) {
        size_t next[257] = {};
        for (const uint64_t entry : entries) next[(entry >> shift & 255) + 1]++;
        std::partial_sum(next, next + 257, next);
        for (const uint64_t entry : entries) scratch[next[entry >> shift & 255]++] = entry;
        entries.swap(scratch);
    }
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {
    check(std::isfinite(options.temperature) && options.temperature >= 0, ErrorKind::usage,
          "the temperature is {}; needed is a number >= 0 (0: always the most likely token)",
          options.temperature);
    check(options.top_k >= 0, ErrorKind::usage, "top-k is {}; needed is a number >= 0 (0: all tokens)",
          options.top_k);
    check(options.top_p > 0 && options.top_p <= 1, ErrorKind::usage,
          "top-p is {}; needed is a number in (0, 1]", options.top_p);
}

int32_t Sampler::next(std::span<const float> logits) {
    const FloatEnvironment environment;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    float largest = -infinity;
    size_t best = 0;
    for (size_t id = 0; id < logits.size(); ++id) {
        check(!std::isnan(logits[id]) && logits[id] != infinity, ErrorKind::failure,
              "the logit of token {} is {}; the model or its weights are broken", id, logits[id]);
        if (logits[id] > largest) largest = logits[best = id];
    }
    check(largest > -infinity, ErrorKind::failure, "no token can be chosen: all {} logits are -inf",
          logits.size());
    if (options_.temperature == 0) return int32_t(best);

    order_.clear();
    for (size_t id = 0; id < logits.size(); ++id)
        if (logits[id] > -infinity) order_.push_back(uint64_t(descending(logits[id])) << 32 | id);
    if (options_.top_k > 0 && size_t(options_.top_k) < order_.size()) {
        std::nth_element(order_.begin(), order_.begin() + options_.top_k, order_.end());
        order_.resize(size_t(options_.top_k));
        std::sort(order_.begin(), order_.end());
    } else {
        sort_by_logit(order_, scratch_);
    }

    weight_.clear();
    for (const uint64_t entry : order_)
        weight_.push_back(
            portable_exp((double(logits[uint32_t(entry)]) - double(largest)) / double(options_.temperature)));
    double total = std::accumulate(weight_.begin(), weight_.end(), 0.0);
    if (options_.top_p < 1) {  // the shortest start of the order whose share reaches top_p
        const double wanted = double(options_.top_p) * total;
        double sum = 0;
        size_t count = 0;
        while (count < weight_.size() && sum < wanted) sum += weight_[count++];
        weight_.resize(count);
        total = sum;
    }

    const double draw = double(random_() >> 11) * 0x1p-53 * total;  // 53 random bits: [0, 1)
    double sum = 0;
    size_t chosen = 0;
    for (size_t i = 0; i < weight_.size() && sum <= draw; ++i) {
        sum += weight_[i];
        if (weight_[i] > 0) chosen = i;
    }
    return int32_t(uint32_t(order_[chosen]));
}

}  // namespace halfbyte::model
