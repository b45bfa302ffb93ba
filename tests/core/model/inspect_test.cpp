#include "core/model/convert/inspect.h"

#include "core/model/convert/upcycle.h"
#include "tests/support/catch.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using test::TempDir;
using Lines = std::vector<std::string>;

Inspection inspect_upcycled(const TempDir& folder, const std::string& router) {
  test::write_tiny_checkpoint(folder / "dense", {.dtype = io::DType::kBF16});
  UpcycleSettings settings;
  settings.out = folder / "out";
  settings.experts = 4;
  settings.ep_ranks = 2;
  settings.force = true;
  settings.router = route::parse_router(router);
  const io::Checkpoint dense(folder / "dense");
  upcycle(dense, plan_upcycle(dense, settings), settings);
  return inspect(folder / "out");
}

TEST_CASE("a dense folder is described from its headers", "[model][inspect]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.shard_bytes = 8000});
  const Inspection found = inspect(folder / "dense");
  CHECK(found.model_type == "llama");
  CHECK_FALSE(found.config.moe);
  CHECK(found.bytes == 4 * static_cast<uint64_t>(found.parameters.total));
  CHECK(found.bytes_per_rank == found.bytes);
  CHECK(found.bytes_by_dtype ==
        std::vector<std::pair<std::string, uint64_t>>{{"F32", found.bytes}});
  CHECK(found.tokenizer == "none");
  CHECK(found.stock == Lines{"all of it: a dense llama folder"});
  CHECK(found.needs_moe.empty());
  CHECK(to_json(found)["moe"].is_null());
}

TEST_CASE("a mixture's bytes are counted whole and per expert-parallel rank", "[model][inspect]") {
  const TempDir folder;
  const Inspection found = inspect_upcycled(folder, "top2+ir:cf=1.5");
  // Layers 0 and 2: 4 experts of 3 matrices [16, 24] in bf16; routers [4, 16] in F32; a zero [1,
  // 16] a layer.
  const uint64_t experts = 2 * 4 * 3 * 16 * 24 * 2, routers = 2 * 4 * 16 * 4;
  CHECK(found.bytes_per_rank == found.bytes - experts / 2);
  CHECK(found.bytes_by_dtype.front() ==
        std::pair<std::string, uint64_t>{"BF16", found.bytes - routers});
  CHECK(found.bytes_by_dtype.back() == std::pair<std::string, uint64_t>{"F32", routers});
  CHECK(found.model_type == "qwen2_moe");
  const OrderedJson json = to_json(found);
  CHECK(json["moe"]["router"] == "top2+ir:cf=1.5");
  CHECK(json["moe"]["layers"] == Json({0, 2}));
  CHECK(json["moe"]["ep_ranks"] == 2);
  CHECK(json["parameters"]["total"] == found.parameters.total);
}

TEST_CASE("each router says what stock tools honour and what needs moe", "[model][inspect]") {
  const TempDir folder;
  Inspection found = inspect_upcycled(folder, "top2:cf=inf");
  CHECK(found.stock == Lines{"top-2 of 4 experts without dropping, weights summing to 1"});
  CHECK(found.needs_moe.empty());
  found = inspect_upcycled(folder, "top1+ir+fr:cf=0.5,gate=none");
  CHECK(found.stock ==
        Lines{"top-1 of 4 experts without dropping, weights as the softmax gives them"});
  CHECK(found.needs_moe ==
        Lines{"expert capacity (cf=0.5): stock tools drop nothing",
              "+ir: dropped requests go to the best expert of the token's own rank",
              "+fr: free slots are filled with each token's choice 2"});
  found = inspect_upcycled(folder, "topp:0.4");
  CHECK(found.stock == Lines{"the folder loads, routed as top-2 of 4 experts, not renormalised"});
  CHECK(found.needs_moe == Lines{"top-p routing (p=0.4)"});
  found = inspect_upcycled(folder, "relu:k=1");
  CHECK(found.stock == Lines{"nothing: model_type moe_relu is refused by stock tools, which would "
                             "compute something else"});
  CHECK(found.needs_moe == Lines{"ReLU routing"});
  found = inspect_upcycled(folder, "top2:cf=inf,bias=0.001");
  CHECK(found.stock ==
        Lines{"nothing: model_type moe_biased is refused by stock tools, which would "
              "compute something else"});
  CHECK(found.needs_moe == Lines{"bias: tokens choose by score plus a bias of each expert, which "
                                 "weights do not see"});
}

TEST_CASE("a folder made elsewhere is described by its own name", "[model][inspect]") {
  const TempDir folder;
  test::write_foreign_checkpoint(folder / "m", {.dense_layers = {}});
  Json config = read_json(folder / "m/config.json");
  config["router_jitter_noise"] = 0.1;
  test::write_file(folder / "m/config.json", config.dump());
  const Inspection found = inspect(folder / "m");
  CHECK(found.model_type == "mixtral");
  CHECK(found.stock ==
        Lines{"top-2 of 4 experts without dropping, weights summing to 1",
              "router_jitter_noise 0.1: stock training adds it, moe trains without"});
  CHECK(found.needs_moe.empty());
  // Three layers of 4 experts of three matrices [16, 24] in f32, on four ranks.
  CHECK(found.bytes_per_rank == found.bytes - 3 * 4 * 3 * 16 * 24 * 4 * 3 / 4);
  CHECK(to_json(found)["qkv_bias"] == false);
}

TEST_CASE("a shared expert is said, and lies on every rank", "[model][inspect]") {
  const TempDir folder;
  const test::ForeignCheckpoint shape = {
      .kind = test::Foreign::kQwen2Moe, .dense_layers = {}, .shared_width = 20};
  test::write_foreign_checkpoint(folder / "m", shape);
  const Inspection found = inspect(folder / "m");
  CHECK(to_json(found)["moe"]["shared_expert_width"] == 20);
  // Three layers of 4 experts of three matrices [12, 16] in f32, on four ranks.
  CHECK(found.bytes_per_rank == found.bytes - 3 * 4 * 3 * 12 * 16 * 4 * 3 / 4);
  CHECK(found.needs_moe.empty());
  CHECK(found.function.state == StoredVerdict::State::kNoCertificate);
  CHECK(found.function.words ==
        "not measured: the folder names no dense model that it was made from");
}

TEST_CASE("layers are printed as ranges", "[model][inspect]") {
  CHECK(layer_ranges({}) == "none");
  CHECK(layer_ranges({3}) == "3");
  CHECK(layer_ranges({0, 2, 4}) == "0, 2, 4");
  CHECK(layer_ranges({0, 1, 2, 5, 6}) == "0-2, 5-6");
}

TEST_CASE("a folder that does not hang together is refused", "[model][inspect]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  Json config = read_json(folder / "dense/config.json");
  config["hidden_size"] = 32;
  test::write_file(folder / "dense/config.json", config.dump());
  CHECK(test::user_error_of([&] { inspect(folder / "dense"); }) ==
        (folder / "dense").string() +
            ": 'lm_head.weight' is [64, 16], config.json says [64, 32]: they belong to different "
            "models; fetch both "
            "again");
}

}  // namespace
}  // namespace moe::model
