// Memory limits of a real cgroup, if this process may create one.
// tests/core/base/resources_test.cpp uses generated trees of the same files.

#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include "tests/cli/commands.h"

using namespace moe::test;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kLimit_bytes = 400'000'000;

// Returns the path of `controllers` ("" for version 2) in /proc/self/cgroup.
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
    limit << kLimit_bytes;
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

TEST_CASE("a cgroup of Linux whose memory limit is too low is named", "[cli]") {
  const LimitedGroup group;
  if (!group.is_made()) {
    MOE_SKIP("no control group with a limit of memory can be made here (needs root)");
  }
  const TempDir dir;
  write_file(dir / "rows.jsonl", R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})");
  // 400 rows of 64 tokens: 0.9 GB of a model of 3.5 MB.
  const Words words = {"train",     tiny("model"),
                       "--data",    (dir / "rows.jsonl").string(),
                       "--cache",   "off",
                       "--steps",   "1",
                       "--seq-len", "64",
                       "--pack",    "stream",
                       "--threads", "1",
                       "-o",        (dir / "run").string(),
                       "-q",        "--micro-batch"};
  const auto refused = run_moe(joined(words, {"400"}), group.prefix());
  check_refused(refused, "of memory, the cgroup " + group.name() + " leaves 0.");
  CHECK_THAT(refused.err, contains_text("--micro-batch"));
  CHECK_FALSE(fs::exists(dir / "run"));
  succeed(joined(words, {"1"}), group.prefix());
  // Outside of the cgroup the memory suffices.
  const auto outside = succeed(joined(words, {"400", "--dry-run"}));
  CHECK_THAT(outside.err, !contains_text("cgroup " + group.name()));
}
