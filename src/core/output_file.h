// A file that appears whole or not at all, as OutputFolder does for a folder.
#pragma once

#include "core/partial_output.h"

namespace halfbyte {

class OutputFile {
  public:
    // Refuses (usage) a folder, and an existing file unless `force`; (failure) a parent that is missing or
    // may not be written.
    OutputFile(const std::filesystem::path& place, bool force);
    // What the constructor checks before it makes anything, to ask at the door of long work.
    static void check_place(const std::filesystem::path& place, bool force);

    const std::filesystem::path& path() const { return path_; }  // where to write it
    void commit();

  private:
    std::filesystem::path place_;
    bool force_;
    PartialOutput partial_;
    std::filesystem::path path_;
};

}  // namespace halfbyte
