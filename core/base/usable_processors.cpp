#include "core/base/usable_processors.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace moe {

namespace fs = std::filesystem;

namespace {

int processors_of_scheduler() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? std::max(1, CPU_COUNT(&allowed))
                                                              : std::numeric_limits<int>::max();
}

int processors_of(long quota_us, long period_us) {
  return quota_us > 0 && period_us > 0 ? static_cast<int>((quota_us + period_us - 1) / period_us)
                                       : std::numeric_limits<int>::max();
}

// "200000 100000" are two processors; "max 100000" is no limit, as is -1 in v1.
int quota_of_group(const fs::path& v2, const fs::path& v1) {
  long quota = 0, period = 0;
  std::ifstream(v2 / "cpu.max") >> quota >> period;
  const int of_v2 = processors_of(quota, period);
  quota = period = 0;
  std::ifstream(v1 / "cpu.cfs_quota_us") >> quota;
  std::ifstream(v1 / "cpu.cfs_period_us") >> period;
  return std::min(of_v2, processors_of(quota, period));
}

}  // namespace

int usable_processors(const fs::path& root) {
  int least = processors_of_scheduler();
  std::ifstream in(root / "proc/self/cgroup");  // lines "number:controllers:path"
  for (std::string line; std::getline(in, line);) {
    fs::path path = line.substr(std::min(line.size(), line.rfind(':') + 1));
    for (bool is_last = false; !is_last; path = path.parent_path()) {
      is_last = !path.has_relative_path();
      const fs::path mount = root / "sys/fs/cgroup";
      least = std::min(least, quota_of_group(mount / path.relative_path(),
                                             mount / "cpu" / path.relative_path()));
    }
  }
  return least;
}

}  // namespace moe
