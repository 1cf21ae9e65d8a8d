#include "core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace halfbyte {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
    const int file =
        ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused, not waited for
    check(file >= 0, ErrorKind::failure, "{}: cannot be opened: {}", path.string(), std::strerror(errno));
    struct stat status{};
    const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    size_ = regular ? size_t(status.st_size) : 0;
    void* data = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
    const int error = errno;
    ::close(file);
    check(regular, ErrorKind::failure, "{}: is not a regular file", path.string());
    check(data != MAP_FAILED, ErrorKind::failure, "{}: cannot be mapped: {}", path.string(),
          std::strerror(error));
    data_ = static_cast<const uint8_t*>(data);
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::release(std::span<const uint8_t> range) const {
    const auto page = uintptr_t(::sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
    const auto end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) / page * page;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace halfbyte
