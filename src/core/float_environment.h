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
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
#if defined(__x86_64__)
        _mm_setcsr(0x1F80);  // all exceptions masked, nearest even, flush-to-zero and denormals-are-zero off
#endif
    }
    ~FloatEnvironment() { std::fesetenv(&saved_); }
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

  private:
    std::fenv_t saved_;
};

}  // namespace halfbyte
