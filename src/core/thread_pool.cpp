#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/cgroup.h"
#include "core/check.h"
#include "core/float_environment.h"

namespace halfbyte {

ThreadLimits thread_limits() {
    cpu_set_t set;
    CPU_ZERO(&set);
    int affinity = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    if (affinity == 0) affinity = std::max(1, int(std::thread::hardware_concurrency()));
    return {affinity, cgroup_processors()};
}

int ThreadLimits::usable() const {
    return cgroup_quota > 0 ? std::min(affinity, cgroup_quota) : affinity;
}

static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A job is published by one store to `gate`; a worker is inside it from its entry there to its leaving. The
// caller takes pieces like everybody and then closes the gate: it waits for the workers that are inside,
// never for one that sleeps or is not scheduled, so a busy machine costs no more than the pieces that it
// holds up.
struct ThreadPool::State {
    // Bits 0-11: workers inside; bit 12: open; above: the number of the job.
    std::atomic<uint32_t> gate{0};
    static constexpr uint32_t inside = 0xFFF, open = 0x1000, one_job = 0x2000;
    static uint32_t job_of(uint32_t value) { return value / one_job; }

    std::atomic<uint32_t> emptied{0};  // counts the times that a closed job was left by its last worker
    std::atomic<bool> stop{false};
    std::vector<std::thread> workers;
    bool spins = false;

    // Of the open job; written while nobody is inside.
    const std::function<void(int64_t, int64_t)>* body = nullptr;
    int64_t count = 0, grain = 1;
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::exception_ptr error;  // guarded by mutex

    ~State() {
        stop = true;
        gate += one_job;
        gate.notify_all();
        for (std::thread& worker : workers) worker.join();
    }

    // Waits a moment for what is usually there at once; returns whether it came. In a running model the next
    // job follows within microseconds, and waking a sleeping thread takes ten times as long.
    template <typename Condition>
    bool spin_until(const Condition& condition) const {
        if (condition()) return true;
        if (!spins) return false;
        const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(40);
        do {
            for (int i = 0; i < 16; i++) {
                pause();
                if (condition()) return true;
            }
        } while (std::chrono::steady_clock::now() < end);
        return false;
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
        uint32_t seen = 0, now = 0;
        for (;;) {
            if (!spin_until([&] { return job_of(now = gate.load(std::memory_order_acquire)) != seen; })) {
                gate.wait(now);
                continue;
            }
            if (stop) return;
            if ((now & open) == 0)
                seen = job_of(now);  // done already
            else if (gate.compare_exchange_weak(now, now + 1, std::memory_order_acquire)) {
                seen = job_of(now);
                take_pieces();
                const uint32_t before = gate.fetch_sub(1, std::memory_order_acq_rel);
                if ((before & (inside | open)) == 1) {
                    emptied++;
                    emptied.notify_one();
                }
            }
        }
    }

    void run(const std::function<void(int64_t, int64_t)>& job, int64_t job_count, int64_t job_grain) {
        body = &job;
        count = job_count;
        grain = job_grain;
        next.store(0, std::memory_order_relaxed);
        error = nullptr;
        const uint32_t now = gate.load(std::memory_order_relaxed);
        gate.store((job_of(now) + 1) * one_job | open, std::memory_order_release);
        const int64_t others = (count + grain - 1) / grain - 1;
        if (others >= int64_t(workers.size()))
            gate.notify_all();
        else
            for (int64_t i = 0; i < others; i++) gate.notify_one();

        take_pieces();
        gate.fetch_and(~open, std::memory_order_acq_rel);
        const auto empty = [&] { return (gate.load(std::memory_order_acquire) & inside) == 0; };
        if (!spin_until(empty))
            for (uint32_t times = emptied; !empty(); times = emptied) emptied.wait(times);
        if (error) std::rethrow_exception(error);
    }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
    check(threads >= 0 && threads <= 4096, ErrorKind::usage, "threads: {} given, 1 to 4096 are possible",
          threads);
    const int usable = threads == 1 ? 1 : thread_limits().usable();  // which reads files
    if (threads == 0) threads = usable;
    state_->spins = threads <= usable;
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
    state.run(body, count, grain);
}

}  // namespace halfbyte
