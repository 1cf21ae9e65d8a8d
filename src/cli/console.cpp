#include "cli/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/mapped_file.h"
#include "core/partial_output.h"
#include "model/tokenizer.h"

namespace halfbyte::cli {
namespace {

std::atomic<int> interrupted{0};
bool progress_is_shown = false;

// The first signal asks the work to stop and clean up; a second one ends the process at once.
extern "C" void on_interrupt(int signal) {
    if (interrupted != 0) {
        remove_partial_outputs();
        ::_exit(128 + signal);
    }
    interrupted = signal;
}

void write_to_stderr(const char* text) {  // async-signal-safe
    (void)!::write(STDERR_FILENO, text, std::strlen(text));
}

// A mapped file that was cut by somebody, or whose disk fails. The thread that touched it cannot go on.
extern "C" void on_bus_error(int signal, siginfo_t* info, void*) {
    const MappedPlace place = mapped_place_of(info->si_addr);
    if (place.path == nullptr) {
        std::signal(signal, SIG_DFL);  // a defect of ours, and about to come again
        return;
    }
    static std::atomic_flag entered;
    while (entered.test_and_set()) ::pause();  // one thread speaks
    if (progress_is_shown) write_to_stderr("\r\033[K");
    write_to_stderr("halfbyte: error: ");
    write_to_stderr(place.path);
    write_to_stderr(place.shorter ? ": became shorter while it was read; run again when the file is whole\n"
                                  : ": cannot be read any more; its disk or network reports an error\n");
    remove_partial_outputs();
    ::_exit(int(ErrorKind::failure));
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
    for (const int signal : {SIGXFSZ, SIGPIPE}) std::signal(signal, SIG_IGN);
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, nullptr);
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

bool reader_has_gone() {
    struct pollfd out = {STDOUT_FILENO, 0, 0};
    return std::ferror(stdout) && ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

void settle_leftovers(const CommonOptions& options, const std::filesystem::path& output, bool force) {
    if (force) return remove_leftovers_of(output);
    for (const std::filesystem::path& path : leftovers_of(output))
        warn(options, path.string() + ": left by a run that was stopped; remove it, or let --force do so");
}

std::string mebibytes(uint64_t bytes) {
    return fmt::format("{:.0f} MiB", double(bytes) / (1 << 20));
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
