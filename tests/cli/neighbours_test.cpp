// What lies beside an output and is somebody else's stays, byte for byte, whatever its name.

#include <map>

#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

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
    test::write_training_rows(dir / "rows.jsonl");
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

TEST_CASE("files named like half-made pages and settings stay", "[cli]") {
  const World world;
  REQUIRE(world.train({"-o", world.path("run")}).exit_code == 0);
  const Files bait = {{world.dir / "page.html.new", "years"},
                      {world.dir / "page.html.partial", "years"},
                      {world.dir / "run/report.html.new", "years"},
                      {world.dir / "run/settings.toml.new", "years"}};
  write_files(bait);
  CHECK(run_moe({"report", world.path("run"), "-o", world.path("page.html")}).exit_code == 0);
  CHECK(run_moe({"report", world.path("run")}).exit_code == 0);
  CHECK(world.train({"-o", world.path("run")}).exit_code == 0);
  check_untouched(bait);
}

TEST_CASE("moe train --force removes what the run before made, and nobody else's files", "[cli]") {
  const World world;
  const std::vector<std::string> save = {"-o", world.path("run"), "--save-every", "1"};
  REQUIRE(world.train(save).exit_code == 0);
  const Files bait = {{world.dir / "run/mine.txt", "years"},
                      {world.dir / "run/checkpoints/best/thesis.txt", "years"},
                      {world.dir / "run/checkpoints/step-1.removed/thesis.txt", "years"},
                      {world.dir / "run/events.out.tfevents.1.theirs", "years"}};
  write_files(bait);
  write_file(world.dir / "run/checkpoints/step-2/rows.jsonl", read_file(world.dir / "rows.jsonl"));
  check_refused(world.train({"-o", world.path("run"), "--force", "--data",
                             world.path("run/checkpoints/step-2/rows.jsonl")}),
                "step-2/rows.jsonl lies inside it and would be removed");
  check_refused(world.train({"-o", world.path("run"), "--force", "--eval-data",
                             world.path("run/checkpoints/step-2/rows.jsonl")}),
                "step-2/rows.jsonl lies inside it and would be removed");
  CHECK(fs::exists(world.dir / "run/final"));
  const auto result = world.train({"-o", world.path("run"), "--force", "--seed", "3"});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK_FALSE(fs::exists(world.dir / "run/checkpoints/step-2"));
  CHECK(fs::exists(world.dir / "run/final/model.safetensors"));
  check_untouched(bait);
}

TEST_CASE("moe train --force begins in a folder of others, not in place of their files", "[cli]") {
  const World world;
  Files bait = {{world.dir / "run/mine.txt", "years"},
                {world.dir / "run/checkpoints/best/thesis.txt", "years"}};
  write_files(bait);
  write_file(world.dir / "run/metrics.jsonl", "years");
  check_refused(world.train({"-o", world.path("run"), "--force"}),
                "run/metrics.jsonl: is not in the list of what a run of moe made there");
  CHECK(read_file(world.dir / "run/metrics.jsonl") == "years");
  fs::remove(world.dir / "run/metrics.jsonl");
  const auto result =
      world.train({"-o", world.path("run"), "--force", "--save-every", "1", "--keep", "1"});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  check_untouched(bait);
}

TEST_CASE("no --force removes what the command reads, its working folder or the home", "[cli]") {
  const World world;
  REQUIRE(world.upcycle({"-o", world.path("out")}).exit_code == 0);
  REQUIRE(world.train({"-o", world.path("run")}).exit_code == 0);
  const Files inputs = {
      {world.dir / "out/text.txt", "a text"},
      {world.dir / "out/mine.json", read_file(world.dir / "dense/config.json")},
      {world.dir / "run/metrics.jsonl", read_file(world.dir / "run/metrics.jsonl")}};
  write_files(inputs);
  const std::string inside = "lies inside it and would be removed";
  check_refused(run_moe({"init", world.path("out/mine.json"), "-o", world.path("out"), "--force"}),
                inside);
  check_refused(world.upcycle({"-o", world.path("out"), "--force", "--verify-text",
                               world.path("out/text.txt")}),
                inside);
  check_refused(
      run_moe({"report", world.path("run"), "-o", world.path("run/metrics.jsonl"), "--force"}),
      "is read by this command and would be replaced");
  const std::string ours = "holds the working or the home folder";
  fs::create_directory(world.dir / "run/below");
  check_refused(
      world.train({"-o", world.path("run"), "--force"}, "cd " + world.path("run/below") + " &&"),
      ours);
  check_refused(world.train({"-o", world.path("run"), "--force"}, "HOME=" + world.path("run")),
                ours);
  check_untouched(inputs);
  CHECK(fs::exists(world.dir / "out/model.safetensors"));
}

TEST_CASE("moe upcycle gives no file away that its model folder only links to", "[cli]") {
  const World world;
  write_file(world.dir / "key", "secret");
  fs::create_symlink(world.dir / "key", world.dir / "dense/chat_template.jinja");
  check_refused(world.upcycle({"-o", world.path("out")}), "is a link to " + world.path("key"));
  CHECK_FALSE(fs::exists(world.dir / "out"));
  fs::remove(world.dir / "dense/chat_template.jinja");
  write_file(world.dir / "dense/chat_template.jinja", "private");
  fs::permissions(world.dir / "dense/chat_template.jinja", fs::perms(0600));
  fs::rename(world.dir / "dense/model.safetensors", world.dir / "weights");  // on another disk
  fs::create_symlink(world.dir / "weights", world.dir / "dense/model.safetensors");
  REQUIRE(world.upcycle({"-o", world.path("out")}).exit_code == 0);
  CHECK(fs::status(world.dir / "out/chat_template.jinja").permissions() == fs::perms(0600));
}

TEST_CASE("an output that is a link is refused, and both ends of it stay", "[cli]") {
  const World world;
  const Files theirs = {{world.dir / "real/thesis.txt", "years"}, {world.dir / "page", "years"}};
  write_files(theirs);
  fs::create_directory_symlink(world.dir / "real", world.dir / "out");
  check_refused(world.upcycle({"-o", world.path("out"), "--force"}),
                "is a link to " + world.path("real"));
  REQUIRE(world.train({"-o", world.path("run")}).exit_code == 0);
  fs::create_symlink(world.dir / "page", world.dir / "link.html");
  check_refused(run_moe({"report", world.path("run"), "-o", world.path("link.html"), "--force"}),
                "is a link to " + world.path("page"));
  CHECK(fs::is_symlink(world.dir / "out"));
  CHECK(fs::is_symlink(world.dir / "link.html"));
  check_untouched(theirs);
}

TEST_CASE("names that others gave reach a terminal as text", "[cli]") {
  const World world;
  const std::string name = "model\x1b[2J\nmoe: all is well";
  const auto missing = run_moe({"inspect", world.path(name)});
  CHECK(missing.exit_code == 2);
  CHECK(missing.err ==
        "moe: " + world.path("model\\x1b[2J\\nmoe: all is well") + ": no such folder\n");
  fs::rename(world.dir / "dense", world.dir / name);
  const auto found = run_moe({"inspect", world.path(name)});
  INFO(found.err);
  CHECK(found.exit_code == 0);
  CHECK(found.out.find('\x1b') == std::string::npos);
  CHECK(found.out.find("model\\x1b[2J\\nmoe: all is well\n") != std::string::npos);
  const auto trained = run_moe({"train", world.path(name), "--data", world.path("rows.jsonl"),
                                "--steps", "1", "-o", world.path("run"), "--threads", "1"});
  INFO(trained.err);
  CHECK(trained.exit_code == 0);
  CHECK(trained.err.find('\x1b') == std::string::npos);
}

}  // namespace
}  // namespace moe
