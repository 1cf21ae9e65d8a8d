#include "backend/cuda_library.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <link.h>

#include "core/check.h"
#include "halfbyte/version.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

constexpr const char* library_name = "libhalfbyte_cuda.so";
constexpr const char* symbol = "halfbyte_cuda_kernels";

// The folder of the program or shared library that holds this function; empty if it cannot be told. The
// loader knows the program by the name it was started with, which says nothing of its folder: /proc does.
fs::path own_folder() {
    Dl_info info = {};
    void* object = nullptr;
    const auto here = reinterpret_cast<const void*>(&own_folder);
    if (dladdr1(here, &info, &object, RTLD_DL_LINKMAP) == 0 || object == nullptr) return {};
    const char* name = static_cast<link_map*>(object)->l_name;
    std::error_code error;
    return fs::canonical(*name == 0 ? "/proc/self/exe" : name, error).parent_path();
}

std::string loader_error() {
    const char* text = dlerror();
    return text == nullptr ? "the loader gives no reason" : text;
}

CudaLibrary checked(void* handle) {
    void* address = dlsym(handle, symbol);
    link_map* map = nullptr;
    CudaLibrary library;
    if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0) library.path = map->l_name;
    if (address == nullptr) {
        library.reason =
            fmt::format("{} has no symbol {}; install the one of halfbyte {}", library.path, symbol, version);
        return library;
    }
    const auto table = reinterpret_cast<decltype(&cuda::halfbyte_cuda_kernels)>(address);
    const cuda::Kernels* kernels = table();
    if (kernels->version != version) {
        library.reason = fmt::format("{} is of halfbyte {}, this is halfbyte {}; install both from one build",
                                     library.path, kernels->version, version);
        return library;
    }
    library.kernels = kernels;
    return library;
}

}  // namespace

CudaLibrary open_cuda_library(const std::vector<fs::path>& files, const std::string& name) {
    std::string file = name;
    for (const fs::path& candidate : files) {
        std::error_code error;
        if (!fs::exists(candidate, error)) continue;
        file = candidate.string();
        break;
    }
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr && file != name)
        return {.reason = fmt::format("{} cannot be loaded: {}", file, loader_error())};
    if (handle == nullptr) {
        std::vector<std::string> places;
        for (const fs::path& candidate : files) places.push_back(candidate.parent_path().string());
        return {.reason = fmt::format(
                    "{} was not found in {} nor by the loader ({}); a build with -DHALFBYTE_CUDA=ON and the "
                    "CUDA toolkit makes it, put it into the first of these folders",
                    name, fmt::join(places, ", "), loader_error())};
    }
    CudaLibrary library = checked(handle);
    if (library.kernels == nullptr) dlclose(handle);
    return library;
}

const CudaLibrary& cuda_library() {
    static const CudaLibrary library = [] {
        std::vector<fs::path> files;
        if (const fs::path folder = own_folder(); !folder.empty())
            files = {folder / library_name,
                     (folder / ".." / HALFBYTE_LIBRARY_FOLDER).lexically_normal() / library_name};
        return open_cuda_library(files, library_name);
    }();
    return library;
}

cuda::DeviceInfo device_of_architecture(const std::string& name) {
    // Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; multiprocessors
    // of the largest device of the architecture.
    static const cuda::DeviceInfo known[] = {
        {.name = "sm_80",
         .major = 8,
         .minor = 0,
         .multiprocessors = 108,
         .shared_memory_per_block = 163 << 10},
        {.name = "sm_86", .major = 8, .minor = 6, .multiprocessors = 84, .shared_memory_per_block = 99 << 10},
        {.name = "sm_89",
         .major = 8,
         .minor = 9,
         .multiprocessors = 142,
         .shared_memory_per_block = 99 << 10},
        {.name = "sm_90",
         .major = 9,
         .minor = 0,
         .multiprocessors = 132,
         .shared_memory_per_block = 227 << 10},
        {.name = "sm_100",
         .major = 10,
         .minor = 0,
         .multiprocessors = 148,
         .shared_memory_per_block = 227 << 10},
        {.name = "sm_120",
         .major = 12,
         .minor = 0,
         .multiprocessors = 188,
         .shared_memory_per_block = 99 << 10},
    };
    std::vector<std::string> names;
    for (const cuda::DeviceInfo& device : known) {
        if (device.name == name) return device;
        names.push_back(device.name);
    }
    fail(ErrorKind::usage, "device {}: the architectures {} are known", name, fmt::join(names, ", "));
}

}  // namespace halfbyte
