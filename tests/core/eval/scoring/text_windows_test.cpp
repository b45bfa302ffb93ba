// Raw text cut into windows, each with the next token and the source.
#include "core/eval/scoring/score.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;
using Tokens = std::vector<int64_t>;

constexpr int64_t kEnd = 2;

// Encodes each byte as its value.
TextEncoder byte_encoder(int64_t window, bool adds_bos = false) {
  return {[](std::string_view text) { return Tokens(text.begin(), text.end()); }, 1, "<s>",
          adds_bos, window};
}

TEST_CASE("a text is cut into windows, each with the first token of the next as target", "[eval]") {
  const TempDir folder;
  write_file(folder / "a.txt", "abcde");
  const std::vector<Request> windows =
      read_text_windows({folder / "a.txt"}, byte_encoder(2), kEnd, std::nullopt);
  REQUIRE(windows.size() == 3);
  CHECK(windows[0].tokens == Tokens{'a', 'b', 'c'});
  CHECK(windows[1].tokens == Tokens{'c', 'd', 'e'});
  CHECK(windows[2].tokens == Tokens{'e', kEnd});
  CHECK(windows[0].scored == 0);
  CHECK(windows[2].source == (folder / "a.txt").string());
  const std::vector<Request> with_bos =
      read_text_windows({folder / "a.txt"}, byte_encoder(8, true), kEnd, std::nullopt);
  CHECK(with_bos.at(0).tokens == Tokens{1, 'a', 'b', 'c', 'd', 'e', kEnd});
}

TEST_CASE("no window is longer than 2048 tokens", "[eval]") {
  const TempDir folder;
  write_file(folder / "a.txt", std::string(5000, 'a'));
  const std::vector<Request> windows =
      read_text_windows({folder / "a.txt"}, byte_encoder(1 << 20), kEnd, std::nullopt);
  REQUIRE(windows.size() == 3);
  CHECK(windows[0].inputs() == 2048);
  CHECK(windows[2].inputs() == 5000 - 2 * 2048);
}

TEST_CASE("the source of a text is that of its record, else its file; a limit counts texts",
          "[eval]") {
  const TempDir folder;
  write_file(folder / "a.jsonl",
             "{\"text\": \"ab\", \"source\": \"books\"}\n{\"text\": \"c\"}\n"
             "{\"text\": \"d\", \"source\": 5}\n");
  write_file(folder / "b.txt", "x\n<|endoftext|>\ny\n");
  const auto read = [&](std::optional<int64_t> limit) {
    return read_text_windows({folder / "a.jsonl", folder / "b.txt"}, byte_encoder(8), kEnd, limit);
  };
  const std::vector<Request> all = read(std::nullopt);
  REQUIRE(all.size() == 5);
  CHECK(all[0].source == "books");
  CHECK(all[1].source == (folder / "a.jsonl").string());
  CHECK(all[2].source == (folder / "a.jsonl").string());
  CHECK(all[4].source == (folder / "b.txt").string());
  const std::vector<Request> one = read(1);
  REQUIRE(one.size() == 2);
  CHECK(one[1].tokens == Tokens{'x', kEnd});
}

TEST_CASE("a text that cannot be read is refused with its file and line", "[eval]") {
  const TempDir folder;
  const auto error = [](const std::filesystem::path& file) {
    return user_error_of([&] { read_text_windows({file}, byte_encoder(8), kEnd, std::nullopt); });
  };
  const auto file = folder / "a.jsonl";
  for (const auto& [text, place] :
       {std::pair("{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", " line 2"),
        std::pair("{\"text\": \"a\"}\n[1]\n", " line 2"), std::pair("{\"text\": \"\"}\n", ": ")}) {
    write_file(file, text);
    CHECK(error(file).starts_with(file.string() + place));
  }
  CHECK(error(folder / "none").starts_with("--stats-text " + (folder / "none").string()));
  CHECK(error(folder.path()).starts_with("--stats-text " + folder.path().string()));
}

}  // namespace
}  // namespace moe::eval
