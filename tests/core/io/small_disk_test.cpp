// A disk that really fills up: a tmpfs of one megabyte, mounted for a child process alone. Where a
// test may not mount (no root, no user namespaces) it is skipped; the limits of
// safetensors_writer_test.cpp cover the same calls.

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "core/io/checkpoint.h"
#include "core/io/safetensors_writer.h"
#include "core/io/staged_folder.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::test::TempDir;
using moe::test::user_error_of;
namespace fs = std::filesystem;

namespace {

constexpr int kCannotMount = 77;

// Runs `work` on `disk`, mounted small, in a child that owns its mounts. Its words come back by
// `report`.
int on_small_disk(const fs::path& disk, const fs::path& report,
                  const std::function<std::string()>& work) {
  fs::create_directories(disk);
  const pid_t child = ::fork();
  if (child == 0) {
    if ((::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
      ::_exit(kCannotMount);
    }
    moe::test::write_file(report, work());
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::vector<moe::io::TensorSource> tensors_of(int64_t bytes) {
  return {{{"t", moe::io::DType::kU8, {bytes}}, [bytes](moe::io::SafetensorsWriter& writer) {
             const std::string data(static_cast<size_t>(bytes), 'x');
             writer.write(std::as_bytes(std::span(data)));
           }}};
}

std::string names_in(const fs::path& folder) {
  std::string names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names += entry.path().filename().string() + " ";
  }
  return names;
}

}  // namespace

TEST_CASE("a mount point is refused at the start; one that appears costs no finished work",
          "[io]") {
  const TempDir dir;
  const fs::path disk = dir / "the disk", report = dir / "report", late = dir / "late";
  {
    moe::io::StagedFolder folder(late, false);
    folder.write_text("old", "x");
    folder.commit();
  }
  const int code = on_small_disk(disk, report, [&] {
    moe::test::write_file(disk / "theirs", "years");
    const auto stage = [](const fs::path& out) {
      return user_error_of([&] { moe::io::StagedFolder folder(out, true); }) + "\n";
    };
    const std::string itself = stage(disk), holder = stage(dir.path());
    const std::string kept = user_error_of([&] {
      moe::io::StagedFolder folder(late, true);
      folder.write_text("work", "hours");
      ::mount("tmpfs", late.c_str(), "tmpfs", 0, "size=1m");
      folder.commit();
    });
    return itself + holder + kept + "\n" + names_in(disk) + "\n";
  });
  if (code == kCannotMount) {
    MOE_SKIP("may not mount a small disk here");
  }
  REQUIRE(code == 0);
  const auto refusal = [](const fs::path& out, const fs::path& mount) {
    return out.string() + ": is a mount point or holds one (" + mount.string() +
           ") and cannot be replaced; give a folder below it, or another output folder";
  };
  CHECK(moe::test::read_file(report) ==
        refusal(disk, disk) + "\n" + refusal(dir.path(), disk) + "\n" + refusal(late, late) +
            "; what this run made is in " + late.string() + ".partial/new: rename it\ntheirs \n");
  CHECK(moe::test::read_file(dir / "late.partial/new/work") == "hours");
  CHECK(user_error_of([&] {
          moe::io::StagedFolder folder(late, true);
        }).find("late.partial: is in the way") != std::string::npos);
  CHECK(moe::test::read_file(dir / "late.partial/new/work") == "hours");
}

TEST_CASE("a disk that fills up ends in one sentence and leaves nothing behind", "[io]") {
  const TempDir dir;
  const fs::path disk = dir / "disk", report = dir / "report";
  const int code = on_small_disk(disk, report, [&] {
    const std::string space = user_error_of([&] { moe::io::check_space(disk / "out", 2'000'000); });
    const std::string tensors = user_error_of([&] {
      moe::io::StagedFolder folder(disk / "out", false);
      moe::io::write_tensors(folder.path(), tensors_of(2'000'000), uint64_t{1} << 40);
      folder.commit();
    });
    const std::string text = user_error_of([&] {
      const moe::io::StagedFolder folder(disk / "out", false);
      folder.write_text("large.json", std::string(2'000'000, 'x'));
    });
    const std::string fits = user_error_of([&] {
      moe::io::StagedFolder folder(disk / "out", false);
      moe::io::write_tensors(folder.path(), tensors_of(500'000), uint64_t{1} << 40);
      folder.commit();
    });
    const std::string shared = user_error_of([&] {
      const moe::io::StagedFolder folder(disk / "shared", false);
      moe::io::create_safetensors(folder.path() / "all", {{"t", moe::io::DType::kU8, {2'000'000}}});
    });
    return space + "\n" + tensors + "\n" + text + "\n" + fits + "\n" + shared + "\n" +
           names_in(disk) + "\n";
  });
  if (code == kCannotMount) {
    MOE_SKIP("may not mount a small disk here");
  }
  REQUIRE(code == 0);
  const std::string partial = (disk / "out.partial/new").string();
  const auto full = [&](const std::string& file) {
    return "disk full: " + partial + "/" + file +
           " cannot grow (No space left on device); free some space or write to another disk\n";
  };
  CHECK(moe::test::read_file(report) ==
        (disk / "out").string() +
            ": disk full: 2.0 MB are needed, 1.0 MB are free; free some space or write to "
            "another disk\n" +
            full("model.safetensors") + full("large.json") + "\n" +
            "disk full: " + (disk / "shared.partial/new/all").string() +
            " cannot grow (No space left on device); free some space or write to another disk\n" +
            "out \n");
}
