#include "model/log_probabilities.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace halfbyte::model {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

std::vector<CpuLevel> levels() {
    std::vector<CpuLevel> usable;
    for (const CpuLevelStatus& status : cpu_levels())
        if (status.unsupported_reason.empty()) usable.push_back(status.level);
    return usable;
}

std::vector<float> some_logits(size_t count, float deviation, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> values(0, deviation);
    std::vector<float> x(count);
    for (float& value : x) value = values(random);
    return x;
}

long double exact_log_sum_exp(const std::vector<float>& x) {
    long double sum = 0;
    const long double largest = *std::max_element(x.begin(), x.end());
    for (const float value : x) sum += std::exp(value - largest);
    return largest + std::log(sum);
}

// Terms are right to some 2 units of 2^-53 and all of one sign, and a lane adds n / 8 of them: the sum is off
// by at most (n / 8 + 5) units of its size, and its logarithm by as much.
TEST(LogSumExp, IsTheLogarithmOfTheSumAtEveryLevel) {
    for (const size_t count : {1, 7, 8, 9, 1000, 49152})
        for (const float deviation : {0.0f, 1.0f, 10.0f, 1000.0f}) {
            const std::vector<float> x = some_logits(count, deviation, uint32_t(count));
            const double first = log_sum_exp(CpuLevel::scalar, x.data(), int64_t(count));
            const double expected = double(exact_log_sum_exp(x));
            EXPECT_NEAR(first, expected, 0x1p-53 * (double(count) / 8 + 5 + std::fabs(expected)))
                << count << " " << deviation;
            for (const CpuLevel level : levels())
                EXPECT_EQ(log_sum_exp(level, x.data(), int64_t(count)), first) << name_of(level);
        }
}

TEST(LogSumExp, IsNotANumberWhereALogitIsBroken) {
    for (const CpuLevel level : levels())
        for (const size_t place : {0, 5, 8, 18}) {
            std::vector<float> x = some_logits(19, 3, 1);
            for (const float broken : {nan, infinity}) {
                x[place] = broken;
                EXPECT_TRUE(std::isnan(log_sum_exp(level, x.data(), 19))) << name_of(level) << " " << place;
            }
            x[place] = -infinity;
            std::vector<float> others = x;
            others.erase(others.begin() + int64_t(place));
            EXPECT_NEAR(log_sum_exp(level, x.data(), 19), double(exact_log_sum_exp(others)), 1e-14);
            const std::vector<float> nothing(19, -infinity);
            EXPECT_TRUE(std::isnan(log_sum_exp(level, nothing.data(), 19)));
        }
}

TEST(KlDivergence, IsTheSumAtEveryLevelAndZeroForEqualLogits) {
    for (const size_t count : {1, 7, 9, 1000, 49152}) {
        const std::vector<float> p = some_logits(count, 10, 1), q = some_logits(count, 10, 2);
        const double p_norm = double(exact_log_sum_exp(p)), q_norm = double(exact_log_sum_exp(q));
        long double expected = 0, magnitude = 0;
        for (size_t i = 0; i < count; i++) {
            const long double term = std::exp((long double)(p[i]) - (long double)(p_norm)) *
                                     (((long double)(p[i]) - p_norm) - ((long double)(q[i]) - q_norm));
            expected += term;
            magnitude += std::fabs(term);
        }
        const auto n = int64_t(count);
        const double first = kl_divergence(CpuLevel::scalar, p.data(), p_norm, q.data(), q_norm, n);
        // As above; the logarithms, of up to 100, are rounded too.
        EXPECT_NEAR(first, double(expected),
                    0x1p-53 * (double(count) / 8 + 5 + 3 * 100) * double(magnitude + 1));
        for (const CpuLevel level : levels()) {
            EXPECT_EQ(kl_divergence(level, p.data(), p_norm, q.data(), q_norm, n), first) << name_of(level);
            EXPECT_EQ(kl_divergence(level, p.data(), p_norm, p.data(), p_norm, n), 0) << name_of(level);
        }
    }
    // What is impossible under p adds nothing; what is possible and impossible under q adds infinity.
    const float some[] = {0, -infinity}, other[] = {-infinity, 0};
    for (const CpuLevel level : levels()) {
        EXPECT_EQ(kl_divergence(level, some, 0, some, 0, 2), 0);
        EXPECT_EQ(kl_divergence(level, some, 0, other, 0, 2), infinity);
    }
}

}  // namespace
}  // namespace halfbyte::model
