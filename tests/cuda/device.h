// Where kernels run: on a GPU, each thread with a stream, memory and a workspace of its own; or on the host,
// when the program tests itself.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "halfbyte/cuda.h"
#include "support/random.h"

namespace halfbyte::conformance {

using LaunchFunction = std::function<void(const cuda::Launch&)>;

// Throws Error (failure) with the call's name.
void check_cuda(cudaError_t error, const char* call);

// Device memory for the length of a scope.
class DeviceMemory {
  public:
    explicit DeviceMemory(int64_t bytes);
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    uint8_t* data() const { return static_cast<uint8_t*>(data_); }
    int64_t bytes() const { return bytes_; }

  private:
    void* data_ = nullptr;
    int64_t bytes_;
};

class Device {
  public:
    virtual ~Device() = default;
    virtual cuda::DeviceInfo info() const = 0;
    virtual uint8_t* load(const std::vector<uint8_t>& image) = 0;  // returns where the copy lies
    // The scratch holds 0xFF before every launch.
    virtual void launch(int64_t workspace_bytes, const LaunchFunction& kernel, int64_t scratch_bytes = 0) = 0;
    // Captures the launch into a graph; the result replays it.
    virtual std::function<void()> capture(int64_t workspace_bytes, const LaunchFunction& kernel,
                                          int64_t scratch_bytes = 0) = 0;
    virtual std::vector<uint8_t> fetch() = 0;  // waits; the image as it is now
    // The workspace is zero before its first use and never set again: every kernel has to leave it so.
    virtual bool workspace_is_zero(int64_t bytes) = 0;
};

std::unique_ptr<Device> make_gpu(const cuda::DeviceInfo& info);
// `spoil`: fetch() returns an image in which one aligned word has four bits flipped. They are set in the
// exponent of every NaN, which is then none.
std::unique_ptr<Device> make_host(bool spoil);

}  // namespace halfbyte::conformance
