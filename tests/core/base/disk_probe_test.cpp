#include "core/base/resources.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe {
namespace {

TEST_CASE("the disk probe measures a rate and leaves nothing behind", "[base]") {
  const test::TempDir folder;
  CHECK(probe_disk(folder / "not/yet/there", 1 << 20) > 0);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a disk probe grows without a name", "[base]") {
  const test::TempDir folder;
  DiskProbe probe(folder.path());
  CHECK(probe.append(1 << 20) > 0);
  CHECK(probe.append(1 << 20) > 0);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("the disk probe says where it cannot write", "[base]") {
  const std::string message = test::user_error_of([] { probe_disk("/proc/self", 4096); });
  CHECK(message.rfind("/proc/self: no file can be written there: ", 0) == 0);
}

}  // namespace
}  // namespace moe
