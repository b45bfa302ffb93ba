// Memory of one GPU of a cluster, against numbers computed by hand.

#include <fstream>

#include "core/train/loop/plan.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

// 4 layers, D 64, F 96, V 128, G = H.
std::filesystem::path write_config(const TempDir& dir) {
  std::ofstream(dir / "config.json") << tiny_config(
      {.hidden = 64, .intermediate = 96, .layers = 4, .heads = 4, .kv_heads = 4, .vocab = 128});
  return dir / "config.json";
}

TrainSettings settings_for(const std::filesystem::path& config) {
  TrainSettings settings;
  settings.model = config;
  settings.seq_len = 32;
  settings.micro_batch = 8;
  settings.global_batch = 32;
  return settings;
}

// A top-1 mixture of 4 experts in every other layer.
TrainSettings mixture_settings(const std::filesystem::path& config) {
  TrainSettings settings = settings_for(config);
  settings.router.router = "top1";
  settings.upcycle.experts = 4;
  return settings;
}

}  // namespace

TEST_CASE("a GPU has its experts and a part of the moments", "[train]") {
  const TempDir dir;
  // Layers 0 and 2, W = E = 4.
  const RunPlan plan = plan_cluster(mixture_settings(write_config(dir)), /*nodes=*/2, 4);
  CHECK(plan.layout.group() == 4);
  CHECK(plan.layout.replicas == 2);
  // Moments of dense weights are sharded over 8 processes, those of the expert over 2.
  const double feed_forward = 3 * 64 * 96, experts = 2 * feed_forward;
  const double dense = 2 * 64 * 128 + 4 * 4 * 64 * 64 + 2 * feed_forward + 2 * 4 * 64 + 9 * 64;
  CHECK(plan.memory.weights == static_cast<uint64_t>(4 * (dense + experts)));
  CHECK(plan.memory.optimizer == static_cast<uint64_t>(8 * (dense / 8 + experts / 2)));
}

TEST_CASE("in bf16 a GPU has copies of the matrices, and no checkpoint", "[train]") {
  const TempDir dir;
  TrainSettings settings = mixture_settings(write_config(dir));
  settings.save_every = 100;
  const MemoryPlan f32 = plan_cluster(settings, 1, 4).memory;
  settings.compute.precision = model::Precision::kBf16;
  const MemoryPlan bf16 = plan_cluster(settings, 1, 4).memory;
  // Head, attention, two dense layers and two layers with one expert each.
  const uint64_t matrices = 64 * 128 + 4 * 4 * 64 * 64 + 4 * (3 * 64 * 96);
  CHECK(bf16.weights == f32.weights + 2 * matrices);
  CHECK(bf16.checkpoint == 0);
  CHECK(bf16.optimizer == f32.optimizer);

  settings.compute.recompute = model::Recompute::kLayer;  // keeps no copies
  CHECK(plan_cluster(settings, 1, 4).memory.weights == f32.weights);
  CHECK(plan_cluster(settings, 1, 4).memory.activations < bf16.activations);
  settings.compute.recompute = model::Recompute::kNone;

  settings.trained = {"router", "norms", "embeddings"};  // only the head has a copy
  const uint64_t head = 2 * 64 * 128;
  CHECK(plan_cluster(settings, 1, 4).memory.weights == f32.weights + head);
}

TEST_CASE("with --shard weights a GPU has a part of the dense matrices", "[train]") {
  const TempDir dir;
  TrainSettings settings = mixture_settings(write_config(dir));
  const MemoryPlan whole = plan_cluster(settings, 2, 4).memory;
  settings.shard = Shard::kWeights;
  const MemoryPlan plan = plan_cluster(settings, 2, 4).memory;
  // Dense matrices are sharded over 8 processes; norms and routers are whole.
  const double feed_forward = 3 * 64 * 96, experts = 2 * feed_forward, rest = 2 * 4 * 64 + 9 * 64;
  const double sharded = 2 * 64 * 128 + 4 * 4 * 64 * 64 + 2 * feed_forward;
  CHECK(plan.weights == static_cast<uint64_t>(4 * (sharded / 8 + rest + experts)));
  CHECK(plan.gradients == plan.weights);
  CHECK(plan.optimizer == whole.optimizer);
  CHECK(plan.peak < whole.peak);
  CHECK(plan.workspace > whole.workspace);
}

TEST_CASE("the plan of a mixture has its layers, granularity and router", "[train]") {
  const TempDir dir;
  TrainSettings settings = settings_for(write_config(dir));
  settings.router.router = "top2:cf=inf";
  settings.router.ep_ranks = 1;
  settings.upcycle.experts = 4;
  const int64_t even = plan_cluster(settings, 1, 1).parameters;
  settings.upcycle.layers = "all";
  const int64_t all = plan_cluster(settings, 1, 1).parameters;
  const int64_t dense = plan_cluster(settings_for(write_config(dir)), 1, 1).parameters;
  const model::ModelConfig config =
      model::parse_config(read_json(dir / "config.json"), "config.json");
  const int64_t more =  // three feed-forwards and a router
      3 * 3 * config.hidden_size * config.intermediate_size + 4 * config.hidden_size;
  CHECK(all - dense == config.layers * more);
  CHECK(even - dense == (config.layers + 1) / 2 * more);
  settings.upcycle.granularity = 2;
  const RunPlan fine = plan_cluster(settings, 1, 1);
  CHECK(fine.parameters - all == config.layers * 4 * config.hidden_size);  // wider routers
  CHECK(fine.routing.router.k == 4);
}

TEST_CASE("an invalid cluster is refused by flag and value", "[train]") {
  const TempDir dir;
  TrainSettings settings = settings_for(write_config(dir));
  settings.upcycle.experts = 4;
  struct Case {
    int64_t nodes, gpus;
    std::optional<int64_t> replicas;
    const char* fact;
  };
  for (const auto& [nodes, gpus, replicas, fact] :
       {Case{0, 8, {}, "--nodes 0"}, Case{1, -1, {}, "--gpus -1"}, Case{1, 8, 3, "--replicas 3"},
        Case{1, 7, {}, "7 replicas"}}) {
    settings.replicas = replicas;
    CHECK_THAT(user_error_of([&] { plan_cluster(settings, nodes, gpus); }), contains_text(fact));
  }
}
