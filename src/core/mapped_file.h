// A file mapped for reading. Pages are brought in when touched; release() gives a range back to the kernel.
#pragma once

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

  private:
    std::filesystem::path path_;
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace halfbyte
