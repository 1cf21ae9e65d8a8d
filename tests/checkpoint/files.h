// Helpers of the checkpoint tests: a temporary folder, files from strings, and expecting an Error of one
// kind.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include "halfbyte/error.h"

namespace halfbyte::test {

class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "halfbyte-XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        path_ = pattern;
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

inline std::filesystem::path write_file(const std::filesystem::path& path, std::string_view content) {
    std::ofstream(path, std::ios::binary).write(content.data(), std::streamsize(content.size()));
    return path;
}

inline std::string read_file(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

template <typename T>
std::string bytes_of(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A safetensors file as its header's text and the bytes after it.
inline std::string safetensors(std::string_view header, std::string_view data = {}) {
    return bytes_of(uint64_t(header.size())) + std::string(header) + std::string(data);
}

// The action throws Error of `kind`, and its text holds `part`.
inline void expect_error(ErrorKind kind, std::string_view part, const std::function<void()>& action) {
    try {
        action();
        ADD_FAILURE() << "no error; expected one with: " << part;
    } catch (const Error& error) {
        EXPECT_EQ(int(error.kind()), int(kind)) << error.what();
        EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos)
            << "expected: " << part << "\nin: " << error.what();
    }
}

}  // namespace halfbyte::test
