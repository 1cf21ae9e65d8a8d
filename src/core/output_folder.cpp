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

namespace {

// Without the slashes at the end.
fs::path without_slash(const fs::path& place) {
    std::string name = place.string();
    while (name.size() > 1 && name.back() == '/') name.pop_back();
    return name;
}

fs::path parent_of(const fs::path& place) {
    return place.has_parent_path() ? place.parent_path() : fs::path(".");
}

// A link counts, also one that leads nowhere.
bool is_taken(const fs::path& place) {
    std::error_code error;
    const fs::file_type type = fs::symlink_status(place, error).type();
    check(type != fs::file_type::none, ErrorKind::failure, "{}: cannot be looked at: {}", place.string(),
          error.message());
    return type != fs::file_type::not_found;
}

}  // namespace

void OutputFolder::check_place(const fs::path& given, bool force) {
    const fs::path place = without_slash(given), name = place.filename();
    check(!name.empty() && name != "." && name != "..", ErrorKind::usage,
          "output folder '{}': give the name of a folder to create", given.string());
    std::error_code error;
    const bool taken = is_taken(place);
    check(!taken || force, ErrorKind::usage, "{}: exists already; --force replaces it", place.string());
    check(!taken || fs::is_directory(place, error), ErrorKind::usage, "{}: exists and is not a folder",
          place.string());
    check(fs::is_directory(parent_of(place), error), ErrorKind::failure, "{}: the folder {} does not exist",
          place.string(), parent_of(place).string());
}

OutputFolder::OutputFolder(const fs::path& place, bool force) : place_(without_slash(place)), force_(force) {
    check_place(place, force);
    std::string pattern = place_.string() + ".partial-XXXXXX";
    check(::mkdtemp(pattern.data()) != nullptr, ErrorKind::failure, "{}: no folder can be made in {}: {}",
          place_.string(), parent_of(place_).string(), std::strerror(errno));
    temporary_ = pattern;
    std::error_code ignored;
    fs::permissions(temporary_, fs::perms(0755), ignored);
}

OutputFolder::~OutputFolder() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(temporary_, ignored);
}

void OutputFolder::write_text(std::string_view name, std::string_view content) const {
    const fs::path path = temporary_ / name;
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    check(descriptor >= 0, ErrorKind::failure, "{}: cannot be created: {}", path.string(),
          std::strerror(errno));
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
    const auto rename = [&](unsigned flags) {
        return ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, place_.c_str(), flags) == 0;
    };
    if (!rename(RENAME_NOREPLACE)) {
        check(errno != EEXIST || force_, ErrorKind::usage, "{}: appeared meanwhile; --force replaces it",
              place_.string());
        // Both names exist: swap them in one step, so that one of the two is always whole, then drop the old
        // one.
        if (errno == EEXIST && rename(RENAME_EXCHANGE)) {
            std::error_code ignored;
            fs::remove_all(temporary_, ignored);
        } else {
            // Network file systems may have neither flag.
            check(errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP, ErrorKind::failure,
                  "{}: cannot be put in place: {}", place_.string(), std::strerror(errno));
            replace_in_two_steps();
        }
    }
    committed_ = true;
    sync_to_disk(parent_of(place_));
}

void OutputFolder::replace_in_two_steps() {
    const bool taken = is_taken(place_);
    check(!taken || force_, ErrorKind::usage, "{}: appeared meanwhile; --force replaces it", place_.string());
    const fs::path old = temporary_.string() + ".old";
    std::error_code error, ignored;
    if (taken) fs::rename(place_, old, error);
    if (!error) fs::rename(temporary_, place_, error);
    if (error && taken) fs::rename(old, place_, ignored);
    check(!error, ErrorKind::failure, "{}: cannot be put in place: {}", place_.string(), error.message());
    if (taken) fs::remove_all(old, ignored);
}

}  // namespace halfbyte
