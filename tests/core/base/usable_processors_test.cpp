// Trees of files stand in for /proc and /sys; what the scheduler allows is set here.

#include <sched.h>

#include <thread>

#include "core/base/resources.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace moe {
namespace {

using test::TempDir;
using test::write_file;

int allowed_here() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  return CPU_COUNT(&allowed);
}

TEST_CASE("without control groups the scheduler says how many processors there are", "[base]") {
  const TempDir root;
  CHECK(usable_processors(root.path()) == allowed_here());
}

TEST_CASE("a thread that may run on one processor has one", "[base]") {
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
    found = usable_processors(TempDir().path());
  }).join();
  CHECK(found == 1);
}

TEST_CASE("the least quota of a group and those above it counts, rounded up", "[base]") {
  const TempDir root;
  const auto mount = root / "sys/fs/cgroup";
  const int all = allowed_here();
  write_file(root / "proc/self/cgroup", "0::/jobs/7\n");
  write_file(mount / "jobs/7/cpu.max", "max 100000\n");
  CHECK(usable_processors(root.path()) == all);
  write_file(mount / "jobs/cpu.max", "50000 100000\n");
  CHECK(usable_processors(root.path()) == 1);
  write_file(mount / "jobs/cpu.max", "150000 100000\n");
  CHECK(usable_processors(root.path()) == std::min(all, 2));
  write_file(mount / "jobs/cpu.max", "words\n");
  CHECK(usable_processors(root.path()) == all);
}

TEST_CASE("a quota of version 1 counts, -1 is none", "[base]") {
  const TempDir root;
  const auto group = root / "sys/fs/cgroup/cpu/batch";
  write_file(root / "proc/self/cgroup", "4:cpu,cpuacct:/batch\n3:memory:/\n");
  write_file(group / "cpu.cfs_period_us", "100000\n");
  write_file(group / "cpu.cfs_quota_us", "-1\n");
  CHECK(usable_processors(root.path()) == allowed_here());
  write_file(group / "cpu.cfs_quota_us", "100000\n");
  CHECK(usable_processors(root.path()) == 1);
}

}  // namespace
}  // namespace moe
