#include "core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#include "core/check.h"

namespace halfbyte {

// Read by a signal handler: an entry is added at the front and never goes away, but is used again.
struct MappedFile::Listed {
    std::atomic<const uint8_t*> data{nullptr};  // nullptr: free
    std::atomic<size_t> size{0};
    std::string path;
    Listed* next = nullptr;
};

static std::mutex list_mutex;
static std::atomic<MappedFile::Listed*> list{nullptr};

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
    const int file =
        ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused, not waited for
    check(file >= 0, ErrorKind::failure, "{}: cannot be opened: {}", path.string(), std::strerror(errno));
    const bool regular = ::fstat(file, &status_) == 0 && S_ISREG(status_.st_mode);
    size_ = regular ? size_t(status_.st_size) : 0;
    void* data = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
    const int error = errno;
    ::close(file);
    check(!S_ISDIR(status_.st_mode), ErrorKind::failure, "{}: is a folder; a file is needed", path.string());
    check(regular, ErrorKind::failure, "{}: is not a regular file, which is needed", path.string());
    check(data != MAP_FAILED, ErrorKind::failure, "{}: cannot be mapped: {}", path.string(),
          std::strerror(error));
    data_ = static_cast<const uint8_t*>(data);
    if (data_ == nullptr) return;

    const std::lock_guard lock(list_mutex);
    listed_ = list;
    while (listed_ != nullptr && listed_->data != nullptr) listed_ = listed_->next;
    if (listed_ == nullptr) {
        listed_ = new Listed;
        listed_->next = list;
        list = listed_;
    }
    listed_->path = path.string();
    listed_->size = size_;
    listed_->data = data_;
}

MappedFile::~MappedFile() {
    if (data_ == nullptr) return;
    {
        const std::lock_guard lock(list_mutex);
        listed_->data = nullptr;
    }
    ::munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::release(std::span<const uint8_t> range) const {
    const auto page = uintptr_t(::sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
    const auto end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) / page * page;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void MappedFile::check_unchanged() const {
    struct stat now{};
    if (::stat(path_.c_str(), &now) != 0 || now.st_dev != status_.st_dev || now.st_ino != status_.st_ino)
        return;
    check(now.st_size >= status_.st_size, ErrorKind::failure,
          "{}: became shorter while it was read: {} bytes of {} are left; run again when the file is whole",
          path_.string(), now.st_size, status_.st_size);
    check(now.st_size == status_.st_size && now.st_mtim.tv_sec == status_.st_mtim.tv_sec &&
              now.st_mtim.tv_nsec == status_.st_mtim.tv_nsec,
          ErrorKind::failure,
          "{}: was written to while it was read; run again when nothing changes the file any more",
          path_.string());
}

MappedPlace mapped_place_of(const void* address) noexcept {
    for (const MappedFile::Listed* entry = list; entry != nullptr; entry = entry->next) {
        const uint8_t* data = entry->data;
        const size_t page = 4096;  // the last one is mapped whole
        if (data == nullptr || address < data || address >= data + (entry->size + page - 1) / page * page)
            continue;
        struct stat now{};
        const bool there = ::stat(entry->path.c_str(), &now) == 0;
        return {entry->path.c_str(), there && size_t(now.st_size) < entry->size};
    }
    return {};
}

}  // namespace halfbyte
