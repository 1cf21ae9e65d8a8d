// Helpers of the checkpoint tests: bytes of values, and expecting an Error of one kind.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "halfbyte/error.h"
#include "support/temporary_folder.h"

namespace halfbyte::test {

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
