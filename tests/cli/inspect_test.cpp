#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe {
namespace {

using test::run_moe;
using test::TempDir;

TEST_CASE("moe inspect prints a table of what a mixture holds", "[cli][inspect]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const std::string out = (folder / "out").string();
  const auto made = run_moe({"upcycle", (folder / "dense").string(), "-o", out, "--experts", "4",
                             "--router", "top1+ir", "--ep-ranks", "2"});
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  const auto run = run_moe({"inspect", out});
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.empty());
  for (const char* line :
       {"model type    qwen2_moe\n",
        "layers        3 of width 16, 4 heads of 4 (2 for keys and values), vocabulary 64\n",
        "mixtures      layers 0, 2: 4 experts of width 24\n", "router        top1+ir\n",
        "upcycled      from dense\n", " on each of 2 expert-parallel ranks\n",
        "tokenizer     none\n",
        "transformers  top-1 of 4 experts without dropping, weights summing to 1\n",
        "needs moe     expert capacity (cf=1): stock tools drop nothing\n",
        "needs moe     +ir: dropped requests go to the best expert of the token's own rank\n"}) {
    INFO(run.out);
    CHECK(run.out.find(line) != std::string::npos);
  }
}

TEST_CASE("moe inspect --json is one JSON object", "[cli][inspect]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.tied = true});
  const auto run = run_moe({"inspect", (folder / "dense").string(), "--json"});
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "stdout");
  CHECK(json["moe"].is_null());
  CHECK(json["tie_word_embeddings"] == true);
  CHECK(json["bytes"] == 4 * json["parameters"]["total"].get<int64_t>());
}

TEST_CASE("moe inspect refuses what is no model folder", "[cli][inspect]") {
  const TempDir folder;
  const auto none = run_moe({"inspect", (folder / "none").string()});
  CHECK(none.exit_code == 2);
  CHECK(none.err.find((folder / "none").string()) != std::string::npos);
  const auto empty = run_moe({"inspect", folder.path().string()});
  CHECK(empty.exit_code == 2);
  CHECK(empty.err.find("config.json") != std::string::npos);
}

}  // namespace
}  // namespace moe
