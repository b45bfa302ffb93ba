#include "core/io/line_log.h"

#include <set>

#include "tests/core/io/child.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::io {
namespace {

using namespace test;
using Lines = std::vector<std::string>;

const std::string kTitle = "test lines 1";

void append(const std::filesystem::path& file, const Lines& lines) {
  LineLog log(file, kTitle);
  for (const auto& line : lines) {
    log.append(line);
  }
}

TEST_CASE("A log returns its lines in order after every reopening", "[io]") {
  const TempDir dir;
  const auto file = dir / "a/b/log";
  for (size_t run = 0; run < 3; ++run) {
    LineLog log(file, kTitle);
    CHECK(log.lines().size() == run);
    CHECK(log.damaged() == 0);
    log.append("line " + std::to_string(run));
  }
  CHECK((LineLog(file, kTitle).lines() == Lines{"line 0", "line 1", "line 2"}));
  CHECK(read_file(file).starts_with(kTitle + "\n"));
}

TEST_CASE("A log truncated at any byte keeps the whole lines and accepts others", "[io]") {
  const TempDir dir;
  const auto file = dir / "log";
  append(file, {"first", "second"});
  const std::string whole = read_file(file);
  for (size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    write_file(file, whole.substr(0, length));
    Lines expected;
    if (length >= whole.find("first") + 6) {
      expected.push_back("first");
    }
    LineLog log(file, kTitle);
    CHECK((log.lines() == expected));
    CHECK(log.damaged() == 0);
    log.append("third");
    expected.push_back("third");
    CHECK((LineLog(file, kTitle).lines() == expected));
  }
}

TEST_CASE("A line with any damaged byte is omitted and counted", "[io]") {
  const TempDir dir;
  const auto file = dir / "log";
  append(file, {"first", "second", "third"});
  const std::string whole = read_file(file);
  for (size_t at = whole.find("first") + 6; at < whole.find("second") + 6; ++at) {
    CAPTURE(at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_file(file, damaged);
    const LineLog log(file, kTitle);
    CHECK((log.lines() == Lines{"first", "third"}));
    CHECK(log.damaged() == 1);
  }
}

TEST_CASE("A file with another title, a folder and a file as parent are refused", "[io]") {
  const TempDir dir;
  write_file(dir / "notes.txt", "my own words\n");
  for (const auto& [file, fact] :
       {std::pair(dir / "notes.txt", "notes.txt: does not begin with 'test lines 1'"),
        std::pair(dir.path(), ": cannot be written: Is a directory"),
        std::pair(dir / "notes.txt/log", "its folder cannot be created: Not a directory")}) {
    CHECK_THAT(user_error_of([&path = file] { LineLog(path, kTitle); }), contains_text(fact));
  }
  CHECK(read_file(dir / "notes.txt") == "my own words\n");
}

TEST_CASE("Lines that four processes append at once stay whole", "[io]") {
  const TempDir dir;
  const auto file = dir / "log";
  constexpr int kWriters = 4, kLines = 200;
  std::vector<pid_t> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.push_back(start_child([&, writer] {
      LineLog log(file, kTitle);
      for (int line = 0; line < kLines; ++line) {
        log.append(std::to_string(writer) + " " + std::to_string(line) + std::string(200, 'x'));
      }
    }));
  }
  for (const pid_t writer : writers) {
    CHECK(wait_for_child(writer) == 0);
  }
  const LineLog log(file, kTitle);
  CHECK(log.damaged() == 0);
  CHECK(std::set<std::string>(log.lines().begin(), log.lines().end()).size() == kWriters * kLines);
}

}  // namespace
}  // namespace moe::io
