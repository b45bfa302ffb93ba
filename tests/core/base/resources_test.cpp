// Memory, processors and disk of the machine. Generated trees of files replace /proc and /sys, so
// that the results do not depend on the machine that runs the tests.

#include "core/base/resources.h"

#include <sched.h>

#include <thread>

#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe {
namespace {

using namespace moe::test;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Returns "source MiB-left" of each limit, in order.
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

int processors_of_this_thread() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  return CPU_COUNT(&allowed);
}

TEST_CASE("The memory of the machine is MemAvailable") {
  const TempDir root;
  CHECK(described(root).empty());
  write_file(root / "proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 4096 kB\n");
  CHECK(described(root) == "this machine 4");
}

TEST_CASE("A version 2 cgroup and its parents limit memory; page cache counts as free") {
  const TempDir root;
  const auto mount = root / "sys/fs/cgroup";
  SECTION("a group of the host") {
    write_file(root / "proc/self/cgroup", "0::/jobs/user/7\n");
    write_v2(mount / "jobs/user/7", "max\n", 100, 0);
    write_v2(mount / "jobs/user", mib(1000), 700, 50, 30);
    write_v2(mount / "jobs", mib(500), 650, 10);  // uses more than its limit
    CHECK(described(root) == "the cgroup /jobs/user 380, the cgroup /jobs 0");
  }
  SECTION("a container, which sees its own group as the root") {
    write_v2(mount, mib(2000), 500, 0);
    for (const char* path : {"0::/\n", "0::/docker/abc\n"}) {  // the latter is the host's path
      write_file(root / "proc/self/cgroup", path);
      CHECK(described(root) == "the cgroup / 1500");
    }
  }
}

TEST_CASE("A version 1 cgroup is found by its controller") {
  const TempDir root;
  write_file(root / "proc/self/cgroup", "4:cpu,memory:/a/b\n3:memoryless:/c\nbroken\n0::/\n");
  const auto write_v1 = [&](const char* group, const std::string& limit, uint64_t usage) {
    const auto folder = root / "sys/fs/cgroup/memory" / group;
    write_file(folder / "memory.limit_in_bytes", limit);
    write_file(folder / "memory.usage_in_bytes", mib(usage));
    write_file(folder / "memory.stat",
               "inactive_file 1\ntotal_inactive_file " + mib(40) + "total_active_file " + mib(2));
  };
  write_v1("a/b", "9223372036854771712\n", 80);  // no limit
  write_v1("a", mib(300), 200);
  write_v1("c", mib(1), 1);
  CHECK(described(root) == "the cgroup /a 142");
}

TEST_CASE("ulimit -v and -d limit the process alone") {
  const TempDir root;
  write_file(root / "proc/self/status", "VmSize:\t 2048 kB\nVmData:\t 1024 kB\n");
  const std::string head = "Limit            Soft Limit   Hard Limit   Units\n";
  write_file(root / "proc/self/limits",
             head + "Max data size             8388608   unlimited  bytes\n" +
                 "Max address space         unlimited unlimited  bytes\n");
  CHECK(described(root) == "ulimit -d 7 alone");
  write_file(root / "proc/self/limits",
             head + "Max address space         1048576   unlimited  bytes\n");
  CHECK(described(root) == "ulimit -v 0 alone");
}

TEST_CASE("A shortage names the limit that is exceeded most") {
  const std::vector<MemoryLimit> limits = {{8'000'000'000, "this machine"},
                                           {5'000'000'000, "the cgroup /a"},
                                           {3'000'000'000, "ulimit -v", false}};
  CHECK_FALSE(memory_shortage({3'000'000'000, 1, "it", "less"}, limits));
  CHECK_FALSE(memory_shortage({9'000'000'000, 4, "it", "less"}, {}));
  CHECK_THAT(memory_shortage({4'000'000'000, 1, "it", "take less"}, limits).value_or(""),
             contains_text("4.0 GB of memory, ulimit -v leaves 3.0 GB: take less"));
  // The processes of a host share its memory, but not their own limits.
  CHECK_THAT(memory_shortage({2'600'000'000, 2, "it", "take less"}, limits).value_or(""),
             contains_text("5.2 GB of memory in 2 processes, the cgroup /a leaves 5.0 GB"));
}

TEST_CASE("More memory than any machine has is refused unless forced") {
  CHECK(resident_bytes() > 0);
  CHECK(peak_resident_bytes() >= resident_bytes());
  const MemoryNeed need{uint64_t{1} << 60, 1, "it", "less"};
  CHECK_THROWS_WITH(check_memory(need, false), contains_text("it takes about 1152921504.6 GB"));
  CHECK(check_memory(need, true).has_value());
  CHECK_FALSE(check_memory({1, 1, "it", "less"}, false));
}

TEST_CASE("The processors are those of the thread's affinity") {
  const TempDir root;
  CHECK(usable_processors(root.path()) == processors_of_this_thread());
  int found = 0;
  std::thread([&] {
    cpu_set_t all, first;
    CPU_ZERO(&first);
    sched_getaffinity(0, sizeof(all), &all);
    for (int processor = 0; CPU_COUNT(&first) == 0; ++processor) {
      if (CPU_ISSET(processor, &all)) {
        CPU_SET(processor, &first);
      }
    }
    sched_setaffinity(0, sizeof(first), &first);
    found = usable_processors(root.path());
  }).join();
  CHECK(found == 1);
}

TEST_CASE("The lowest CPU quota of a group and its parents counts, rounded up") {
  const TempDir root;
  const auto group = root / "sys/fs/cgroup/jobs", v1 = root / "sys/fs/cgroup/cpu/batch";
  const int all = processors_of_this_thread();
  write_file(root / "proc/self/cgroup", "0::/jobs/7\n");
  write_file(group / "7/cpu.max", "max 100000\n");
  CHECK(usable_processors(root.path()) == all);
  for (const auto& [quota, expected] :
       {std::pair("50000 100000\n", 1), {"150000 100000\n", std::min(all, 2)}, {"words\n", all}}) {
    write_file(group / "cpu.max", quota);
    CHECK(usable_processors(root.path()) == expected);
  }
  write_file(root / "proc/self/cgroup", "4:cpu,cpuacct:/batch\n3:memory:/\n");  // version 1
  write_file(v1 / "cpu.cfs_period_us", "100000\n");
  write_file(v1 / "cpu.cfs_quota_us", "-1\n");
  CHECK(usable_processors(root.path()) == all);
  write_file(v1 / "cpu.cfs_quota_us", "100000\n");
  CHECK(usable_processors(root.path()) == 1);
}

TEST_CASE("A field of a system file is the text after the colon of its key") {
  const TempDir folder;
  const std::string file = (folder / "status").string();
  write_file(file, "Name:\tmoe\nVmRSS:\t  1234 kB\nEmpty:\nmodel name\t: a: b\n");
  CHECK(system_field(file.c_str(), "Name") == "moe");
  CHECK(system_field(file.c_str(), "model name") == "a: b");
  CHECK(system_field(file.c_str(), "Empty").empty());
  CHECK(system_field(file.c_str(), "Nothing").empty());
  CHECK(system_field("/no/such/file", "Name").empty());
  CHECK(system_bytes(file.c_str(), "VmRSS") == 1234 * 1024);
  CHECK(system_bytes(file.c_str(), "Name") == 0);
}

TEST_CASE("The disk probe measures a rate, leaves no file, and names an unusable folder") {
  const TempDir folder;
  CHECK(probe_disk(folder / "not/yet/there", 1 << 20) > 0);
  DiskProbe probe(folder.path());
  CHECK(probe.append(1 << 20) > 0);
  CHECK(probe.append(1 << 20) > 0);
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK_THAT(test::user_error_of([] { probe_disk("/proc/self", 4096); }),
             contains_text("/proc/self: no file can be written there: "));
}

}  // namespace
}  // namespace moe
