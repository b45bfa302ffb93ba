// Partial files, whole writes, and mapped files that are truncated by another program. Each fault
// is raised in a child process.

#include "core/io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <csignal>
#include <set>

#include "core/io/line_log.h"
#include "tests/core/io/child.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::io {
namespace {

using namespace moe::test;
using Lines = std::vector<std::string>;

constexpr size_t kBytes = size_t{3} << 16;  // several pages of any size

struct Ended {
  int code = 0;  // exit code, or minus the signal
  std::string err;
};

Ended run_faulting(const std::function<void()>& work) {
  const TempDir folder;
  const int code = test::run_in_child([&] {
    ::dup2(::open((folder / "err").c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    ::signal(SIGBUS, SIG_DFL);  // without the sanitizer's handler
    work();
    ::_exit(99);  // no fault
  });
  return {code, read_file(folder / "err")};
}

void touch(const std::byte* place) {
  static_cast<void>(*const_cast<const volatile std::byte*>(place));
}

const std::string kTitle = "test lines 1";

void append(const fs::path& file, const Lines& lines) {
  LineLog log(file, kTitle);
  for (const auto& line : lines) {
    log.append(line);
  }
}

TEST_CASE("A sweep removes partial files of ended processes, and no other file", "[io]") {
  const TempDir dir;
  test::write_file(dir / "a.data.partial-x7Yz01", "unfinished, and not locked");
  const PartialFile live(dir / "a.data");
  write_all(live.file(), std::as_bytes(std::span("unfinished", 10)), live.path());
  std::vector<std::string> kept = {"thesis.partial-draft",      // of the user
                                   "a.data.partial-chapters",   // too long a suffix
                                   "a.data.partial-x7Yz.1",     // not only letters and digits
                                   "b.data.partial-x7Yz01",     // another target
                                   "a.data.partial-x7Yz01.gz",  // a second suffix
                                   "old-a.data.partial-x7Yz01"};
  for (const auto& name : kept) {
    test::write_file(dir / name, "unfinished");
  }
  const std::string prefix = "a.data.partial-";
  test::write_file(dir / (prefix + "thesis"), "years of work");  // other first bytes
  test::write_file(dir / (prefix + "empty0"), "");
  fs::create_symlink(dir / "thesis.partial-draft", dir / (prefix + "linked"));
  fs::create_hard_link(dir / "thesis.partial-draft", dir / (prefix + "twice0"));
  REQUIRE(::mkfifo((dir / (prefix + "fifo00")).c_str(), 0600) == 0);
  fs::create_directory(dir / (prefix + "folder"));
  for (const char* suffix : {"thesis", "empty0", "linked", "twice0", "fifo00", "folder"}) {
    kept.push_back(prefix + suffix);
  }
  sweep_partial_files(
      dir.path(), [](std::string_view name) { return name == "a.data"; }, "unfinished");
  CHECK_FALSE(fs::exists(dir / "a.data.partial-x7Yz01"));
  CHECK(fs::exists(live.path()));
  for (const auto& name : kept) {
    INFO(name);
    CHECK(fs::exists(fs::symlink_status(dir / name)));
  }
}

TEST_CASE("write_whole() replaces a link and does not write through it", "[io]") {
  const TempDir dir;
  test::write_file(dir / "theirs", "years");
  test::write_file(dir / "page.partial", "years");  // a file of the user
  fs::create_symlink(dir / "theirs", dir / "page");
  write_whole(dir / "page", "ours");
  CHECK(read_file(dir / "page") == "ours");
  CHECK_FALSE(fs::is_symlink(dir / "page"));
  CHECK(read_file(dir / "theirs") == "years");
  CHECK(read_file(dir / "page.partial") == "years");
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 3);
}

TEST_CASE("Reading a mapped file that was truncated names it and exits with code 1", "[io]") {
  const TempDir folder;
  const auto broken = folder / "broken\033.bin", whole = folder / "whole.bin";
  test::write_file(broken, std::string(kBytes, 'x'));
  test::write_file(whole, std::string(kBytes, 'y'));
  for (const bool moves : {false, true}) {
    const Ended ended = run_faulting([&] {
      MappedFile gone(whole);  // the handler's entry is reused
      gone = MappedFile(broken);
      MappedFile other(whole);
      if (moves) {
        std::swap(gone, other);
      }
      fs::resize_file(broken, 1);
      touch((moves ? gone : other).bytes().data());
      touch((moves ? other : gone).bytes().data());  // the first page still exists
      touch(&(moves ? other : gone).bytes()[kBytes - 1]);
    });
    CHECK(ended.code == 1);
    CHECK(ended.err.starts_with("moe: " + (folder / "broken?.bin").string() + ": was cut short"));
    fs::resize_file(broken, kBytes);
  }
}

TEST_CASE("A SIGBUS outside all mapped files is passed to the previous handler", "[io]") {
  const TempDir folder;
  const auto file = folder / "mapped.bin", other = folder / "other.bin";
  test::write_file(file, std::string(kBytes, 'x'));
  const auto fault_elsewhere = [&] {
    const MappedFile mapped(file);
    const int descriptor = ::open(other.c_str(), O_RDONLY);
    void* data = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, descriptor, 0);
    fs::resize_file(other, 0);
    touch(static_cast<const std::byte*>(data));
  };
  for (const bool with_info : {false, true}) {
    test::write_file(other, std::string(kBytes, 'x'));
    const Ended ended = run_faulting([&] {
      struct sigaction before = {};
      if (with_info) {
        before.sa_flags = SA_SIGINFO;
        before.sa_sigaction = [](int, siginfo_t* info, void*) {
          ::_exit(info->si_addr != nullptr ? 7 : 8);
        };
      } else {
        before.sa_handler = [](int) { ::_exit(6); };
      }
      ::sigaction(SIGBUS, &before, nullptr);
      fault_elsewhere();
    });
    CHECK(ended.code == (with_info ? 7 : 6));
    CHECK(ended.err.empty());
  }
  test::write_file(other, std::string(kBytes, 'x'));
  CHECK(run_faulting(fault_elsewhere).code == -SIGBUS);  // the default
  CHECK(run_faulting([&] {
          const MappedFile mapped(file);
          ::raise(SIGBUS);
        }).code == -SIGBUS);
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
