#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/float_environment.h"

namespace halfbyte {

// cgroup v2 writes "QUOTA PERIOD" or "max PERIOD"; absent or unreadable means no limit.
static int cgroup_limit() {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    std::string quota;
    double period = 0;
    if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
    try {
        return std::max(1, int(std::stod(quota) / period));
    } catch (const std::exception&) {
        return 0;
    }
}

ThreadLimits thread_limits() {
    cpu_set_t set;
    CPU_ZERO(&set);
    int affinity = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    if (affinity == 0) affinity = std::max(1, int(std::thread::hardware_concurrency()));
    return {affinity, cgroup_limit()};
}

int ThreadLimits::usable() const {
    return cgroup_quota > 0 ? std::min(affinity, cgroup_quota) : affinity;
}

struct ThreadPool::State {
    std::mutex mutex;
    std::condition_variable start, finished;
    std::vector<std::thread> workers;
    uint64_t round = 0;  // counts calls of parallel_for; a worker waits for the next one
    int running = 0;     // workers still inside the current round
    bool stop = false;

    const std::function<void(int64_t, int64_t)>* body = nullptr;
    int64_t count = 0, grain = 1;
    std::atomic<int64_t> next{0};
    std::exception_ptr error;  // guarded by mutex

    ~State() {
        {
            const std::lock_guard lock(mutex);
            stop = true;
        }
        start.notify_all();
        for (std::thread& worker : workers) worker.join();
    }

    void take_pieces() {
        for (;;) {
            const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= count) return;
            try {
                (*body)(begin, std::min(begin + grain, count));
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (!error) error = std::current_exception();
                next.store(count, std::memory_order_relaxed);
            }
        }
    }

    void work() {
        const FloatEnvironment environment;
        uint64_t seen = 0;
        for (;;) {
            {
                std::unique_lock lock(mutex);
                start.wait(lock, [&] { return stop || round != seen; });
                if (stop) return;
                seen = round;
            }
            take_pieces();
            const std::lock_guard lock(mutex);
            if (--running == 0) finished.notify_one();
        }
    }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
    check(threads >= 0 && threads <= 4096, ErrorKind::usage, "threads: {} given, 1 to 4096 are possible",
          threads);
    if (threads == 0) threads = thread_limits().usable();
    try {
        for (int i = 1; i < threads; i++)
            state_->workers.emplace_back([state = state_.get()] { state->work(); });
    } catch (const std::system_error& error) {
        fail(ErrorKind::failure, "threads: {} given, the system started {}: {}; use fewer", threads,
             this->threads(), error.what());
    }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const {
    return int(state_->workers.size()) + 1;
}

void ThreadPool::parallel_for(int64_t count, int64_t grain,
                              const std::function<void(int64_t, int64_t)>& body) {
    if (count <= 0) return;
    const FloatEnvironment environment;
    grain = std::max<int64_t>(grain, 1);
    State& state = *state_;
    if (state.workers.empty() || count <= grain) {
        for (int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(begin + grain, count));
        return;
    }
    {
        const std::lock_guard lock(state.mutex);
        state.body = &body;
        state.count = count;
        state.grain = grain;
        state.next.store(0, std::memory_order_relaxed);
        state.error = nullptr;
        state.running = int(state.workers.size());
        state.round++;
    }
    state.start.notify_all();
    state.take_pieces();
    std::unique_lock lock(state.mutex);
    state.finished.wait(lock, [&] { return state.running == 0; });
    if (state.error) std::rethrow_exception(state.error);
}

}  // namespace halfbyte
