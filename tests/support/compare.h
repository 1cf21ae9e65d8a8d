// Comparisons that name the worst element and its place. u is the unit roundoff of FP32.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace halfbyte::test {

inline constexpr double u = 0x1p-24;

// The bound of the relative error that n roundings build up.
constexpr double gamma(double n) {
    return n * u / (1 - n * u);
}

inline testing::AssertionResult same_bytes(std::span<const uint8_t> actual, std::span<const uint8_t> expected,
                                           int64_t columns) {
    if (actual.size() != expected.size())
        return testing::AssertionFailure() << actual.size() << " bytes, " << expected.size() << " expected";
    int64_t differing = 0, first = -1;
    for (size_t i = 0; i < actual.size(); i++) {
        if (actual[i] == expected[i]) continue;
        if (differing++ == 0) first = int64_t(i);
    }
    if (differing == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << differing << " of " << actual.size() << " bytes differ, first at row " << first / columns
           << ", column " << first % columns << ": " << std::hex << int(actual[size_t(first)])
           << ", expected " << int(expected[size_t(first)]);
}

// Equal bits; a NaN equals any NaN.
inline testing::AssertionResult same_values(std::span<const float> actual, std::span<const float> expected,
                                            int64_t columns) {
    if (actual.size() != expected.size())
        return testing::AssertionFailure() << actual.size() << " values, " << expected.size() << " expected";
    int64_t differing = 0, worst = 0;
    double worst_error = -1;
    for (size_t i = 0; i < actual.size(); i++) {
        if (std::bit_cast<uint32_t>(actual[i]) == std::bit_cast<uint32_t>(expected[i])) continue;
        if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
        differing++;
        double error = std::fabs(double(actual[i]) - double(expected[i]));
        if (std::isnan(error)) error = INFINITY;
        if (error > worst_error) worst = int64_t(i), worst_error = error;
    }
    if (differing == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << std::hexfloat << differing << " of " << actual.size() << " values differ, worst at row "
           << worst / columns << ", column " << worst % columns << ": " << actual[size_t(worst)]
           << ", expected " << expected[size_t(worst)];
}

// |actual - expected| <= tolerance, each with its own tolerance; the worst is the one nearest to or beyond
// it.
inline testing::AssertionResult within(std::span<const float> actual, std::span<const double> expected,
                                       std::span<const double> tolerance, int64_t columns) {
    if (actual.size() != expected.size() || tolerance.size() != expected.size())
        return testing::AssertionFailure() << "the sizes differ";
    int64_t worst = -1;
    double worst_ratio = 1;
    for (size_t i = 0; i < actual.size(); i++) {
        const double error = std::fabs(double(actual[i]) - expected[i]);
        if (error <= tolerance[i]) continue;
        const double ratio = std::isnan(error) || tolerance[i] == 0 ? INFINITY : error / tolerance[i];
        if (ratio >= worst_ratio) worst = int64_t(i), worst_ratio = ratio;
    }
    if (worst < 0) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << "worst at row " << worst / columns << ", column " << worst % columns << ": "
           << actual[size_t(worst)] << ", expected " << expected[size_t(worst)] << " within "
           << tolerance[size_t(worst)] << " (" << worst_ratio << " times the tolerance)";
}

}  // namespace halfbyte::test
