// Trees of files stand in for /proc and /sys: the machine that runs the tests does not matter.

#include "core/base/resources.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"

namespace moe {
namespace {

using test::contains_text;
using test::TempDir;
using test::write_file;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// "source left-in-MiB" of each limit, in order: a failure reads like a sentence.
std::string described(const TempDir& root) {
  std::string text;
  for (const auto& limit : memory_limits(root.path())) {
    text += (text.empty() ? "" : ", ") + limit.source + " " + std::to_string(limit.left / kMiB) +
            (limit.is_shared ? "" : " alone");
  }
  return text;
}

std::string mib(uint64_t count) { return std::to_string(count * kMiB) + "\n"; }

void write_v2(const std::filesystem::path& group, const std::string& limit, uint64_t usage,
              uint64_t inactive, uint64_t active = 0) {
  write_file(group / "memory.max", limit);
  write_file(group / "memory.current", mib(usage));
  write_file(group / "memory.stat", "anon 5\nfile 6\ninactive_file " + mib(inactive) +
                                        "active_file " + mib(active) + "slab 9\n");
}

TEST_CASE("what the machine has is MemAvailable", "[base]") {
  const TempDir root;
  CHECK(described(root).empty());
  write_file(root / "proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 4096 kB\n");
  CHECK(described(root) == "this machine 4");
}

TEST_CASE("a cgroup of version 2 and all above it count, page cache as free", "[base]") {
  const TempDir root;
  write_file(root / "proc/self/cgroup", "0::/jobs/user/7\n");
  const auto mount = root / "sys/fs/cgroup";
  write_v2(mount / "jobs/user/7", "max\n", 100, 0);
  write_v2(mount / "jobs/user", mib(1000), 700, 50, 30);
  write_v2(mount / "jobs", mib(500), 650, 10);  // more used than it may: nothing is left
  CHECK(described(root) == "the cgroup /jobs/user 380, the cgroup /jobs 0");
}

TEST_CASE("a container that sees its own group as the root is found", "[base]") {
  const TempDir root;
  const auto mount = root / "sys/fs/cgroup";
  write_v2(mount, mib(2000), 500, 0);
  write_file(root / "proc/self/cgroup", "0::/\n");
  CHECK(described(root) == "the cgroup / 1500");
  write_file(root / "proc/self/cgroup", "0::/docker/abc\n");  // a path of outside
  CHECK(described(root) == "the cgroup / 1500");
}

TEST_CASE("a cgroup of version 1 is found by its controller", "[base]") {
  const TempDir root;
  write_file(root / "proc/self/cgroup", "4:cpu,memory:/a/b\n3:memoryless:/c\nbroken\n0::/\n");
  const auto mount = root / "sys/fs/cgroup/memory";
  const auto write = [&](const std::filesystem::path& group, const std::string& limit,
                         uint64_t usage) {
    write_file(group / "memory.limit_in_bytes", limit);
    write_file(group / "memory.usage_in_bytes", mib(usage));
    write_file(group / "memory.stat",
               "inactive_file 1\ntotal_inactive_file " + mib(40) + "total_active_file " + mib(2));
  };
  write(mount / "a/b", "9223372036854771712\n", 80);  // no limit
  write(mount / "a", mib(300), 200);
  write(mount / "c", mib(1), 1);
  CHECK(described(root) == "the cgroup /a 142");
}

TEST_CASE("ulimit -v and -d count what the process has", "[base]") {
  const TempDir root;
  write_file(root / "proc/self/status", "VmSize:\t 2048 kB\nVmData:\t 1024 kB\n");
  const std::string head = "Limit            Soft Limit   Hard Limit   Units\n";
  const std::string data = "Max data size             8388608   unlimited  bytes\n";
  write_file(root / "proc/self/limits",
             head + data + "Max address space         unlimited unlimited  bytes\n");
  CHECK(described(root) == "ulimit -d 7 alone");
  write_file(root / "proc/self/limits",
             head + "Max address space         1048576   unlimited  bytes\n");
  CHECK(described(root) == "ulimit -v 0 alone");
}

TEST_CASE("the limit that is passed by most is named", "[base]") {
  const std::vector<MemoryLimit> limits = {{8'000'000'000, "this machine"},
                                           {5'000'000'000, "the cgroup /a"},
                                           {3'000'000'000, "ulimit -v", false}};
  CHECK_FALSE(memory_shortage({3'000'000'000, 1, "it", "less"}, limits));
  CHECK_FALSE(memory_shortage({9'000'000'000, 4, "it", "less"}, {}));
  CHECK(memory_shortage({4'000'000'000, 1, "it", "take less"}, limits) ==
        "it takes about 4.0 GB of memory, ulimit -v leaves 3.0 GB: take less; --force-memory tries "
        "it");
  // The processes of a host share what it has, and not their own limits.
  CHECK(memory_shortage({2'600'000'000, 2, "it", "take less"}, limits) ==
        "it takes about 5.2 GB of memory in 2 processes, the cgroup /a leaves 5.0 GB: take less; "
        "--force-memory tries it");
}

TEST_CASE("this process has memory, and what no machine has is refused", "[base]") {
  CHECK(resident_bytes() > 0);
  CHECK(peak_resident_bytes() >= resident_bytes());
  const MemoryNeed need{uint64_t{1} << 60, 1, "it", "less"};
  CHECK_THROWS_WITH(check_memory(need, false), contains_text("it takes about 1152921504.6 GB"));
  CHECK(check_memory(need, true).has_value());
  CHECK_FALSE(check_memory({1, 1, "it", "less"}, false));
}

}  // namespace
}  // namespace moe
