#include "core/io/checksums.h"

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using moe::io::find_damage;
using moe::io::write_checksums;
using moe::test::TempDir;
using moe::test::write_file;

TEST_CASE("a folder is whole until one of its files changes", "[io]") {
  const TempDir dir;
  write_file(dir / "a", std::string(3'000'000, 'x'));
  write_file(dir / "b", "");
  write_checksums(dir.path());
  CHECK_FALSE(find_damage(dir.path()).has_value());
  write_file(dir / "later", "not known, not asked for");
  CHECK_FALSE(find_damage(dir.path()).has_value());

  std::string changed(3'000'000, 'x');
  changed[2'999'999] = 'y';
  write_file(dir / "a", changed);
  CHECK(find_damage(dir.path()) == "a is not as it was written");
  write_file(dir / "a", std::string(2'999'999, 'x'));
  CHECK(find_damage(dir.path()) == "a is not as it was written");
  std::filesystem::remove(dir / "a");
  CHECK(find_damage(dir.path()) == "a is missing");
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
  CHECK(moe::test::read_file(dir / "checksums.json").find("\"2d06800538d394c2\"") !=
        std::string::npos);
}
