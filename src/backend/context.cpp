#include "halfbyte/context.h"

#include "backend/context_state.h"
#include "cpu/kernels.h"

namespace halfbyte {

static cpu::Level internal(CpuLevel level) {
    return static_cast<cpu::Level>(level);
}

std::string_view name_of(CpuLevel level) {
    return cpu::name_of(internal(level));
}

std::vector<CpuLevelStatus> cpu_levels() {
    std::vector<CpuLevelStatus> all;
    for (const cpu::Level level : cpu::levels())
        all.push_back({static_cast<CpuLevel>(level), cpu::unsupported_reason(level)});
    return all;
}

Context::Context(int threads, std::optional<CpuLevel> level) {
    const cpu::Level chosen = level ? internal(*level) : cpu::best_level();
    const cpu::Kernels& kernels = cpu::kernels(chosen);
    state_.reset(new State{ThreadPool(threads), static_cast<CpuLevel>(chosen), &kernels});
}

Context::~Context() = default;

int Context::threads() const {
    return state_->pool.threads();
}

CpuLevel Context::level() const {
    return state_->level;
}

}  // namespace halfbyte
