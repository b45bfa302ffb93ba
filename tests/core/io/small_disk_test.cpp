// A full disk and mount points: a tmpfs of one megabyte, mounted for a child process. The cases are
// skipped without the right to mount; safetensors_test.cpp checks the same calls with
// limits.

#include <sched.h>
#include <sys/mount.h>

#include "core/io/checkpoint.h"
#include "core/io/safetensors.h"
#include "core/io/staged_folder.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe::io;
using namespace moe::test;

namespace {

constexpr int kCannotMount = 77;

// Runs `work` in a child with a small disk mounted on `disk`. Returns the lines that `work`
// returns; nothing without the right to mount.
std::optional<std::vector<std::string>> on_small_disk(
    const fs::path& disk, const std::function<std::vector<std::string>()>& work) {
  const TempDir report;
  fs::create_directories(disk);
  const int code = run_in_child([&] {
    if ((::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
      ::_exit(kCannotMount);
    }
    moe::test::write_file(report / "lines", moe::Json(work()).dump());
  });
  if (code == kCannotMount) {
    return std::nullopt;
  }
  REQUIRE(code == 0);
  return moe::read_json(report / "lines").get<std::vector<std::string>>();
}

void write_model(const fs::path& out, int64_t bytes) {
  StagedFolder folder(out, false);
  write_tensors(folder.path(),
                {{{"t", DType::kU8, {bytes}},
                  [bytes](SafetensorsWriter& writer) {
                    const std::string data(static_cast<size_t>(bytes), 'x');
                    writer.write(std::as_bytes(std::span(data)));
                  }}},
                uint64_t{1} << 40);
  folder.commit();
}

}  // namespace

TEST_CASE("A mount point is not replaced; one that appears later keeps the written folder") {
  const TempDir dir;
  const fs::path disk = dir / "the disk", late = dir / "late";
  {
    StagedFolder folder(late, false);
    folder.write_text("old", "x");
    folder.commit();
  }
  const auto lines = on_small_disk(disk, [&] {
    moe::test::write_file(disk / "theirs", "years");
    const auto stage = [](const fs::path& out) {
      return user_error_of([&] { StagedFolder folder(out, true); });
    };
    const std::string at_commit = user_error_of([&] {
      StagedFolder folder(late, true);
      folder.write_text("work", "hours");
      ::mount("tmpfs", late.c_str(), "tmpfs", 0, "size=1m");
      folder.commit();
    });
    return std::vector{stage(disk), stage(dir.path()), at_commit,
                       fmt::format("{}", fmt::join(names_in(disk), " "))};
  });
  if (!lines) {
    MOE_SKIP("no right to mount a small disk");
  }
  const auto refusal = [](const fs::path& out, const fs::path& mount) {
    return contains_text(out.string() + ": is a mount point or holds one (" + mount.string() + ")");
  };
  CHECK_THAT(lines->at(0), refusal(disk, disk));
  CHECK_THAT(lines->at(1), refusal(dir.path(), disk));
  CHECK_THAT(lines->at(2), refusal(late, late) && contains_text(late.string() + ".partial/new"));
  CHECK(lines->at(3) == "theirs");
  CHECK_THAT(user_error_of([&] { StagedFolder folder(late, true); }),
             contains_text("late.partial: has the name that writing"));
  CHECK(read_file(dir / "late.partial/new/work") == "hours");
}

TEST_CASE("A disk that fills up is reported with the file, and nothing is left behind") {
  const TempDir dir;
  const fs::path disk = dir / "disk", out = disk / "out";
  const auto lines = on_small_disk(disk, [&] {
    const std::string space = user_error_of([&] { check_space(out, 2'000'000); });
    const std::string tensors = user_error_of([&] { write_model(out, 2'000'000); });
    const std::string text = user_error_of([&] {
      const StagedFolder folder(out, false);
      folder.write_text("large.json", std::string(2'000'000, 'x'));
    });
    const std::string fits = user_error_of([&] { write_model(out, 500'000); });
    const std::string parts = user_error_of([&] {
      const StagedFolder folder(disk / "shared", false);
      create_safetensors(folder.path() / "all", {{"t", DType::kU8, {2'000'000}}});
    });
    return std::vector{space, tensors, text,
                       parts, fits,    fmt::format("{}", fmt::join(names_in(disk), " "))};
  });
  if (!lines) {
    MOE_SKIP("no right to mount a small disk");
  }
  CHECK_THAT(lines->at(0), contains_text("disk full: 2.0 MB are needed, 1.0 MB are free"));
  const char* files[] = {"out.partial/new/model.safetensors", "out.partial/new/large.json",
                         "shared.partial/new/all"};
  for (size_t i = 0; i < 3; ++i) {
    CHECK_THAT(lines->at(1 + i), contains_text("disk full: " + (disk / files[i]).string()));
  }
  CHECK(lines->at(4).empty());
  CHECK(lines->at(5) == "out");
}
