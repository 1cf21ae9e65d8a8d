// Builds GGUF files in memory, right or wrong ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/files.h"

namespace halfbyte::test {

inline std::string gguf_text(std::string_view text) {
    return bytes_of(uint64_t(text.size())) + std::string(text);
}

struct GgufBuilder {
    struct Tensor {
        std::string name;
        std::vector<uint64_t> dimensions;  // fastest first, as in the file
        uint32_t type;
        std::string bytes;
        std::optional<uint64_t> offset = {};
    };
    uint32_t version = 3;
    uint64_t alignment = 32;
    std::string values = {};
    uint64_t value_count = 0;
    std::optional<uint64_t> claimed_values = {}, claimed_tensors = {};
    std::vector<Tensor> tensors = {};

    // One metadata entry from its type number and its bytes.
    GgufBuilder& raw(std::string_view key, uint32_t type, std::string_view bytes) {
        values += gguf_text(key) + bytes_of(type) + std::string(bytes);
        ++value_count;
        return *this;
    }
    GgufBuilder& u32(std::string_view key, uint32_t value) { return raw(key, 4, bytes_of(value)); }
    GgufBuilder& f32(std::string_view key, float value) { return raw(key, 6, bytes_of(value)); }
    GgufBuilder& flag(std::string_view key, bool value) { return raw(key, 7, bytes_of(uint8_t(value))); }
    GgufBuilder& text(std::string_view key, std::string_view value) { return raw(key, 8, gguf_text(value)); }
    GgufBuilder& array(std::string_view key, uint32_t type, uint64_t count, std::string_view bytes) {
        return raw(key, 9, bytes_of(type) + bytes_of(count) + std::string(bytes));
    }
    GgufBuilder& tensor(std::string name, std::vector<uint64_t> dimensions, uint32_t type,
                        std::string bytes) {
        tensors.push_back({std::move(name), std::move(dimensions), type, std::move(bytes)});
        return *this;
    }

    std::string build() const {
        std::string infos, data;
        for (const Tensor& tensor : tensors) {
            data.resize((data.size() + alignment - 1) / alignment * alignment);
            infos += gguf_text(tensor.name) + bytes_of(uint32_t(tensor.dimensions.size())) +
                     bytes_of(tensor.dimensions) + bytes_of(tensor.type) +
                     bytes_of(tensor.offset.value_or(data.size()));
            data += tensor.bytes;
        }
        std::string file = "GGUF" + bytes_of(version) + bytes_of(claimed_tensors.value_or(tensors.size())) +
                           bytes_of(claimed_values.value_or(value_count)) + values + infos;
        file.resize((file.size() + alignment - 1) / alignment * alignment);
        return file + data;
    }
};

}  // namespace halfbyte::test
