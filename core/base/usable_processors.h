#pragma once
// How many processors this process may keep busy.

#include <filesystem>

namespace moe {

// The least of what the scheduler lets this thread run on (sched_getaffinity: taskset, cpusets) and
// the processor time that its control group and those above it grant, rounded up: `root`/sys/fs/
// cgroup, cpu.max of v2, cpu.cfs_quota_us of v1, as containers set them. At least 1.
int usable_processors(const std::filesystem::path& root = "/");

}  // namespace moe
