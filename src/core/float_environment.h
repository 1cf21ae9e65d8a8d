// Round to nearest and no flushing of subnormals, whatever the caller has set; restored at the end of the
// scope. Every public call and every worker thread runs inside one.
#pragma once

#include <cfenv>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace halfbyte {

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

}  // namespace halfbyte
