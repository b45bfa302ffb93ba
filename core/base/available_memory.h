#pragma once
// How much memory this process takes and may still take, so that a command that cannot end well is
// refused by a sentence before it loads anything, and is not killed in the middle. What counts is
// what Linux acts on: the machine's own MemAvailable, the limits of the control groups (cgroups)
// that this process is in, as containers and batch systems set them, and its own limits (ulimit).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace moe {

// Resident bytes of this process, now and at their peak. 0 where the system does not say.
uint64_t resident_bytes();
uint64_t peak_resident_bytes();

struct MemoryLimit {
  uint64_t left = 0;      // bytes that may still be taken
  std::string source;     // "this machine", "the cgroup /jobs/7", "ulimit -v"
  bool is_shared = true;  // with the other processes of the host; else of this process alone
};

// The limits that are in force now, by the files below `root`/proc and `root`/sys/fs/cgroup:
//   the machine  MemAvailable of /proc/meminfo
//   cgroups      v2 and v1, that of this process and all above it: limit - usage + page cache,
//                which the kernel takes back before it kills (MemAvailable counts it too)
//   ulimit       -v (RLIMIT_AS) - VmSize and -d (RLIMIT_DATA) - VmData, of /proc/self
// Swap is not counted: a step that waits for a disk is no use. Files that are missing, unreadable
// or say no limit give no entry.
std::vector<MemoryLimit> memory_limits(const std::filesystem::path& root = "/");

// The least that machine and cgroups leave, which is what files may take of the page cache; the
// largest number where none has a limit.
uint64_t available_memory_bytes();

struct MemoryNeed {
  uint64_t bytes = 0;     // of one process, above what it has now
  int64_t processes = 1;  // of this host that each take as much
  std::string what;       // "training model"
  std::string remedy;     // a clause: "--lora 8 takes less"
};

// A sentence about the limit that `need` exceeds by most; none where it exceeds no limit.
std::optional<std::string> memory_shortage(const MemoryNeed& need,
                                           const std::vector<MemoryLimit>& limits);

// UserError with that sentence, of the limits now. With `force` it is returned instead.
std::optional<std::string> check_memory(const MemoryNeed& need, bool force);

}  // namespace moe
