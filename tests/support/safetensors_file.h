// A plain reader of the golden safetensors files: 8 bytes of header size, JSON, data. It trusts its input and
// shares no code with src/checkpoint, which lies above the layers that are tested with it.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace halfbyte::test {

struct FileTensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::span<const uint8_t> bytes;

    // The elements as T, whose size must be that of the dtype.
    template <typename T>
    std::vector<T> as() const {
        size_t count = 1;
        for (const int64_t extent : shape) count *= size_t(extent);
        if (count * sizeof(T) != bytes.size())
            throw std::runtime_error("a tensor of " + dtype + " read as another type");
        std::vector<T> values(count);
        if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
        return values;
    }
};

class SafetensorsFile {
  public:
    explicit SafetensorsFile(const std::filesystem::path& path) : path_(path) {
        std::ifstream file(path, std::ios::binary);
        data_.assign(std::istreambuf_iterator<char>(file), {});
        if (data_.size() < 8) throw std::runtime_error(path.string() + ": missing or empty");
        uint64_t header_size;
        std::memcpy(&header_size, data_.data(), 8);
        const auto header = nlohmann::json::parse(data_.data() + 8, data_.data() + 8 + header_size);
        for (const auto& [name, entry] : header.items()) {
            if (name == "__metadata__") continue;
            const auto range = entry.at("data_offsets").get<std::vector<uint64_t>>();
            tensors_[name] = {
                entry.at("dtype"), entry.at("shape"),
                std::span(reinterpret_cast<const uint8_t*>(data_.data()) + 8 + header_size + range[0],
                          range[1] - range[0])};
        }
    }
    SafetensorsFile(const SafetensorsFile&) = delete;
    SafetensorsFile& operator=(const SafetensorsFile&) = delete;

    bool contains(const std::string& name) const { return tensors_.contains(name); }
    const FileTensor& operator[](const std::string& name) const {
        const auto found = tensors_.find(name);
        if (found == tensors_.end()) throw std::runtime_error(path_.string() + " has no tensor " + name);
        return found->second;
    }
    // What stands before `suffix` in the names that end with it: cases(".input") lists the cases of a golden
    // file.
    std::vector<std::string> cases(const std::string& suffix) const {
        std::vector<std::string> names;
        for (const auto& [name, tensor] : tensors_)
            if (name.ends_with(suffix)) names.push_back(name.substr(0, name.size() - suffix.size()));
        return names;
    }

  private:
    std::filesystem::path path_;
    std::vector<char> data_;
    std::map<std::string, FileTensor> tensors_;
};

inline std::filesystem::path golden_path(const std::string& name) {
    return std::filesystem::path(HALFBYTE_TEST_DATA) / "golden" / name;
}

}  // namespace halfbyte::test
