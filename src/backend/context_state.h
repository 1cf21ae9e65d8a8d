// What a Context holds; for the layers that run work of their own in its threads.
#pragma once

#include "core/thread_pool.h"
#include "halfbyte/context.h"

namespace halfbyte::cpu {
struct Kernels;
}

namespace halfbyte {

struct Context::State {
    mutable ThreadPool pool;
    CpuLevel level;
    const cpu::Kernels* kernels;
};

inline ThreadPool& pool_of(const Context& context) {
    return context.state().pool;
}

}  // namespace halfbyte
