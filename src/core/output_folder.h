// A folder that appears whole or not at all: it is filled under a temporary name beside its place and moved
// there by commit(). Without commit() the destructor removes what was written.
#pragma once

#include <filesystem>
#include <string_view>

namespace halfbyte {

class OutputFolder {
  public:
    // Refuses (usage) an existing `place` unless `force`, and (failure) a parent that is missing or not
    // writable.
    OutputFolder(const std::filesystem::path& place, bool force);
    // What the constructor checks before it makes anything, to ask at the door of long work.
    static void check_place(const std::filesystem::path& place, bool force);
    ~OutputFolder();
    OutputFolder(const OutputFolder&) = delete;
    OutputFolder& operator=(const OutputFolder&) = delete;

    // The temporary folder to write into.
    const std::filesystem::path& path() const { return temporary_; }
    void write_text(std::string_view name,
                    std::string_view content) const;  // name is a file inside the folder
    void commit();

  private:
    void replace_in_two_steps();

    std::filesystem::path place_, temporary_;
    bool force_, committed_ = false;
};

// Writes all bytes to an open descriptor; throws Error (failure) naming `path` with the system's reason.
void write_all(int descriptor, const void* data, size_t size, const std::filesystem::path& path);
// fsync of a file or folder by path; throws like write_all.
void sync_to_disk(const std::filesystem::path& path);

}  // namespace halfbyte
