// Round to nearest and no flushing of subnormals, whatever the caller has set; restored at the end of the
// scope. Every public call and every worker thread runs inside one.
#pragma once

#include <cfenv>
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace halfbyte {

#if defined(__aarch64__)

class FloatEnvironment {
  public:
    FloatEnvironment() {
        // All of FPCR: fesetenv leaves FP16's alternative format, which has no infinities, as it is.
        __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
        if (saved_ != 0) __asm__ volatile("msr fpcr, xzr");
    }
    ~FloatEnvironment() {
        if (saved_ != 0) __asm__ volatile("msr fpcr, %0" : : "r"(saved_));
    }
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

  private:
    uint64_t saved_;
};

#else

class FloatEnvironment {
  public:
    FloatEnvironment() {
#if defined(__x86_64__)
        // Reading and writing the whole environment takes 100 ns, and it is seldom anything but the default.
        csr_ = _mm_getcsr();
        is_default_ = (csr_ & ~exception_flags) == default_csr && std::fegetround() == FE_TONEAREST;
        if (is_default_) return;
#endif
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
#if defined(__x86_64__)
        _mm_setcsr(default_csr);
#endif
    }
    ~FloatEnvironment() {
#if defined(__x86_64__)
        if (is_default_) {
            _mm_setcsr(csr_);  // the caller's exception flags
            return;
        }
#endif
        std::fesetenv(&saved_);
    }
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

  private:
#if defined(__x86_64__)
    // All exceptions masked, nearest even, flush-to-zero and denormals-are-zero off.
    static constexpr unsigned default_csr = 0x1F80, exception_flags = 0x3F;
    unsigned csr_;
    bool is_default_;
#endif
    std::fenv_t saved_;
};

#endif

}  // namespace halfbyte
