// How many processors the control groups of this process grant it.
#pragma once

#include <string>

namespace halfbyte {

// The least quota / period of the process's own group and of all above it, as far as they are mounted, in
// whole processors and at least 1; 0: no limit. Of version 2 (cpu.max), of version 1 (cpu.cfs_quota_us and
// cpu.cfs_period_us), or of both where both are mounted. root is where /proc and the mounts are looked for:
// the tests have a folder for it.
int cgroup_processors(const std::string& root = "");

}  // namespace halfbyte
