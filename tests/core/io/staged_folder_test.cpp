#include "core/io/staged_folder.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "core/io/output_checks.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe::test;
using namespace moe::io;

namespace {

constexpr int kParts = 5;

// Writes parts of more than one page that all contain the same number.
void write_parts(const StagedFolder& folder, int number) {
  for (int part = 0; part < kParts; ++part) {
    std::string text = fmt::format("{}\n", number);
    text.resize(10'000, '.');
    folder.write_text(fmt::format("part{}", part), text);
  }
}

// Returns the number in every part of `folder`; -1 if a part is missing, short or has another one.
int whole_number(const fs::path& folder) {
  int number = -1;
  for (int part = 0; part < kParts; ++part) {
    const std::string text = read_file(folder / (fmt::format("part{}", part)));
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

// Leaves the files of a run that was killed before its first write.
void make_unfinished(const fs::path& out) {
  run_in_child([&] {
    const StagedFolder folder(out, true);
    ::_exit(0);
  });
  REQUIRE(fs::exists(out.string() + ".partial/new"));
}

// Returns every name below `folder`, with the content of files and the targets of links.
std::string tree_of(const fs::path& folder) {
  std::set<std::string> lines;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string line = entry.path().string();
    if (entry.is_symlink()) {
      line += " -> " + fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      line += ": " + read_file(entry.path());
    }
    lines.insert(line + "\n");
  }
  return std::accumulate(lines.begin(), lines.end(), std::string());
}

// Starts a child that commits 0, 1, 2, ... to `out`. Kills it `microseconds` after it has begun
// `num_begun` commits.
void commit_until_killed(const fs::path& out, int num_begun, int microseconds) {
  void* const shared = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  auto& begun = *new (shared) std::atomic<int>(0);
  const pid_t child = start_child([&] {
    for (int number = 0;; ++number) {
      ++begun;
      commit_number(out, true, number);
    }
  });
  while (begun < num_begun) {
    if (::waitpid(child, nullptr, WNOHANG) != 0) {
      FAIL("a commit failed");
    }
    std::this_thread::yield();
  }
  ::munmap(shared, sizeof(std::atomic<int>));
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  ::kill(child, SIGKILL);
  REQUIRE(wait_for_child(child) == -SIGKILL);  // no commit failed
}

// Returns the error of staging `out`; "" if that is possible.
std::string refusal(const fs::path& out, bool force = false) {
  return user_error_of([&] { StagedFolder folder(out, force); });
}

}  // namespace

TEST_CASE("A folder appears at commit and not before", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "new/deep/out";
  {
    StagedFolder folder(out.string() + "/", false);
    CHECK(folder.path() == out.string() + ".partial/new");
    folder.write_text("a.txt", "hello");
    folder.write_text("sub/b.txt", "inside");
    CHECK_FALSE(fs::exists(out));
    folder.commit();
    CHECK(read_file(out / "a.txt") == "hello");
  }
  CHECK(read_file(out / "sub/b.txt") == "inside");
  CHECK_FALSE(fs::exists(out.string() + ".partial"));
}

TEST_CASE("A folder that is not committed, also because of an exception, leaves nothing", "[io]") {
  const TempDir dir;
  try {
    const StagedFolder folder(dir / "out", false);
    folder.write_text("a", "b");
    throw std::runtime_error("the run failed");
  } catch (const std::runtime_error&) {
  }
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("An existing output is refused, and with force replaced at commit", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  commit_number(out, false, 1);
  CHECK_THAT(refusal(out), contains_text(out.string() + ": exists already"));
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

TEST_CASE("Force replaces a folder only if moe wrote all of it", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  std::string in_the_way;
  SECTION("an empty folder") { fs::create_directories(out); }
  SECTION("a folder without a list") { write_file(out / (in_the_way = "config.json"), "x"); }
  SECTION("a changed output") {
    commit_number(out, false, 1);
    SECTION("an added file") { write_file(out / (in_the_way = "notes.txt"), "x"); }
    SECTION("an added file in a subfolder") {
      write_file(out / "sub/notes.txt", "x");
      in_the_way = "sub";
    }
    SECTION("an overwritten file") { write_file(out / (in_the_way = "part3"), "years"); }
    SECTION("a link in place of a written file") {
      fs::rename(out / "part3", dir / "part3");
      fs::create_symlink(dir / "part3", out / (in_the_way = "part3"));
    }
    SECTION("a list that is a link") {
      fs::rename(out / ".moe-output", dir / "list");
      fs::create_symlink(dir / "list", out / ".moe-output");
      in_the_way = "part";
    }
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

TEST_CASE("A file added to OUT while its replacement is written is kept", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  commit_number(out, false, 1);
  StagedFolder folder(out, true);
  write_parts(folder, 2);
  write_file(out / "notes.txt", "years");
  CHECK(user_error_of([&] { folder.commit(); }).find((out / "notes.txt").string()) == 0);
  CHECK(whole_number(out) == 1);
  CHECK(read_file(out / "notes.txt") == "years");
  CHECK(whole_number(dir / "out.partial/new") == 2);
}

TEST_CASE("Nothing is removed through a link below the given root", "[io]") {
  const TempDir dir;
  commit_number(dir / "other/checkpoints/step-1", false, 1);
  fs::create_directories(dir / "run");
  fs::create_directory_symlink(dir / "other/checkpoints", dir / "run/checkpoints");
  const fs::path step = dir / "run/checkpoints/step-1";
  CHECK(user_error_of([&] {
          remove_whole(step, dir / "run");
        }).find((dir / "run/checkpoints").string()) == 0);
  remove_leftovers(step, dir / "run");
  fs::remove(dir / "run/checkpoints");
  fs::create_directories(dir / "run/checkpoints");
  fs::create_directory_symlink(dir / "other/checkpoints/step-1", step);
  CHECK(user_error_of([&] { remove_whole(step, dir / "run"); }).find(step.string()) == 0);
  CHECK(whole_number(dir / "other/checkpoints/step-1") == 1);
  fs::remove(step);
  commit_number(step, false, 1);
  remove_whole(step, dir / "run");
  CHECK(fs::is_empty(dir / "run/checkpoints"));
}

TEST_CASE("Files, the working folder and the home folder are never replaced", "[io]") {
  const TempDir dir;
  write_file(dir / "file", "x");
  CHECK_THAT(refusal(dir / "file", true), contains_text((dir / "file").string() + ": is a file"));
  const fs::path here = fs::current_path();
  for (const auto& [given, folder] :
       {std::pair(fs::path("."), here), {here.parent_path(), here.parent_path()}}) {
    CHECK_THAT(refusal(given, true),
               contains_text(folder.string() + ": holds the working or the home folder"));
  }
  CHECK_FALSE(fs::exists(here.string() + ".partial"));
  CHECK_THAT(refusal(dir / "file/out"), contains_text("file/out: cannot be written: Not a dir"));
}

TEST_CASE("The unfinished write of a killed run is removed", "[io]") {
  const TempDir dir;
  make_unfinished(dir / "out");
  write_file(dir / "out.partial" / "new" / "stale", "x");
  const StagedFolder folder(dir / "out", false);
  CHECK(folder.path() == dir / "out.partial" / "new");
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("A folder with our names but without our marker is refused and stays unchanged", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out", area = dir / "out.partial";
  const bool force = GENERATE(false, true);
  if (force) {
    commit_number(out, false, 1);
  }
  fs::path bait = area / "new" / "thesis.txt";
  std::string fact;
  SECTION("a folder of the user") { fact = "no marker"; }
  SECTION("a folder with the marker of another output") {
    make_unfinished(dir / "other");
    fs::rename(dir / "other.partial", area);
  }
  SECTION("a marked folder with another file in it") {
    make_unfinished(out);
    bait = area / "thesis.txt";
    fact = "holds 'thesis.txt'";
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
  SECTION("the folder that is renamed after it is marked") {
    bait = dir / ".out.moe-staging" / "thesis.txt";
  }
  write_file(bait, "years");
  const std::string before = tree_of(dir.path());
  const std::string error = refusal(out, force);
  CHECK_FALSE(error.empty());
  CHECK_THAT(error, contains_text(fact));
  CHECK(tree_of(dir.path()) == before);
}

TEST_CASE("A refused command removes nothing", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  make_unfinished(out);
  SECTION("an existing output and an unfinished write") { write_file(out / "part0", "x"); }
  SECTION("an output that is a file") { write_file(out, "x"); }
  write_file(dir / "out.partial" / "new" / "stale", "x");
  const std::string before = tree_of(dir.path());
  CHECK_FALSE(refusal(out).empty());
  CHECK(tree_of(dir.path()) == before);
}

TEST_CASE("A folder without a complete marker does not block later runs", "[io]") {
  const TempDir dir;
  fs::create_directory(dir / ".out.moe-staging");
  SECTION("no marker yet") {}
  SECTION("half a marker") { write_file(dir / ".out.moe-staging" / ".moe-staging", "moe st"); }
  commit_number(dir / "out", false, 1);
  CHECK(whole_number(dir / "out") == 1);
  CHECK(names_in(dir.path()) == std::vector<std::string>{"out"});
}

TEST_CASE("A second run that writes the same folder is refused", "[io]") {
  const TempDir dir;
  const StagedFolder first(dir / "out", false);
  first.write_text("a", "b");
  CHECK_THAT(refusal(dir / "out"),
             contains_text((dir / "out").string() + ": another run is writing it now"));
  CHECK(fs::exists(dir / "out.partial" / "new" / "a"));
}

TEST_CASE("An output that another program made meanwhile is kept, and so is ours", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  const std::string message = user_error_of([&] {
    StagedFolder folder(out, false);
    write_parts(folder, 1);
    write_file(out / "theirs", "x");
    folder.commit();
  });
  CHECK_THAT(message, contains_text(out.string() + ": was created by another process") &&
                          contains_text(out.string() + ".partial/new"));
  CHECK(fs::exists(out / "theirs"));
  CHECK(whole_number(out.string() + ".partial/new") == 1);
  CHECK_FALSE(refusal(out, true).empty());  // a later run does not remove it
  CHECK(whole_number(out.string() + ".partial/new") == 1);
}

TEST_CASE("The next run repairs the state of a kill between two renames", "[io]") {
  // Only file systems without an atomic swap leave this state, so it is made by hand.
  const TempDir dir;
  const fs::path out = dir / "out", replaced = dir / "out.partial" / "old";
  commit_number(dir / "before", false, 1);
  make_unfinished(out);
  fs::rename(dir / "before", replaced);
  SECTION("the old folder is moved away, the new one not yet in place") {
    write_file(dir / "out.partial/new/part0", "complete, without proof");
    const std::string before = tree_of(dir.path());
    CHECK_THAT(refusal(out), contains_text("the old one is " + replaced.string()));
    CHECK(tree_of(dir.path()) == before);
    { const StagedFolder folder(out, true); }
    CHECK(whole_number(out) == 1);
    CHECK_FALSE(fs::exists(replaced));
  }
  SECTION("the old folder is moved away, and another OUT was created since") {
    write_file(dir / "out.partial/new/part0", "complete, without proof");
    commit_number(dir / "before", false, 2);
    fs::rename(dir / "before", out);
    const std::string before = tree_of(dir.path());
    CHECK_THAT(refusal(out, true), contains_text(replaced.string() + "; move that one"));
    CHECK(tree_of(dir.path()) == before);
  }
  SECTION("both renames are done, the old folder is not yet removed") {
    commit_number(dir / "before", false, 2);
    fs::rename(dir / "before", out);
    fs::remove(dir / "out.partial" / "new");
    { const StagedFolder folder(out, true); }
    CHECK(whole_number(out) == 2);
    CHECK_FALSE(fs::exists(replaced));
  }
}

TEST_CASE("A kill at the end of a commit leaves a marker, which the next run removes", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  commit_number(dir / "before", false, 1);
  make_unfinished(out);
  fs::remove(dir / "out.partial" / "new");
  fs::rename(dir / "before", out);
  CHECK_THAT(refusal(out), contains_text("exists already"));
  CHECK(whole_number(out) == 1);
  CHECK_FALSE(fs::exists(dir / "out.partial"));
}

TEST_CASE("Removing a folder also removes an unfinished write of it", "[io]") {
  const TempDir dir;
  commit_number(dir / "out", false, 1);
  make_unfinished(dir / "out");
  remove_whole(dir / "out");
  remove_whole(dir / "never");
  CHECK(fs::is_empty(dir.path()));
  commit_number(dir / "out", false, 1);
  write_file(dir / "out.partial" / "thesis.txt", "years");
  const std::string before = tree_of(dir.path());
  CHECK_FALSE(user_error_of([&] { remove_whole(dir / "out"); }).empty());
  CHECK(tree_of(dir.path()) == before);
}

TEST_CASE("Leftovers of a killed write or removal are removed, and nothing else", "[io]") {
  const TempDir dir;
  const auto remove_all_leftovers = [&] { remove_leftovers(dir / "out", dir.path()); };
  SECTION("an unfinished write, a removal") {
    make_unfinished(dir / "out");
    write_file(dir / "out.partial/new/below/part0", "x");
    remove_all_leftovers();
    CHECK(fs::is_empty(dir.path()));
  }
  SECTION("the end of a removal") {
    make_unfinished(dir / "out");
    fs::remove_all(dir / "out.partial/new");
    fs::rename(dir / "out.partial", dir / ".out.moe-staging");
    if (GENERATE(false, true)) {
      fs::remove(dir / ".out.moe-staging/.moe-staging");
    }
    remove_all_leftovers();
    CHECK(fs::is_empty(dir.path()));
  }
  SECTION("the only copy of OUT stays") {
    commit_number(dir / "before", false, 1);
    make_unfinished(dir / "out");
    fs::rename(dir / "before", dir / "out.partial/old");
    remove_all_leftovers();
    CHECK(whole_number(dir / "out.partial/old") == 1);
  }
  SECTION("folders of the user stay") {
    write_file(dir / "out.partial/thesis.txt", "years");
    write_file(dir / ".out.moe-staging/thesis.txt", "years");
    const std::string foreign = tree_of(dir.path());
    remove_all_leftovers();
    CHECK(tree_of(dir.path()) == foreign);
  }
}

TEST_CASE("A kill at any instant leaves a whole folder or none", "[io]") {
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
      fs::remove_all(out);  // the first commit renames, later ones swap
    }
    const bool was_there = fs::exists(out);
    const bool at_once = round % 8 == 0;  // before the first commit ends
    commit_until_killed(out, at_once ? 0 : 1 + round % 4,
                        at_once ? 0 : static_cast<int>(random() % (1 + two_commits)));
    if (fs::exists(out)) {
      REQUIRE(whole_number(out) >= 0);
      ++whole;
    } else {
      REQUIRE_FALSE(was_there);  // an existing folder never disappears
      ++absent;
    }
  }
  commit_number(out, true, 7);  // the next run is not blocked
  CHECK(whole_number(out) == 7);
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 1);
  CHECK(whole >= 45);  // the rounds in which a first commit has ended
  CHECK(absent > 0);
}

TEST_CASE("A link is neither replaced nor followed", "[io]") {
  const TempDir dir;
  commit_number(dir / "real", false, 1);
  fs::create_directory_symlink(dir / "real", dir / "link");
  fs::create_symlink(dir / "none", dir / "dangling");
  const bool force = GENERATE(false, true);
  for (const auto& [link, target] : {std::pair("link", "real"), std::pair("dangling", "none")}) {
    CHECK_THAT(refusal(dir / link, force),
               contains_text((dir / link).string() + ": is a link to " + (dir / target).string()));
    CHECK(fs::read_symlink(dir / link) == dir / target);
  }
  CHECK(whole_number(dir / "real") == 1);
}

TEST_CASE("A path inside a folder is recognized through links, slashes and dots", "[io]") {
  const TempDir dir;
  fs::create_directories(dir / "a/b");
  fs::create_directory_symlink(dir / "a", dir / "link");
  for (const char* inner : {"a", "a/", "a/b", "a/b/../c", "link/b", "link", "a/none/x"}) {
    INFO(inner);
    for (const char* folder : {"a", "a/", "link"}) {
      CHECK(is_within(dir / inner, dir / folder));
    }
  }
  for (const char* other : {"ab", "a/..", "none", "a/../c"}) {
    INFO(other);
    CHECK_FALSE(is_within(dir / other, dir / "a"));
  }
}

TEST_CASE("An input inside the output, or equal to it, is refused", "[io]") {
  const TempDir dir;
  const fs::path out = dir / "out";
  write_file(out / "data", "x");
  fs::create_directory_symlink(out, dir / "link");
  for (const fs::path& input : {out / "data", dir / "link" / "data"}) {
    CHECK_THAT(user_error_of([&] {
                 check_inputs_outside(out, {"", dir / "elsewhere", input});
               }),
               contains_text(out.string() + ": " + input.string() + " lies inside it"));
  }
  for (const fs::path& same : {out, out / "data"}) {
    CHECK_THAT(user_error_of([&] { check_inputs_outside(same, {same}); }),
               contains_text(same.string() + ": is read by this command"));
  }
  CHECK_NOTHROW(check_inputs_outside(out, {"", dir / "elsewhere", dir / "outside"}));
  CHECK_NOTHROW(check_inputs_outside(dir / "none", {dir / "none/data"}));  // nothing is removed
}
