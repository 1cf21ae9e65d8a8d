// Where an output is written until it is whole: the folder "OUT.partial-XXXXXX" beside OUT. A file
// "OUT.partial-XXXXXX.lock" is there before the folder and goes after it. It holds a text of ours, and its
// maker keeps it locked (flock) as long as it lives. So what a killed run has left is told for certain from
// the work of a run that is still going on, and from folders of others that happen to have such a name.
#pragma once

#include <filesystem>
#include <vector>

namespace halfbyte {

class PartialOutput {
  public:
    // Error (failure): nothing can be made beside `place`.
    explicit PartialOutput(const std::filesystem::path& place);
    ~PartialOutput();  // removes what is left of the folder, then the lock
    PartialOutput(const PartialOutput&) = delete;
    PartialOutput& operator=(const PartialOutput&) = delete;

    const std::filesystem::path& folder() const { return folder_; }
    const std::filesystem::path& lock() const { return lock_; }
    // To be called before the output is moved to its place: remove_partial_outputs() then passes this one
    // over.
    void keep() const noexcept;

  private:
    PartialOutput() = default;

    std::filesystem::path folder_, lock_;
    int descriptor_ = -1;
};

// What killed runs have left of `place`. An existing output that such a run had moved aside goes back to its
// place.
std::vector<std::filesystem::path> leftovers_of(const std::filesystem::path& place);
void remove_leftovers_of(const std::filesystem::path& place);
// Error (usage): another run, alive, is writing `place`.
void check_not_being_written(const std::filesystem::path& place);

// Removes the partial outputs of this process, for a signal handler that ends it: async-signal-safe.
void remove_partial_outputs() noexcept;

// Error (failure) where the file system of `place` has less free space than `bytes`.
void check_free_space(const std::filesystem::path& place, uint64_t bytes);

// Without slashes at the end; its folder; whether something has that name (a link counts, also one that leads
// nowhere).
std::filesystem::path without_slash(const std::filesystem::path& place);
std::filesystem::path parent_of(const std::filesystem::path& place);
bool is_taken(const std::filesystem::path& place);
// Error (failure): the folder of `place` is missing or may not be written.
void check_parent(const std::filesystem::path& place);
// Renames unless `to` is taken: 0, EEXIST or another error number.
int rename_unless_taken(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace halfbyte
