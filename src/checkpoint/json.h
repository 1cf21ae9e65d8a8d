// Strict JSON for files from outside: duplicate keys, depth and size are checked; errors name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halfbyte::checkpoint {

// Keeps the order of keys. Looking a key up takes time linear in the object's size: iterate over large ones.
using Json = nlohmann::ordered_json;

// Throws Error (malformed) naming `file` for a syntax error, invalid UTF-8, a duplicate key or nesting deeper
// than 128.
Json parse_json(std::string_view text, const std::filesystem::path& file);

// Reads and parses a whole file of at most `limit` bytes.
Json read_json(const std::filesystem::path& file, uint64_t limit = 256u << 20);

// The whole of a small text file, with the same limit.
std::string read_text(const std::filesystem::path& file, uint64_t limit = 256u << 20);

// False also where the question itself fails (a name that is too long, no permission).
bool is_there(const std::filesystem::path& path);

// A value out of a file, for a message: as JSON in one line, control and non-ASCII characters escaped,
// shortened.
std::string shown(const Json& value);

// The same of a name.
std::string quote(std::string_view name);

// A value of an object, or null if it is absent or JSON's null.
const Json* find(const Json& object, const char* key);
bool says_nothing(const Json* value);  // absent, null, {} or []

// A text of an object, and a list of texts (a text alone counts as a list of one). Error (malformed), which
// begins with `where`, for another type.
std::string text_at(const Json& object, const char* key, const std::string& otherwise,
                    const std::string& where);
std::vector<std::string> texts_at(const Json& value, const std::string& where);
// The same of a truth and of a number from 1; absent: `otherwise`, nothing.
bool flag_at(const Json& object, const char* key, bool otherwise, const std::string& where);
std::optional<int64_t> count_at(const Json& object, const char* key, const std::string& where);

}  // namespace halfbyte::checkpoint
