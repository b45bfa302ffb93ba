#include "core/base/resources.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "core/base/error.h"
#include "core/base/random.h"

namespace moe {

namespace fs = std::filesystem;

namespace {

// Without a limit, v1 reports the largest multiple of a page.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

std::optional<uint64_t> parse_number(const std::string& text) {
  uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<uint64_t> read_number(const fs::path& file) {
  std::string word;  // a number, or "max"
  std::ifstream(file) >> word;
  return parse_number(word);
}

// Returns the number of `key` in a file of lines "key number"; 0 if there is none.
uint64_t read_key(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string name;
  for (uint64_t value = 0; in >> name >> value;) {
    if (name == key) {
      return value;
    }
  }
  return 0;
}

uint64_t remaining(uint64_t limit, uint64_t used) { return limit - std::min(limit, used); }

// File names in the two versions of cgroups.
struct CgroupFiles {
  const char *mount, *limit, *usage, *inactive, *active;
};
constexpr CgroupFiles kVersion2 = {"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
                                   "active_file"};
constexpr CgroupFiles kVersion1 = {"sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                   "memory.usage_in_bytes", "total_inactive_file",
                                   "total_active_file"};

// Returns `path`, a path of /proc/self/cgroup, and its parents up to the root. In a container, the
// root of the mount may be the group of the container, without folders for the other paths.
std::vector<fs::path> group_and_parents(fs::path path) {
  std::vector<fs::path> groups = {path};
  while (path.has_relative_path()) {
    groups.push_back(path = path.parent_path());
  }
  return groups;
}

// Adds the memory limits of `group`, a path of /proc/self/cgroup, and its parents.
void add_cgroups(const fs::path& root, const CgroupFiles& files, const fs::path& group,
                 std::vector<MemoryLimit>& limits) {
  for (const fs::path& path : group_and_parents(group)) {
    const fs::path folder = root / files.mount / path.relative_path();
    const auto limit = read_number(folder / files.limit);
    const auto usage = read_number(folder / files.usage);
    if (limit && usage && *limit < kNoLimit) {
      const fs::path statistics = folder / "memory.stat";
      const uint64_t page_cache =
          read_key(statistics, files.inactive) + read_key(statistics, files.active);
      limits.push_back({remaining(*limit, remaining(*usage, page_cache)),
                        fmt::format("the cgroup {}", path.string())});
    }
  }
}

// Returns controllers (",cpu,memory,"; v2: ",,") and path of each group of this process.
std::vector<std::pair<std::string, fs::path>> own_cgroups(const fs::path& root) {
  std::vector<std::pair<std::string, fs::path>> groups;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "number:controllers:path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first != std::string::npos && second != std::string::npos) {
      groups.emplace_back("," + line.substr(first + 1, second - first - 1) + ",",
                          line.substr(second + 1));
    }
  }
  return groups;
}

// Adds a limit of /proc/self/limits, with lines "Max data size    1048576    unlimited    bytes".
void add_ulimit(const fs::path& root, const std::string& name, const char* used_key,
                const char* source, std::vector<MemoryLimit>& limits) {
  std::ifstream in(root / "proc/self/limits");
  for (std::string line; std::getline(in, line);) {
    const size_t begin = line.find_first_not_of(' ', name.size());
    if (!line.starts_with(name) || begin == std::string::npos) {
      continue;
    }
    if (const auto limit = parse_number(line.substr(begin))) {  // else "unlimited"
      const uint64_t used = system_bytes((root / "proc/self/status").c_str(), used_key);
      limits.push_back({remaining(*limit, used), source, /*is_shared=*/false});
    }
  }
}

std::string gigabytes(uint64_t bytes) {
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

int processor_quota(long quota_us, long period_us) {
  return quota_us > 0 && period_us > 0 ? static_cast<int>((quota_us + period_us - 1) / period_us)
                                       : std::numeric_limits<int>::max();
}

// Returns the quota of a group: "200000 100000" is 2; "max 100000" and (v1) -1 are no limit.
int group_processors(const fs::path& v2, const fs::path& v1) {
  long quota = 0, period = 0;
  std::ifstream(v2 / "cpu.max") >> quota >> period;
  const int v2_processors = processor_quota(quota, period);
  quota = period = 0;
  std::ifstream(v1 / "cpu.cfs_quota_us") >> quota;
  std::ifstream(v1 / "cpu.cfs_period_us") >> period;
  return std::min(v2_processors, processor_quota(quota, period));
}

// Writes random bytes, which no file system can compress. Returns false, with errno set, on
// failure.
bool write_and_sync(int file, uint64_t bytes) {
  std::vector<uint64_t> block(size_t{4} << 17);  // 4 MiB
  Random random(0);
  std::generate(block.begin(), block.end(), [&] { return random.bits(); });
  for (uint64_t written = 0; written < bytes;) {
    const auto part = std::min<uint64_t>(bytes - written, block.size() * sizeof(uint64_t));
    const ssize_t count = ::write(file, block.data(), part);
    if (count < 0 && errno != EINTR) {
      return false;
    }
    written += static_cast<uint64_t>(std::max<ssize_t>(count, 0));
  }
  return ::fsync(file) == 0;
}

}  // namespace

std::string system_field(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string::npos) {
      const size_t begin = line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "";
}

uint64_t system_bytes(const char* file, const std::string& key) {
  return parse_number(system_field(file, key)).value_or(0) * 1024;
}

uint64_t resident_bytes() { return system_bytes("/proc/self/status", "VmRSS"); }
uint64_t peak_resident_bytes() { return system_bytes("/proc/self/status", "VmHWM"); }

std::vector<MemoryLimit> memory_limits(const fs::path& root) {
  std::vector<MemoryLimit> limits;
  if (const uint64_t free = system_bytes((root / "proc/meminfo").c_str(), "MemAvailable")) {
    limits.push_back({free, "this machine"});
  }
  for (const auto& [controllers, group] : own_cgroups(root)) {
    if (controllers == ",,") {
      add_cgroups(root, kVersion2, group, limits);
    } else if (controllers.find(",memory,") != std::string::npos) {
      add_cgroups(root, kVersion1, group, limits);
    }
  }
  add_ulimit(root, "Max address space", "VmSize", "ulimit -v", limits);
  add_ulimit(root, "Max data size", "VmData", "ulimit -d", limits);
  return limits;
}

uint64_t available_memory_bytes() {
  uint64_t bytes = std::numeric_limits<uint64_t>::max();
  for (const auto& limit : memory_limits()) {
    bytes = limit.is_shared ? std::min(bytes, limit.left) : bytes;
  }
  return bytes;
}

std::optional<std::string> memory_shortage(const MemoryNeed& need,
                                           const std::vector<MemoryLimit>& limits) {
  const auto needed = [&](const MemoryLimit& limit) {
    return limit.is_shared ? need.bytes * static_cast<uint64_t>(need.processes) : need.bytes;
  };
  const auto missing = [&](const MemoryLimit& limit) {
    return remaining(needed(limit), limit.left);
  };
  const auto shortest = std::ranges::max_element(limits, {}, missing);
  if (shortest == limits.end() || missing(*shortest) == 0) {
    return std::nullopt;
  }
  const bool is_sum = need.processes > 1 && shortest->is_shared;
  return fmt::format("{} takes about {} of memory{}, {} leaves {}: {}; --force-memory tries it",
                     need.what, gigabytes(needed(*shortest)),
                     is_sum ? fmt::format(" in {} processes", need.processes) : "",
                     shortest->source, gigabytes(shortest->left), need.remedy);
}

std::optional<std::string> check_memory(const MemoryNeed& need, bool force) {
  auto shortage = memory_shortage(need, memory_limits());
  USER_ERROR_IF(shortage && !force, "{}", *shortage);
  return shortage;
}

int usable_processors(const fs::path& root) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int processors = sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                       ? std::max(1, CPU_COUNT(&allowed))
                       : std::numeric_limits<int>::max();
  for (const auto& [controllers, group] : own_cgroups(root)) {
    for (const fs::path& path : group_and_parents(group)) {
      const fs::path mount = root / "sys/fs/cgroup";
      processors = std::min(processors, group_processors(mount / path.relative_path(),
                                                         mount / "cpu" / path.relative_path()));
    }
  }
  return processors;
}

DiskProbe::DiskProbe(const fs::path& folder) : folder_(nearest_existing(folder)) {
  std::string name = (folder_ / ".moe-probe-XXXXXX").string();
  file_ = Descriptor(::mkstemp(name.data()));
  if (!file_.is_open()) {
    fail_file(folder_.string(), "no file can be written there");
  }
  ::unlink(name.c_str());
}

double DiskProbe::append(uint64_t bytes) {
  const auto start = std::chrono::steady_clock::now();
  USER_ERROR_IF(!write_and_sync(file_.get(), bytes),
                "{}: writing {} bytes to measure the disk failed: {}", folder_.string(), bytes,
                std::strerror(errno));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double probe_disk(const fs::path& folder, uint64_t bytes) {
  return static_cast<double>(bytes) / std::max(DiskProbe(folder).append(bytes), 1e-9);
}

}  // namespace moe
