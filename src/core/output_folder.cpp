#include "core/output_folder.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/check.h"

namespace halfbyte {
namespace fs = std::filesystem;

void write_all(int descriptor, const void* data, size_t size, const fs::path& path) {
    const char* next = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t written = ::write(descriptor, next, std::min<size_t>(size, 1u << 30));
        if (written < 0 && errno == EINTR) continue;
        check(written >= 0, ErrorKind::failure, "{}: cannot be written: {}", path.string(), std::strerror(errno));
        next += written;
        size -= size_t(written);
    }
}

void sync_to_disk(const fs::path& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    check(descriptor >= 0, ErrorKind::failure, "{}: cannot be opened: {}", path.string(), std::strerror(errno));
    const int result = ::fsync(descriptor), error = errno;
    ::close(descriptor);
    check(result == 0, ErrorKind::failure, "{}: cannot be synced: {}", path.string(), std::strerror(error));
}

OutputFolder::OutputFolder(const fs::path& place, bool force) : place_(place), force_(force) {
    std::string name = place.string();
    while (name.size() > 1 && name.back() == '/') name.pop_back();
    check(!name.empty() && name != "/" && name != "." && name != "..", ErrorKind::usage,
          "output folder '{}': give the name of a folder to create", place.string());
    place_ = name;
    std::error_code error;
    const bool exists = fs::symlink_status(place_, error).type() != fs::file_type::not_found;
    check(!exists || force, ErrorKind::usage, "{}: exists already; --force replaces it", name);
    check(!exists || fs::is_directory(place_, error), ErrorKind::usage, "{}: exists and is not a folder", name);
    const fs::path parent = place_.has_parent_path() ? place_.parent_path() : fs::path(".");
    check(fs::is_directory(parent, error), ErrorKind::failure, "{}: the folder {} does not exist", name, parent.string());
    std::string pattern = name + ".partial-XXXXXX";
    check(::mkdtemp(pattern.data()) != nullptr, ErrorKind::failure, "{}: no folder can be made in {}: {}", name,
          parent.string(), std::strerror(errno));
    temporary_ = pattern;
    fs::permissions(temporary_, fs::perms(0755), error);
}

OutputFolder::~OutputFolder() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(temporary_, ignored);
}

void OutputFolder::write_text(std::string_view name, std::string_view content) const {
    const fs::path path = temporary_ / name;
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    check(descriptor >= 0, ErrorKind::failure, "{}: cannot be created: {}", path.string(), std::strerror(errno));
    try {
        write_all(descriptor, content.data(), content.size(), path);
        check(::fsync(descriptor) == 0, ErrorKind::failure, "{}: cannot be synced: {}", path.string(),
              std::strerror(errno));
    } catch (...) {
        ::close(descriptor);
        throw;
    }
    ::close(descriptor);
}

void OutputFolder::commit() {
    sync_to_disk(temporary_);
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, place_.c_str(), RENAME_NOREPLACE) == 0) {
        committed_ = true;
    } else {
        check(errno != EEXIST || force_, ErrorKind::usage, "{}: appeared meanwhile; --force replaces it",
              place_.string());
        // Both names exist: swap them in one step, so that one of the two is always whole, then drop the old one.
        check(errno == EEXIST && ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, place_.c_str(),
                                             RENAME_EXCHANGE) == 0,
              ErrorKind::failure, "{}: cannot be put in place: {}", place_.string(), std::strerror(errno));
        std::error_code ignored;
        fs::remove_all(temporary_, ignored);
        committed_ = true;
    }
    sync_to_disk(place_.has_parent_path() ? place_.parent_path() : fs::path("."));
}

}  // namespace halfbyte
