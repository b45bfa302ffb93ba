// moe inspect.

#include "core/base/json.h"
#include "tests/cli/commands.h"

namespace moe {
namespace {

using namespace moe::test;

TEST_CASE("moe inspect prints a table of a mixture", "[cli][inspect]") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  const std::string out = (folder / "out").string();
  succeed({"upcycle", (folder / "dense").string(), "-o", out, "--experts", "4", "--router",
           "top1+ir", "--ep-ranks", "2"});
  const auto run = succeed({"inspect", out});
  CHECK(run.err.empty());
  check_has(
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

TEST_CASE("moe inspect --json is one JSON object", "[cli][inspect]") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense", {.tied = true});
  const Json json =
      parse_json(succeed({"inspect", (folder / "dense").string(), "--json"}).out, "stdout");
  CHECK(json["moe"].is_null());
  CHECK(json["tie_word_embeddings"] == true);
  CHECK(json["bytes"] == 4 * json["parameters"]["total"].get<int64_t>());
}

TEST_CASE("moe inspect refuses a folder without a model", "[cli][inspect]") {
  const TempDir folder;
  check_refused({"inspect", (folder / "none").string()}, (folder / "none").string());
  check_refused({"inspect", folder.path().string()}, "config.json");
}

}  // namespace
}  // namespace moe
