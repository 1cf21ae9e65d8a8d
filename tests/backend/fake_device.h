// The state of the library that stands beside the test program (fake_cuda_library.cpp).
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "backend/cuda_library.h"
#include "backend/fake_cuda_library.h"

namespace halfbyte::test {

inline FakeCuda& fake_cuda() {
    const CudaLibrary& library = cuda_library();
    EXPECT_NE(library.path.find("tests/backend"), std::string::npos) << library.path << library.reason;
    void* handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    return *reinterpret_cast<FakeCuda* (*)()>(dlsym(handle, "fake_cuda_state"))();
}

// Each test begins with a device of 9.0 on which nothing was launched.
class WithFakeDevice : public testing::Test {
  protected:
    FakeCuda& fake = fake_cuda();
    void SetUp() override { fake = {}; }
};

}  // namespace halfbyte::test
