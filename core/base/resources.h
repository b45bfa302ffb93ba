#pragma once
// Memory, processors and disk that this process may use, to refuse a command that cannot finish
// before it loads anything. Memory is limited by the machine's MemAvailable, by the control groups
// (cgroups) of containers and batch systems, and by the limits of the process (ulimit).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/read_file.h"

namespace moe {

// Returns the value of the first line "KEY...: value" of a file such as /proc/self/status; "" if
// there is none.
std::string system_field(const char* file, const std::string& key);

// Returns a value in kB ("VmRSS:   1234 kB") in bytes; 0 if there is none.
uint64_t system_bytes(const char* file, const std::string& key);

// Return the resident bytes of this process, now and at their peak; 0 if unknown.
uint64_t resident_bytes();
uint64_t peak_resident_bytes();

struct MemoryLimit {
  uint64_t left = 0;      // bytes that may still be allocated
  std::string source;     // "this machine", "the cgroup /jobs/7", "ulimit -v"
  bool is_shared = true;  // false: applies to this process alone
};

// Returns the limits in force, from the files below `root`/proc and `root`/sys/fs/cgroup:
//   the machine  MemAvailable of /proc/meminfo
//   cgroups      (v2 and v1; of this process, and their parents) limit - usage + page cache. The
//                kernel reclaims page cache before it kills; MemAvailable includes it too
//   ulimit       -v (RLIMIT_AS) - VmSize and -d (RLIMIT_DATA) - VmData, of /proc/self
// Swap is not counted, because training from a disk is too slow. Files that are missing, unreadable
// or without a limit add no entry.
std::vector<MemoryLimit> memory_limits(const std::filesystem::path& root = "/");

// Returns the smallest limit of machine and cgroups, which bounds the page cache; the largest
// number if there is no limit.
uint64_t available_memory_bytes();

struct MemoryNeed {
  uint64_t bytes = 0;     // of one process, above its current use
  int64_t processes = 1;  // on this host, each with this need
  std::string what;       // the subject of the error: "training model"
  std::string remedy;     // a clause: "--lora 8 takes less"
};

// Returns a sentence about the limit that `need` exceeds most; nothing if it exceeds none.
std::optional<std::string> memory_shortage(const MemoryNeed& need,
                                           const std::vector<MemoryLimit>& limits);

// Throws UserError with memory_shortage() of the limits in force; with `force` returns it instead.
std::optional<std::string> check_memory(const MemoryNeed& need, bool force);

// Returns the number of processors of this process, at least 1: the minimum of its affinity
// mask (sched_getaffinity: taskset, cpusets) and the CPU quotas, rounded up, of its cgroup and the
// parents (below `root`/sys/fs/cgroup: cpu.max in v2, cpu.cfs_quota_us in v1).
int usable_processors(const std::filesystem::path& root = "/");

// An unnamed file in `folder`, or its nearest existing parent, to measure the speed of the disk.
class DiskProbe {
 public:
  // Throws UserError if the file cannot be created.
  explicit DiskProbe(const std::filesystem::path& folder);
  // Writes and syncs `bytes` more and returns the seconds. Throws UserError if that fails.
  double append(uint64_t bytes);

 private:
  std::filesystem::path folder_;
  Descriptor file_;
};

// Returns the bytes per second of a DiskProbe that writes `bytes` once.
double probe_disk(const std::filesystem::path& folder, uint64_t bytes = uint64_t{64} << 20);

}  // namespace moe
