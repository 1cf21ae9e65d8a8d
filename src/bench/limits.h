// What the machine itself can do, measured in the same run as what is compared with it: the rate at which a
// number of threads reads and copies memory and L2, and does the multiply-adds of a CPU level.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/aligned_memory.h"
#include "core/progress.h"
#include "halfbyte/context.h"

namespace halfbyte::bench {

struct CacheSizes {
    int64_t l2 = 0;          // of one core
    int64_t last_level = 0;  // the largest cache there is
};
CacheSizes cache_sizes();

// What has to be walked through so that nothing is found in a cache again: 4 times the largest cache, at
// least 256 MiB, at most 2 GiB and a quarter of the memory that was available when it was first asked for.
int64_t memory_bytes();

enum class LimitKind { memory_read, memory_copy, l2_read, l2_copy, int8, fp32 };
inline constexpr size_t limit_kinds = 6;
// "memory read", "memory copy", "L2 read", "L2 copy", "int8", "FP32"
std::string_view name_of(LimitKind kind);

struct Limit {
    double value = 0;   // the best of the repeats: GB/s (10^9 bytes) or GMAC/s
    double spread = 0;  // of the repeats: distance of their quartiles over the median
};

struct Limits {
    int threads = 0;
    // From one and from four places at a time, by memcpy and past the caches: the fastest way. A copy counts
    // what is read and what is written.
    Limit memory_read, memory_copy;
    Limit l2_read, l2_copy;
    // Absent where the level has no vectors of its own. int8: vpdpbusd, vpmaddubsw or their like.
    std::optional<Limit> int8, fp32;

    double of(LimitKind kind) const;  // 10^9 bytes or multiply-adds a second; 0: absent
};

// The loops by which limits are measured, with the memory that they walk through.
class LimitMeter {
  public:
    explicit LimitMeter(const Context& context);  // which must outlive it
    // min_seconds for each way of each limit.
    Limits measure(double min_seconds, const Progress& progress);
    // The rate at this moment, over `seconds` at the least, by the way that measure() found the fastest.
    double rate_now(LimitKind kind, double seconds);

  private:
    double run(LimitKind kind, int way);

    const Context& context_;
    int64_t memory_part_, l2_part_;
    Memory memory_, l2_;
    std::array<int, limit_kinds> way_{};  // the fastest
    std::atomic<uint64_t> sink_ = 0;
};

Limits measure_limits(const Context& context, double min_seconds, const Progress& progress);

// What makes these limits no yardstick, in whole sentences: repeats that scatter, a cache slower than memory.
std::vector<std::string> doubts_about(const Limits& limits);

// What an operation moves and computes, and where its operands lie.
struct Work {
    double bytes_read = 0, bytes_written = 0;
    double int8 = 0, fp32 = 0;  // multiply-adds
    bool in_l2 = false;
};

struct Bound {
    double seconds = 0;
    LimitKind kind = LimitKind::memory_read;
};
// The largest of the times for what is read, for all bytes as a copy's (unless those that are written are
// less than a tenth of those that are read: then all count as read), and for the multiply-adds.
Bound bound_of(const Work& work, const Limits& limits);

}  // namespace halfbyte::bench
