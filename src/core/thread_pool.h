// A small pool: parallel_for cuts [0, count) into pieces that idle threads take one after the other. Which
// thread runs a piece never changes a result. The calling thread takes part; with one thread everything runs
// in it. Threads are pinned nowhere. A worker looks out for the next job for 40 microseconds, then sleeps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace halfbyte {

class ThreadPool {
  public:
    // threads = 0: as many as the process may use (its CPU affinity and the quotas of its control groups).
    explicit ThreadPool(int threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const;

    // Calls body(begin, end) for pieces of at most `grain` items that cover [0, count); returns when all are
    // done. The first exception of a piece is thrown again here; pieces not yet started are then dropped.
    // Must not be called from inside a body.
    void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// What limits the number of threads of this process.
struct ThreadLimits {
    int affinity = 0;      // processors that it may run on
    int cgroup_quota = 0;  // whole processors that its control groups grant; 0: no limit

    int usable() const;
};
ThreadLimits thread_limits();

}  // namespace halfbyte
