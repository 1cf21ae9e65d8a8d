// What tests/backend's library in the place of libhalfbyte_cuda.so remembers; found by
// dlsym("fake_cuda_state").
#pragma once

#include <string>
#include <vector>

namespace halfbyte::test {

struct FakeCuda {
    std::vector<std::string> launched;  // names of kernels, in order
    std::string unavailable_reason;     // what the driver says; empty: there is a device
    int major = 9, minor = 0;           // of the one device
    std::string launch_error;           // what a launch fails with; empty: it does not
};

}  // namespace halfbyte::test
