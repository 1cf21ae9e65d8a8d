// What the commands share: common options, progress on a terminal, numbers as people read them, the
// interrupt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/json.h"
#include "core/progress.h"
#include "halfbyte/context.h"

namespace halfbyte::cli {

using Json = checkpoint::Json;

struct CommonOptions {
    int threads = 0;  // 0: as many as the process may use
    std::string cpu_level = "best";
    std::string format = "text";
    bool quiet = false;
    bool verbose = false;

    bool json() const { return format == "json"; }
};

// The context that the options ask for; -v says on stderr what was chosen.
std::unique_ptr<Context> make_context(const CommonOptions& options);

// A line with percentage and time left on stderr, if that is a terminal and --quiet was not given. The
// function also throws Error (interrupted) once SIGINT has arrived, so it is always there.
Progress make_progress(const CommonOptions& options);

// Descriptors 0 to 2 are open afterwards, so that no file of ours becomes "standard output"; SIGINT, SIGTERM
// and SIGHUP ask the work to stop; a write beyond a file size limit or to a reader that has gone fails
// instead of ending the process; a mapped file that becomes shorter is an error with exit code 1.
void prepare_process();
void stop_if_interrupted();
int interrupting_signal();  // 0: none

// A line on stderr, in place of a progress line. Never throws.
void print_error_line(const std::string& text);
// One beginning "halfbyte: warning: ", unless --quiet.
void warn(const CommonOptions& options, const std::string& text);

// To stdout. Invalid UTF-8 in strings is written as U+FFFD.
void print_json(const Json& value);
// Error (failure) if anything printed to stdout could not be written.
void flush_results();
// Writing to stdout has failed since nobody reads it any more (`| head`).
bool reader_has_gone();

// What killed runs left of an output: removed with --force, else told in a warning.
void settle_leftovers(const CommonOptions& options, const std::filesystem::path& output, bool force);

std::string mebibytes(uint64_t bytes);                              // "257 MiB"
std::string read_text(const std::filesystem::path& file);           // a whole file that must be valid UTF-8
void check_utf8(const std::string& text, std::string_view option);  // Error (usage) with the byte offset

}  // namespace halfbyte::cli
