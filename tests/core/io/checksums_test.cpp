#include "core/io/checksums.h"

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe::io;
using namespace moe::test;
using moe::Json;

namespace {

std::string hash_of_file(
    const fs::path& file, const std::function<void()>& on_block = [] {}) {
  ContentHash hash;
  hash.update_file(file, on_block);
  return hash.digest().hex();
}

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Writes files a and b, and their checksums. Returns the list of checksums.
Json write_listed_files(const TempDir& dir) {
  write_file(dir / "a", "x");
  write_file(dir / "b", "y");
  write_checksums(dir.path());
  return Json::parse(read_file(dir / "checksums.json"));
}

std::string damage(const TempDir& dir) { return find_damage(dir.path()).value_or(""); }

}  // namespace

TEST_CASE("The digests are those of the reference implementation of XXH3", "[io]") {
  CHECK(ContentHash().digest().hex() == "99aa06d3014798d86001c324468d497f");  // xxhsum -H2
  CHECK(compute_digest(as_bytes("a")).hex() == "a96faf705af16834e6c632b61e964e1f");
  CHECK(checksum_text("") == "2d06800538d394c2");
}

TEST_CASE("A digest does not depend on the pieces of its bytes; texts keep their borders", "[io]") {
  const std::string text(3000, 'x');
  ContentHash pieces;
  for (size_t at = 0; at < text.size(); at += 7) {
    pieces.update(as_bytes(text).subspan(at, std::min<size_t>(7, text.size() - at)));
  }
  CHECK(pieces.digest() == compute_digest(as_bytes(text)));
  ContentHash one, other;
  one.update_text("ab");
  one.update_text("c");
  other.update_text("a");
  other.update_text("bc");
  CHECK_FALSE(one.digest() == other.digest());
}

TEST_CASE("The hash of a file covers every byte; a file that grows meanwhile is refused", "[io]") {
  const TempDir dir;
  std::string bytes((size_t{2} << 20) + 5, 'x');
  write_file(dir / "a", bytes);
  int blocks = 0;
  const std::string whole = hash_of_file(dir / "a", [&] { ++blocks; });
  CHECK(blocks == 3);
  CHECK(hash_of_file(dir / "a") == whole);
  bytes.back() = 'y';
  write_file(dir / "a", bytes);
  CHECK(hash_of_file(dir / "a") != whole);
  const auto grow_once = [&] {
    if (blocks++ == 3) {
      write_file(dir / "a", bytes + "more");
    }
  };
  CHECK_THAT(user_error_of([&] { hash_of_file(dir / "a", grow_once); }),
             contains_text((dir / "a").string() + ": changed while it was read"));
  CHECK_THAT(user_error_of([&] { hash_of_file(dir / "none"); }), contains_text("no such file"));
  CHECK_THAT(user_error_of([&] { hash_of_file(dir.path()); }), contains_text("is a folder"));
}

TEST_CASE("A file that changed, shrank, is missing or cannot be read is named", "[io]") {
  const TempDir dir;
  std::string bytes(3'000'000, 'x');
  write_file(dir / "a", bytes);
  write_file(dir / "b", "");
  write_checksums(dir.path());
  CHECK_FALSE(find_damage(dir.path()).has_value());
  write_file(dir / "a", bytes.substr(1));
  CHECK(damage(dir) == "a is not as it was written");
  bytes.back() = 'y';
  write_file(dir / "a", bytes);
  CHECK(damage(dir) == "a is not as it was written");
  fs::remove(dir / "a");
  CHECK(damage(dir) == "a is missing");
  fs::create_symlink("a", dir / "a");  // a link to itself
  CHECK(damage(dir).starts_with("a cannot be read: "));
}

TEST_CASE("An added file, and a changed list of checksums, are damage", "[io]") {
  const TempDir dir;
  Json list = write_listed_files(dir);
  const Json whole = list;
  write_file(dir / ".nfs0001", "left by the file system");
  CHECK_FALSE(find_damage(dir.path()).has_value());
  write_file(dir / "later", "z");
  CHECK_THAT(damage(dir), contains_text("'later' was added later"));
  fs::remove(dir / "later");
  fs::create_directory(dir / "folder");
  CHECK_THAT(damage(dir), contains_text("'folder' was added later"));
  fs::remove(dir / "folder");
  list["xxh3"].erase("b");
  write_file(dir / "checksums.json", list.dump());
  CHECK(damage(dir) == "checksums.json is not as it was written");
  fs::remove(dir / "b");  // together with its entry
  CHECK(damage(dir) == "checksums.json is not as it was written");
  write_file(dir / "b", "y");
  write_file(dir / "checksums.json", whole.dump(4));  // the same list in another layout
  CHECK_FALSE(find_damage(dir.path()).has_value());
}

TEST_CASE("A list of an older version, without a checksum of itself, is trusted", "[io]") {
  const TempDir dir;
  Json list = write_listed_files(dir);
  list.erase("list");
  write_file(dir / "checksums.json", list.dump());
  CHECK_FALSE(find_damage(dir.path()).has_value());
  list["xxh3"].erase("b");
  write_file(dir / "checksums.json", list.dump());
  CHECK_THAT(damage(dir), contains_text("'b' was added later"));
}

TEST_CASE("A missing or invalid list, and one that names other folders, are damage", "[io]") {
  const TempDir dir;
  CHECK_FALSE(damage(dir).empty());
  write_file(dir / "a", "x");
  for (const char* text : {"", "{", "[]", "{}", "{\"xxh3\": 3}", "{\"xxh3\": {\"a\": 1}}"}) {
    write_file(dir / "checksums.json", text);
    CAPTURE(text);
    CHECK_FALSE(damage(dir).empty());
  }
  fs::remove(dir / "a");
  for (const char* name : {"../a", "/etc/hostname", ""}) {
    write_file(dir / "checksums.json", Json{{"xxh3", {{name, "2d06800538d394c2"}}}}.dump());
    CHECK_THAT(damage(dir), contains_text(std::string("checksums.json names '") + name + "'"));
  }
}
