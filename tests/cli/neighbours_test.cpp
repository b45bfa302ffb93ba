// What lies beside an output and is somebody else's stays, byte for byte, whatever its name.

#include <map>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe {
namespace {

using test::read_file;
using test::run_moe;
using test::RunResult;
using test::TempDir;
using test::write_file;
namespace fs = std::filesystem;

// File -> what it holds.
using Files = std::map<fs::path, std::string>;

void write_files(const Files& files) {
  for (const auto& [file, text] : files) {
    write_file(file, text);
  }
}

void check_untouched(const Files& files) {
  for (const auto& [file, text] : files) {
    INFO(file.string());
    CHECK(read_file(file) == text);
  }
}

// The commands that write a folder, and what they need.
struct World {
  TempDir dir;

  World() {
    test::write_tiny_checkpoint(dir / "dense");
    std::string rows;
    for (int row = 0; row < 16; ++row) {
      const std::vector<int> ids = {5, 6, 7, 8 + row % 3, 9, 10};
      rows += OrderedJson{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
    }
    write_file(dir / "rows.jsonl", rows);
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  RunResult upcycle(const std::vector<std::string>& flags) const {
    std::vector<std::string> words = {"upcycle", path("dense"), "--experts", "2", "--quiet"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_moe(words);
  }
  RunResult train(const std::vector<std::string>& flags, const std::string& prefix = "") const {
    std::vector<std::string> words = {"train",   path("dense"), "--data",    path("rows.jsonl"),
                                      "--steps", "2",           "--threads", "1",
                                      "--quiet"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_moe(words, prefix);
  }
};

void check_refused(const RunResult& result, const std::string& part) {
  INFO(result.err);
  CHECK(result.exit_code == 2);
  CHECK(result.err.find(part) != std::string::npos);
}

TEST_CASE("folders named like ours beside an output are not removed, nor by a refused command",
          "[cli]") {
  const World world;
  const Files bait = {{world.dir / "out.partial/thesis.txt", "years"},
                      {world.dir / "out.partial/new/thesis.txt", "years"},
                      {world.dir / "out.replaced/thesis.txt", "years"}};
  write_files(bait);
  const std::string words = "is in the way of writing " + world.path("out");
  check_refused(world.upcycle({"-o", world.path("out")}), words);
  check_refused(run_moe({"init", world.path("dense"), "-o", world.path("out"), "--quiet"}), words);
  CHECK_FALSE(fs::exists(world.dir / "out"));
  write_file(world.dir / "out/mine", "x");
  check_refused(world.upcycle({"-o", world.path("out")}), words);
  check_refused(world.upcycle({"-o", world.path("out"), "--force"}), words);
  check_untouched(bait);
  CHECK(read_file(world.dir / "out/mine") == "x");
  fs::rename(world.dir / "out.partial", world.dir / "away");  // as the sentence says
  const auto result = world.upcycle({"-o", world.path("out"), "--force"});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(fs::exists(world.dir / "out/model.safetensors"));
  CHECK_FALSE(fs::exists(world.dir / "out.partial"));
  CHECK(read_file(world.dir / "out.replaced/thesis.txt") == "years");
}

TEST_CASE("files named like half-made ones in the folder of the token cache stay", "[cli]") {
  const World world;
  const std::string key(32, 'a');
  const Files bait = {{world.dir / "cache/thesis.partial-draft", "years"},
                      {world.dir / ("cache/" + key + ".tokens.partial-thesis"), "years"},
                      {world.dir / "cache/thesis.tokens.partial-a1b2c3", "moe part"}};
  write_files(bait);
  const auto result = world.train({"-o", world.path("run"), "--cache", world.path("cache")});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  check_untouched(bait);
}

}  // namespace
}  // namespace moe
