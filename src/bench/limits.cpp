// The loops behind limits.h, once for each CPU level: reading by whole vectors, copying past the caches, and
// multiply-adds on registers alone, 12 chains of them so that none waits for the one before.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/limits.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstring>

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace halfbyte::bench::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t line_group = 256;  // bytes of one place before the next one's turn

// Reads `count` bytes, a multiple of 256 * streams, from so many places: a core can have more loads under way
// from several. The result keeps the loop alive.
template <int streams>
uint64_t read_bytes(const uint8_t* from, int64_t count) {
    const hn::ScalableTag<uint64_t> d;
    constexpr int64_t step = 8 * HWY_LANES(uint64_t);
    hn::Vec<decltype(d)> sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (int64_t i = 0; i < count / streams; i += line_group)
        for (const uint8_t* p = from + i; p < from + count; p += count / streams)
            for (int64_t j = 0; j < line_group; j += 4 * step)
                for (int k = 0; k < 4; k++)
                    sums[k] = hn::Xor(
                        sums[k], hn::LoadU(d, reinterpret_cast<const uint64_t*>(p + j + int64_t(k) * step)));
    return hn::GetLane(hn::Xor(hn::Xor(sums[0], sums[1]), hn::Xor(sums[2], sums[3])));
}

// Writes past the caches; `to` is aligned to 64.
template <int streams>
void stream_bytes(const uint8_t* from, uint8_t* to, int64_t count) {
    const hn::ScalableTag<uint8_t> d;
    constexpr int64_t step = HWY_LANES(uint8_t);
    for (int64_t i = 0; i < count / streams; i += line_group)
        for (int64_t at = i; at < count; at += count / streams)
            for (int64_t j = at; j < at + line_group; j += step)
                hn::Stream(hn::LoadU(d, from + j), d, to + j);
    hwy::FlushStream();
}

void copy_plainly(const uint8_t* from, uint8_t* to, int64_t count) {
    std::memcpy(to, from, size_t(count));
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

#include "backend/context_state.h"
#include "bench/limits.h"
#include "bench/timing.h"
#include "core/aligned_memory.h"
#include "core/check.h"
#include "core/proc.h"

namespace halfbyte::bench {
namespace {

using cpu::PerLevel;
using Read = uint64_t(const uint8_t*, int64_t);
using Copy = void(const uint8_t*, uint8_t*, int64_t);
constexpr PerLevel<Read> read_levels[] = {HALFBYTE_PER_LEVEL(read_bytes<1>),
                                          HALFBYTE_PER_LEVEL(read_bytes<4>)};
constexpr PerLevel<Copy> copy_levels[] = {HALFBYTE_PER_LEVEL(copy_plainly),
                                          HALFBYTE_PER_LEVEL(stream_bytes<1>),
                                          HALFBYTE_PER_LEVEL(stream_bytes<4>)};
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

static int64_t find_memory_bytes() {
    const int64_t enough =
        std::clamp<int64_t>(4 * cache_sizes().last_level, int64_t(256) << 20, int64_t(2) << 30);
    return std::min(enough, available_memory() / 4) / (1 << 20) * (1 << 20);
}

int64_t memory_bytes() {
    static const int64_t found = find_memory_bytes();
    return found;
}

LimitMeter::LimitMeter(const Context& context)
    : context_(context),
      // Twice a part for each thread: a copy takes the second half as its target.
      memory_part_(memory_bytes() / context.threads() / 2 / 4096 * 4096),
      l2_part_(cache_sizes().l2 / 4 / 4096 * 4096),
      memory_(pages_of(2 * memory_part_ * context.threads())),
      l2_(pages_of(2 * l2_part_ * context.threads())) {
    check(memory_part_ > 0, ErrorKind::unsupported,
          "the limits of memory are measured with {} MiB of it for {} threads: too few", memory_bytes() >> 20,
          context.threads());
}

// Walks over every thread's memory or part of L2, or makes multiply-adds. Gives 10^9 bytes or multiply-adds;
// 0: the level has no such loop.
double LimitMeter::run(LimitKind kind, int way) {
    const auto level = size_t(context_.level());
    const int threads = context_.threads();
    const auto on_each_thread = [&](const auto& body) {
        pool_of(context_).parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) body(i);
        });
    };
    const bool in_l2 = kind == LimitKind::l2_read || kind == LimitKind::l2_copy;
    const int64_t part = in_l2 ? l2_part_ : memory_part_, passes = in_l2 ? 64 : 1;
    const auto of_thread = [&](int64_t i) {
        return reinterpret_cast<uint8_t*>((in_l2 ? l2_ : memory_).get()) + i * 2 * part;
    };
    switch (kind) {
        case LimitKind::memory_read:
        case LimitKind::l2_read:
            on_each_thread([&](int64_t i) {
                for (int64_t pass = 0; pass < passes; pass++)
                    sink_ ^= read_levels[way][level](of_thread(i), 2 * part);
            });
            return 2e-9 * double(part * passes * threads);
        case LimitKind::memory_copy:
        case LimitKind::l2_copy:
            on_each_thread([&](int64_t i) {
                for (int64_t pass = 0; pass < passes; pass++)
                    copy_levels[way][level](of_thread(i), of_thread(i) + part, part);
            });
            return 2e-9 * double(part * passes * threads);
        case LimitKind::int8:
        case LimitKind::fp32:
            break;
    }
    const auto& levels = kind == LimitKind::int8 ? int8_products_levels : fp32_products_levels;
    constexpr int64_t times = 100000;
    // Numbers from 0.5 to 1, and no two vectors the same, or a compiler would see that all chains are one.
    alignas(64) float first[12 * 16];
    for (size_t i = 0; i < std::size(first); i++) first[i] = 0.5f + float(i) / 512;
    std::atomic<int64_t> products = 0;
    on_each_thread([&](int64_t) {
        alignas(64) uint8_t vectors[sizeof first];
        std::memcpy(vectors, first, sizeof first);
        products += levels[level](times, vectors);
        sink_ ^= vectors[0];
    });
    return 1e-9 * double(products);
}

Limits LimitMeter::measure(double min_seconds, const Progress& progress) {
    constexpr int64_t stages = 10;
    int64_t stage = 0;
    const auto measure_way = [&](LimitKind kind, int way) {
        double amount = 0;
        const Timing timing = time_calls(
            context_.threads(), min_seconds, [&] { amount = run(kind, way); },
            [&] { report(progress, "measure the machine", stage, stages); });
        stage++;
        return Limit{.value = amount / timing.best, .spread = timing.spread};
    };
    const auto best_way = [&](LimitKind kind, int ways) {
        Limit best;
        for (int way = 0; way < ways; way++) {
            const Limit found = measure_way(kind, way);
            if (found.value > best.value) best = found, way_[size_t(kind)] = way;
        }
        return best;
    };
    const auto products = [&](LimitKind kind) -> std::optional<Limit> {
        if (run(kind, 0) == 0) {
            stage++;
            return {};
        }
        return measure_way(kind, 0);
    };
    Limits limits{.threads = context_.threads()};
    limits.memory_read = best_way(LimitKind::memory_read, int(std::size(read_levels)));
    limits.memory_copy = best_way(LimitKind::memory_copy, int(std::size(copy_levels)));
    limits.l2_read = measure_way(LimitKind::l2_read, 0);
    limits.l2_copy = measure_way(LimitKind::l2_copy, 0);
    limits.int8 = products(LimitKind::int8);
    limits.fp32 = products(LimitKind::fp32);
    report(progress, "measure the machine", stages, stages);
    return limits;
}

double LimitMeter::rate_now(LimitKind kind, double seconds) {
    const Stopwatch watch(context_.threads());
    double amount = 0, spent = 0;
    do {
        amount += run(kind, way_[size_t(kind)]);
        spent = watch.seconds();
    } while (spent < seconds);
    return amount / std::max(spent, 1e-9);
}

Limits measure_limits(const Context& context, double min_seconds, const Progress& progress) {
    return LimitMeter(context).measure(min_seconds, progress);
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

double Limits::of(LimitKind kind) const {
    switch (kind) {
        case LimitKind::memory_read:
            return memory_read.value;
        case LimitKind::memory_copy:
            return memory_copy.value;
        case LimitKind::l2_read:
            return l2_read.value;
        case LimitKind::l2_copy:
            return l2_copy.value;
        case LimitKind::int8:
            return int8 ? int8->value : 0;
        case LimitKind::fp32:
            return fp32 ? fp32->value : 0;
    }
    return 0;
}

std::string_view name_of(LimitKind kind) {
    constexpr std::string_view names[] = {"memory read", "memory copy", "L2 read", "L2 copy", "int8", "FP32"};
    return names[int(kind)];
}

Bound bound_of(const Work& work, const Limits& limits) {
    Bound bound;
    const auto at_least = [&](double seconds, LimitKind kind) {
        if (seconds > bound.seconds) bound = {seconds, kind};
    };
    const auto time_of = [&](double amount, LimitKind kind) {
        return amount > 0 && limits.of(kind) > 0 ? amount * 1e-9 / limits.of(kind) : 0;
    };
    const auto read = work.in_l2 ? LimitKind::l2_read : LimitKind::memory_read,
               copy = work.in_l2 ? LimitKind::l2_copy : LimitKind::memory_copy;
    const bool copies = work.bytes_written * 10 > work.bytes_read;
    at_least(time_of(work.bytes_read + (copies ? 0 : work.bytes_written), read), read);
    if (copies) at_least(time_of(work.bytes_read + work.bytes_written, copy), copy);
    // Both kinds of multiply-adds run on the same units.
    const double int8 = time_of(work.int8, LimitKind::int8), fp32 = time_of(work.fp32, LimitKind::fp32);
    at_least(int8 + fp32, int8 > fp32 ? LimitKind::int8 : LimitKind::fp32);
    return bound;
}

}  // namespace halfbyte::bench
#endif
