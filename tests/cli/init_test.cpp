#include <algorithm>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe {
namespace {

using test::run_moe;
using test::TempDir;

std::string write_config(const TempDir& folder) {
  test::write_file(folder / "config.json", test::tiny_config({}).dump());
  return (folder / "config.json").string();
}

TEST_CASE("moe init makes a dense folder that moe inspect reads", "[cli][init]") {
  const TempDir folder;
  const std::string config = write_config(folder), out = (folder / "out").string();
  const auto run =
      run_moe({"init", config, "-o", out, "--dtype", "bf16", "--seed", "3", "--quiet"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK(run.out.find("parameters ") == 0);
  const Json seen = parse_json(run_moe({"inspect", out, "--json"}).out, "inspect");
  CHECK(seen["bytes_by_dtype"] == Json({{"BF16", seen["bytes"]}}));
  CHECK(read_json(folder / "out/init.json")["seed"] == 3);
}

TEST_CASE("moe init --experts makes a mixture from scratch", "[cli][init]") {
  const TempDir folder;
  const auto run =
      run_moe({"init", write_config(folder), "-o", (folder / "out").string(), "--experts", "4",
               "--layers", "0-1", "--router", "topp:0.4", "--experts-init", "same", "--json"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "stdout");
  CHECK(json["router"] == "topp:0.4");
  CHECK(json["experts_init"] == "same");
  CHECK(read_json(folder / "out/config.json")["moe"]["layers"] == Json({0, 1}));
}

TEST_CASE("moe init --granularity says what results", "[cli][init]") {
  const TempDir folder;
  const std::string out = (folder / "out").string();
  const auto run = run_moe({"init", write_config(folder), "-o", out, "--experts", "4",
                            "--granularity", "2", "--router", "relu:k=1", "--quiet"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(
      run.out.find("layers 0-2 of 3 are mixtures of 8 experts of width 12 (granularity 2), router "
                   "relu:k=2\n") == 0);
}

// A text of a few words in a fixed order, which any model that trains at all learns to repeat.
std::string repeated_text() {
  std::string text;
  for (int line = 0; line < 60; ++line) {
    text += "the cat sat on the mat and the dog lay by the door\n";
  }
  return text;
}

TEST_CASE("models from scratch learn plain text with the routers of papers 2 and 3",
          "[cli][init]") {
  const TempDir folder;
  const std::string tiny = (moe::test::source_folder() / "recipes/tiny/model").string();
  test::write_file(folder / "config.json",
                   test::tiny_config({.layers = 2, .vocab = 1024, .max_positions = 64}).dump());
  test::write_file(folder / "text.txt", repeated_text());
  for (const char* router : {"topp:0.4", "relu:k=1", "top1:cf=inf,gate=none,lb=selected", "top2"}) {
    for (const std::string layers : {"all", "even"}) {
      CAPTURE(router, layers);
      const std::string model = (folder / "model").string(), run = (folder / "run").string();
      const auto made =
          run_moe({"init", (folder / "config.json").string(), "-o", model, "--experts", "4",
                   "--layers", layers, "--granularity", layers == "all" ? "2" : "1", "--router",
                   router, "--tokenizer", tiny, "--force", "--quiet"});
      INFO(made.err);
      REQUIRE(made.exit_code == 0);
      const auto trained =
          run_moe({"train",          model, "-o",        run,
                   "--objective",    "lm",  "--data",    (folder / "text.txt").string(),
                   "--steps",        "25",  "--seq-len", "64",
                   "--global-batch", "4",   "--lr",      "1e-2",
                   "--threads",      "1",   "--json",    "--force"});
      INFO(trained.err);
      REQUIRE(trained.exit_code == 0);
      const Json result = parse_json(trained.out, "stdout");
      CHECK(result["last_loss"].get<double>() < 0.6 * result["first_loss"].get<double>());
      CHECK(run_moe({"inspect", run + "/final"}).exit_code == 0);
    }
  }
}

TEST_CASE("a bad moe init is one sentence and exit code 2", "[cli][init]") {
  const TempDir folder;
  const std::string config = write_config(folder), out = (folder / "out").string();
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "init");
    const auto run = run_moe(arguments);
    INFO(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
    CHECK_FALSE(std::filesystem::exists(out));
    return run.err;
  };
  CHECK(refused({(folder / "none.json").string(), "-o", out}).find("none.json") !=
        std::string::npos);
  CHECK(
      refused({config, "-o", out, "--router", "top1"}) ==
      "moe: --router, --cf, --ep-ranks, --layers and --granularity need --experts; the config of a "
      "MoE model sets them itself\n");
  CHECK(refused({config, "-o", out, "--granularity", "2"}).find("need --experts") !=
        std::string::npos);
  CHECK(refused({config, "-o", out, "--experts", "4", "--granularity", "7"})
            .find("--granularity 7: the feed-forward is 24 wide") != std::string::npos);
  CHECK(refused({config, "-o", out, "--experts-init", "equal"}).find("equal") != std::string::npos);
  CHECK(refused({config, "-o", out, "--seeds", "4"}).find("did you mean '--seed'?") !=
        std::string::npos);
  CHECK(refused({config, "-o", out, "--tokenizer", (folder / "none.model").string()})
            .find("none.model") != std::string::npos);
  test::write_file(folder / "config.json",
                   R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})");
  CHECK(refused({config, "-o", out}).find("architecture 'GPT2LMHeadModel'") != std::string::npos);
}

TEST_CASE("a full disk stops moe init with a sentence and leaves nothing", "[cli][init]") {
  const TempDir folder;
  const auto run = run_moe({"init", write_config(folder), "-o", (folder / "out").string()},
                           "trap '' XFSZ; ulimit -f 16;");
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("disk full") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  CHECK_FALSE(std::filesystem::exists(folder / "out.partial"));
}

}  // namespace
}  // namespace moe
