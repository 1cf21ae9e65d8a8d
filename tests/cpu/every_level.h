// Runs a check on every level that this machine has and with 1, 2 and 5 threads.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/float_environment.h"
#include "cpu/kernels.h"

namespace halfbyte::test {

inline ThreadPool& pool_of(int threads) {
    static ThreadPool one(1), two(2), five(5);
    return threads == 1 ? one : threads == 2 ? two : five;
}

// check(kernels, pool); what it compares with has been computed before.
template <typename Check>
void on_every_level(const Check& check) {
    for (const cpu::Level level : cpu::levels()) {
        if (!cpu::unsupported_reason(level).empty()) continue;  // levels_test prints these
        for (const int threads : {1, 2, 5}) {
            SCOPED_TRACE(std::string(cpu::name_of(level)) + ", threads: " + std::to_string(threads));
            check(cpu::kernels(level), pool_of(threads));
        }
    }
}

// The reference's way of computing the same: inside the float environment of a public call.
template <typename Args>
void by_reference(void (*operation)(const Args&), const Args& args) {
    const FloatEnvironment environment;
    operation(args);
}

}  // namespace halfbyte::test
