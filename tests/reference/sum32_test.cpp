#include "reference/sum32.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "reference/sum32_oracle.h"
#include "support/compare.h"
#include "support/random.h"

namespace halfbyte {
namespace {

float sum(const std::vector<float>& values, int64_t first = 0) {
    reference::Sum32 total;
    for (size_t i = 0; i < values.size(); i++) total.add(first + int64_t(i), values[i]);
    return total.total();
}

TEST(Sum32, IsATreeOverInterleavedLanes) {
    test::Random random(1);
    for (const size_t count : {0, 1, 2, 31, 32, 33, 63, 64, 65, 1000, 1024, 4097}) {
        std::vector<float> values;
        for (size_t i = 0; i < count; i++) values.push_back(random.normal() * float(1 << random.below(12)));
        EXPECT_EQ(sum(values), test::sum32_of(values)) << count;
    }
}

// 2^24 + 1 is a tie and gives 2^24: a 1 that meets 2^24 alone is lost, two that meet each other first are
// not.
TEST(Sum32, TheOrderIsVisible) {
    std::vector<float> values(64);
    values[0] = 0x1p24f, values[32] = 1, values[16] = 1;  // lane 0 twice, then lane 16 at the first distance
    EXPECT_EQ(sum(values), 0x1p24f);
    values[32] = values[16] = 0;
    values[1] = 1, values[17] = 1;  // lanes 1 and 17 meet before they meet lane 0 at the last distance
    EXPECT_EQ(sum(values), 0x1p24f + 2);
    EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0.0f), 0x1p24f);  // in order
}

// Indices are absolute, so that a cache may be cut anywhere; which lane comes first has no effect on the
// tree.
TEST(Sum32, ShiftingEveryIndexKeepsTheBits) {
    test::Random random(2);
    std::vector<float> values;
    for (int i = 0; i < 1000; i++) values.push_back(random.normal() * float(1 << random.below(12)));
    for (int64_t first = 1; first < 40; first++) EXPECT_EQ(sum(values, first), sum(values)) << first;
}

TEST(Sum32, ProductsAreFused) {
    const float a = 1 + 0x1p-12f, square = a * a;  // the exact square has one bit more than FP32
    reference::Sum32 fused;
    fused.add(0, -square);
    fused.add_product(32, a, a);
    EXPECT_EQ(fused.total(), 0x1p-24f);
}

TEST(Sum32, NothingAndNegativeZerosGivePlusZero) {
    EXPECT_FALSE(std::signbit(sum({})));
    EXPECT_FALSE(std::signbit(sum({-0.0f, -0.0f})));
    EXPECT_EQ(sum({}), 0.0f);
}

}  // namespace
}  // namespace halfbyte
