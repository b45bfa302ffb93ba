#include <sstream>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

using namespace moe;
using moe::test::read_file;
using moe::test::run_moe;
using moe::test::RunResult;
using moe::test::TempDir;
using moe::test::write_file;

namespace {

// `moe train` on a tiny dense folder with `flags` behind the usual ones.
struct World {
  TempDir dir;

  World() {
    test::write_tiny_checkpoint(dir / "dense");
    test::write_training_rows(dir / "rows.jsonl");
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  RunResult train(std::vector<std::string> flags, const std::string& model = "dense",
                  const std::string& prefix = "") const {
    std::vector<std::string> words = {"train",  path(model),        "-o",        path("run"),
                                      "--data", path("rows.jsonl"), "--threads", "1"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_moe(words, prefix);
  }
};

void check_error(const RunResult& result, int exit_code, const std::string& part) {
  INFO(result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(result.err.find(part) != std::string::npos);
  CHECK(result.out.empty());
}

}  // namespace

TEST_CASE(
    "moe train leaves a run, prints step lines on standard error and the result on standard output",
    "[cli]") {
  const World world;
  const auto result =
      world.train({"--steps", "6", "--micro-batch", "2", "--global-batch", "4", "--lr", "1e-2"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.find("16 examples, 96 tokens; 6 steps of 4 rows (2 at a time)") !=
        std::string::npos);
  CHECK(result.err.find("step 1/6  loss ") != std::string::npos);
  CHECK(result.err.find("step 6/6  loss ") != std::string::npos);
  CHECK(result.err.find("tok/s") != std::string::npos);
  CHECK(result.err.find('\r') == std::string::npos);  // no terminal here
  CHECK(result.out.rfind("6 steps, loss ", 0) == 0);
  CHECK(result.out.find(world.path("run/final") + "\n") != std::string::npos);
  CHECK(std::filesystem::exists(world.dir / "run/final/model.safetensors"));
}

TEST_CASE("a run's settings.toml makes the same run again", "[cli]") {
  const World world;
  REQUIRE(world.train({"--steps", "3", "--seed", "5", "--lr", "3e-3", "--warmup", "2", "--quiet"})
              .exit_code == 0);
  const auto again = run_moe(
      {"train", "--config", world.path("run/settings.toml"), "-o", world.path("again"), "--quiet"});
  INFO(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(again.err.empty());
  CHECK(read_file(world.dir / "again/final/model.safetensors") ==
        read_file(world.dir / "run/final/model.safetensors"));
}

TEST_CASE("a run with its optimizer state in bf16 is made again by its settings.toml", "[cli]") {
  const World world;
  REQUIRE(world.train({"--steps", "5", "--lr", "1e-2", "--optimizer-state", "bf16", "--quiet"})
              .exit_code == 0);
  CHECK(read_file(world.dir / "run/settings.toml").find("optimizer-state = \"bf16\"\n") !=
        std::string::npos);
  REQUIRE(run_moe({"train", "--config", world.path("run/settings.toml"), "-o", world.path("again"),
                   "--quiet"})
              .exit_code == 0);
  CHECK(read_file(world.dir / "again/final/model.safetensors") ==
        read_file(world.dir / "run/final/model.safetensors"));
  check_error(world.train({"--steps", "5", "--lr", "1e-2", "--resume"}), 2,
              "optimizer-state was \"bf16\", is \"fp32\"");
}

TEST_CASE("an outlier is told by a line of its own and in the result", "[cli]") {
  const World world;
  std::string text;
  for (int row = 0; row < 152; ++row) {
    const std::vector<int> ids = row == 150 ? std::vector<int>{40, 50, 41, 60, 45, 63}
                                            : std::vector<int>{5, 6, 7, 8 + row % 3, 9, 10};
    text += OrderedJson{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  }
  write_file(world.dir / "rows.jsonl", text);
  const auto result = world.train({"--micro-batch", "1", "--shuffle", "off", "--lr", "3e-3",
                                   "--schedule", "constant", "--skip-outliers", "6"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.find("step 151 skipped (outlier): the loss ") != std::string::npos);
  CHECK(result.err.find("skipped 1 (1 outlier)") != std::string::npos);
  CHECK(result.out.find(", skipped 1 (1 outlier): ") != std::string::npos);
  CHECK(read_file(world.dir / "run/settings.toml").find("skip-outliers = 6\n") !=
        std::string::npos);
}

TEST_CASE("a mixture's step line shows its routing, --json gives the result to machines", "[cli]") {
  const World world;
  REQUIRE(run_moe({"upcycle", world.path("dense"), "-o", world.path("moe"), "--experts", "4",
                   "--router", "top1"})
              .exit_code == 0);
  const auto result =
      world.train({"--steps", "2", "--router", "top1+ir+fr", "--cf", "0.5", "--json"}, "moe");
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(
      result.err.find("router top1+ir+fr:cf=0.5 on 4 logical ranks, capacity counted over the ") !=
      std::string::npos);
  CHECK(result.err.find(" tokens of a micro-batch; loss = language model + 0.01 x load balance") !=
        std::string::npos);
  for (const char* part :
       {"  aux ", "  drop ", "  fill ", "  IR ", "  experts ", "  load ", "  H ", "  left "}) {
    CHECK(result.err.find(part) != std::string::npos);
  }
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) {
    CHECK((!line.starts_with("step ") || line.size() <= 160));
  }
  const Json json = parse_json(result.out, "stdout");
  CHECK(json["steps"] == 2);
  CHECK(json["model"] == world.path("run/final"));
}

TEST_CASE("settings.toml makes a run again whatever router the folder stores", "[cli]") {
  const World world;
  const auto run_again = [&](const std::string& stored, std::vector<std::string> flags) {
    CAPTURE(stored);
    std::filesystem::remove_all(world.dir / "run");
    REQUIRE(run_moe({"upcycle", world.path("dense"), "-o", world.path("moe"), "--experts", "4",
                     "--router", stored, "--force"})
                .exit_code == 0);
    flags.insert(flags.end(), {"--steps", "3", "--lr", "1e-2", "--force"});
    const auto first = world.train(flags, "moe");
    INFO(first.err);
    REQUIRE(first.exit_code == 0);
    const auto again = run_moe({"train", "--config", world.path("run/settings.toml"), "-o",
                                world.path("again"), "--force"});
    INFO(again.err);
    REQUIRE(again.exit_code == 0);
    for (const char* file : {"final/config.json", "final/model.safetensors"}) {
      CHECK(read_file(world.dir / "run" / file) == read_file(world.dir / "again" / file));
    }
    return first.err;
  };
  const std::string forced =
      run_again("top2:gate=none,st=off,order=score", {"--router", "top1:gate=selected,st=on"});
  CHECK(forced.find("another gate rescales every MoE output") != std::string::npos);
  CHECK(read_file(world.dir / "run/settings.toml").find("beside the --force") != std::string::npos);
  run_again("top1+ir:cf=0.5", {"--router", "top1:lb=selected", "--lb-coef", "0"});
  run_again("relu:k=1,mult=1.5", {"--router", "relu:k=2,l1=plain", "--lambda", "0.001"});
  run_again("topp:0.4,max=2", {"--router", "topp:0.5", "--entropy-coef", "0.01"});
  run_again("topp:0.4", {"--router", "top2+fr"});
  run_again("top2", {"--z-coef", "0.1", "--seq-lb-coef", "0.2"});
}

TEST_CASE("losses that were asked for stand in the step line, and off again in the run after",
          "[cli]") {
  const World world;
  REQUIRE(run_moe({"upcycle", world.path("dense"), "-o", world.path("moe"), "--experts", "4",
                   "--router", "top2"})
              .exit_code == 0);
  const auto with = world.train({"--steps", "2", "--z-coef", "0.1", "--seq-lb-coef", "0.2"}, "moe");
  INFO(with.err);
  REQUIRE(with.exit_code == 0);
  CHECK(with.err.find(" + 0.1 x z-loss + 0.2 x load balance within each sequence") !=
        std::string::npos);
  CHECK(with.err.find("  z ") != std::string::npos);
  CHECK(with.err.find("  seq ") != std::string::npos);

  // The folder remembers both; 0 turns one off, and settings.toml makes that run again.
  std::filesystem::copy(world.dir / "run/final", world.dir / "trained",
                        std::filesystem::copy_options::recursive);
  const auto off = world.train({"--steps", "2", "--z-coef", "0", "--force"}, "trained");
  INFO(off.err);
  REQUIRE(off.exit_code == 0);
  CHECK(off.err.find("  z ") == std::string::npos);
  CHECK(off.err.find("  seq ") != std::string::npos);
  const auto again = run_moe(
      {"train", "--config", world.path("run/settings.toml"), "-o", world.path("again"), "--force"});
  REQUIRE(again.exit_code == 0);
  CHECK(again.err.find("  z ") == std::string::npos);
  CHECK(read_file(world.dir / "run/final/model.safetensors") ==
        read_file(world.dir / "again/final/model.safetensors"));

  const auto wrong = world.train({"--steps", "2", "--z-coef", "-1", "--force"}, "moe");
  CHECK(wrong.exit_code == 2);
  CHECK(wrong.err.find("--z-coef") != std::string::npos);
}

TEST_CASE("a warning is said once, and what is off is said", "[cli]") {
  const World world;
  REQUIRE(run_moe({"upcycle", world.path("dense"), "-o", world.path("moe"), "--experts", "4",
                   "--router", "topp:0.4"})
              .exit_code == 0);
  const auto result =
      world.train({"--steps", "2", "--router", "top2:cf=inf", "--lb-coef", "0"}, "moe");
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const size_t at = result.err.find("warning: ");
  REQUIRE(at != std::string::npos);
  CHECK(result.err.find("warning: ", at + 1) == std::string::npos);
  CHECK(result.err.find("load balance (of first choices) is off (coefficient 0)") !=
        std::string::npos);
}

TEST_CASE("settings that are known to fail are warned of before the first step", "[cli]") {
  const World world;
  REQUIRE(
      world.train({"--steps", "2", "--lr", "1e-3", "--schedule", "constant", "--save-every", "1"})
          .exit_code == 0);
  std::filesystem::rename(world.dir / "run", world.dir / "parent");
  REQUIRE(run_moe({"upcycle", world.path("parent/final"), "-o", world.path("moe"), "--experts", "4",
                   "--router", "top1:st=off", "--quiet"})
              .exit_code == 0);
  CHECK(read_json(world.dir / "moe/upcycle.json")["source"]["last_learning_rate"] == 1e-3);

  for (const auto& more : std::vector<std::vector<std::string>>{{"--dry-run"}, {}}) {
    std::vector<std::string> flags = {"--steps", "2", "--lr", "0.1"};
    flags.insert(flags.end(), more.begin(), more.end());
    const std::string err = world.train(flags, "moe").err;
    INFO(err);
    for (const char* part : {"warning: router top1:st=off learns nothing from the task",
                             "warning: capacity is counted over 12 tokens a logical rank",
                             "warning: --lr 0.1 is 100 times the last learning rate that the model "
                             "was trained with (0.001)"}) {
      CHECK(err.find(part) != std::string::npos);
    }
  }
  const std::string page = read_file(world.dir / "run/report.html");
  CHECK(page.find("learns nothing from the task") != std::string::npos);

  // A router that does not train needs no gradient.
  const std::string frozen = world
                                 .train({"--steps", "2", "--lr", "1e-3", "--train", "experts",
                                         "--router", "top1:cf=inf,st=off", "--dry-run"},
                                        "moe")
                                 .err;
  CHECK(frozen.find("warning: ") == std::string::npos);
  const std::string planned = world
                                  .train({"--nodes", "1", "--gpus", "4", "--lr", "1e-3",
                                          "--dry-run", "--router", "top1:cf=inf,st=off"},
                                         "moe")
                                  .err;
  CHECK(planned.find("learns nothing from the task") != std::string::npos);
  const std::string from_checkpoint =
      world.train({"--steps", "2", "--lr", "0.1", "--dry-run"}, "parent/checkpoints/step-1").err;
  CHECK(from_checkpoint.find("--lr 0.1 is 100 times") != std::string::npos);
}

TEST_CASE("a loss that is no number ends with code 1 and the step", "[cli]") {
  const World world;
  const auto result = world.train({"--steps", "9", "--lr", "1e30", "--quiet"});
  check_error(result, 1, "moe: step 2: the ");
  CHECK(result.err.find("no checkpoint was saved before (--save-every)") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(world.dir / "run/final"));
}

TEST_CASE("SIGINT finishes the step, saves and ends with code 130", "[cli]") {
  const World world;
  // A shell starts what is behind a process with SIGINT ignored; the signal comes when a step is
  // done.
  const std::string command =
      "env --default-signal=INT timeout 300 " + test::shell_quote(test::moe_binary()) + " train " +
      world.path("dense") + " -o " + world.path("run") + " --data " + world.path("rows.jsonl") +
      " --threads 1 --steps 100000000 --quiet 2>" + world.path("err") + " & while [ ! -s " +
      world.path("run/metrics.jsonl") + " ] && kill -0 $!; do sleep 0.05; done;" +
      " kill -INT $!; wait $!";
  const int status = std::system(command.c_str());  // NOLINT: the test's own words
  const std::string err = read_file(world.dir / "err");
  INFO(err);
  CHECK(WEXITSTATUS(status) == 130);
  const auto at = err.find("saved ");
  REQUIRE(at != std::string::npos);
  const std::string saved = err.substr(at + 6, err.find(';', at) - at - 6);
  CHECK(std::filesystem::exists(std::filesystem::path(saved) / "model.safetensors"));
}

TEST_CASE("the same command goes on after a stop, and a finished run is left as it is", "[cli]") {
  const World world;
  const std::vector<std::string> command = {"--steps", "400", "--save-every", "50"};
  const auto stopped = world.train(command, "dense", "timeout --preserve-status -s TERM 0.7");
  INFO(stopped.err);
  // A slow machine may not have done a step, or not have come to mind signals (143), a fast one may
  // have done all of them; all end as they say.
  CHECK((stopped.exit_code == 130 || stopped.exit_code == 143 || stopped.exit_code == 0));
  const auto again = world.train(command);
  INFO(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(std::filesystem::exists(world.dir / "run/final/model.safetensors"));
  const auto done = world.train(command);
  CHECK(done.exit_code == 0);
  CHECK(done.err.find("already complete (") != std::string::npos);
  CHECK(done.out.empty());
  check_error(world.train({"--steps", "401", "--resume"}), 2, "steps was 400, is 401");
  check_error(world.train({"--steps", "400", "--resume", "--force"}), 2, "give one of them");
}

TEST_CASE("what a user gets wrong ends with code 2 and a sentence", "[cli]") {
  const World world;
  check_error(world.train({"--stepz", "3"}), 2, "unknown flag '--stepz', did you mean '--steps'?");
  check_error(world.train({"--schedule", "sine"}), 2,
              "--schedule 'sine' is unknown; known: cosine");
  check_error(world.train({"--lr", "-1"}), 2, "--lr -1: must be 0 or a positive number");
  check_error(world.train({"--pack", "tight"}), 2, "--pack");
  check_error(world.train({"--optimizer-state", "fp16"}), 2, "--optimizer-state");
  check_error(world.train({"--skip-outliers", "0"}), 2,
              "--skip-outliers 0: must be a number of standard deviations of at least 1; 6 is");
  check_error(world.train({"--decay-embeddings", "no"}), 2, "--decay-embeddings");
  check_error(world.train({"--router", "top1"}), 2, "is a dense folder; add --upcycle N");
  check_error(world.train({"--objective", "lm", "--seq-len", "5"}), 2,
              "rows.jsonl line 1: the example has 6 tokens, --seq-len is 5");
  check_error(run_moe({"train", world.path("dense"), "-o", world.path("run")}), 2, "--data");
  check_error(run_moe({"train", world.path("dense"), "-o", world.path("run"), "--data",
                       world.path("none.jsonl")}),
              2, "none.jsonl: no such file");
  write_file(world.dir / "run/metrics.jsonl", "{}");
  check_error(world.train({}), 2,
              "is there already and is no run of moe train; give another -o, or --force");
}

TEST_CASE("real Alpaca data fine-tunes a real upcycled model from end to end", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const auto data = test::shared_data();
  const TempDir dir;
  const std::string moe = (dir / "moe").string(), run = (dir / "run").string();
  REQUIRE(run_moe({"upcycle", (data / "stories260K-hf").string(), "-o", moe, "--experts", "4",
                   "--router", "top1+ir+fr"})
              .exit_code == 0);
  const auto result =
      run_moe({"train", moe, "-o", run, "--data",
               (data / "instruct" / "alpaca_2000.jsonl").string(), "--steps", "8", "--seq-len",
               "256", "--global-batch", "4", "--lr", "1e-3", "--threads", "1"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.find("2000 examples") != std::string::npos);
  CHECK(std::filesystem::exists(std::filesystem::path(run) / "final" / "tokenizer.model"));
  CHECK(run_moe({"inspect", run + "/final"}).exit_code == 0);
}
