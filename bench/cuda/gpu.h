// The device's memory and the clock of the benchmark.
#pragma once

#include <functional>

#include "buffers.h"
#include "cuda/device.h"

namespace halfbyte::bench {

// Something that can be timed: launches over sets of the same buffers.
struct Work {
    Buffers buffers;                                                // of one set
    std::function<void(uint8_t* set, const cuda::Launch&)> launch;  // over the buffers from `set` on
};

class Gpu {
  public:
    explicit Gpu(const cuda::DeviceInfo& info);
    ~Gpu();
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    const cuda::DeviceInfo& info() const { return info_; }
    cuda::Launch launch() const {
        return {.stream = stream_, .workspace = workspace_.data(), .workspace_bytes = workspace_.bytes()};
    }
    uint8_t* memory() const { return memory_.data(); }

    // Buffers from `set` on; the number of the set seeds what is in them.
    void fill_set(const Buffers& buffers, uint8_t* set, int64_t number = 0);
    std::vector<uint8_t> fetch(const uint8_t* data, int64_t bytes);

    // Microseconds of one launch: the median of the replays of a graph of `launches`, all buffers out of L2
    // before each replay.
    double time(int64_t launches, const std::function<void(int64_t launch)>& enqueue);
    // The sets are filled anew, number 0 at memory(). They rotate: more than 1 GB of them where that needs no
    // more than `most_sets`. A graph has 10 launches or more and moves 4 GB where 512 launches do.
    double time(const Work& work, int64_t most_sets);
    double clock_mhz();

  private:
    void synchronize();
    double event_microseconds();

    cuda::DeviceInfo info_;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
    conformance::DeviceMemory memory_, other_, workspace_;
};

}  // namespace halfbyte::bench
