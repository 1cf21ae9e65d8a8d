// A folder that appears whole or not at all: it is filled under a temporary name beside its place and moved
// there by commit(). Without commit() the destructor removes what was written.
#pragma once

#include <filesystem>
#include <string_view>

#include "core/partial_output.h"
#include "core/progress.h"

namespace halfbyte {

class OutputFolder {
  public:
    // Refuses (usage) an existing `place` unless `force`, and (failure) a parent that is missing or not
    // writable.
    OutputFolder(const std::filesystem::path& place, bool force);
    // What the constructor checks before it makes anything, to ask at the door of long work.
    static void check_place(const std::filesystem::path& place, bool force);

    // The temporary folder to write into.
    const std::filesystem::path& path() const { return partial_.folder(); }
    void write_text(std::string_view name,
                    std::string_view content) const;  // name is a file inside the folder
    // Reports ("finish", 1, 1) as the last moment at which the receiver can stop it.
    void commit(const Progress& progress = {});

  private:
    int replace_in_two_steps() const;  // an error number

    std::filesystem::path place_;
    bool force_;
    PartialOutput partial_;
};

// Writes all bytes to an open descriptor; throws Error (failure) naming `path` with the system's reason.
void write_all(int descriptor, const void* data, size_t size, const std::filesystem::path& path);
// fsync of a file or folder by path; throws like write_all.
void sync_to_disk(const std::filesystem::path& path);

}  // namespace halfbyte
