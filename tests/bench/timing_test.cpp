#include "bench/timing.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace halfbyte::bench {
namespace {

TEST(Timing, MedianMeanAndDeviation) {
    EXPECT_EQ(median_of({3, 1, 2}), 2);
    EXPECT_EQ(median_of({4, 1, 3, 2}), 2.5);
    EXPECT_EQ(mean_of({1, 2, 6}), 3);
    EXPECT_EQ(standard_deviation_of({2, 4, 4, 4, 6}), std::sqrt(2.0));  // 8 / (5 - 1)
    EXPECT_EQ(standard_deviation_of({7}), 0);
}

TEST(Timing, CallsAreCounted) {
    for (const int threads : {1, 2}) {
        int64_t calls = 0, between = 0;
        const Timing timing = time_calls(threads, 0, [&] { calls++; }, [&] { between++; });
        EXPECT_EQ(timing.calls, calls);
        EXPECT_EQ(calls, 4);  // one to warm up, three samples of one
        EXPECT_EQ(between, 4);
        EXPECT_GT(timing.best, 0);
        EXPECT_GE(timing.median, timing.best);
    }
}

TEST(Timing, StopsWhereItIsAskedTo) {
    int64_t calls = 0;
    EXPECT_THROW(time_calls(
                     1, 0, [&] { calls++; },
                     [&] {
                         if (calls == 2) throw std::runtime_error("stop");
                     }),
                 std::runtime_error);
    EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace halfbyte::bench
