// A file mapped for reading. Pages are brought in when touched; release() gives a range back to the kernel.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace halfbyte {

class MappedFile {
  public:
    // Throws Error (failure) naming the path when the file cannot be opened or is not a regular file.
    explicit MappedFile(const std::filesystem::path& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::span<const uint8_t> bytes() const { return {data_, size_}; }
    const std::filesystem::path& path() const { return path_; }

    // The pages that lie wholly inside `range` (a part of bytes()) leave this process; touching them reads
    // them again.
    void release(std::span<const uint8_t> range) const;

    // Error (failure) if the file has been written to or cut since it was opened: bytes() may then be a
    // mixture. One that was removed or replaced stays whole in the mapping.
    void check_unchanged() const;

    struct Listed;  // in the list that mapped_place_of() reads

  private:
    std::filesystem::path path_;
    struct stat status_{};
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
    Listed* listed_ = nullptr;
};

// Touching a page of a file that has become shorter, or that its disk cannot read, raises SIGBUS. For the
// handler, async-signal-safe: which file is mapped at `address`.
struct MappedPlace {
    const char* path = nullptr;  // nullptr: none
    bool shorter = false;        // than when it was opened
};
MappedPlace mapped_place_of(const void* address) noexcept;

}  // namespace halfbyte
