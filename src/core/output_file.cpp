#include "core/output_file.h"

#include <stdio.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "core/output_folder.h"

namespace halfbyte {
namespace fs = std::filesystem;

void OutputFile::check_place(const fs::path& place, bool force) {
    std::error_code error;
    const fs::file_type type = fs::symlink_status(place, error).type();
    check(place.has_filename() && place.filename() != "." && place.filename() != ".." &&
              type != fs::file_type::directory,
          ErrorKind::usage, "output file '{}': is a folder; give the name of a file", place.string());
    check(force || !is_taken(place), ErrorKind::usage, "{}: exists already; --force replaces it",
          place.string());
    check(type == fs::file_type::not_found || type == fs::file_type::regular, ErrorKind::usage,
          "{}: is a link or a device and is not replaced; give the name of a file", place.string());
    check_parent(place);
    check_not_being_written(place);
}

OutputFile::OutputFile(const fs::path& place, bool force)
    : place_((check_place(place, force), place)),
      force_(force),
      partial_(place),
      path_(partial_.folder() / place.filename()) {}

void OutputFile::commit() {
    partial_.keep();
    int error = rename_unless_taken(path_, place_);
    check(error != EEXIST || force_, ErrorKind::usage, "{}: appeared meanwhile; --force replaces it",
          place_.string());
    if (error == EEXIST) error = ::rename(path_.c_str(), place_.c_str()) == 0 ? 0 : errno;
    check(error == 0, ErrorKind::failure, "{}: cannot be put in place: {}", place_.string(),
          std::strerror(error));
    sync_to_disk(parent_of(place_));
}

}  // namespace halfbyte
