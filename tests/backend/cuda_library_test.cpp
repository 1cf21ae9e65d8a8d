#include "backend/cuda_library.h"

#include <gtest/gtest.h>

#include <fstream>

#include "halfbyte/error.h"
#include "halfbyte/version.h"

namespace halfbyte {
namespace {

const std::filesystem::path folder = std::filesystem::path(HALFBYTE_BUILD_DIR) / "tests/backend";

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
        EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(CudaLibrary, TheOneBesideTheProgramIsOpenedOnce) {
    const CudaLibrary& library = cuda_library();
    EXPECT_EQ(library.reason, "");
    EXPECT_EQ(library.path, folder / "libhalfbyte_cuda.so");
    EXPECT_EQ(&library, &cuda_library());
}

TEST(CudaLibrary, TheFirstFileThatExistsIsTaken) {
    const CudaLibrary library = open_cuda_library(
        {"/nowhere/libhalfbyte_cuda.so", folder / "libhalfbyte_cuda.so", "/dev/null"}, "libother.so");
    ASSERT_NE(library.kernels, nullptr) << library.reason;
    EXPECT_EQ(library.kernels->version, version);
}

TEST(CudaLibrary, AnotherVersionIsRefusedWithBoth) {
    const CudaLibrary library = open_cuda_library({folder / "libhalfbyte_cuda_older.so"}, "libother.so");
    EXPECT_EQ(library.kernels, nullptr);
    expect_parts(library.reason, {"libhalfbyte_cuda_older.so", "0.0.1", std::string(version), "one build"});
}

TEST(CudaLibrary, NoFileIsSaidWithThePlacesAndWhatToDo) {
    const CudaLibrary library = open_cuda_library(
        {"/nowhere/libhalfbyte_none.so", "/elsewhere/libhalfbyte_none.so"}, "libhalfbyte_none.so");
    EXPECT_EQ(library.kernels, nullptr);
    expect_parts(library.reason,
                 {"libhalfbyte_none.so was not found in /nowhere, /elsewhere", "HALFBYTE_CUDA=ON"});
}

TEST(CudaLibrary, AFileThatIsNoLibraryAndALibraryWithoutTheSymbol) {
    const auto file =
        std::filesystem::temp_directory_path() / ("halfbyte-no-library-" + std::to_string(getpid()));
    std::ofstream(file) << "no ELF";
    expect_parts(open_cuda_library({file}, "libother.so").reason,
                 {file.string(), "cannot be loaded", "too short"});
    std::filesystem::remove(file);
    expect_parts(open_cuda_library({}, "libc.so.6").reason, {"libc.so.6", "no symbol halfbyte_cuda_kernels"});
}

TEST(CudaLibrary, ArchitecturesStandForDevices) {
    const cuda::DeviceInfo hopper = device_of_architecture("sm_90");
    EXPECT_EQ(hopper.major, 9);
    EXPECT_EQ(hopper.minor, 0);
    EXPECT_EQ(hopper.shared_memory_per_block, 232448);
    EXPECT_EQ(device_of_architecture("sm_100").major, 10);
    try {
        device_of_architecture("sm_91");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        expect_parts(error.what(), {"sm_91", "sm_80", "sm_90", "sm_120"});
    }
}

}  // namespace
}  // namespace halfbyte
