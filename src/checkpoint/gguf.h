// GGUF (versions 2 and 3, little-endian): metadata and tensors. Opening validates everything.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"

namespace halfbyte::checkpoint {

// ggml's numbers of the tensor types that are read; any other is refused (unsupported) by its number and, if
// known, name.
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q8_0 = 8, bf16 = 30 };

std::string_view name_of(GgufType type);  // "Q4_1"

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
    // Error (malformed) naming file and key if it is absent or of another type or range. Texts are valid
    // UTF-8.
    std::string text(const std::string& key) const;
    int64_t integer(const std::string& key) const;
    double number(const std::string& key) const;
    bool flag(const std::string& key) const;
    std::vector<std::string> texts(const std::string& key) const;
    std::vector<int64_t> integers(const std::string& key) const;

  private:
    // A checked value that stays in the file and is decoded when asked for: an array takes no memory here.
    struct Value {
        uint32_t type = 0;  // GGUF's number; for an array that of its elements
        bool is_array = false;
        uint64_t count = 1;
        std::span<const uint8_t> bytes;
    };
    class Parser;
    const Value& find(const std::string& key, bool array) const;
    std::string text_at(const Value& value, size_t& position, const std::string& key) const;
    int64_t integer_at(const Value& value, uint64_t index, const std::string& key) const;

    MappedFile file_;
    std::map<std::string, Value> metadata_;
    std::map<std::string, GgufTensor> tensors_;
};

// Bytes of `count` elements, a multiple of the type's block (1, or 32 for Q4_0, Q4_1 and Q8_0).
int64_t gguf_bytes(GgufType type, int64_t count);
bool is_block_type(GgufType type);

// Values of `count` elements starting at element `first` (both multiples of 32 for block types), in FP32.
void dequantize_gguf(const GgufTensor& tensor, int64_t first, int64_t count, float* out);

}  // namespace halfbyte::checkpoint
