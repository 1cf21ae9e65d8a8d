#include "cpu/kernels.h"

#include <array>

#include "core/check.h"
#include "cpu/operations.h"

#if HWY_ARCH_ARM_A64
#include <sys/auxv.h>  // with asm/hwcap.h
#endif

namespace halfbyte::cpu {

std::string_view name_of(Level level) {
    constexpr std::string_view names[] = {"scalar", "avx2", "avx512", "neon", "neon_dotprod"};
    return names[int(level)];
}

#if HWY_ARCH_X86_64
static constexpr Level built[] = {Level::scalar, Level::avx2, Level::avx512};

std::string unsupported_reason(Level level) {
    // __builtin_cpu_supports counts a feature only if the operating system saves its registers.
    __builtin_cpu_init();
    std::string missing;
    const auto need = [&](bool present, const char* name) {
        if (!present) missing += (missing.empty() ? "" : ", ") + std::string(name);
    };
    if (level == Level::avx2 || level == Level::avx512) {
        need(__builtin_cpu_supports("avx2"), "AVX2");
        need(__builtin_cpu_supports("fma"), "FMA");
        need(__builtin_cpu_supports("bmi2"), "BMI2");
        need(__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes"), "AES");
    }
    if (level == Level::neon || level == Level::neon_dotprod) return "this build is for x86-64";
    if (level == Level::avx512) {
        need(__builtin_cpu_supports("avx512f"), "AVX-512");
        need(__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl"),
             "AVX-512 BW, DQ and VL");
        need(__builtin_cpu_supports("avx512vnni"), "AVX-512 VNNI");
    }
    return missing.empty() ? "" : "the processor or the operating system has no " + missing;
}
#elif HWY_ARCH_ARM_A64
static constexpr Level built[] = {Level::scalar, Level::neon, Level::neon_dotprod};

std::string unsupported_reason(Level level) {
    if (level == Level::scalar) return "";
    if (level == Level::avx2 || level == Level::avx512) return "this build is for AArch64";
    const unsigned long present = getauxval(AT_HWCAP);
    std::string missing;
    const auto need = [&](unsigned long bit, const char* name) {
        if ((present & bit) == 0) missing += (missing.empty() ? "" : ", ") + std::string(name);
    };
    need(HWCAP_ASIMD, "NEON");
    need(HWCAP_AES, "AES");  // Highway's target may use it
    if (level == Level::neon_dotprod) need(HWCAP_ASIMDDP, "dot products (ASIMDDP)");
    return missing.empty() ? "" : "the processor or the operating system has no " + missing;
}
#else
static constexpr Level built[] = {Level::scalar};

std::string unsupported_reason(Level level) {
    return level == Level::scalar ? "" : "this build is for another processor";
}
#endif

std::span<const Level> levels() {
    return built;
}

Level best_level() {
    Level best = Level::scalar;
    for (const Level level : levels())
        if (unsupported_reason(level).empty()) best = level;
    return best;
}

static Kernels table_of(Level level) {
    const auto i = size_t(level);
    return {
        .level = level,
        .quantize = quantize_levels[i],
        .quantize_rows = quantize_rows_levels[i],
        .dequantize = dequantize_levels[i],
        .decode_error = decode_error_levels[i],
        .largest_magnitudes = largest_magnitudes_levels[i],
        .transform = transform_levels[i],
        .matmul_w4a4 = matmul_w4a4_levels[i],
        .matmul_w4a16 = matmul_w4a16_levels[i],
        .matmul_w8a16 = matmul_w8a16_levels[i],
        .matmul_dense = matmul_dense_levels[i],
        .rms_norm = rms_norm_levels[i],
        .silu_mul = silu_mul_levels[i],
        .softmax = softmax_levels[i],
        .rope = rope_levels[i],
        .attention = attention_levels[i],
    };
}

const Kernels& kernels(Level level) {
    const std::string reason = unsupported_reason(level);
    check(reason.empty(), ErrorKind::unsupported, "CPU level {}: {}; this machine runs up to {}",
          name_of(level), reason, name_of(best_level()));
    static const std::array<Kernels, 5> tables = {table_of(Level::scalar), table_of(Level::avx2),
                                                  table_of(Level::avx512), table_of(Level::neon),
                                                  table_of(Level::neon_dotprod)};
    return tables[size_t(level)];
}

}  // namespace halfbyte::cpu
