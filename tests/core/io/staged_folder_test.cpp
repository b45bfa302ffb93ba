#include "core/io/staged_folder.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "core/io/staging_area.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::io::StagedFolder;
using moe::test::TempDir;
using moe::test::user_error_of;
namespace fs = std::filesystem;

namespace {

constexpr int kParts = 5;

// A folder whose parts all say the same number, with a size that takes more than one page.
void write_parts(const StagedFolder& folder, int number) {
  for (int part = 0; part < kParts; ++part) {
    std::string text = fmt::format("{}\n", number);
    text.resize(10'000, '.');
    folder.write_text(fmt::format("part{}", part), text);
  }
}

// The number that every part of `folder` says; -1 when a part is missing, short, or of another
// number.
int whole_number(const fs::path& folder) {
  int number = -1;
  for (int part = 0; part < kParts; ++part) {
    const std::string text = moe::test::read_file(folder / (fmt::format("part{}", part)));
    if (text.size() != 10'000 || (part > 0 && std::stoi(text) != number)) {
      return -1;
    }
    number = std::stoi(text);
  }
  return number;
}

void commit_number(const fs::path& out, bool force, int number) {
  StagedFolder folder(out, force);
  write_parts(folder, number);
  folder.commit();
}

// Leaves what a run leaves that is killed before its first byte.
void make_unfinished(const fs::path& out) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const StagedFolder folder(out, true);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(fs::exists(out.string() + ".partial/new"));
}

std::string names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string() + " ");
  }
  return std::accumulate(names.begin(), names.end(), std::string());
}

// Every name below `folder`, with what its file holds or its link points to.
std::string tree_of(const fs::path& folder) {
  std::set<std::string> lines;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string line = entry.path().string();
    if (entry.is_symlink()) {
      line += " -> " + fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      line += ": " + moe::test::read_file(entry.path());
    }
    lines.insert(line + "\n");
  }
  return std::accumulate(lines.begin(), lines.end(), std::string());
}

// Starts a child that commits number after number to `out`. Kills it `microseconds` after it has
// begun `num_begun` commits, however slow the machine is.
void commit_until_killed(const fs::path& out, int num_begun, int microseconds) {
  void* const shared = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  auto& begun = *new (shared) std::atomic<int>(0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (int number = 0;; ++number) {
      ++begun;
      commit_number(out, true, number);
    }
  }
  while (begun < num_begun) {
    if (::waitpid(child, nullptr, WNOHANG) != 0) {
      FAIL("the child ended by itself");
    }
    std::this_thread::yield();
  }
  ::munmap(shared, sizeof(std::atomic<int>));
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));  // it did not end by itself: no error stopped the loop
}

}  // namespace

TEST_CASE("a folder appears whole at commit and not before", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "new/deep/out";
  {
    StagedFolder folder(out.string() + "/", false);
    CHECK(folder.path() == out.string() + ".partial/new");
    folder.write_text("a.txt", "hello");
    folder.write_text("sub/b.txt", "inside");
    CHECK_FALSE(fs::exists(out));
    folder.commit();
    CHECK(moe::test::read_file(out / "a.txt") == "hello");
  }
  CHECK(moe::test::read_file(out / "sub/b.txt") == "inside");
  CHECK_FALSE(fs::exists(out.string() + ".partial"));
}

TEST_CASE("without commit nothing is left, also when an exception passes", "[io]") {
  const TempDir dir;
  try {
    const StagedFolder folder(dir / "out", false);
    folder.write_text("a", "b");
    throw std::runtime_error("the run failed");
  } catch (const std::runtime_error&) {
  }
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("an output that exists is refused, and replaced with force at commit only", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  commit_number(out, false, 1);
  CHECK(user_error_of([&] { StagedFolder folder(out, false); }) ==
        out.string() + ": exists already; give another output folder, or --force to replace it");
  CHECK_FALSE(fs::exists(out.string() + ".partial"));
  {
    const StagedFolder folder(out, true);
    write_parts(folder, 2);
  }
  CHECK(whole_number(out) == 1);  // not committed
  fs::remove(out / "part0");
  commit_number(out, true, 3);
  CHECK(whole_number(out) == 3);
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("force replaces a folder that moe wrote and that holds nothing else", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  std::string in_the_way;
  SECTION("an empty folder is replaced") { fs::create_directories(out); }
  SECTION("a folder without a list") {
    moe::test::write_file(out / (in_the_way = "config.json"), "x");
  }
  SECTION("a file that was added") {
    commit_number(out, false, 1);
    moe::test::write_file(out / (in_the_way = "notes.txt"), "x");
  }
  SECTION("a file that was added below") {
    commit_number(out, false, 1);
    moe::test::write_file(out / "sub/notes.txt", "x");
    in_the_way = "sub";
  }
  SECTION("a file of ours that was written over") {
    commit_number(out, false, 1);
    moe::test::write_file(out / (in_the_way = "part3"), "years");
  }
  SECTION("a link in place of a file of ours") {
    commit_number(out, false, 1);
    fs::rename(out / "part3", dir / "part3");
    fs::create_symlink(dir / "part3", out / (in_the_way = "part3"));
  }
  SECTION("a list that is a link") {
    commit_number(out, false, 1);
    fs::rename(out / ".moe-output", dir / "list");
    fs::create_symlink(dir / "list", out / ".moe-output");
    in_the_way = "part";
  }
  const std::string before = tree_of(dir.path());
  const std::string error = user_error_of([&] { commit_number(out, true, 2); });
  INFO(error);
  if (in_the_way.empty()) {
    CHECK(whole_number(out) == 2);
  } else {
    CHECK(error.find((out / in_the_way).string()) == 0);
    CHECK(tree_of(dir.path()) == before);
  }
}

TEST_CASE("a file that is put into OUT while its replacement is written stays", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  commit_number(out, false, 1);
  StagedFolder folder(out, true);
  write_parts(folder, 2);
  moe::test::write_file(out / "notes.txt", "years");
  CHECK(user_error_of([&] { folder.commit(); }).find((out / "notes.txt").string()) == 0);
  CHECK(whole_number(out) == 1);
  CHECK(moe::test::read_file(out / "notes.txt") == "years");
  CHECK(whole_number(dir / "out.partial/new") == 2);
}

TEST_CASE("nothing is removed through a link below the folder that is given as root", "[io]") {
  const TempDir dir;
  commit_number(dir / "other/checkpoints/step-1", false, 1);
  fs::create_directories(dir / "run");
  fs::create_directory_symlink(dir / "other/checkpoints", dir / "run/checkpoints");
  const fs::path step = dir / "run/checkpoints/step-1";
  CHECK(user_error_of([&] {
          moe::io::remove_whole(step, dir / "run");
        }).find((dir / "run/checkpoints").string()) == 0);
  moe::io::remove_leftovers(step, dir / "run");
  fs::remove(dir / "run/checkpoints");
  fs::create_directories(dir / "run/checkpoints");
  fs::create_directory_symlink(dir / "other/checkpoints/step-1", step);
  CHECK(user_error_of([&] { moe::io::remove_whole(step, dir / "run"); }).find(step.string()) == 0);
  CHECK(whole_number(dir / "other/checkpoints/step-1") == 1);
  fs::remove(step);
  commit_number(step, false, 1);
  moe::io::remove_whole(step, dir / "run");
  CHECK(fs::is_empty(dir / "run/checkpoints"));
}

TEST_CASE("files, the working folder and one's home are never replaced", "[io]") {
  const TempDir dir;
  moe::test::write_file(dir / "file", "x");
  CHECK(user_error_of([&] { StagedFolder folder(dir / "file", true); }) ==
        (dir / "file").string() + ": is a file; give the name of a folder to write");
  const std::string refusal =
      ": holds the working or the home folder and will not be replaced; give another output folder";
  const fs::path here = fs::current_path();
  CHECK(user_error_of([&] { StagedFolder folder(".", true); }) == here.string() + refusal);
  CHECK(user_error_of([&] { StagedFolder folder(here.parent_path(), true); }) ==
        here.parent_path().string() + refusal);
  CHECK_FALSE(fs::exists(here.string() + ".partial"));
  CHECK(user_error_of([&] { StagedFolder folder(dir / "file" / "out", false); }) ==
        (dir / "file" / "out").string() + ": cannot be written: Not a directory");
}

TEST_CASE("the unfinished write of a killed run is removed", "[io]") {
  const TempDir dir;
  make_unfinished(dir / "out");
  moe::test::write_file(dir / "out.partial" / "new" / "stale", "x");
  const StagedFolder folder(dir / "out", false);
  CHECK(folder.path() == dir / "out.partial" / "new");
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("what has our names without our marker is refused, and every byte of it stays", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out", area = dir / "out.partial";
  const bool force = GENERATE(false, true);
  if (force) {
    commit_number(out, false, 1);
  }
  fs::path bait = area / "new" / "thesis.txt";
  SECTION("a folder of the user") {}
  SECTION("a folder with the marker of another output") {
    make_unfinished(dir / "other");
    fs::rename(dir / "other.partial", area);
  }
  SECTION("a copy of a marked folder with something beside it") {
    make_unfinished(out);
    bait = area / "thesis.txt";
  }
  SECTION("a folder whose marker is a link") {
    make_unfinished(out);
    fs::rename(area / ".moe-staging", dir / "marker");
    fs::create_symlink(dir / "marker", area / ".moe-staging");
  }
  SECTION("a link to a marked folder") {
    make_unfinished(out);
    fs::rename(area, dir / "elsewhere");
    fs::create_directory_symlink(dir / "elsewhere", area);
  }
  SECTION("a file") { bait = area; }
  SECTION("the folder that is marked before it gets the name") {
    bait = dir / ".out.moe-staging" / "thesis.txt";
  }
  moe::test::write_file(bait, "years");
  const std::string before = tree_of(dir.path());
  CHECK_FALSE(user_error_of([&] { StagedFolder folder(out, force); }).empty());
  CHECK(tree_of(dir.path()) == before);
}

TEST_CASE("a refusal for our names says whose they may be and what helps", "[io]") {
  const TempDir dir;
  moe::test::write_file(dir / "out.partial" / "thesis.txt", "years");
  CHECK(user_error_of([&] { StagedFolder folder(dir / "out", false); }) ==
        (dir / "out.partial").string() + ": is in the way of writing " + (dir / "out").string() +
            ", and not known to be moe's (it has no marker of this version): move it or remove it, "
            "or give another output folder");
  fs::remove_all(dir / "out.partial");
  make_unfinished(dir / "out");
  moe::test::write_file(dir / "out.partial" / "thesis.txt", "years");
  CHECK(user_error_of([&] { StagedFolder folder(dir / "out", false); }) ==
        (dir / "out.partial").string() + ": holds 'thesis.txt' beside an unfinished write of " +
            (dir / "out").string() + "; move that, or give another output folder");
}

TEST_CASE("OUT.replaced is the user's, whatever is there", "[io]") {
  const TempDir dir;
  commit_number(dir / "out", false, 1);
  moe::test::write_file(dir / "out.replaced" / "thesis.txt", "years");
  CHECK_FALSE(user_error_of([&] { StagedFolder folder(dir / "out", false); }).empty());
  commit_number(dir / "out", true, 2);
  fs::remove_all(dir / "out");
  commit_number(dir / "out", false, 3);
  CHECK(whole_number(dir / "out") == 3);
  CHECK(moe::test::read_file(dir / "out.replaced" / "thesis.txt") == "years");
}

TEST_CASE("a command that is refused heals and removes nothing", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  make_unfinished(out);
  SECTION("an output that exists, beside an unfinished write") {
    moe::test::write_file(out / "part0", "x");
  }
  SECTION("an output that is a file") { moe::test::write_file(out, "x"); }
  moe::test::write_file(dir / "out.partial" / "new" / "stale", "x");
  const std::string before = tree_of(dir.path());
  CHECK_FALSE(user_error_of([&] { StagedFolder folder(out, false); }).empty());
  CHECK(tree_of(dir.path()) == before);
}

TEST_CASE("a process that died before its folder had a marker is in nobody's way", "[io]") {
  const TempDir dir;
  fs::create_directory(dir / ".out.moe-staging");
  SECTION("no marker yet") {}
  SECTION("half a marker") {
    moe::test::write_file(dir / ".out.moe-staging" / ".moe-staging", "moe st");
  }
  commit_number(dir / "out", false, 1);
  CHECK(whole_number(dir / "out") == 1);
  CHECK(names_in(dir.path()) == "out ");
}

TEST_CASE("two runs do not write one folder", "[io]") {
  const TempDir dir;
  const StagedFolder first(dir / "out", false);
  first.write_text("a", "b");
  CHECK(user_error_of([&] { StagedFolder second(dir / "out", false); }) ==
        (dir / "out").string() +
            ": another run is writing it now; wait for it or give another output folder");
  CHECK(fs::exists(dir / "out.partial" / "new" / "a"));
}

TEST_CASE("an output made by another in the meantime is kept, and so is ours", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  const std::string message = user_error_of([&] {
    StagedFolder folder(out, false);
    write_parts(folder, 1);
    moe::test::write_file(out / "theirs", "x");
    folder.commit();
  });
  CHECK(message == out.string() +
                       ": was made by another while this run wrote; what this run made is in " +
                       out.string() + ".partial/new: rename it");
  CHECK(fs::exists(out / "theirs"));
  CHECK(whole_number(out.string() + ".partial/new") == 1);
  // No later run takes it for the rubbish of a killed one.
  CHECK_FALSE(user_error_of([&] { StagedFolder folder(out, true); }).empty());
  CHECK(whole_number(out.string() + ".partial/new") == 1);
}

TEST_CASE("a kill between two renames is healed by the next start", "[io]") {
  // Only file systems without an atomic swap come here, so the state is made by hand.
  const TempDir dir;
  const fs::path out = dir / "out", replaced = dir / "out.partial" / "old";
  commit_number(dir / "before", false, 1);
  make_unfinished(out);
  fs::rename(dir / "before", replaced);
  SECTION("the old folder had been moved away, the new one not yet in") {
    moe::test::write_file(dir / "out.partial" / "new" / "part0", "whole, but not proven so");
    const std::string before = tree_of(dir.path());
    CHECK(user_error_of([&] { StagedFolder folder(out, false); }) ==
          out.string() + ": a run was killed while it replaced it, the old one is " +
              replaced.string() + "; rename that, or give --force to replace it");
    CHECK(tree_of(dir.path()) == before);
    { const StagedFolder folder(out, true); }
    CHECK(whole_number(out) == 1);
    CHECK_FALSE(fs::exists(replaced));
  }
  SECTION("the same, and another OUT was made since: both stay") {
    moe::test::write_file(dir / "out.partial" / "new" / "part0", "whole, but not proven so");
    commit_number(dir / "before", false, 2);
    fs::rename(dir / "before", out);
    const std::string before = tree_of(dir.path());
    CHECK(user_error_of([&] { StagedFolder folder(out, true); }) ==
          out.string() + ": was made after a run was killed that had moved the one before to " +
              replaced.string() + "; move that one, or give another output folder");
    CHECK(tree_of(dir.path()) == before);
  }
  SECTION("both renames had happened, the old folder was not yet removed") {
    commit_number(dir / "before", false, 2);
    fs::rename(dir / "before", out);
    fs::remove(dir / "out.partial" / "new");
    { const StagedFolder folder(out, true); }
    CHECK(whole_number(out) == 2);
    CHECK_FALSE(fs::exists(replaced));
  }
}

TEST_CASE("a folder that is removed goes whole, with what a killed write of it left", "[io]") {
  const TempDir dir;
  commit_number(dir / "out", false, 1);
  make_unfinished(dir / "out");
  moe::io::remove_whole(dir / "out");
  moe::io::remove_whole(dir / "never");
  CHECK(fs::is_empty(dir.path()));
  commit_number(dir / "out", false, 1);
  moe::test::write_file(dir / "out.partial" / "thesis.txt", "years");
  const std::string before = tree_of(dir.path());
  CHECK_FALSE(user_error_of([&] { moe::io::remove_whole(dir / "out"); }).empty());
  CHECK(tree_of(dir.path()) == before);
}

TEST_CASE("what a killed write or removal left is removed, and nothing else", "[io]") {
  const TempDir dir;
  const auto remove_leftovers = [&] { moe::io::remove_leftovers(dir / "out", dir.path()); };
  SECTION("an unfinished write, a removal") {
    make_unfinished(dir / "out");
    moe::test::write_file(dir / "out.partial/new/below/part0", "x");
    remove_leftovers();
    CHECK(fs::is_empty(dir.path()));
  }
  SECTION("the end of a removal") {
    make_unfinished(dir / "out");
    fs::remove_all(dir / "out.partial/new");
    fs::rename(dir / "out.partial", dir / ".out.moe-staging");
    if (GENERATE(false, true)) {
      fs::remove(dir / ".out.moe-staging/.moe-staging");
    }
    remove_leftovers();
    CHECK(fs::is_empty(dir.path()));
  }
  SECTION("the only copy of OUT stays") {
    commit_number(dir / "before", false, 1);
    make_unfinished(dir / "out");
    fs::rename(dir / "before", dir / "out.partial/old");
    remove_leftovers();
    CHECK(whole_number(dir / "out.partial/old") == 1);
  }
  SECTION("what is not ours stays") {
    moe::test::write_file(dir / "out.partial/thesis.txt", "years");
    moe::test::write_file(dir / ".out.moe-staging/thesis.txt", "years");
    const std::string foreign = tree_of(dir.path());
    remove_leftovers();
    CHECK(tree_of(dir.path()) == foreign);
  }
}

TEST_CASE("a kill at any instant leaves a whole folder or none", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  const auto start = std::chrono::steady_clock::now();
  commit_number(out, false, 0);
  commit_number(out, true, 1);
  const auto two_commits =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                std::chrono::steady_clock::now() - start)
                                .count());
  std::mt19937 random(20240607);
  int absent = 0, whole = 0;
  for (int round = 0; round < 60; ++round) {
    if (round % 4 == 0) {
      fs::remove_all(out);  // a first commit, which renames, and later ones, which swap
    }
    const bool was_there = fs::exists(out);
    const bool at_once = round % 8 == 0;  // before the first commit ends
    commit_until_killed(out, at_once ? 0 : 1 + round % 4,
                        at_once ? 0 : static_cast<int>(random() % (1 + two_commits)));
    if (fs::exists(out)) {
      REQUIRE(whole_number(out) >= 0);
      ++whole;
    } else {
      REQUIRE_FALSE(was_there);  // what had been there once never disappears
      ++absent;
    }
  }
  commit_number(out, true, 7);  // and the next run finds nothing in its way
  CHECK(whole_number(out) == 7);
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 1);
  CHECK(whole >= 45);  // the rounds in which a first commit had ended
  CHECK(absent > 0);
}

TEST_CASE("a link is neither replaced nor followed", "[io]") {
  const TempDir dir;
  commit_number(dir / "real", false, 1);
  fs::create_directory_symlink(dir / "real", dir / "link");
  fs::create_symlink(dir / "none", dir / "dangling");
  const bool force = GENERATE(false, true);
  for (const auto& [link, target] : {std::pair("link", "real"), std::pair("dangling", "none")}) {
    CHECK(user_error_of([&] { StagedFolder folder(dir / link, force); }) ==
          (dir / link).string() + ": is a link to " + (dir / target).string() +
              "; give that folder itself, or another output folder");
    CHECK(fs::read_symlink(dir / link) == dir / target);
  }
  CHECK(whole_number(dir / "real") == 1);
}
