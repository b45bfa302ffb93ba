#include "core/io/output_checks.h"

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::io::check_inputs_outside;
using moe::io::lies_in;
using moe::test::TempDir;
using moe::test::user_error_of;
using moe::test::write_file;
namespace fs = std::filesystem;

TEST_CASE("what lies in a folder is known through links, slashes and dots", "[io]") {
  const TempDir dir;
  fs::create_directories(dir / "a/b");
  fs::create_directory_symlink(dir / "a", dir / "link");
  for (const char* inner : {"a", "a/", "a/b", "a/b/../c", "link/b", "link", "a/none/x"}) {
    INFO(inner);
    CHECK(lies_in(dir / inner, dir / "a"));
    CHECK(lies_in(dir / inner, dir / "a/"));
    CHECK(lies_in(dir / inner, dir / "link"));
  }
  for (const char* other : {"ab", "a/..", "none", "a/../c"}) {
    INFO(other);
    CHECK_FALSE(lies_in(dir / other, dir / "a"));
  }
}

TEST_CASE("an input that lies in the output is not removed with it", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  write_file(out / "data", "x");
  fs::create_directory_symlink(out, dir / "link");
  for (const fs::path& input : {out / "data", dir / "link" / "data"}) {
    CHECK(user_error_of([&] {
            check_inputs_outside(out, {"", dir / "elsewhere", input});
          }) == out.string() + ": " + input.string() +
                    " lies inside it and would be removed; give another output folder");
  }
  for (const fs::path& same : {out, out / "data"}) {
    CHECK(user_error_of([&] { check_inputs_outside(same, {same}); }) ==
          same.string() + ": is read by this command and would be replaced; give another output");
  }
  CHECK_NOTHROW(check_inputs_outside(out, {"", dir / "elsewhere", dir / "outside"}));
  CHECK_NOTHROW(check_inputs_outside(dir / "none", {dir / "none/data"}));  // nothing to remove
}
