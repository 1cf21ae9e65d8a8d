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
        // The bytes lie in a mapped file that has become shorter: touching them tells so (mapped_place_of).
        if (written < 0 && errno == EFAULT) (void)*static_cast<const volatile char*>(next);
        check(written >= 0, ErrorKind::failure, "{}: cannot be written: {}", path.string(),
              std::strerror(errno));
        next += written;
        size -= size_t(written);
    }
}

void sync_to_disk(const fs::path& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    check(descriptor >= 0, ErrorKind::failure, "{}: cannot be opened: {}", path.string(),
          std::strerror(errno));
    const int result = ::fsync(descriptor), error = errno;
    ::close(descriptor);
    check(result == 0, ErrorKind::failure, "{}: cannot be synced: {}", path.string(), std::strerror(error));
}

void OutputFolder::check_place(const fs::path& given, bool force) {
    const fs::path place = without_slash(given), name = place.filename();
    check(!name.empty() && name != "." && name != "..", ErrorKind::usage,
          "output folder '{}': give the name of a folder to create", given.string());
    std::error_code error;
    const bool taken = is_taken(place);
    check(!taken || force, ErrorKind::usage, "{}: exists already; --force replaces it", place.string());
    check(!taken || fs::is_directory(place, error), ErrorKind::usage,
          "{}: exists and is not a folder; give the name of a folder", place.string());
    check(!fs::is_symlink(place, error), ErrorKind::usage,
          "{}: is a link and is not replaced; give the folder itself, {}", place.string(),
          fs::read_symlink(place, error).string());
    check_parent(place);
    check_not_being_written(place);
}

OutputFolder::OutputFolder(const fs::path& place, bool force)
    : place_((check_place(place, force), without_slash(place))), force_(force), partial_(place_) {}

void OutputFolder::write_text(std::string_view name, std::string_view content) const {
    const fs::path path = this->path() / name;
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    check(descriptor >= 0, ErrorKind::failure, "{}: cannot be created: {}", path.string(),
          std::strerror(errno));
    try {
        write_all(descriptor, content.data(), content.size(), path);
        const bool synced = ::fsync(descriptor) == 0;
        check(synced, ErrorKind::failure, "{}: cannot be synced: {}", path.string(), std::strerror(errno));
    } catch (...) {
        ::close(descriptor);
        throw;
    }
    ::close(descriptor);
}

void OutputFolder::commit(const Progress& progress) {
    sync_to_disk(path());
    report(progress, "finish", 1, 1);
    partial_.keep();
    int error = rename_unless_taken(path(), place_);
    check(error != EEXIST || force_, ErrorKind::usage, "{}: appeared meanwhile; --force replaces it",
          place_.string());
    // Both names exist: swap them in one step, so that one of the two is always whole. The old one goes with
    // the partial folder, whose name it now has.
    if (error == EEXIST) {
        const auto swap = [&] {
            return ::renameat2(AT_FDCWD, path().c_str(), AT_FDCWD, place_.c_str(), RENAME_EXCHANGE);
        };
        error = swap() == 0 ? 0 : errno;
        if (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP) error = replace_in_two_steps();
    }
    check(error == 0, ErrorKind::failure, "{}: cannot be put in place: {}", place_.string(),
          std::strerror(error));
    sync_to_disk(parent_of(place_));
}

// For network file systems that cannot swap.
int OutputFolder::replace_in_two_steps() const {
    const fs::path old = path().string() + ".old";
    std::error_code error, ignored;
    fs::rename(place_, old, error);
    if (error) return error.value();
    fs::rename(path(), place_, error);
    if (error)
        fs::rename(old, place_, ignored);
    else
        fs::remove_all(old, ignored);
    return error.value();
}

}  // namespace halfbyte
