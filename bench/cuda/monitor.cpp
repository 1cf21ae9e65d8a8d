#include "monitor.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace halfbyte::bench {

// The functions of libnvidia-ml.so.1 that are used, as nvml.h declares them; 0 is success, clock 1 that of
// the multiprocessors, power in milliwatts.
struct Monitor::State {
    using Device = void*;
    int (*init)() = nullptr;
    int (*by_bus_id)(const char*, Device*) = nullptr;
    int (*clock)(Device, unsigned, unsigned*) = nullptr;
    int (*power)(Device, unsigned*) = nullptr;
    Device device = nullptr;
    std::atomic<bool> running = false;
    std::vector<double> clocks, powers;
    std::thread thread;
};

Monitor::Monitor(int device) : state_(std::make_unique<State>()) {
    State& s = *state_;
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto& function, const char* name) {
        if (library != nullptr)
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    find(s.init, "nvmlInit_v2");
    find(s.by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
    find(s.clock, "nvmlDeviceGetClockInfo");
    find(s.power, "nvmlDeviceGetPowerUsage");
    char bus_id[32] = {};
    if (s.init == nullptr || s.by_bus_id == nullptr || s.clock == nullptr || s.power == nullptr)
        reason_ = "libnvidia-ml.so.1 is not there or lacks a function";
    else if (s.init() != 0)
        reason_ = "nvmlInit fails";
    else if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device) != cudaSuccess ||
             s.by_bus_id(bus_id, &s.device) != 0)
        reason_ = "nvmlDeviceGetHandleByPciBusId fails";
}

Monitor::~Monitor() {
    end();
}

void Monitor::begin() {
    State& s = *state_;
    if (!reason_.empty() || s.thread.joinable()) return;
    s.clocks.clear(), s.powers.clear();
    s.running = true;
    s.thread = std::thread([&s] {
        while (s.running) {
            unsigned value = 0;
            if (s.clock(s.device, 1, &value) == 0) s.clocks.push_back(value);
            if (s.power(s.device, &value) == 0) s.powers.push_back(value * 1e-3);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    });
}

Conditions Monitor::end() {
    State& s = *state_;
    if (!s.thread.joinable()) return {};
    s.running = false;
    s.thread.join();
    const auto median = [](std::vector<double>& values) {
        if (values.empty()) return 0.0;
        std::nth_element(values.begin(), values.begin() + int64_t(values.size() / 2), values.end());
        return values[values.size() / 2];
    };
    return {median(s.clocks), median(s.powers)};
}

}  // namespace halfbyte::bench
