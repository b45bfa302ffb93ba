#include <sys/stat.h>

#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using moe::test::read_file;
using moe::test::TempDir;
using moe::test::write_file;
namespace fs = std::filesystem;

namespace {

void sweep(const fs::path& folder) {
  moe::io::sweep_partial_files(
      folder, [](std::string_view name) { return name == "a.data"; }, "unfinished");
}

}  // namespace

TEST_CASE("a sweep takes the files that killed processes left, and no other", "[io]") {
  const TempDir dir;
  write_file(dir / "a.data.partial-x7Yz01", "unfinished, and nobody writes it");
  const moe::io::PartialFile live(dir / "a.data");
  moe::io::write_all(live.file(), std::as_bytes(std::span("unfinished", 10)), live.path());
  std::vector<fs::path> others = {"thesis.partial-draft",      // the user's
                                  "a.data.partial-chapters",   // no name of ours: too long
                                  "a.data.partial-x7Yz.1",     // no letter
                                  "b.data.partial-x7Yz01",     // no target
                                  "a.data.partial-x7Yz01.gz",  // more behind it
                                  "old-a.data.partial-x7Yz01"};
  for (const auto& name : others) {
    write_file(dir / name, "unfinished");
  }
  write_file(dir / "a.data.partial-thesis", "years of work");  // our name, another content
  write_file(dir / "a.data.partial-empty0", "");
  fs::create_symlink(dir / "thesis.partial-draft", dir / "a.data.partial-linked");
  fs::create_hard_link(dir / "thesis.partial-draft", dir / "a.data.partial-twice0");
  REQUIRE(::mkfifo((dir / "a.data.partial-fifo00").c_str(), 0600) == 0);
  fs::create_directory(dir / "a.data.partial-folder");
  sweep(dir.path());
  CHECK_FALSE(fs::exists(dir / "a.data.partial-x7Yz01"));
  CHECK(fs::exists(live.path()));
  others.insert(others.end(),
                {"a.data.partial-thesis", "a.data.partial-empty0", "a.data.partial-linked",
                 "a.data.partial-twice0", "a.data.partial-fifo00", "a.data.partial-folder"});
  for (const auto& name : others) {
    INFO(name.string());
    CHECK(fs::exists(fs::symlink_status(dir / name)));
  }
}

TEST_CASE("a file appears whole, in place of a link and not through it", "[io]") {
  const TempDir dir;
  write_file(dir / "theirs", "years");
  write_file(dir / "page.partial", "years");  // a name that nobody gave us
  fs::create_symlink(dir / "theirs", dir / "page");
  moe::io::write_whole(dir / "page", "ours");
  CHECK(read_file(dir / "page") == "ours");
  CHECK_FALSE(fs::is_symlink(dir / "page"));
  CHECK(read_file(dir / "theirs") == "years");
  CHECK(read_file(dir / "page.partial") == "years");
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 3);
}
