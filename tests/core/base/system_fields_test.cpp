#include "core/base/resources.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace moe {
namespace {

TEST_CASE("a field is what follows its key's colon", "[base]") {
  const test::TempDir folder;
  const std::string file = (folder / "status").string();
  test::write_file(file, "Name:\tmoe\nVmRSS:\t  1234 kB\nEmpty:\nmodel name\t: a: b\n");
  CHECK(system_field(file.c_str(), "Name") == "moe");
  CHECK(system_field(file.c_str(), "model name") == "a: b");
  CHECK(system_field(file.c_str(), "Empty").empty());
  CHECK(system_field(file.c_str(), "Nothing").empty());
  CHECK(system_field("/no/such/file", "Name").empty());
  CHECK(system_bytes(file.c_str(), "VmRSS") == 1234 * 1024);
  CHECK(system_bytes(file.c_str(), "Name") == 0);
}

TEST_CASE("this process has memory", "[base]") {
  CHECK(system_bytes("/proc/self/status", "VmRSS") > 0);
}

}  // namespace
}  // namespace moe
