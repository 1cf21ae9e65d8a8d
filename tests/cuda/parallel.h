#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace halfbyte::conformance {

// work(item) for every item below `count`; make_worker() is called by each thread and gives its `work`. The
// first exception ends all of them and is thrown again here.
template <typename MakeWorker>
void in_parallel(int64_t count, unsigned threads, const MakeWorker& make_worker) {
    std::atomic<int64_t> next = 0;
    std::exception_ptr error;
    std::mutex mutex;
    const auto run = [&] {
        try {
            auto work = make_worker();
            for (int64_t i = next++; i < count; i = next++) work(i);
        } catch (...) {
            const std::lock_guard lock(mutex);
            if (error == nullptr) error = std::current_exception();
            next = count;
        }
    };
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; i++) all.emplace_back(run);
    for (std::thread& thread : all) thread.join();
    if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace halfbyte::conformance
