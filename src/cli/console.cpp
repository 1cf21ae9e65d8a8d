#include "cli/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>

#include "core/check.h"
#include "core/mapped_file.h"
#include "model/tokenizer.h"

namespace halfbyte::cli {
namespace {

std::atomic<bool> interrupted{false};

// The first SIGINT asks the work to stop and clean up; a second one ends the process at once.
extern "C" void on_interrupt(int) {
    interrupted = true;
    std::signal(SIGINT, SIG_DFL);
}

}  // namespace

void install_interrupt_handler() {
    std::signal(SIGINT, on_interrupt);
}

void stop_if_interrupted() {
    if (interrupted) throw Error(ErrorKind::interrupted, "interrupted");
}

std::unique_ptr<Context> make_context(const CommonOptions& options) {
    std::optional<CpuLevel> level;
    for (const CpuLevelStatus& status : cpu_levels())
        if (name_of(status.level) == options.cpu_level) level = status.level;
    check(level || options.cpu_level == "best", ErrorKind::unsupported,
          "--cpu-level {}: this build does not have it", options.cpu_level);
    auto context = std::make_unique<Context>(options.threads, level);
    if (options.verbose)
        fmt::print(stderr, "halfbyte: CPU level {}, {} thread{}\n", name_of(context->level()), context->threads(),
                   context->threads() == 1 ? "" : "s");
    return context;
}

Progress make_progress(const CommonOptions& options) {
    if (options.quiet || !::isatty(STDERR_FILENO))
        return [](std::string_view, int64_t, int64_t) { stop_if_interrupted(); };

    using Clock = std::chrono::steady_clock;
    struct State {
        std::string stage;
        Clock::time_point start, shown;
    };
    auto state = std::make_shared<State>();
    return [state](std::string_view stage, int64_t done, int64_t total) {
        const auto now = Clock::now();
        if (state->stage != stage) *state = {std::string(stage), now, now - std::chrono::seconds(1)};
        const bool finished = done >= total;
        if (finished) {
            fmt::print(stderr, "\r\033[K");
            state->stage.clear();
        } else if (now - state->shown > std::chrono::milliseconds(100)) {
            const double elapsed = std::chrono::duration<double>(now - state->start).count();
            fmt::print(stderr, "\r\033[K{} {:3.0f} %", stage, 100.0 * double(done) / double(total));
            if (done > 0) fmt::print(stderr, ", {:.0f} s left", elapsed * double(total - done) / double(done));
            std::fflush(stderr);
            state->shown = now;
        }
        stop_if_interrupted();
    };
}

void warn(const CommonOptions& options, const std::string& text) {
    if (!options.quiet) fmt::print(stderr, "halfbyte: warning: {}\n", text);
}

void print_json(const Json& value) {
    fmt::print("{}\n", value.dump(2, ' ', false, Json::error_handler_t::replace));
}

std::string mebibytes(uint64_t bytes) {
    return fmt::format("{:.0f} MiB", double(bytes) / (1 << 20));
}

uint64_t peak_memory_bytes() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
        uint64_t kilobytes = 0;
        if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
    }
    return 0;
}

std::string read_text(const std::filesystem::path& file) {
    const MappedFile mapped(file);
    std::string text(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
    const size_t invalid = model::invalid_utf8(text);
    check(invalid == std::string::npos, ErrorKind::failure,
          "{}: is not valid UTF-8 at byte offset {}; convert the text to UTF-8", file.string(), invalid);
    return text;
}

}  // namespace halfbyte::cli
