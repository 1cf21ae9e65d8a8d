// Opens libhalfbyte_cuda.so when it is first needed: one program serves machines with and without GPUs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cuda/kernels.h"

namespace halfbyte {

struct CudaLibrary {
    const cuda::Kernels* kernels = nullptr;  // null: `reason` says why
    std::string path;                        // of the file that was opened
    std::string reason;
};

// The one of this process, searched in the folder of the program or shared library that holds this code, in
// the folder where an installation puts libraries, then as the loader does. Any thread may call it.
const CudaLibrary& cuda_library();

// The first of the files that exists, else what the loader finds of that name.
CudaLibrary open_cuda_library(const std::vector<std::filesystem::path>& files, const std::string& name);

// The device an architecture stands for, "sm_90" for one; for explain() without a GPU. Error (usage) for
// unknown ones.
cuda::DeviceInfo device_of_architecture(const std::string& name);

}  // namespace halfbyte
