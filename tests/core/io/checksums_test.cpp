#include "core/io/checksums.h"

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using moe::Json;
using moe::io::find_damage;
using moe::io::write_checksums;
using moe::test::read_file;
using moe::test::TempDir;
using moe::test::write_file;
namespace fs = std::filesystem;

TEST_CASE("a folder is whole until one of its files changes", "[io]") {
  const TempDir dir;
  write_file(dir / "a", std::string(3'000'000, 'x'));
  write_file(dir / "b", "");
  write_checksums(dir.path());
  CHECK_FALSE(find_damage(dir.path()).has_value());

  std::string changed(3'000'000, 'x');
  changed[2'999'999] = 'y';
  write_file(dir / "a", changed);
  CHECK(find_damage(dir.path()) == "a is not as it was written");
  write_file(dir / "a", std::string(2'999'999, 'x'));
  CHECK(find_damage(dir.path()) == "a is not as it was written");
  fs::remove(dir / "a");
  CHECK(find_damage(dir.path()) == "a is missing");
}

TEST_CASE("a link that leads to itself is named as damage", "[io]") {
  const TempDir dir;
  write_file(dir / "a", "x");
  write_checksums(dir.path());
  fs::remove(dir / "a");
  fs::create_symlink("a", dir / "a");
  CHECK(find_damage(dir.path()).value_or("").starts_with("a cannot be read: "));
}

TEST_CASE("a file that was added, or that the list lost, makes a folder another one", "[io]") {
  const TempDir dir;
  write_file(dir / "a", "x");
  write_file(dir / "b", "y");
  write_checksums(dir.path());
  write_file(dir / ".nfs0001", "left by the file system");
  CHECK_FALSE(find_damage(dir.path()).has_value());
  write_file(dir / "later", "z");
  CHECK(find_damage(dir.path()) == "'later' was added later (checksums.json does not list it)");
  fs::remove(dir / "later");
  fs::create_directory(dir / "folder");
  CHECK(find_damage(dir.path()) == "'folder' was added later (checksums.json does not list it)");
  fs::remove(dir / "folder");

  Json list = Json::parse(read_file(dir / "checksums.json"));
  const Json whole = list;
  list["xxh3"].erase("b");
  write_file(dir / "checksums.json", list.dump());
  CHECK(find_damage(dir.path()) == "checksums.json is not as it was written");
  fs::remove(dir / "b");  // together with its entry
  CHECK(find_damage(dir.path()) == "checksums.json is not as it was written");
  write_file(dir / "b", "y");
  write_file(dir / "checksums.json", whole.dump(4));  // laid out otherwise, the same list
  CHECK_FALSE(find_damage(dir.path()).has_value());
}

TEST_CASE("a list of an older version, without a sum of its own, is believed", "[io]") {
  const TempDir dir;
  write_file(dir / "a", "x");
  write_file(dir / "b", "y");
  write_checksums(dir.path());
  Json list = Json::parse(read_file(dir / "checksums.json"));
  list.erase("list");
  write_file(dir / "checksums.json", list.dump());
  CHECK_FALSE(find_damage(dir.path()).has_value());
  list["xxh3"].erase("b");
  write_file(dir / "checksums.json", list.dump());
  CHECK(find_damage(dir.path()) == "'b' was added later (checksums.json does not list it)");
}

TEST_CASE("a list that names files elsewhere is damaged", "[io]") {
  const TempDir dir;
  for (const char* name : {"../a", "/etc/hostname", ""}) {
    write_file(dir / "checksums.json", Json{{"xxh3", {{name, "2d06800538d394c2"}}}}.dump());
    CHECK(find_damage(dir.path()) ==
          fmt::format("checksums.json names '{}', which is no file of the folder", name));
  }
}

TEST_CASE("checksums that cannot be read are damage too", "[io]") {
  const TempDir dir;
  CHECK(find_damage(dir.path()).has_value());
  for (const char* text : {"", "{", "[]", "{}", "{\"xxh3\": 3}", "{\"xxh3\": {\"a\": 1}}"}) {
    write_file(dir / "a", "x");
    write_file(dir / "checksums.json", text);
    INFO(text);
    CHECK(find_damage(dir.path()).has_value());
  }
}

TEST_CASE("the digest is XXH3's", "[io]") {
  const TempDir dir;
  write_file(dir / "empty", "");
  write_checksums(dir.path());
  // XXH3_64bits of nothing, from the reference implementation's own test vectors.
  CHECK(read_file(dir / "checksums.json").find("\"2d06800538d394c2\"") != std::string::npos);
}
