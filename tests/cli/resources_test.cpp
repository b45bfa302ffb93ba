// tests/kernels/resources.sh with a fake compiler, and the memory limit of a cgroup.

#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include "tests/cli/commands.h"

using namespace moe::test;

namespace {

// A shell script that prints the resource report of nvcc for two kernels, "wide" and "narrow".
class FakeCompiler {
 public:
  FakeCompiler() {
    write_file(folder_ / "kernel.cu", "");
    write_file(folder_ / "nvcc", R"(#!/bin/bash
if [ "$1" = --version ]; then echo 'Cuda compilation tools, release 13.0, V13.0.88'; exit; fi
keep=$(sed 's/.*--keep-dir \([^ ]*\).*/\1/' <<<"$*")
printf '.visible .entry wide(\n.maxntid 512\n.visible .entry narrow(\n' >"$keep/kernel.ptx"
for kernel in wide narrow; do
  echo "ptxas info    : Compiling entry function '$kernel' for 'sm_80'"
  echo "    0 bytes stack frame, $SPILLED bytes spill stores, 0 bytes spill loads"
  echo "ptxas info    : Used $REGISTERS registers, used 1 barriers, 1024 bytes smem"
done >&2
)");
    fs::permissions(folder_ / "nvcc", fs::perms::all);
  }

  // Runs resources.sh with `table`. The compiler reports `registers` and `spilled` bytes.
  RunResult compare(const std::string& table, int registers = 40, int spilled = 0) const {
    write_file(folder_ / "table.txt", table);
    return run_program(
        "bash", {source_folder() / "tests/kernels/resources.sh", folder_ / "kernel.cu"},
        fmt::format("MOE_NVCC={0}/nvcc MOE_RESOURCES={0}/table.txt SPILLED={1} REGISTERS={2}",
                    folder_.path().string(), spilled, registers));
  }

  // Returns a row of the table. Occupancy: a warp with 40 registers per lane needs 1280 registers,
  // so a multiprocessor runs 48 of 64 warps: 3 blocks of 512 threads or 6 of 256.
  std::string row(const std::string& gpu, const std::string& kernel) const {
    return (folder_ / "kernel.cu").string() + " " + gpu +
           (kernel == "wide" ? " 512 threads " : " 256 threads ") +
           "40 registers 1024 shared 0 stack 0 spilled 75 % " + kernel + "\n";
  }
  std::string rows() const {
    return row("sm_80", "narrow") + row("sm_80", "wide") + row("sm_90a", "narrow") +
           row("sm_90a", "wide");
  }

 private:
  TempDir folder_;
};

constexpr int64_t kLimitBytes = 400'000'000;  // of LimitedGroup

// Returns this process's cgroup for `controllers` ("" for cgroup version 2), from
// /proc/self/cgroup.
std::optional<std::string> own_path(const std::string& controllers) {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second != std::string::npos && line.substr(first + 1, second - first - 1) == controllers) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// A cgroup below that of this process, with a memory limit. The destructor removes it.
class LimitedGroup {
 public:
  LimitedGroup() {
    const std::string name = "moe-test-" + std::to_string(getpid());
    if (const auto path = own_path("memory")) {
      make("/sys/fs/cgroup/memory", *path, name, "memory.limit_in_bytes");
    }
    if (const auto path = own_path(""); path && !is_made_) {
      make("/sys/fs/cgroup", *path, name, "memory.max");
    }
  }
  ~LimitedGroup() {
    std::error_code ignored;
    fs::remove(folder_, ignored);
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;

  bool is_made() const { return is_made_; }
  const std::string& name() const { return name_; }  // as in /proc/self/cgroup
  std::string prefix() const {
    return "echo $$ >" + shell_quote((folder_ / "cgroup.procs").string()) + " && exec";
  }

 private:
  void make(const fs::path& mount, const std::string& own, const std::string& name,
            const char* file) {
    const fs::path folder = mount / fs::path(own).relative_path() / name;
    std::error_code failure;
    if (!fs::create_directory(folder, failure)) {
      return;
    }
    folder_ = folder;
    name_ = (fs::path(own) / name).string();
    std::ofstream limit(folder / file, std::ios::in);  // opens existing files only
    limit << kLimitBytes;
    is_made_ = limit.flush().good() && can_enter();
    if (!is_made_) {
      fs::remove(folder, failure);
    }
  }
  bool can_enter() const {
    return std::system((prefix() + " true").c_str()) == 0;  // NOLINT: command of the test
  }

  fs::path folder_;
  std::string name_;
  bool is_made_ = false;
};

}  // namespace

TEST_CASE("kernels that differ from the table, are new, or are missing in the source fail") {
  const FakeCompiler compiler;
  const std::string version = "# nvcc 13.0.88\n", wide = compiler.row("sm_80", "wide");
  RunResult result = compiler.compare(version + compiler.rows());
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  check_contains(result.out, {"4 passed, 0 failed, 0 skipped\n"});

  result = compiler.compare(version + compiler.rows(), /*registers=*/41);
  CHECK(result.exit_code == 1);
  check_contains(result.out, {"(the table has: " + wide.substr(0, wide.size() - 1),
                              "`tests/kernels/resources.sh --renew` writes",
                              "0 passed, 4 failed, 0 skipped\n"});

  result = compiler.compare(version + wide + compiler.row("sm_80", "gone"));
  CHECK(result.exit_code == 1);
  check_contains(result.out,
                 {"(the table has: nothing)",
                  "the table has a kernel that is not there: ", "1 passed, 4 failed, 0 skipped\n"});
}

TEST_CASE("with the table of another compiler version, only spills fail") {
  const FakeCompiler compiler;
  RunResult result = compiler.compare("# nvcc 12.4.1\n");
  CHECK(result.exit_code == 0);
  check_contains(result.out, {"is of nvcc 12.4.1, this is 13.0.88: registers are not compared",
                              "4 passed, 0 failed, 1 skipped\n"});
  result = compiler.compare("# nvcc 12.4.1\n", 40, /*spilled=*/8);
  CHECK(result.exit_code == 1);
  check_contains(result.out, {"(spills)"});
}

// The memory limit of a real cgroup, if this process may create one.
// tests/core/base/resources_test.cpp reads generated cgroup files.

TEST_CASE("a cgroup whose memory limit is too low is named") {
  const LimitedGroup group;
  if (!group.is_made()) {
    MOE_SKIP("cannot create a cgroup with a memory limit (needs root)");
  }
  const TempDir dir;
  write_file(dir / "rows.jsonl", R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})");
  // 400 rows of 64 tokens need 0.9 GB of activations.
  const Args args = {
      "train", tiny("model"), "--data", dir / "rows.jsonl", "--cache", "off",       "--steps",
      "1",     "--seq-len",   "64",     "--pack",           "stream",  "--threads", "1",
      "-o",    dir / "run",   "-q",     "--micro-batch"};
  const auto refused = run_moe(joined(args, {"400"}), group.prefix());
  check_refused(refused, "of memory, the cgroup " + group.name() + " leaves 0.");
  CHECK_THAT(refused.err, contains_text("--micro-batch"));
  CHECK_FALSE(fs::exists(dir / "run"));
  succeed(joined(args, {"1"}), group.prefix());
  // Outside of the cgroup the memory suffices.
  const auto outside = succeed(joined(args, {"400", "--dry-run"}));
  CHECK_THAT(outside.err, !contains_text("cgroup " + group.name()));
}
