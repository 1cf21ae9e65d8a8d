// The loops behind limits.h, once for each CPU level: reading by whole vectors, copying past the caches, and
// multiply-adds on registers alone, 12 chains of them so that none waits for the one before.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/limits.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace halfbyte::bench::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Reads bytes [begin, end), a multiple of 256; the result keeps the loop alive.
uint64_t read_bytes(const uint8_t* begin, const uint8_t* end) {
    const hn::ScalableTag<uint64_t> d;
    constexpr int64_t step = 8 * HWY_LANES(uint64_t);
    hn::Vec<decltype(d)> sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (const uint8_t* p = begin; p < end; p += 4 * step)
        for (int i = 0; i < 4; i++)
            sums[i] =
                hn::Xor(sums[i], hn::LoadU(d, reinterpret_cast<const uint64_t*>(p + int64_t(i) * step)));
    return hn::GetLane(hn::Xor(hn::Xor(sums[0], sums[1]), hn::Xor(sums[2], sums[3])));
}

// Writes past the caches; `to` is aligned to 64.
void stream_bytes(const uint8_t* from, uint8_t* to, int64_t count) {
    const hn::ScalableTag<uint8_t> d;
    constexpr int64_t step = HWY_LANES(uint8_t);
    for (int64_t i = 0; i < count; i += 4 * step)
        for (int64_t j = i; j < i + 4 * step; j += step) hn::Stream(hn::LoadU(d, from + j), d, to + j);
    hwy::FlushStream();
}

// `times` steps of 12 chains, which begin with the vectors at `start` and end there. Names in the place of an
// array: g++ 12 would store its elements in every step.
template <class D, typename Step>
HWY_INLINE void run_chains(D tag, int64_t times, uint8_t* start, const Step& step) {
    using V = hn::Vec<D>;
    const auto at = [&](int n) {
        return reinterpret_cast<hn::TFromD<D>*>(start + n * int(hn::MaxLanes(tag)) * 4);
    };
    V a = hn::Load(tag, at(0)), b = hn::Load(tag, at(1)), c = hn::Load(tag, at(2)), d = hn::Load(tag, at(3));
    V e = hn::Load(tag, at(4)), f = hn::Load(tag, at(5)), g = hn::Load(tag, at(6)), h = hn::Load(tag, at(7));
    V i = hn::Load(tag, at(8)), j = hn::Load(tag, at(9)), k = hn::Load(tag, at(10)),
      l = hn::Load(tag, at(11));
    for (int64_t n = 0; n < times; n++) {
        a = step(a), b = step(b), c = step(c), d = step(d), e = step(e), f = step(f);
        g = step(g), h = step(h), i = step(i), j = step(j), k = step(k), l = step(l);
    }
    int n = 0;
    for (const V v : {a, b, c, d, e, f, g, h, i, j, k, l}) hn::Store(v, tag, at(n++));
}

struct FloatStep {
    using D = hn::ScalableTag<float>;
    hn::Vec<D> a, b;
    HWY_INLINE hn::Vec<D> operator()(hn::Vec<D> sum) const { return hn::MulAdd(sum, a, b); }
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
struct Int8Step {
    using V = hn::Vec<hn::ScalableTag<int32_t>>;
    V a, b;
    HWY_INLINE V operator()(V sum) const {
#if HWY_TARGET == HWY_AVX3
        return V{_mm512_dpbusd_epi32(sum.raw, a.raw, b.raw)};
#else
        return V{_mm256_maddubs_epi16(sum.raw, b.raw)};
#endif
    }
};
#endif

// The number of multiply-adds, or 0 where there is no such instruction. start: 12 vectors, aligned.
int64_t int8_products(int64_t times, uint8_t* start) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
    const hn::ScalableTag<int32_t> d;
    run_chains(d, times, start, Int8Step{hn::Set(d, 0x03030303), hn::Set(d, 0x01010101)});
    return times * 12 * 4 * HWY_LANES(int32_t);
#else
    (void)times, (void)start;
    return 0;
#endif
}

int64_t fp32_products(int64_t times, uint8_t* start) {
#if HWY_TARGET == HWY_EMU128
    (void)times, (void)start;
    return 0;
#else
    const hn::ScalableTag<float> d;
    run_chains(d, times, start, FloatStep{hn::Set(d, 0.999f), hn::Set(d, 0.001f)});
    return times * 12 * HWY_LANES(float);
#endif
}

}  // namespace
}  // namespace halfbyte::bench::HWY_NAMESPACE
#if HWY_TARGET == HWY_AVX3
HWY_POP_ATTRIBUTES
#else
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>

#include "backend/context_state.h"
#include "bench/limits.h"
#include "bench/timing.h"
#include "core/aligned_memory.h"
#include "core/proc.h"

namespace halfbyte::bench {
namespace {

using cpu::PerLevel;
constexpr PerLevel<uint64_t(const uint8_t*, const uint8_t*)> read_bytes_levels =
    HALFBYTE_PER_LEVEL(read_bytes);
constexpr PerLevel<void(const uint8_t*, uint8_t*, int64_t)> stream_bytes_levels =
    HALFBYTE_PER_LEVEL(stream_bytes);
constexpr PerLevel<int64_t(int64_t, uint8_t*)> int8_products_levels = HALFBYTE_PER_LEVEL(int8_products);
constexpr PerLevel<int64_t(int64_t, uint8_t*)> fp32_products_levels = HALFBYTE_PER_LEVEL(fp32_products);

// Touched pages, huge ones where the system gives them: the limit is the machine's, not that of its page
// tables.
Memory pages_of(int64_t bytes) {
    Memory pages = allocate_huge_pages(size_t(bytes));
    std::memset(pages.get(), 1, size_t(bytes));
    return pages;
}

int64_t cache_size(int name, int64_t otherwise) {
    const long bytes = ::sysconf(name);
    return bytes > 0 ? bytes : otherwise;
}

int64_t available_memory() {
    const uint64_t bytes = proc_bytes("/proc/meminfo", "MemAvailable");
    return bytes > 0 ? int64_t(bytes) : int64_t(8) << 30;
}

}  // namespace

CacheSizes cache_sizes() {
    CacheSizes sizes;
    sizes.l2 = cache_size(_SC_LEVEL2_CACHE_SIZE, 512 << 10);
    sizes.last_level = std::max(sizes.l2, cache_size(_SC_LEVEL3_CACHE_SIZE, 32 << 20));
    return sizes;
}

int64_t memory_bytes() {
    const int64_t enough =
        std::clamp<int64_t>(4 * cache_sizes().last_level, int64_t(256) << 20, int64_t(2) << 30);
    return std::min(enough, available_memory() / 4) / (1 << 20) * (1 << 20);
}

Limits measure_limits(const Context& context, double min_seconds, const Progress& progress) {
    const int threads = context.threads();
    const auto level = size_t(context.level());
    ThreadPool& pool = pool_of(context);
    std::atomic<uint64_t> sink = 0;
    constexpr int64_t stages = 7;
    int64_t stage = 0;
    const auto on_each_thread = [&](const std::function<void(int64_t)>& body) {
        pool.parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) body(i);
        });
    };
    // work(i) is the part of thread i; `amount` is what all do together, in 10^9.
    const auto measure = [&](double amount, const std::function<void(int64_t)>& work) {
        const Timing timing = time_calls(
            threads, min_seconds, [&] { on_each_thread(work); },
            [&] { report(progress, "measure the machine", stage, stages); });
        stage++;
        return Limit{.value = amount * 1e-9 / timing.best, .spread = timing.spread};
    };
    const auto faster = [](const Limit& a, const Limit& b) { return a.value > b.value ? a : b; };

    Limits limits{.threads = threads};
    {
        // The part of a thread, twice: a copy takes the second half as its target.
        const int64_t part = memory_bytes() / threads / 2 / 4096 * 4096;
        const Memory pages = pages_of(2 * part * threads);
        const auto of_thread = [&](int64_t i) {
            return reinterpret_cast<uint8_t*>(pages.get()) + i * 2 * part;
        };
        limits.memory_read = measure(2.0 * double(part * threads), [&](int64_t i) {
            sink ^= read_bytes_levels[level](of_thread(i), of_thread(i) + 2 * part);
        });
        const double copied = 2.0 * double(part * threads);
        const Limit plain =
            measure(copied, [&](int64_t i) { std::memcpy(of_thread(i) + part, of_thread(i), size_t(part)); });
        limits.memory_copy = faster(plain, measure(copied, [&](int64_t i) {
                                        stream_bytes_levels[level](of_thread(i), of_thread(i) + part, part);
                                    }));
    }
    {
        constexpr int64_t passes = 64;
        const int64_t part = cache_sizes().l2 / 4 / 4096 * 4096;  // twice: half of L2
        const Memory pages = pages_of(2 * part * threads);
        const auto of_thread = [&](int64_t i) {
            return reinterpret_cast<uint8_t*>(pages.get()) + i * 2 * part;
        };
        const double moved = 2.0 * double(part * threads * passes);
        limits.l2_read = measure(moved, [&](int64_t i) {
            for (int64_t pass = 0; pass < passes; pass++)
                sink ^= read_bytes_levels[level](of_thread(i), of_thread(i) + 2 * part);
        });
        limits.l2_copy = measure(moved, [&](int64_t i) {
            for (int64_t pass = 0; pass < passes; pass++)
                std::memcpy(of_thread(i) + part, of_thread(i), size_t(part));
        });
    }
    const auto products = [&](const auto& levels) -> std::optional<Limit> {
        constexpr int64_t times = 100000;
        // Numbers from 0.5 to 1, and no two vectors the same, or a compiler would see that all chains are
        // one.
        alignas(64) float first[12 * 16];
        for (size_t i = 0; i < std::size(first); i++) first[i] = 0.5f + float(i) / 512;
        const auto run = [&](int64_t steps) {
            alignas(64) uint8_t vectors[sizeof first];
            std::memcpy(vectors, first, sizeof first);
            const int64_t count = levels[level](steps, vectors);
            sink ^= vectors[0];
            return count;
        };
        const int64_t each = run(1);
        if (each == 0) {
            stage++;
            return {};
        }
        return measure(double(each * times * threads), [&](int64_t) { run(times); });
    };
    limits.int8 = products(int8_products_levels);
    limits.fp32 = products(fp32_products_levels);
    report(progress, "measure the machine", stages, stages);
    return limits;
}

std::vector<std::string> doubts_about(const Limits& limits) {
    std::vector<std::string> doubts;
    const std::string threads = fmt::format("{} thread{}", limits.threads, limits.threads == 1 ? "" : "s");
    const auto scatter = [&](const char* what, const Limit& limit) {
        if (limit.spread > 0.15)
            doubts.push_back(fmt::format(
                "the {} of {} scatters by {:.0f} %: the machine is busy, and the shares are not reliable",
                what, threads, 100 * limit.spread));
    };
    scatter("read bandwidth", limits.memory_read);
    scatter("copy bandwidth", limits.memory_copy);
    if (limits.int8) scatter("int8 peak", *limits.int8);
    if (limits.fp32) scatter("FP32 peak", *limits.fp32);
    if (limits.memory_read.value > limits.l2_read.value)
        doubts.push_back(fmt::format("{} read memory at {:.1f} GB/s and L2 at {:.1f}: one of them is wrong",
                                     threads, limits.memory_read.value, limits.l2_read.value));
    if (memory_bytes() < 2 * cache_sizes().last_level)
        doubts.push_back(
            fmt::format("{} MiB are walked through as memory and the largest cache has {} MiB: a part of it "
                        "is read from there",
                        memory_bytes() >> 20, cache_sizes().last_level >> 20));
    return doubts;
}

Bound bound_of(const Work& work, const Limits& limits) {
    Bound bound;
    const auto at_least = [&](double amount, double rate, std::string name) {
        const double seconds = amount * 1e-9 / rate;
        if (seconds > bound.seconds) bound = {seconds, std::move(name)};
    };
    const bool copies = work.bytes_written * 10 > work.bytes_read;
    const Limit& bandwidth = work.in_l2 ? (copies ? limits.l2_copy : limits.l2_read)
                                        : (copies ? limits.memory_copy : limits.memory_read);
    at_least(work.bytes_read + work.bytes_written, bandwidth.value,
             fmt::format("{} {}", work.in_l2 ? "L2" : "memory", copies ? "copy" : "read"));
    // Both kinds of multiply-adds run on the same units.
    const double int8 = limits.int8 ? work.int8 / limits.int8->value : 0;
    const double fp32 = limits.fp32 ? work.fp32 / limits.fp32->value : 0;
    at_least(int8 + fp32, 1, int8 > fp32 ? "int8" : "FP32");
    return bound;
}

}  // namespace halfbyte::bench
#endif
