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

constexpr int chains = 12;

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

// `times` steps of 12 chains, which begin with the vectors at `start` and end there; gives the number of
// multiply-adds, or 0 where there is no such instruction.
int64_t int8_products(int64_t times, uint8_t* start) {
#if HWY_TARGET == HWY_AVX3
    __m512i sums[chains];
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(2);
    for (int i = 0; i < chains; i++) sums[i] = _mm512_loadu_si512(start + 64 * i);
    for (int64_t step = 0; step < times; step++)
        for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
    for (int i = 0; i < chains; i++) _mm512_storeu_si512(start + 64 * i, sums[i]);
    return times * chains * 64;
#elif HWY_TARGET == HWY_AVX2
    __m256i sums[chains];
    const __m256i b = _mm256_set1_epi8(1);
    const auto at = [&](int i) { return reinterpret_cast<__m256i*>(start + 32 * i); };
    for (int i = 0; i < chains; i++) sums[i] = _mm256_loadu_si256(at(i));
    for (int64_t step = 0; step < times; step++)
        for (__m256i& sum : sums) sum = _mm256_maddubs_epi16(sum, b);
    for (int i = 0; i < chains; i++) _mm256_storeu_si256(at(i), sums[i]);
    return times * chains * 32;
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
    constexpr int lanes = HWY_LANES(float);
    hn::Vec<decltype(d)> sums[chains];
    const auto a = hn::Set(d, 0.999f), b = hn::Set(d, 0.001f);
    const auto at = [&](int i) { return reinterpret_cast<float*>(start) + lanes * i; };
    for (int i = 0; i < chains; i++) sums[i] = hn::LoadU(d, at(i));
    for (int64_t step = 0; step < times; step++)
        for (auto& sum : sums) sum = hn::MulAdd(sum, a, b);
    for (int i = 0; i < chains; i++) hn::StoreU(sums[i], d, at(i));
    return times * chains * lanes;
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
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <new>

#include "backend/context_state.h"
#include "bench/limits.h"
#include "bench/timing.h"
#include "core/check.h"

namespace halfbyte::bench {
namespace {

using cpu::PerLevel;
constexpr PerLevel<uint64_t(const uint8_t*, const uint8_t*)> read_bytes_levels =
    HALFBYTE_PER_LEVEL(read_bytes);
constexpr PerLevel<void(const uint8_t*, uint8_t*, int64_t)> stream_bytes_levels =
    HALFBYTE_PER_LEVEL(stream_bytes);
constexpr PerLevel<int64_t(int64_t, uint8_t*)> int8_products_levels = HALFBYTE_PER_LEVEL(int8_products);
constexpr PerLevel<int64_t(int64_t, uint8_t*)> fp32_products_levels = HALFBYTE_PER_LEVEL(fp32_products);

// Zeroed pages, huge ones where the system gives them: the limit is the machine's, not that of its page
// tables.
class Pages {
  public:
    explicit Pages(int64_t bytes) : bytes_(size_t(bytes)) {
        data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data_ == MAP_FAILED) throw std::bad_alloc();
        ::madvise(data_, bytes_, MADV_HUGEPAGE);
        std::memset(data_, 1, bytes_);
    }
    ~Pages() { ::munmap(data_, bytes_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    uint8_t* data() const { return static_cast<uint8_t*>(data_); }

  private:
    size_t bytes_;
    void* data_;
};

int64_t cache_size(int name, int64_t otherwise) {
    const long bytes = ::sysconf(name);
    return bytes > 0 ? bytes : otherwise;
}

int64_t available_memory() {
    std::ifstream lines("/proc/meminfo");
    for (std::string word; lines >> word;) {
        int64_t kilobytes = 0;
        if (word == "MemAvailable:" && lines >> kilobytes) return kilobytes * 1024;
    }
    return int64_t(8) << 30;
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
        const Pages pages(2 * part * threads);
        const auto of_thread = [&](int64_t i) { return pages.data() + i * 2 * part; };
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
        const Pages pages(2 * part * threads);
        const auto of_thread = [&](int64_t i) { return pages.data() + i * 2 * part; };
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
