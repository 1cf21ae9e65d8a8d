// The time of a call: the median of several samples, each of as many calls as fill its share of the time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/progress.h"

namespace halfbyte::bench {

// With one thread the processor time of the calling thread, so that other programs disturb little; else the
// wall clock.
class Stopwatch {
  public:
    explicit Stopwatch(int threads);
    double seconds() const;

  private:
    int clock_;
    double start_;
};

double median_of(std::vector<double> values);
double mean_of(const std::vector<double>& values);
// Of a sample: n - 1 degrees of freedom; 0 for one value.
double standard_deviation_of(const std::vector<double>& values);

struct Timing {
    double median = 0, best = 0;  // seconds of a call
    double spread = 0;            // of the samples: distance of their quartiles over the median
    std::vector<double> samples;  // seconds of a call, in the order in which they were taken
    int64_t calls = 0;            // in all, the first one included
};

// One call to warm up, then 3 to 9 samples that take about min_seconds together. between() is called once
// before the call to warm up and once before each sample, and may throw to stop.
Timing time_calls(int threads, double min_seconds, const std::function<void()>& call,
                  const std::function<void()>& between);

}  // namespace halfbyte::bench
