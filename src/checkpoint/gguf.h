// GGUF (versions 2 and 3, little-endian): metadata and tensors. Opening validates everything.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/mapped_file.h"

namespace halfbyte::checkpoint {

// Integers of every width become int64_t or uint64_t, floats double; arrays keep one element type.
struct GgufValue;
using GgufArray = std::vector<GgufValue>;
struct GgufValue : std::variant<int64_t, uint64_t, double, bool, std::string, GgufArray> {
    using variant::variant;
};

// ggml's numbers of the tensor types that are read; any other is refused (unsupported) by its number and, if known, name.
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q8_0 = 8, bf16 = 30 };

struct GgufTensor {
    std::string name;
    GgufType type = GgufType::f32;
    std::vector<int64_t> shape;  // slowest dimension first, as safetensors writes it: [rows, columns]
    std::span<const uint8_t> bytes;
};

class GgufFile {
  public:
    explicit GgufFile(const std::filesystem::path& path);
    const MappedFile& file() const { return file_; }
    const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }

    bool has(const std::string& key) const { return metadata_.contains(key); }
    // Error (malformed) naming file and key if it is absent or of another type or range.
    std::string text(const std::string& key) const;
    int64_t integer(const std::string& key) const;
    double number(const std::string& key) const;
    bool flag(const std::string& key) const;
    std::vector<std::string> texts(const std::string& key) const;
    std::vector<int64_t> integers(const std::string& key) const;

  private:
    MappedFile file_;
    std::map<std::string, GgufValue> metadata_;
    std::map<std::string, GgufTensor> tensors_;
};

// Values of `count` elements starting at element `first` (both multiples of 32 for block types), in FP32.
void dequantize_gguf(const GgufTensor& tensor, int64_t first, int64_t count, float* out);

}  // namespace halfbyte::checkpoint
