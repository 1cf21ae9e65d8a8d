// Strict JSON for files from outside: duplicate keys, depth and size are checked; errors name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace halfbyte::checkpoint {

using Json = nlohmann::ordered_json;

// Throws Error (malformed) naming `file` for a syntax error, a duplicate key or nesting deeper than 128.
Json parse_json(std::string_view text, const std::filesystem::path& file);

// Reads and parses a whole file of at most `limit` bytes.
Json read_json(const std::filesystem::path& file, uint64_t limit = 256u << 20);

}  // namespace halfbyte::checkpoint
