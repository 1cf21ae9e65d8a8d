// What the harnesses share. Each harness is one LLVMFuzzerTestOneInput: libFuzzer calls it with inputs of its
// own making (the preset "fuzz"), replay.cpp with those that are stored in corpus/ (every other build).
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/output_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace halfbyte::fuzz {

// A file without a place on disk.
class MemoryFile {
  public:
    explicit MemoryFile(std::string_view content) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
        check(descriptor_ >= 0, ErrorKind::failure, "no file in memory");
        write_all(descriptor_, content.data(), content.size(), path());
    }
    ~MemoryFile() { ::close(descriptor_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

  private:
    int descriptor_;
};

inline void require(bool condition, const char* what, std::string_view detail = {}) {
    if (condition) return;
    fmt::print(stderr, "{}: {}\n", what, detail);
    std::abort();
}

// Whether the reader took the file. To refuse it with an Error that blames the file, and whose text is of a
// length and of characters that a terminal can show, is as good; every other exception escapes.
template <typename Action>
bool accepts(Action&& action) {
    try {
        action();
        return true;
    } catch (const Error& error) {
        const std::string_view text = error.what();
        const auto shown = [](char c) { return c >= ' ' && c <= '~'; };
        require(text.size() <= 4096, "an Error of too long a text", text);
        require(std::all_of(text.begin(), text.end(), shown), "an Error with characters not to be shown",
                text);
        require(error.kind() == ErrorKind::malformed || error.kind() == ErrorKind::unsupported ||
                    error.kind() == ErrorKind::failure,
                "an Error of a kind that does not blame the file", text);
        return false;
    }
}

// Reads every byte, so that a sanitizer sees a span that leaves its file.
inline void touch(std::span<const uint8_t> bytes) {
    uint8_t all = 0;
    for (const uint8_t byte : bytes) all = uint8_t(all ^ byte);
    volatile uint8_t sink = all;
    (void)sink;
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

// An input that stands for several files: each begins with a line "@@@@ NAME", and ends before the line end
// that leads to the next. What comes before the first such line has the name "".
struct NamedText {
    std::string_view name, content;
};

inline std::vector<NamedText> files_of(std::string_view input) {
    constexpr std::string_view mark = "@@@@ ";
    std::vector<NamedText> files = {{}};
    for (size_t begin = 0;;) {
        if (input.substr(begin).starts_with(mark)) {
            const std::string_view rest = input.substr(begin + mark.size());
            files.push_back({rest.substr(0, rest.find('\n')), {}});
            begin = std::min(begin + mark.size() + files.back().name.size() + 1, input.size());
        }
        const size_t end = input.find("\n@@@@ ", begin);
        files.back().content = input.substr(begin, end - begin);
        if (end == input.npos) return files;
        begin = end + 1;
    }
}

inline std::string_view content_of(const std::vector<NamedText>& files, std::string_view name) {
    for (const NamedText& file : files)
        if (file.name == name) return file.content;
    return {};
}

}  // namespace halfbyte::fuzz
