#pragma once
// Memory, processors and disk that this process may use, so that a command that cannot finish is
// refused before it loads anything. Memory is limited by the machine's MemAvailable, by the control
// groups (cgroups) of this process, as containers and batch systems set them, and by its own limits
// (ulimit).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/read_file.h"

namespace moe {

// Returns the text after the first "KEY...:" of a file of "KEY: value" lines, such as
// /proc/self/status; empty if there is none.
std::string system_field(const char* file, const std::string& key);

// Returns a value in kB ("VmRSS:   1234 kB") in bytes; 0 if there is none.
uint64_t system_bytes(const char* file, const std::string& key);

// Return the resident bytes of this process, now and at their peak; 0 if unknown.
uint64_t resident_bytes();
uint64_t peak_resident_bytes();

struct MemoryLimit {
  uint64_t left = 0;      // bytes that may still be allocated
  std::string source;     // "this machine", "the cgroup /jobs/7", "ulimit -v"
  bool is_shared = true;  // with the other processes of the host; else of this process alone
};

// Returns the limits in force, from the files below `root`/proc and `root`/sys/fs/cgroup:
//   the machine  MemAvailable of /proc/meminfo
//   cgroups      v2 and v1, that of this process and all above it: limit - usage + page cache,
//                which the kernel reclaims before it kills (MemAvailable includes it too)
//   ulimit       -v (RLIMIT_AS) - VmSize and -d (RLIMIT_DATA) - VmData, of /proc/self
// Swap is not counted: a step that waits for a disk is too slow. Files that are missing or
// unreadable, or that state no limit, add no entry.
std::vector<MemoryLimit> memory_limits(const std::filesystem::path& root = "/");

// Returns the smallest limit of machine and cgroups, which is what files may use of the page cache;
// the largest number if there is none.
uint64_t available_memory_bytes();

struct MemoryNeed {
  uint64_t bytes = 0;     // of one process, above its current use
  int64_t processes = 1;  // of this host that each need as much
  std::string what;       // "training model"
  std::string remedy;     // a clause: "--lora 8 takes less"
};

// Returns a sentence about the limit that `need` exceeds by most; nothing if it exceeds none.
std::optional<std::string> memory_shortage(const MemoryNeed& need,
                                           const std::vector<MemoryLimit>& limits);

// Throws UserError with that sentence for the limits in force. With `force` returns it instead.
std::optional<std::string> check_memory(const MemoryNeed& need, bool force);

// Returns the number of processors that this process may keep busy, at least 1: the minimum of the
// scheduler's mask (sched_getaffinity: taskset, cpusets) and the processor time that its cgroup and
// those above it grant, rounded up (`root`/sys/fs/cgroup, cpu.max of v2, cpu.cfs_quota_us of v1).
int usable_processors(const std::filesystem::path& root = "/");

// An unnamed file in `folder`, or its nearest existing parent, to which bytes are written to
// measure the speed of the disk.
class DiskProbe {
 public:
  // Throws UserError if the file cannot be created.
  explicit DiskProbe(const std::filesystem::path& folder);
  // Returns the seconds of writing and syncing `bytes` more. Throws UserError if that fails.
  double append(uint64_t bytes);

 private:
  std::filesystem::path folder_;
  Descriptor file_;
};

// Returns the bytes per second of a DiskProbe that writes `bytes` once.
double probe_disk(const std::filesystem::path& folder, uint64_t bytes = uint64_t{64} << 20);

}  // namespace moe
