// Partial files, whole writes, mapped files that are truncated by another program, line logs and
// checksums. Faults of mapped files are raised in a child process.

#include "core/io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <set>

#include "core/base/json.h"
#include "core/io/checksums.h"
#include "core/io/line_log.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::io {
namespace {

using namespace moe::test;
using Lines = std::vector<std::string>;

constexpr size_t kBytes = size_t{3} << 16;  // several pages of any size

struct ExitResult {
  int code = 0;  // exit code, or minus the signal
  std::string err;
};

ExitResult run_faulting(const std::function<void()>& work) {
  const TempDir folder;
  const int code = test::run_in_child([&] {
    ::dup2(::open((folder / "err").c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    ::signal(SIGBUS, SIG_DFL);  // without the sanitizer's handler
    work();
    ::_exit(99);  // no fault
  });
  return {code, read_file(folder / "err")};
}

// Returns true in a process that runs the current case alone. Otherwise starts one and checks that
// it passes: a process installs the handler of SIGBUS once, with its first mapped file.
bool runs_alone() {
  constexpr const char* kAlone = "MOE_TEST_ALONE";
  if (std::getenv(kAlone) != nullptr) {
    return true;
  }
  const std::string name = Catch::getResultCapture().getCurrentTestName();
  CHECK(test::run_in_child([&] {
          ::setenv(kAlone, "1", 1);
          ::execl("/proc/self/exe", "core_io_test", name.c_str(), nullptr);
        }) == 0);
  return false;
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
  test::write_file(dir / "a", "x");
  test::write_file(dir / "b", "y");
  write_checksums(dir.path());
  return Json::parse(read_file(dir / "checksums.json"));
}

std::string damage(const TempDir& dir) { return find_damage(dir.path()).value_or(""); }

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
  if (!runs_alone()) {
    return;
  }
  const TempDir folder;
  const auto broken = folder / "broken\033.bin", whole = folder / "whole.bin";
  test::write_file(broken, std::string(kBytes, 'x'));
  test::write_file(whole, std::string(kBytes, 'y'));
  for (const bool moves : {false, true}) {
    const ExitResult ended = run_faulting([&] {
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
  if (!runs_alone()) {
    return;
  }
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
    const ExitResult ended = run_faulting([&] {
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
  test::write_file(dir / "a", bytes);
  int blocks = 0;
  const std::string whole = hash_of_file(dir / "a", [&] { ++blocks; });
  CHECK(blocks == 3);
  CHECK(hash_of_file(dir / "a") == whole);
  bytes.back() = 'y';
  test::write_file(dir / "a", bytes);
  CHECK(hash_of_file(dir / "a") != whole);
  const auto grow_once = [&] {
    if (blocks++ == 3) {
      test::write_file(dir / "a", bytes + "more");
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
  test::write_file(dir / "a", bytes);
  test::write_file(dir / "b", "");
  write_checksums(dir.path());
  CHECK_FALSE(find_damage(dir.path()).has_value());
  test::write_file(dir / "a", bytes.substr(1));
  CHECK(damage(dir) == "a is not as it was written");
  bytes.back() = 'y';
  test::write_file(dir / "a", bytes);
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
  test::write_file(dir / ".nfs0001", "left by the file system");
  CHECK_FALSE(find_damage(dir.path()).has_value());
  test::write_file(dir / "later", "z");
  CHECK_THAT(damage(dir), contains_text("'later' was added later"));
  fs::remove(dir / "later");
  fs::create_directory(dir / "folder");
  CHECK_THAT(damage(dir), contains_text("'folder' was added later"));
  fs::remove(dir / "folder");
  list["xxh3"].erase("b");
  test::write_file(dir / "checksums.json", list.dump());
  CHECK(damage(dir) == "checksums.json is not as it was written");
  fs::remove(dir / "b");  // together with its entry
  CHECK(damage(dir) == "checksums.json is not as it was written");
  test::write_file(dir / "b", "y");
  test::write_file(dir / "checksums.json", whole.dump(4));  // the same list in another layout
  CHECK_FALSE(find_damage(dir.path()).has_value());
}

TEST_CASE("A list of an older version, without a checksum of itself, is trusted", "[io]") {
  const TempDir dir;
  Json list = write_listed_files(dir);
  list.erase("list");
  test::write_file(dir / "checksums.json", list.dump());
  CHECK_FALSE(find_damage(dir.path()).has_value());
  list["xxh3"].erase("b");
  test::write_file(dir / "checksums.json", list.dump());
  CHECK_THAT(damage(dir), contains_text("'b' was added later"));
}

TEST_CASE("A missing or invalid list, and one that names other folders, are damage", "[io]") {
  const TempDir dir;
  CHECK_FALSE(damage(dir).empty());
  test::write_file(dir / "a", "x");
  for (const char* text : {"", "{", "[]", "{}", "{\"xxh3\": 3}", "{\"xxh3\": {\"a\": 1}}"}) {
    test::write_file(dir / "checksums.json", text);
    CAPTURE(text);
    CHECK_FALSE(damage(dir).empty());
  }
  fs::remove(dir / "a");
  for (const char* name : {"../a", "/etc/hostname", ""}) {
    test::write_file(dir / "checksums.json", Json{{"xxh3", {{name, "2d06800538d394c2"}}}}.dump());
    CHECK_THAT(damage(dir), contains_text(std::string("checksums.json names '") + name + "'"));
  }
}

}  // namespace
}  // namespace moe::io
