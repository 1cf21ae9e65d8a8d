#include "cli/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/check.h"
#include "core/mapped_file.h"
#include "model/tokenizer.h"

namespace halfbyte::cli {
namespace {

std::atomic<int> interrupted{0};
bool progress_is_shown = false;

// The first signal asks the work to stop and clean up; a second one ends the process at once.
extern "C" void on_interrupt(int signal) {
    interrupted = signal;
    std::signal(signal, SIG_DFL);
}

void to_stderr(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

void prepare_process() {
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (::fcntl(descriptor, F_GETFD) < 0)  // opened so that using it is an error, as before
            (void)!::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP})
        if (std::signal(signal, on_interrupt) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup
    std::signal(SIGXFSZ, SIG_IGN);
}

void stop_if_interrupted() {
    if (interrupted != 0) throw Error(ErrorKind::interrupted, "interrupted");
}

int interrupting_signal() {
    return interrupted;
}

void print_error_line(const std::string& text) {
    if (std::exchange(progress_is_shown, false)) to_stderr("\r\033[K");
    to_stderr(text + "\n");
}

std::unique_ptr<Context> make_context(const CommonOptions& options) {
    std::optional<CpuLevel> level;
    for (const CpuLevelStatus& status : cpu_levels())
        if (name_of(status.level) == options.cpu_level) level = status.level;
    check(level || options.cpu_level == "best", ErrorKind::unsupported,
          "--cpu-level {}: this build does not have it", options.cpu_level);
    auto context = std::make_unique<Context>(options.threads, level);
    if (options.verbose)
        print_error_line(fmt::format("halfbyte: CPU level {}, {} thread{}", name_of(context->level()),
                                     context->threads(), context->threads() == 1 ? "" : "s"));
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
            if (std::exchange(progress_is_shown, false)) to_stderr("\r\033[K");
            state->stage.clear();
        } else if (now - state->shown > std::chrono::milliseconds(100)) {
            const double elapsed = std::chrono::duration<double>(now - state->start).count();
            std::string line =
                fmt::format("\r\033[K{} {:.0f} %", stage, 100.0 * double(done) / double(total));
            if (done > 0)
                line += fmt::format(", {:.0f} s left", elapsed * double(total - done) / double(done));
            to_stderr(line);
            progress_is_shown = true;
            state->shown = now;
        }
        stop_if_interrupted();
    };
}

void warn(const CommonOptions& options, const std::string& text) {
    if (!options.quiet) print_error_line("halfbyte: warning: " + text);
}

void print_json(const Json& value) {
    fmt::print("{}\n", value.dump(2, ' ', false, Json::error_handler_t::replace));
}

void flush_results() {
    errno = 0;
    const bool written = std::fflush(stdout) == 0 && !std::ferror(stdout);
    check(written, ErrorKind::failure, "standard output cannot be written{}{}", errno != 0 ? ": " : "",
          errno != 0 ? std::strerror(errno) : "");
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
    struct rusage usage{};  // without /proc; may count what the parent had before
    return ::getrusage(RUSAGE_SELF, &usage) == 0 ? uint64_t(usage.ru_maxrss) * 1024 : 0;
}

std::string read_text(const std::filesystem::path& file) {
    const MappedFile mapped(file);
    std::string text(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
    const size_t invalid = model::invalid_utf8(text);
    check(invalid == std::string::npos, ErrorKind::failure,
          "{}: is not valid UTF-8 at byte offset {}; convert the text to UTF-8", file.string(), invalid);
    return text;
}

void check_utf8(const std::string& text, std::string_view option) {
    const size_t invalid = model::invalid_utf8(text);
    check(invalid == std::string::npos, ErrorKind::usage, "{}: is not valid UTF-8 at byte offset {} of {}",
          option, invalid, text.size());
}

}  // namespace halfbyte::cli
