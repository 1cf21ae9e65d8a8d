#include "bench/limits.h"

#include <gtest/gtest.h>

#include "halfbyte/error.h"
#include "round_limits.h"

namespace halfbyte::bench {
namespace {

TEST(Limits, TheLargestTimeHolds) {
    const auto expect = [](const Work& work, double seconds, const char* name) {
        const Bound bound = bound_of(work, round_limits);
        EXPECT_DOUBLE_EQ(bound.seconds, seconds);
        EXPECT_EQ(name_of(bound.kind), name);
    };
    expect({.bytes_read = 1e9}, 0.1, "memory read");
    expect({.bytes_read = 1e9, .bytes_written = 1e8}, 0.11, "memory read");  // a tenth of it
    expect({.bytes_read = 1e9, .bytes_written = 1e9}, 0.4, "memory copy");
    expect({.bytes_read = 1e9, .in_l2 = true}, 0.01, "L2 read");
    expect({.bytes_read = 1e9, .bytes_written = 5e8, .in_l2 = true}, 0.03, "L2 copy");
    expect({.bytes_read = 1e9, .int8 = 40e9}, 0.2, "int8");
    expect({.bytes_read = 1e9, .fp32 = 4e9}, 0.2, "FP32");
    expect({.bytes_read = 1e9, .int8 = 40e9, .fp32 = 2e9}, 0.3, "int8");  // one after the other
}

TEST(Limits, DoubtsAreNamed) {
    const auto doubts = [](Limits limits) {
        std::string all;
        for (const std::string& doubt : doubts_about(limits)) all += doubt + "\n";
        return all;
    };
    EXPECT_EQ(doubts(round_limits).find("scatters"), std::string::npos);
    EXPECT_EQ(doubts(round_limits).find("wrong"), std::string::npos);
    Limits noisy = round_limits;
    noisy.memory_read.spread = 0.5;
    EXPECT_NE(doubts(noisy).find("read bandwidth of 1 thread scatters by 50 %"), std::string::npos);
    Limits implausible = round_limits;
    implausible.l2_read.value = 9;
    EXPECT_NE(doubts(implausible).find("memory at 10.0 GB/s and L2 at 9.0"), std::string::npos);
}

// Times are not tested; that there are some, at every level, is.
TEST(Limits, EveryLevelIsMeasured) {
    EXPECT_GE(memory_bytes(), int64_t(64) << 20);
    EXPECT_LE(cache_sizes().l2, cache_sizes().last_level);
    for (const CpuLevelStatus& status : cpu_levels()) {
        if (!status.unsupported_reason.empty()) continue;
        const Context context(2, status.level);
        int64_t reports = 0;
        LimitMeter meter(context);
        const Limits limits = meter.measure(0, [&](std::string_view, int64_t, int64_t) { reports++; });
        EXPECT_EQ(limits.threads, 2);
        EXPECT_GT(reports, 10);
        EXPECT_GT(limits.memory_read.value, 0);
        EXPECT_GT(limits.memory_copy.value, 0);
        EXPECT_GT(limits.l2_read.value, 0);
        EXPECT_GT(limits.l2_copy.value, 0);
        const bool vectors = status.level != CpuLevel::scalar;
        EXPECT_EQ(limits.int8.has_value(), vectors);
        EXPECT_EQ(limits.fp32.has_value(), vectors);
        if (vectors) {
            EXPECT_GT(limits.int8->value, 0);
            EXPECT_GT(limits.fp32->value, 0);
        }
        for (const LimitKind kind : {LimitKind::memory_read, LimitKind::memory_copy, LimitKind::l2_read,
                                     LimitKind::l2_copy, LimitKind::int8, LimitKind::fp32})
            EXPECT_EQ(meter.rate_now(kind, 1e-4) > 0, limits.of(kind) > 0) << name_of(kind);
    }
}

TEST(Limits, AnInterruptStopsTheMeasuring) {
    const Context context(1);
    EXPECT_THROW(measure_limits(context, 0,
                                [](std::string_view, int64_t, int64_t) {
                                    throw Error(ErrorKind::interrupted, "interrupted");
                                }),
                 Error);
}

}  // namespace
}  // namespace halfbyte::bench
