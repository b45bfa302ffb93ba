// Runs with sharded weights (--shard weights) against runs with whole weights, ranks as threads:
// equal bits with one micro-batch per rank, checkpoints and resuming.

#include "core/train/checkpoint/snapshot.h"
#include "core/train/loop/trainer.h"
#include "core/train/step/optimizer.h"
#include "core/train/step/trainable.h"
#include "tests/support/train_ranks.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
namespace fs = std::filesystem;

namespace {

constexpr int kSeconds = 120;

struct Outcome {
  std::vector<double> losses, norms;
  std::string model, state;
};

// Trains in the run folder `name` on `processes`, until step `stop` if given.
Outcome run(TrainWorld& world, int64_t processes, Shard shard, const std::string& name = "run",
            std::optional<int64_t> stop = {}) {
  world.settings.run = world.dir / name;
  world.settings.shard = shard;
  world.settings.save_every = 2;
  Outcome outcome;
  if (stop) {
    CHECK_THROWS_AS(train_on_ranks(world.settings, processes, {.stop = stop}), Interrupted);
    return outcome;
  }
  for (const auto& record : train_on_ranks(world.settings, processes)) {
    outcome.losses.push_back(record.loss);
    outcome.norms.push_back(record.grad_norm);
  }
  outcome.model = final_weights(world.settings.run);
  outcome.state = read_file(world.settings.run / "checkpoints" /
                            fmt::format("step-{}", *world.settings.steps) / "state.safetensors");
  return outcome;
}

// Two steps with `micro_batches` for each replica.
void shorten(TrainWorld& world, int64_t replicas, int64_t micro_batches = 1) {
  world.settings.steps = 2;
  world.settings.micro_batch = 2;
  world.settings.global_batch = 2 * replicas * micro_batches;
}

// Makes the model of `world` a mixture with shared experts and different rows.
void use_mixture(TrainWorld& world, const std::string& router, bool shared_expert) {
  world.settings.model = world.dir / "moe";
  write_mixture(world.dir / "dense", world.settings.model,
                {.router = router,
                 .experts = 4,
                 .router_std = 0.3,
                 .ep_ranks = 2,
                 .shared_expert = shared_expert});
  world.settings.z_coef = 0.01;
}

void use_adapters(TrainWorld& world) {
  world.settings.lora.rank = 4;
  world.settings.lora.on = {"attention", "ffn"};
}

}  // namespace

TEST_CASE("sharded weights train to the bits of whole weights", "[train]") {
  struct Case {
    const char* name;
    int64_t processes, replicas;
    void (*change)(TrainWorld& world);
  };
  using World = TrainWorld;
  for (const auto& [name, processes, replicas, change] : std::vector<Case>{
           {"one process", 1, 1, [](World&) {}},
           {"f32", 2, 2, [](World&) {}},
           {"bf16", 3, 3, [](World& w) { w.settings.compute.precision = model::Precision::kBf16; }},
           {"recompute ffn", 3, 3,
            [](World& w) { w.settings.compute.recompute = model::Recompute::kFeedForward; }},
           {"recompute layer", 3, 3,
            [](World& w) { w.settings.compute.recompute = model::Recompute::kLayer; }},
           {"bf16 moments", 3, 3, [](World& w) { w.settings.adamw.moments = io::DType::kBF16; }},
           {"adapters", 2, 2, use_adapters},
           {"adapters, recompute layer", 3, 3,
            [](World& w) {
              use_adapters(w);
              w.settings.compute.recompute = model::Recompute::kLayer;
            }},
           {"one layer", 3, 3, [](World& w) { w.settings.trained = {"model.layers.1.*"}; }},
           {"norms", 3, 3, [](World& w) { w.settings.trained = {"norms"}; }},
           {"embeddings", 3, 3, [](World& w) { w.settings.trained = {"embeddings"}; }},
           {"tied embedding", 3, 3,
            [](World& w) {
              w.settings.model = w.dir / "tied";
              write_tiny_checkpoint(w.settings.model, {.tied = true});
            }},
           {"expert parallelism", 2, 1, [](World& w) { use_mixture(w, "topp:0.4", false); }},
           {"expert parallelism, recompute layer", 4, 2,
            [](World& w) {
              use_mixture(w, "top1+ir+fr", true);
              w.settings.compute.recompute = model::Recompute::kLayer;
            }},
           {"replicas of a mixture", 3, 3,
            [](World& w) { use_mixture(w, "top1+ir+fr", false); }}}) {
    INFO(name);
    TrainWorld world;
    shorten(world, replicas);
    world.settings.replicas = replicas;
    change(world);
    const Outcome truth = run(world, processes, Shard::kOptimizer, "whole");
    const Outcome sharded = run(world, processes, Shard::kWeights, "sharded");
    CHECK(sharded.losses == truth.losses);
    CHECK(sharded.norms == truth.norms);
    CHECK(sharded.model == truth.model);
    CHECK(sharded.state == truth.state);
  }
}

// Sharded weights sum each micro-batch over ranks before they sum micro-batches. The other order
// changes a gradient by about 1e-7; an update of AdamW has the size lr for any gradient.
TEST_CASE("with gradient accumulation sharded weights train as whole weights within rounding",
          "[train]") {
  for (const auto recompute : {model::Recompute::kNone, model::Recompute::kLayer}) {
    TrainWorld world;
    shorten(world, 3, /*micro_batches=*/3);
    world.settings.lr = 1e-5;
    world.settings.compute.recompute = recompute;
    const Outcome truth = run(world, 3, Shard::kOptimizer, "whole");
    const Outcome sharded = run(world, 3, Shard::kWeights, "sharded");
    for (size_t i = 0; i < truth.losses.size(); ++i) {
      CHECK(relative_error(sharded.losses[i], truth.losses[i]) < 1e-6);
      CHECK(relative_error(sharded.norms[i], truth.norms[i]) < 1e-6);
    }
    CHECK(folder_distance(world.dir / "sharded/final", world.dir / "whole/final") < 1e-6);
  }
}

TEST_CASE("a run resumes with or without sharding to the bits of an uninterrupted run", "[train]") {
  TrainWorld world;
  shorten(world, 3);
  world.settings.steps = 4;
  world.settings.adamw.moments = io::DType::kBF16;
  const Outcome truth = run(world, 3, Shard::kOptimizer, "truth");
  run(world, 3, Shard::kWeights, "run", 1);
  run(world, 3, Shard::kOptimizer, "run", 2);
  run(world, 3, Shard::kWeights, "run", 3);
  const Outcome end = run(world, 3, Shard::kWeights, "run");
  CHECK(end.model == truth.model);
  CHECK(end.state == truth.state);
}

TEST_CASE("a checkpoint keeps its bytes when any number of ranks reads and writes it", "[train]") {
  for (const auto& [lora, moments] :
       {std::pair(0, io::DType::kBF16), std::pair(4, io::DType::kF32)}) {
    TrainWorld world;
    world.settings.model = world.dir / "moe";
    write_mixture(world.dir / "dense", world.settings.model,
                  {.router = "top1", .experts = 4, .ep_ranks = 4});
    world.settings.adamw.moments = moments;
    world.settings.lora.rank = lora;
    world.settings.lora.on = {"attention", "ffn"};
    shorten(world, 1);
    run(world, 1, Shard::kOptimizer);
    const fs::path first = world.dir / "run/checkpoints/step-2";
    fs::path from = first;
    struct Layout {
      int64_t processes, replicas;
      bool shards;
    };
    for (const auto& [processes, replicas, shards] :
         {Layout{3, 3, true}, {4, 2, true}, {4, 1, false}, {5, 5, true}, {1, 1, false}}) {
      const fs::path to = world.dir / fmt::format("by{}x{}", processes, replicas);
      const TimeLimit limit(kSeconds);
      test::run_as_threads(processes, [&](distributed::Comm& comm) {
        distributed::World ranks(comm,
                                 distributed::make_layout(processes, comm.rank(), replicas, 4, 4));
        const io::Checkpoint folder(from);
        model::Llama model = model::Llama::load(folder, ranks.layout, at::kCPU,
                                                model::Storage::kF32, {}, shards ? &comm : nullptr);
        for (const auto& parameter : model.parameters()) {
          MOE_CHECK(parameter.shard.defined() == (shards && parameter.is_dense_matrix));
        }
        model.add_lora(world.settings.lora, 0);
        Updater updater(trainable(model, {}), world.settings.adamw, 0, &ranks);
        const TrainState state = restore(from, model, updater.optimizer());
        Snapshot(model, updater.optimizer(), model.default_routing(), {0.01, 0.0}, state)
            .write(folder, to, ranks);
      });
      INFO(processes << " processes, " << replicas << " replicas");
      for (const char* file : {"model.safetensors", "state.safetensors", "state.json"}) {
        CHECK(read_file(to / file) == read_file(first / file));
      }
      from = to;
    }
  }
}
