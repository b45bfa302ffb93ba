// moe init (dense models and mixtures with random weights) and moe inspect.

#include "core/base/json.h"
#include "tests/cli/commands.h"

namespace moe {
namespace {

using namespace moe::test;

std::string write_config(const TempDir& folder) {
  write_file(folder / "config.json", tiny_config({}).dump());
  return (folder / "config.json").string();
}

TEST_CASE("moe init creates a dense model that moe inspect reads") {
  const TempDir folder;
  const std::string out = folder / "out";
  const auto run = succeed(
      {"init", write_config(folder), "-o", out, "--dtype", "bf16", "--seed", "3", "--quiet"});
  CHECK(run.err.empty());
  CHECK(run.out.starts_with("parameters "));
  const Json seen = parse_json(succeed({"inspect", out, "--json"}).out, "inspect");
  CHECK(seen["bytes_by_dtype"] == Json({{"BF16", seen["bytes"]}}));
  CHECK(read_json(folder / "out/init.json")["seed"] == 3);
}

TEST_CASE("moe init --experts creates a mixture, and --granularity splits its experts") {
  const TempDir folder;
  const Args args = {"init",   write_config(folder), "-o", folder / "out", "--experts", "4",
                     "--force"};
  const auto json = parse_json(succeed(joined(args, {"--layers", "0-1", "--router", "topp:0.4",
                                                     "--experts-init", "same", "--json"}))
                                   .out,
                               "stdout");
  CHECK(json["router"] == "topp:0.4");
  CHECK(json["experts_init"] == "same");
  CHECK(read_json(folder / "out/config.json")["moe"]["layers"] == Json({0, 1}));
  CHECK_THAT(
      succeed(joined(args, {"--granularity", "2", "--router", "relu:k=1", "--quiet"})).out,
      contains_text("layers 0-2 of 3 are mixtures of 8 experts of width 12 (granularity 2), router "
                    "relu:k=2\n"));
}

// Trains a model from scratch on a repeated sentence and checks that the loss falls.
void check_learns(const std::string& router, const std::string& layers,
                  const std::string& granularity) {
  CAPTURE(router, layers);
  const TempDir folder;
  const std::string model = folder / "model", run = folder / "run";
  std::string text;
  for (int line = 0; line < 60; ++line) {
    text += "the cat sat on the mat and the dog lay by the door\n";
  }
  write_file(folder / "config.json",
             tiny_config({.layers = 2, .vocab = 1024, .max_positions = 64}).dump());
  write_file(folder / "text.txt", text);
  succeed({"init", folder / "config.json", "-o", model, "--experts", "4", "--layers", layers,
           "--granularity", granularity, "--router", router, "--tokenizer", tiny("model"),
           "--quiet"});
  const auto trained = succeed({"train", model, "-o", run, "--objective", "lm", "--data",
                                folder / "text.txt", "--steps", "25", "--seq-len", "64",
                                "--global-batch", "4", "--lr", "1e-2", "--threads", "1", "--json"});
  const Json result = parse_json(trained.out, "stdout");
  CHECK(result["last_loss"].get<double>() < 0.6 * result["first_loss"].get<double>());
  succeed({"inspect", run + "/final"});
}

TEST_CASE("models from scratch learn plain text with the routers of papers 2 and 3") {
  check_learns("topp:0.4", "all", "2");
  check_learns("relu:k=1", "even", "1");
}

TEST_CASE("moe init refuses invalid flags by name") {
  const TempDir folder;
  const std::string config = write_config(folder), out = folder / "out";
  for (const auto& [flags, fact] : std::vector<std::pair<Args, std::string>>{
           {{config, "-o", out, "--router", "top1"}, "need --experts"},
           {{config, "-o", out, "--experts-init", "equal"}, "equal"}}) {
    check_refused(joined({"init"}, flags), fact);
    CHECK_FALSE(fs::exists(out));
  }
  write_file(config, R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})");
  check_refused({"init", config, "-o", out}, "architecture 'GPT2LMHeadModel'");
}

TEST_CASE("moe inspect prints a table of a mixture") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  const std::string out = folder / "out";
  succeed({"upcycle", folder / "dense", "-o", out, "--experts", "4", "--router", "top1+ir",
           "--ep-ranks", "2"});
  const auto run = succeed({"inspect", out});
  CHECK(run.err.empty());
  check_contains(
      run.out,
      {"model type    qwen2_moe\n",
       "layers        3 of width 16, 4 heads of 4 (2 for keys and values), vocabulary 64\n",
       "mixtures      layers 0, 2: 4 experts of width 24\n", "router        top1+ir\n",
       "upcycled      from dense\n", " on each of 2 expert-parallel ranks\n",
       "tokenizer     none\n",
       "transformers  top-1 of 4 experts without dropping, weights summing to 1\n",
       "needs moe     expert capacity (cf=1): stock tools drop nothing\n",
       "needs moe     +ir: dropped requests go to the best expert of the token's own rank\n"});
}

}  // namespace
}  // namespace moe
