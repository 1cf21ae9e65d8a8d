#include "core/process_memory.h"

#include <sys/resource.h>

#include <fstream>

#include "core/proc.h"

namespace halfbyte {

uint64_t peak_memory_bytes() {
    if (const uint64_t bytes = proc_bytes("/proc/self/status", "VmHWM"); bytes > 0) return bytes;
    struct rusage usage{};  // without /proc; may count what the parent had before
    return ::getrusage(RUSAGE_SELF, &usage) == 0 ? uint64_t(usage.ru_maxrss) * 1024 : 0;
}

bool reset_peak_memory() {
    std::ofstream file("/proc/self/clear_refs");  // proc(5): 5 resets the peak
    file << "5" << std::flush;
    return file.good();
}

}  // namespace halfbyte
