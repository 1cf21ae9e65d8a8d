// Running something that has to get by with little memory, whatever a file claims.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace halfbyte::test {

// Runs the action with room for 64 MiB more of addresses than are in use (a sanitizer needs too many of its
// own for that), and expects that the process's largest memory grows by less than 16 MiB.
template <typename Action>
void with_little_memory(Action&& action) {
    struct Limit {
        rlimit before{};
        Limit() { getrlimit(RLIMIT_AS, &before); }
        ~Limit() { setrlimit(RLIMIT_AS, &before); }
    } const limit;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    int64_t pages = 0;
    if (std::ifstream("/proc/self/statm") >> pages) {
        rlimit low = limit.before;
        low.rlim_cur = rlim_t(pages) * rlim_t(getpagesize()) + (64u << 20);
        setrlimit(RLIMIT_AS, &low);
    }
#endif
    const auto largest_kib = [] {
        rusage usage{};
        getrusage(RUSAGE_SELF, &usage);
        return usage.ru_maxrss;
    };
    const auto start = largest_kib();
    action();
    EXPECT_LT(largest_kib() - start, 16 << 10) << "KiB";
}

}  // namespace halfbyte::test
