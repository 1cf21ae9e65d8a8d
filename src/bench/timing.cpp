#include "bench/timing.h"

#include <time.h>

#include <algorithm>
#include <cmath>

namespace halfbyte::bench {

static double now(int clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

Stopwatch::Stopwatch(int threads)
    : clock_(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC), start_(now(clock_)) {}

double Stopwatch::seconds() const {
    return now(clock_) - start_;
}

double median_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double mean_of(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / double(values.size());
}

double standard_deviation_of(const std::vector<double>& values) {
    if (values.size() < 2) return 0;
    const double mean = mean_of(values);
    double squares = 0;
    for (const double value : values) squares += (value - mean) * (value - mean);
    return std::sqrt(squares / double(values.size() - 1));
}

Timing time_calls(int threads, double min_seconds, const std::function<void()>& call,
                  const std::function<void()>& between) {
    Timing timing;
    const auto seconds_of = [&](int64_t calls) {
        between();
        const Stopwatch watch(threads);
        for (int64_t i = 0; i < calls; i++) call();
        timing.calls += calls;
        return std::max(watch.seconds(), 1e-9) / double(calls);  // a clock may stand still over a short call
    };
    const double first = seconds_of(1);
    const int64_t samples = std::clamp<int64_t>(int64_t(min_seconds / first), 3, 9);
    const auto per_sample =
        std::max<int64_t>(1, int64_t(std::llround(min_seconds / double(samples) / first)));
    std::vector<double> seconds;
    for (int64_t i = 0; i < samples; i++) seconds.push_back(seconds_of(per_sample));
    timing.samples = seconds;
    std::sort(seconds.begin(), seconds.end());
    timing.median = median_of(seconds);
    timing.best = seconds.front();
    timing.spread = (seconds[size_t(samples * 3 / 4)] - seconds[size_t(samples / 4)]) / timing.median;
    return timing;
}

}  // namespace halfbyte::bench
