// What Linux tells in /proc as lines "KEY : VALUE".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace halfbyte {

// The value of the first such line; empty if there is none.
std::string proc_value(const char* file, std::string_view key);
// The same of "KEY : N kB", in bytes; 0 if there is none.
uint64_t proc_bytes(const char* file, std::string_view key);

}  // namespace halfbyte
