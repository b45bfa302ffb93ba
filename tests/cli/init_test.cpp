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
  const auto run = run_moe({"init",
                            write_config(folder),
                            "-o",
                            (folder / "out").string(),
                            "--experts",
                            "4",
                            "--layers",
                            "0-1",
                            "--router",
                            "topp:0.4",
                            "--experts-init",
                            "same",
                            "--json"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "stdout");
  CHECK(json["router"] == "topp:0.4");
  CHECK(json["experts_init"] == "same");
  CHECK(read_json(folder / "out/config.json")["moe"]["layers"] == Json({0, 1}));
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
  CHECK(refused({config, "-o", out, "--router", "top1"}) ==
        "moe: --router, --cf, --ep-ranks and --layers need --experts; a config that describes a "
        "mixture has its own\n");
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
