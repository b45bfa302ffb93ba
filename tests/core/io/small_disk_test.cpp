// A disk that really fills up: a tmpfs of one megabyte, mounted for a child process alone. Where a
// test may not mount (no root, no user namespaces) it is skipped; the limits of
// safetensors_writer_test.cpp cover the same calls.

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "core/io/checkpoint.h"
#include "core/io/shared_safetensors.h"
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
