#include "core/partial_output.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/output_folder.h"

namespace halfbyte {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view middle = ".partial-", ending = ".lock";
constexpr std::string_view lock_text =
    "halfbyte holds the lock of this file while it writes the folder of this name.\n";

// Read by signal handlers. One that finds no place here is only recognised by the next run.
std::array<std::atomic<const PartialOutput*>, 16> active;

bool is_file_of(int descriptor, const char* path) {
    struct stat open{}, named{};
    return ::fstat(descriptor, &open) == 0 && ::lstat(path, &named) == 0 && S_ISREG(open.st_mode) &&
           open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

// "OUT.partial-a1B2c3.lock" of the output OUT
bool is_lock_name(std::string_view name, std::string_view output) {
    constexpr size_t random = 6;
    if (name.size() != output.size() + middle.size() + random + ending.size() || !name.starts_with(output))
        return false;
    name.remove_prefix(output.size());
    if (!name.starts_with(middle) || !name.ends_with(ending)) return false;
    const std::string_view letters = name.substr(middle.size(), random);
    return std::all_of(letters.begin(), letters.end(), [](unsigned char c) { return std::isalnum(c); });
}

// Calls use(folder, lock, text, alive) for each lock file; that of a process that is dead is held meanwhile.
template <typename Use>
void for_locks(const fs::path& given, const Use& use) {
    const fs::path place = without_slash(given);
    const std::string output = place.filename();
    if (output.empty()) return;
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator next(parent_of(place), error), end; !error && next != end;
         next.increment(error))
        if (std::string name = next->path().filename(); is_lock_name(name, output)) names.push_back(name);
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
        const fs::path lock = place.parent_path() / name;
        const int descriptor = ::open(lock.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (descriptor < 0) continue;
        // A file system without flock does not tell: the lock and its folder are passed over.
        const bool held = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0, alive = !held && errno == EWOULDBLOCK;
        if ((held || alive) && is_file_of(descriptor, lock.c_str())) {
            char text[lock_text.size() + 1];
            const ssize_t size = ::pread(descriptor, text, sizeof text, 0);
            use(fs::path(lock).replace_extension(), lock,
                std::string_view(text, size_t(std::max<ssize_t>(size, 0))), alive);
        }
        ::close(descriptor);
    }
}

// A folder that holds files alone, without memory allocation.
bool remove_flat_folder(const char* path) noexcept {
    const int folder = ::open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) return errno == ENOENT;
    alignas(dirent64) char entries[4096];
    ssize_t size;
    while ((size = ::getdents64(folder, entries, sizeof entries)) > 0) {
        for (ssize_t at = 0; at < size;) {
            const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
            ::unlinkat(folder, entry->d_name, 0);  // fails for "." and ".."
            at += entry->d_reclen;
        }
    }
    ::close(folder);
    return ::rmdir(path) == 0;
}

// "/mnt/disk"
fs::path mount_point_of(const fs::path& folder) {
    std::error_code error;
    fs::path point = fs::canonical(folder, error);
    struct stat here{}, above{};
    while (!error && point.has_relative_path() && ::stat(point.c_str(), &here) == 0 &&
           ::stat(point.parent_path().c_str(), &above) == 0 && here.st_dev == above.st_dev)
        point = point.parent_path();
    return error ? folder : point;
}

}  // namespace

fs::path without_slash(const fs::path& place) {
    std::string name = place.string();
    while (name.size() > 1 && name.back() == '/') name.pop_back();
    return name;
}

fs::path parent_of(const fs::path& place) {
    return place.has_parent_path() ? place.parent_path() : fs::path(".");
}

bool is_taken(const fs::path& place) {
    std::error_code error;
    const fs::file_type type = fs::symlink_status(place, error).type();
    check(type != fs::file_type::none, ErrorKind::failure, "{}: cannot be looked at: {}", place.string(),
          error.message());
    return type != fs::file_type::not_found;
}

void check_parent(const fs::path& place) {
    const fs::path parent = parent_of(place);
    std::error_code error;
    const fs::file_type type = fs::status(parent, error).type();
    check(type == fs::file_type::directory, ErrorKind::failure, "{}: {}", place.string(),
          type == fs::file_type::not_found
              ? fmt::format("the folder {} does not exist; make it first", parent.string())
              : fmt::format("{} is not a folder", parent.string()));
    const bool writable = ::access(parent.c_str(), W_OK | X_OK) == 0;
    check(writable, ErrorKind::failure, "{}: nothing can be made in {}: {}", place.string(), parent.string(),
          std::strerror(errno));
}

int rename_unless_taken(const fs::path& from, const fs::path& to) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
    // Network file systems may lack the flag.
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return errno;
    if (is_taken(to)) return EEXIST;
    return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

// Delegates, so that the destructor cleans up also when this throws.
PartialOutput::PartialOutput(const fs::path& place) : PartialOutput() {
    const auto made = [&](bool success) {
        check(success, ErrorKind::failure, "{}: nothing can be made in {}: {}", place.string(),
              parent_of(place).string(), std::strerror(errno));
    };
    for (;;) {
        std::string lock = place.string() + std::string(middle) + "XXXXXX" + std::string(ending);
        descriptor_ = ::mkostemps(lock.data(), int(ending.size()), O_CLOEXEC);
        made(descriptor_ >= 0);
        lock_ = lock;
        // Another run may look for leftovers just now and take this lock first. A file system without flock
        // leaves its leftovers to the user.
        const bool locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
        if (locked && is_file_of(descriptor_, lock.c_str())) {
            write_all(descriptor_, lock_text.data(), lock_text.size(), lock_);
            const fs::path folder = fs::path(lock).replace_extension();
            const bool done = ::mkdir(folder.c_str(), 0755) == 0;
            made(done || errno == EEXIST);
            if (done) {
                folder_ = folder;
                break;
            }
        }
        ::unlink(lock.c_str());
        ::close(std::exchange(descriptor_, -1));
    }
    for (auto& slot : active) {
        const PartialOutput* none = nullptr;
        if (slot.compare_exchange_strong(none, this)) break;
    }
}

PartialOutput::~PartialOutput() {
    keep();
    std::error_code error;
    if (!folder_.empty()) fs::remove_all(folder_, error);
    if (!lock_.empty() && !error) ::unlink(lock_.c_str());
    if (descriptor_ >= 0) ::close(descriptor_);
}

void PartialOutput::keep() const noexcept {
    for (auto& slot : active) {
        const PartialOutput* own = this;
        slot.compare_exchange_strong(own, nullptr);
    }
}

std::vector<fs::path> leftovers_of(const fs::path& place) {
    std::vector<fs::path> found;
    for_locks(place, [&](const fs::path& folder, const fs::path& lock, std::string_view text, bool alive) {
        if (text == lock_text && !alive) found.push_back(is_taken(folder) ? folder : lock);
    });
    return found;
}

void check_not_being_written(const fs::path& place) {
    for_locks(place, [&](const fs::path& folder, const fs::path&, std::string_view text, bool alive) {
        check(text != lock_text || !alive, ErrorKind::usage,
              "{}: another run is writing it now, in {}; wait for its end or give another name",
              place.string(), folder.string());
    });
}

void remove_leftovers_of(const fs::path& place) {
    for_locks(place, [&](const fs::path& folder, const fs::path& lock, std::string_view text, bool alive) {
        std::error_code error, ignored;
        if (alive) return;
        if (text == lock_text) {
            const fs::path old = folder.string() + ".old";  // of OutputFolder::replace_in_two_steps
            if (!is_taken(without_slash(place))) fs::rename(old, without_slash(place), ignored);
            fs::remove_all(old, error);
            if (!error) fs::remove_all(folder, error);
            check(!error, ErrorKind::failure, "{}: left by a run that was stopped, and cannot be removed: {}",
                  folder.string(), error.message());
        } else if (!text.empty() || is_taken(folder)) {
            return;  // not ours
        }
        ::unlink(lock.c_str());  // an empty one is of a run that was killed before it wrote its text
    });
}

void remove_partial_outputs() noexcept {
    for (const auto& slot : active) {
        const PartialOutput* output = slot;
        if (output != nullptr && remove_flat_folder(output->folder().c_str()))
            ::unlink(output->lock().c_str());
    }
}

void check_free_space(const fs::path& place, uint64_t bytes) {
    const fs::path parent = parent_of(without_slash(place));
    struct statvfs space{};
    if (::statvfs(parent.c_str(), &space) != 0 || space.f_blocks == 0)
        return;  // some file systems do not know
    const uint64_t free = uint64_t(space.f_bavail) * space.f_frsize;
    const auto text = [](uint64_t count) {
        return count < 10 << 20 ? fmt::format("{} bytes", count) : fmt::format("{} MiB", count >> 20);
    };
    check(bytes <= free, ErrorKind::failure,
          "{}: needs at least {}, but the file system {} has {} free; make room there or write to another "
          "place{}",
          place.string(), text(bytes), mount_point_of(parent).string(), text(free),
          is_taken(without_slash(place)) ? ". What is replaced stays until the new one is whole" : "");
}

}  // namespace halfbyte
