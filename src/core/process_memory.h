// The largest memory that this process has had.
#pragma once

#include <cstdint>

namespace halfbyte {

uint64_t peak_memory_bytes();  // VmHWM, mapped pages included
// From now on the peak is counted anew. False where the system does not allow it.
bool reset_peak_memory();

}  // namespace halfbyte
