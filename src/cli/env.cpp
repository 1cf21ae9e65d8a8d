// halfbyte env: what this build is and what this machine runs: the first thing to put into a report.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pcre2.h>
#include <sched.h>
#include <utf8proc.h>

#include <fstream>

#include "backend/cuda_library.h"
#include "cli/command.h"
#include "core/proc.h"
#include "core/thread_pool.h"
#include "halfbyte/cuda.h"
#include "halfbyte/version.h"

namespace halfbyte::cli {
namespace {

std::string_view description_of(CpuLevel level) {
    switch (level) {
        case CpuLevel::scalar:
            return "scalar";
        case CpuLevel::avx2:
            return "AVX2";
        case CpuLevel::avx512:
            return "AVX-512 VNNI";
        case CpuLevel::neon:
            return "NEON";
        case CpuLevel::neon_dotprod:
            return "NEON, dot products";
    }
    return "?";
}

// In bytes; 0 if the system does not say.
uint64_t memory(std::string_view key) {
    return proc_bytes("/proc/meminfo", key);
}

// The limit of the control group; 0: none.
uint64_t memory_limit() {
    uint64_t bytes = 0;
    std::ifstream("/sys/fs/cgroup/memory.max") >> bytes;  // "max" leaves 0
    return bytes;
}

std::string gibibytes(uint64_t bytes) {
    return fmt::format("{:.1f} GiB", double(bytes) / (1 << 30));
}

std::string pcre2_version() {
    char version[64] = {}, unicode[64] = {};
    pcre2_config(PCRE2_CONFIG_VERSION, version);
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, unicode);
    return fmt::format("{} (Unicode {})",
                       std::string_view(version).substr(0, std::string_view(version).find(' ')), unicode);
}

std::string level_reason(const CommonOptions& options) {
    return options.cpu_level == "best" ? "the highest that is built in and that this machine runs"
                                       : "asked for with --cpu-level";
}

std::string thread_reason(const CommonOptions& options, const ThreadLimits& limits) {
    if (options.threads != 0) return "asked for with --threads";
    return limits.usable() < limits.affinity ? "the quota of its control groups"
                                             : "the processors that this process may use";
}

std::string architecture_names() {
    const CudaLibrary& library = cuda_library();
    return library.kernels == nullptr
               ? ""
               : fmt::format("sm_{}", fmt::join(library.kernels->architectures(), ", sm_"));
}

Json cuda_json() {
    const CudaLibrary& library = cuda_library();
    const std::string reason = cuda::unavailable_reason();
    Json devices = Json::array();
    for (const cuda::DeviceInfo& device : cuda::devices())
        devices.push_back({{"ordinal", device.ordinal},
                           {"name", device.name},
                           {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
                           {"multiprocessors", device.multiprocessors},
                           {"memory_bytes", device.memory}});
    return {
        {"library", library.kernels == nullptr ? Json(nullptr) : Json(library.path)},
        {"architectures", library.kernels == nullptr ? std::vector<int>() : library.kernels->architectures()},
        {"unavailable_reason", reason.empty() ? Json(nullptr) : Json(reason)},
        {"devices", devices}};
}

void print_cuda() {
    const CudaLibrary& library = cuda_library();
    if (library.kernels != nullptr)
        fmt::print("GPU        {}, compiled for {}\n", library.path, architecture_names());
    const std::string reason = cuda::unavailable_reason();
    if (!reason.empty())
        fmt::print("{:<11}{}{}\n", library.kernels == nullptr ? "GPU" : "",
                   reason.starts_with("no ") ? "" : "no: ", reason);
    for (const cuda::DeviceInfo& device : cuda::devices())
        fmt::print("           {}: {}, compute capability {}.{}, {} multiprocessors, {}\n", device.ordinal,
                   device.name, device.major, device.minor, device.multiprocessors,
                   gibibytes(uint64_t(device.memory)));
}

int run(const CommonOptions& options) {
    const auto context = make_context(options);
    const ThreadLimits limits = thread_limits();
    std::vector<std::string> backends = {"cpu"};
    if (cuda::unavailable_reason().empty()) backends.push_back("cuda");
    const std::string processor = proc_value("/proc/cpuinfo", "model name");
    const std::vector<std::pair<std::string, std::string>> libraries = {
        {"PCRE2", pcre2_version()},
        {"utf8proc", fmt::format("{} (Unicode {})", utf8proc_version(), utf8proc_unicode_version())},
        {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                      NLOHMANN_JSON_VERSION_PATCH)},
        {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
        {"CLI11", CLI11_VERSION}};
    if (options.json()) {
        Json levels = Json::array();
        for (const CpuLevelStatus& status : cpu_levels())
            levels.push_back(
                {{"level", name_of(status.level)},
                 {"unsupported_reason",
                  status.unsupported_reason.empty() ? Json(nullptr) : Json(status.unsupported_reason)}});
        const auto known = [](uint64_t bytes) { return bytes == 0 ? Json(nullptr) : Json(bytes); };
        print_json(
            {{"schema", 1},
             {"version", version},
             {"compiler", HALFBYTE_COMPILER},
             {"build_type", HALFBYTE_BUILD_TYPE},
             {"backends", backends},
             {"cuda", cuda_json()},
             {"libraries", Json(std::map<std::string, std::string>(libraries.begin(), libraries.end()))},
             {"processor", processor},
             {"cpu_level", name_of(context->level())},
             {"cpu_level_description", description_of(context->level())},
             {"cpu_level_reason", level_reason(options)},
             {"cpu_levels", levels},
             {"threads", context->threads()},
             {"threads_reason", thread_reason(options, limits)},
             {"processors_allowed", limits.affinity},
             {"cgroup_processors", limits.cgroup_quota == 0 ? Json(nullptr) : Json(limits.cgroup_quota)},
             {"memory_bytes", known(memory("MemTotal"))},
             {"memory_available_bytes", known(memory("MemAvailable"))},
             {"cgroup_memory_bytes", known(memory_limit())}});
        return 0;
    }
    fmt::print("halfbyte   {}, {} build by {}; backends: {}\n", version, HALFBYTE_BUILD_TYPE,
               HALFBYTE_COMPILER, fmt::join(backends, ", "));
    fmt::print("processor  {}\n", processor.empty() ? "unknown" : processor);
    fmt::print("CPU level  {} ({}): {}\n", name_of(context->level()), description_of(context->level()),
               level_reason(options));
    for (const CpuLevelStatus& status : cpu_levels())
        fmt::print("           {:<7} {}\n", name_of(status.level),
                   !status.unsupported_reason.empty() ? "no: " + status.unsupported_reason
                   : status.level == context->level() ? std::string("yes, chosen")
                                                      : std::string("yes"));
    print_cuda();
    fmt::print("threads    {}: {}\n", context->threads(), thread_reason(options, limits));
    fmt::print("memory     {} in all, {} available{}\n", gibibytes(memory("MemTotal")),
               gibibytes(memory("MemAvailable")),
               memory_limit() == 0 ? "" : ", control group limit " + gibibytes(memory_limit()));
    std::vector<std::string> names;
    for (const auto& [name, number] : libraries) names.push_back(fmt::format("{} {}", name, number));
    fmt::print("libraries  {}\n", fmt::join(names, ", "));
    return 0;
}

}  // namespace

Command add_env(CLI::App& program) {
    auto options = std::make_shared<CommonOptions>();
    CLI::App* command = add_command(program, "env", "Show what this build is and what this machine runs",
                                    "  halfbyte env\n"
                                    "  halfbyte env --format json\n"
                                    "  halfbyte env --cpu-level avx2 --threads 1",
                                    *options);
    return {command, [options] { return run(*options); }};
}

}  // namespace halfbyte::cli
