#include "core/proc.h"

#include <cstdlib>
#include <fstream>

namespace halfbyte {

std::string proc_value(const char* file, std::string_view key) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
        const size_t colon = line.find(':');
        if (colon == std::string::npos || line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != key)
            continue;
        const size_t begin = line.find_first_not_of(" \t", colon + 1);
        return begin == std::string::npos ? "" : line.substr(begin);
    }
    return "";
}

uint64_t proc_bytes(const char* file, std::string_view key) {
    return std::strtoull(proc_value(file, key).c_str(), nullptr, 10) * 1024;
}

}  // namespace halfbyte
