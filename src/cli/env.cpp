// halfbyte env: version, compiler and what this machine runs.
#include <fmt/format.h>

#include "cli/command.h"
#include "core/version.h"

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
    }
    return "?";
}

int run(const CommonOptions& options) {
    const auto context = make_context(options);
    if (options.json()) {
        Json levels = Json::array();
        for (const CpuLevelStatus& status : cpu_levels())
            levels.push_back(
                {{"level", name_of(status.level)},
                 {"unsupported_reason",
                  status.unsupported_reason.empty() ? Json(nullptr) : Json(status.unsupported_reason)}});
        print_json({{"schema", 1},
                    {"version", version},
                    {"compiler", __VERSION__},
                    {"cpu_level", name_of(context->level())},
                    {"cpu_level_description", description_of(context->level())},
                    {"cpu_levels", levels},
                    {"threads", context->threads()}});
        return 0;
    }
    fmt::print("halfbyte {}, {}, {} thread{}\n", version, description_of(context->level()),
               context->threads(), context->threads() == 1 ? "" : "s");
    fmt::print("compiler: {}\n", __VERSION__);
    for (const CpuLevelStatus& status : cpu_levels())
        fmt::print("CPU level {:<7} {}\n", name_of(status.level),
                   !status.unsupported_reason.empty() ? "no: " + status.unsupported_reason
                   : status.level == context->level() ? std::string("yes, chosen")
                                                      : std::string("yes"));
    return 0;
}

}  // namespace

Command add_env(CLI::App& program) {
    auto options = std::make_shared<CommonOptions>();
    CLI::App* command = add_command(program, "env", "Show the version and what this machine runs",
                                    "  halfbyte env\n  halfbyte env --format json", *options);
    return {command, [options] { return run(*options); }};
}

}  // namespace halfbyte::cli
