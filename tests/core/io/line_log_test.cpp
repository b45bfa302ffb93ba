#include "core/io/line_log.h"

#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::io {
namespace {

using test::read_file;
using test::TempDir;
using test::write_file;
using Lines = std::vector<std::string>;

const std::string kTitle = "test lines 1";

TEST_CASE("lines come back in order, after any number of openings", "[io]") {
  const TempDir dir;
  const auto file = dir / "a/b/log";
  for (int run = 0; run < 3; ++run) {
    LineLog log(file, kTitle);
    CHECK(log.lines().size() == static_cast<size_t>(run));
    CHECK(log.damaged() == 0);
    log.append("line " + std::to_string(run));
  }
  CHECK((LineLog(file, kTitle).lines() == Lines{"line 0", "line 1", "line 2"}));
  CHECK(read_file(file).starts_with(kTitle + "\n"));
}

TEST_CASE("wherever a write was cut off, the lines before it stay and others follow", "[io]") {
  const TempDir dir;
  const auto file = dir / "log";
  {
    LineLog log(file, kTitle);
    log.append("first");
    log.append("second");
  }
  const std::string whole = read_file(file);
  const size_t first_end = whole.find("first") + 6;
  for (size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    write_file(file, whole.substr(0, length));
    {
      LineLog log(file, kTitle);
      CHECK((log.lines() == (length < first_end ? Lines{} : Lines{"first"})));
      CHECK(log.damaged() == 0);
      log.append("third");
    }
    CHECK((LineLog(file, kTitle).lines() ==
           (length < first_end ? Lines{"third"} : Lines{"first", "third"})));
  }
}

TEST_CASE("a damaged line is left out, whichever byte it is", "[io]") {
  const TempDir dir;
  const auto file = dir / "log";
  {
    LineLog log(file, kTitle);
    log.append("first");
    log.append("second");
    log.append("third");
  }
  const std::string whole = read_file(file);
  const size_t begin = whole.find("first") + 6, end = whole.find("second") + 6;
  for (size_t at = begin; at < end; ++at) {
    CAPTURE(at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_file(file, damaged);
    const LineLog log(file, kTitle);
    CHECK((log.lines() == Lines{"first", "third"}));
    CHECK(log.damaged() == 1);
  }
}

TEST_CASE("a file of something else is refused and left as it is", "[io]") {
  const TempDir dir;
  write_file(dir / "notes.txt", "my own words\n");
  CHECK(test::user_error_of([&] { LineLog(dir / "notes.txt", kTitle); })
            .ends_with("notes.txt: does not begin with 'test lines 1', so it is something else; "
                       "give another file"));
  CHECK(read_file(dir / "notes.txt") == "my own words\n");
  CHECK(test::user_error_of([&] {
          LineLog(dir.path(), kTitle);
        }).ends_with(": cannot be written: Is a directory"));
  CHECK(test::user_error_of([&] {
          LineLog(dir / "notes.txt/log", kTitle);
        }).ends_with("its folder cannot be made: Not a directory"));
}

TEST_CASE("four processes append at once and every line is whole", "[io]") {
  const TempDir dir;
  const auto file = dir / "log";
  constexpr int kWriters = 4, kLines = 200;
  std::vector<pid_t> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    const pid_t child = ::fork();
    if (child == 0) {
      LineLog log(file, kTitle);
      for (int line = 0; line < kLines; ++line) {
        log.append(std::to_string(writer) + " " + std::to_string(line) + std::string(200, 'x'));
      }
      ::_exit(0);
    }
    writers.push_back(child);
  }
  for (const pid_t child : writers) {
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  const LineLog log(file, kTitle);
  CHECK(log.damaged() == 0);
  CHECK(std::set<std::string>(log.lines().begin(), log.lines().end()).size() == kWriters * kLines);
}

}  // namespace
}  // namespace moe::io
