#include "core/io/checksums.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::io::ContentHash;
using moe::io::Digest;
using moe::test::TempDir;
using moe::test::user_error_of;

namespace {

const auto kNothing = [] {};

std::string hash_of_file(const std::filesystem::path& file) {
  ContentHash hash;
  hash.update_file(file, kNothing);
  return hash.digest().hex();
}

}  // namespace

TEST_CASE("the digest is XXH3's at 128 bits", "[io]") {
  // xxhsum -H2 of an empty file, and of "a".
  CHECK(ContentHash().digest().hex() == "99aa06d3014798d86001c324468d497f");
  CHECK(moe::io::digest_of(std::as_bytes(std::span("a", 1))).hex() ==
        "a96faf705af16834e6c632b61e964e1f");
}

TEST_CASE("pieces give the digest of the whole, texts keep their borders", "[io]") {
  const std::string text(3000, 'x');
  ContentHash pieces;
  for (size_t at = 0; at < text.size(); at += 7) {
    pieces.update(std::as_bytes(std::span(text)).subspan(at, std::min<size_t>(7, 3000 - at)));
  }
  CHECK(pieces.digest() == moe::io::digest_of(std::as_bytes(std::span(text))));
  ContentHash one, other;
  one.update_text("ab");
  one.update_text("c");
  other.update_text("a");
  other.update_text("bc");
  CHECK_FALSE(one.digest() == other.digest());
}

TEST_CASE("a file counts with its length and every byte of it, block by block", "[io]") {
  const TempDir dir;
  std::string bytes((size_t{2} << 20) + 5, 'x');
  moe::test::write_file(dir / "a", bytes);
  const std::string whole = hash_of_file(dir / "a");
  CHECK(hash_of_file(dir / "a") == whole);
  bytes.back() = 'y';
  moe::test::write_file(dir / "a", bytes);
  CHECK(hash_of_file(dir / "a") != whole);
  int blocks = 0;
  ContentHash().update_file(dir / "a", [&] { ++blocks; });
  CHECK(blocks == 3);
  CHECK(user_error_of([&] { hash_of_file(dir / "none"); }) ==
        (dir / "none").string() + ": no such file");
  CHECK(user_error_of([&] { hash_of_file(dir.path()); }) ==
        dir.path().string() + ": is a folder, not a regular file");
}

TEST_CASE("a file that grows while it is read is refused", "[io]") {
  const TempDir dir;
  moe::test::write_file(dir / "a", std::string(size_t{2} << 20, 'x'));
  int blocks = 0;
  const std::string message = user_error_of([&] {
    ContentHash().update_file(dir / "a", [&] {
      if (++blocks == 1) {
        moe::test::write_file(dir / "a", std::string(size_t{3} << 20, 'x'));
      }
    });
  });
  CHECK(message == (dir / "a").string() +
                       ": changed while it was read; start again when nothing writes to it");
}
