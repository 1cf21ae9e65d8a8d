#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cfenv>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "support/throws.h"

namespace halfbyte {
namespace {

TEST(ThreadPool, CoversEveryIndexOnceInPiecesOfAtMostTheGrain) {
    for (const int threads : {1, 2, 3, 8}) {
        ThreadPool pool(threads);
        ASSERT_EQ(pool.threads(), threads);
        for (const int64_t count : {0, 1, 7, 100, 1000}) {
            for (const int64_t grain : {-1, 0, 1, 3, 100, 5000}) {
                std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
                std::atomic<int64_t> largest = 0, outside = 0;
                pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
                    if (begin < 0 || begin >= end || end > count) outside++;
                    int64_t known = largest;
                    while (known < end - begin && !largest.compare_exchange_weak(known, end - begin)) {
                    }
                    for (int64_t i = begin; i < end; i++) seen[size_t(i)]++;
                });
                ASSERT_EQ(outside, 0);
                ASSERT_LE(largest, std::max<int64_t>(grain, 1));
                for (int64_t i = 0; i < count; i++)
                    ASSERT_EQ(seen[size_t(i)], 1)
                        << i << " of " << count << ", grain " << grain << ", threads " << threads;
            }
        }
    }
}

TEST(ThreadPool, GivesTheSameResultForAnyNumberOfThreads) {
    const auto work = [](ThreadPool& pool) {
        std::vector<float> result(4099);
        pool.parallel_for(int64_t(result.size()), 17, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) {
                float sum = 0;
                for (int64_t j = 1; j < 50; j++) sum += float(i) / float(j);
                result[size_t(i)] = sum;
            }
        });
        return result;
    };
    ThreadPool one(1);
    const std::vector<float> expected = work(one);
    for (const int threads : {2, 3, 7}) {
        ThreadPool pool(threads);
        EXPECT_EQ(work(pool), expected) << threads;
    }
}

// As many pieces as threads, each waiting for all others: every thread takes one.
TEST(ThreadPool, UsesEveryThreadAndTheCaller) {
    ThreadPool pool(4);
    std::barrier everybody(4);
    std::mutex mutex;
    std::set<std::thread::id> ids;
    pool.parallel_for(4, 1, [&](int64_t, int64_t) {
        everybody.arrive_and_wait();
        const std::lock_guard lock(mutex);
        ids.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(ids.size(), 4u);
    EXPECT_TRUE(ids.contains(std::this_thread::get_id()));
}

TEST(ThreadPool, AnExceptionArrivesAndThePoolWorksOn) {
    for (const int threads : {1, 4}) {
        ThreadPool pool(threads);
        for (const int64_t bad : {0, 500, 999}) {
            std::string text;
            try {
                pool.parallel_for(1000, 1, [&](int64_t begin, int64_t) {
                    if (begin == bad) throw std::runtime_error("piece " + std::to_string(begin));
                });
            } catch (const std::runtime_error& error) {
                text = error.what();
            }
            EXPECT_EQ(text, "piece " + std::to_string(bad)) << threads << " threads";
            std::atomic<int64_t> sum = 0;
            pool.parallel_for(1000, 7, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; i++) sum += i;
            });
            EXPECT_EQ(sum, 499500);
        }
    }
}

TEST(ThreadPool, WhenEveryPieceThrowsOneExceptionArrives) {
    ThreadPool pool(4);
    std::barrier everybody(4);
    EXPECT_THROW(pool.parallel_for(4, 1,
                                   [&](int64_t, int64_t) {
                                       everybody.arrive_and_wait();
                                       throw std::runtime_error("all");
                                   }),
                 std::runtime_error);
}

TEST(ThreadPool, RunsManyRoundsWithoutLosingOne) {
    ThreadPool pool(3);
    std::atomic<int64_t> pieces = 0;
    for (int round = 0; round < 2000; round++) pool.parallel_for(5, 1, [&](int64_t, int64_t) { pieces++; });
    EXPECT_EQ(pieces, 10000);
}

#if defined(__x86_64__)
TEST(ThreadPool, NeitherTheCallerNorAWorkerFlushesOrRoundsOtherwise) {
    ThreadPool pool(4);  // built while the caller is in the ordinary state; another one below while it is not
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    std::fesetround(FE_UPWARD);
    std::atomic<int> wrong = 0;
    const unsigned inside = 0xE040;  // flush to zero, rounding mode, denormals are zero
    {
        ThreadPool other(4);
        for (ThreadPool* each : {&pool, &other}) {
            std::barrier everybody(4);
            each->parallel_for(4, 1, [&](int64_t, int64_t) {
                everybody.arrive_and_wait();
                if ((_mm_getcsr() & inside) != 0 || std::fegetround() != FE_TONEAREST) wrong++;
            });
            each->parallel_for(1, 1, [&](int64_t, int64_t) {
                if ((_mm_getcsr() & inside) != 0) wrong++;
            });
        }
    }
    const unsigned after = _mm_getcsr();
    const int mode = std::fegetround();
    std::fesetround(FE_TONEAREST);
    _mm_setcsr(before);
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(after & 0x8040, 0x8040u);
    EXPECT_EQ(mode, FE_UPWARD);
}
#endif

TEST(ThreadPool, ZeroThreadsMeansAllUsableOnes) {
    EXPECT_GE(thread_limits().usable(), 1);
    EXPECT_EQ(ThreadPool(0).threads(), thread_limits().usable());
}

TEST(ThreadPool, RefusesAnImpossibleNumberOfThreads) {
    for (const int threads : {-1, 4097})
        EXPECT_TRUE(test::throws(ErrorKind::usage, std::to_string(threads) + " given",
                                 [&] { ThreadPool pool(threads); }));
}

#if defined(__linux__) && \
    !defined(__SANITIZE_ADDRESS__)  // the sanitizer needs far more address space than this leaves
TEST(ThreadPool, SaysSoWhenTheSystemStartsNoMoreThreads) {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit before{};
    getrlimit(RLIMIT_AS, &before);
    rlimit low = before;
    low.rlim_cur = rlim_t(pages) * rlim_t(getpagesize()) + (32u << 20);  // room for a few stacks
    setrlimit(RLIMIT_AS, &low);
    const auto result = test::throws(ErrorKind::failure, "use fewer", [] { ThreadPool pool(1000); });
    setrlimit(RLIMIT_AS, &before);
    EXPECT_TRUE(result);
}
#endif

}  // namespace
}  // namespace halfbyte
