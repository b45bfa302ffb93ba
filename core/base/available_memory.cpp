#include "core/base/available_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>

#include "core/base/error.h"
#include "core/base/system_fields.h"

namespace moe {

namespace fs = std::filesystem;

namespace {

// What v1 says where there is no limit is the largest multiple of a page.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

std::optional<uint64_t> number_in(const std::string& text) {
  uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<uint64_t> number_of_file(const fs::path& file) {
  std::ifstream in(file);
  std::string word;  // a number, or "max"
  in >> word;
  return number_in(word);
}

// Of a file of lines "key number"; 0 where there is none.
uint64_t number_of_key(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string name;
  for (uint64_t value = 0; in >> name >> value;) {
    if (name == key) {
      return value;
    }
  }
  return 0;
}

uint64_t left_of(uint64_t limit, uint64_t used) { return limit - std::min(limit, used); }

// The names that the two versions of cgroups have for the same.
struct CgroupFiles {
  const char *mount, *limit, *usage, *inactive, *active;
};
constexpr CgroupFiles kVersion2 = {"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
                                   "active_file"};
constexpr CgroupFiles kVersion1 = {"sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                   "memory.usage_in_bytes", "total_inactive_file",
                                   "total_active_file"};

// `path` from /proc/self/cgroup and every one above it. In a container the mount may show that
// container's group as its root and know nothing of the path: the root is then the one that counts,
// and it is looked at last in any case.
void add_cgroups(const fs::path& root, const CgroupFiles& files, fs::path path,
                 std::vector<MemoryLimit>& limits) {
  for (bool is_last = false; !is_last; path = path.parent_path()) {
    is_last = !path.has_relative_path();
    const fs::path folder = root / files.mount / path.relative_path();
    const auto limit = number_of_file(folder / files.limit);
    const auto usage = number_of_file(folder / files.usage);
    if (limit && usage && *limit < kNoLimit) {
      const fs::path statistics = folder / "memory.stat";
      const uint64_t page_cache =
          number_of_key(statistics, files.inactive) + number_of_key(statistics, files.active);
      limits.push_back({left_of(*limit, left_of(*usage, page_cache)),
                        fmt::format("the cgroup {}", path.string())});
    }
  }
}

// Lines "number:controllers:path"; of v2 "0::path".
void add_all_cgroups(const fs::path& root, std::vector<MemoryLimit>& limits) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") {
      add_cgroups(root, kVersion2, line.substr(second + 1), limits);
    } else if (controllers.find(",memory,") != std::string::npos) {
      add_cgroups(root, kVersion1, line.substr(second + 1), limits);
    }
  }
}

// A line of /proc/self/limits: "Max data size    1048576    unlimited    bytes".
void add_ulimit(const fs::path& root, const std::string& name, const char* used_key,
                const char* source, std::vector<MemoryLimit>& limits) {
  std::ifstream in(root / "proc/self/limits");
  for (std::string line; std::getline(in, line);) {
    const size_t begin = line.find_first_not_of(' ', name.size());
    if (!line.starts_with(name) || begin == std::string::npos) {
      continue;
    }
    if (const auto limit = number_in(line.substr(begin))) {  // else "unlimited"
      const uint64_t used = system_bytes((root / "proc/self/status").c_str(), used_key);
      limits.push_back({left_of(*limit, used), source, /*is_shared=*/false});
    }
  }
}

std::string gigabytes(uint64_t bytes) {
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

}  // namespace

uint64_t resident_bytes() { return system_bytes("/proc/self/status", "VmRSS"); }
uint64_t peak_resident_bytes() { return system_bytes("/proc/self/status", "VmHWM"); }

std::vector<MemoryLimit> memory_limits(const fs::path& root) {
  std::vector<MemoryLimit> limits;
  if (const uint64_t free = system_bytes((root / "proc/meminfo").c_str(), "MemAvailable")) {
    limits.push_back({free, "this machine"});
  }
  add_all_cgroups(root, limits);
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
  const auto wanted = [&](const MemoryLimit& limit) {
    return limit.is_shared ? need.bytes * static_cast<uint64_t>(need.processes) : need.bytes;
  };
  const MemoryLimit* shortest = nullptr;
  for (const auto& limit : limits) {
    const uint64_t missing = left_of(wanted(limit), limit.left);
    if (missing > 0 &&
        (shortest == nullptr || missing > left_of(wanted(*shortest), shortest->left))) {
      shortest = &limit;
    }
  }
  if (shortest == nullptr) {
    return std::nullopt;
  }
  const bool is_of_all = need.processes > 1 && shortest->is_shared;
  return fmt::format("{} takes about {} of memory{}, {} leaves {}: {}; --force-memory tries it",
                     need.what, gigabytes(wanted(*shortest)),
                     is_of_all ? fmt::format(" in {} processes", need.processes) : "",
                     shortest->source, gigabytes(shortest->left), need.remedy);
}

std::optional<std::string> check_memory(const MemoryNeed& need, bool force) {
  auto shortage = memory_shortage(need, memory_limits());
  if (shortage && !force) {
    throw UserError("{}", *shortage);
  }
  return shortage;
}

}  // namespace moe
