#include "core/io/output_checks.h"

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe::io;
using namespace moe::test;
namespace fs = std::filesystem;

TEST_CASE("A path inside a folder is recognized through links, slashes and dots", "[io]") {
  const TempDir dir;
  fs::create_directories(dir / "a/b");
  fs::create_directory_symlink(dir / "a", dir / "link");
  for (const char* inner : {"a", "a/", "a/b", "a/b/../c", "link/b", "link", "a/none/x"}) {
    INFO(inner);
    for (const char* folder : {"a", "a/", "link"}) {
      CHECK(is_within(dir / inner, dir / folder));
    }
  }
  for (const char* other : {"ab", "a/..", "none", "a/../c"}) {
    INFO(other);
    CHECK_FALSE(is_within(dir / other, dir / "a"));
  }
}

TEST_CASE("An input inside the output, or equal to it, is refused", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  write_file(out / "data", "x");
  fs::create_directory_symlink(out, dir / "link");
  for (const fs::path& input : {out / "data", dir / "link" / "data"}) {
    CHECK_THAT(user_error_of([&] {
                 check_inputs_outside(out, {"", dir / "elsewhere", input});
               }),
               contains_text(out.string() + ": " + input.string() + " lies inside it"));
  }
  for (const fs::path& same : {out, out / "data"}) {
    CHECK_THAT(user_error_of([&] { check_inputs_outside(same, {same}); }),
               contains_text(same.string() + ": is read by this command"));
  }
  CHECK_NOTHROW(check_inputs_outside(out, {"", dir / "elsewhere", dir / "outside"}));
  CHECK_NOTHROW(check_inputs_outside(dir / "none", {dir / "none/data"}));  // nothing is removed
}
