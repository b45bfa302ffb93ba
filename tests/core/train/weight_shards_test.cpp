// Runs with sharded weights (--shard weights) against runs with whole weights, ranks as threads:
// equal bits with one micro-batch per rank, checkpoints, resuming, and memory.

#include "core/model/llama/weight_shards.h"

#include <ATen/core/grad_mode.h>

#include <atomic>

#include "core/train/checkpoint/snapshot.h"
#include "core/train/loop/trainer.h"
#include "core/train/step/gradients.h"
#include "core/train/step/optimizer.h"
#include "core/train/step/trainable.h"
#include "kernels/cpu/caching_allocator.h"
#include "tests/support/train_ranks.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using at::Tensor;
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

void check_same_bits(TrainWorld& world, int64_t processes) {
  INFO(processes << " processes");
  const Outcome truth = run(world, processes, Shard::kOptimizer, "whole");
  const Outcome sharded = run(world, processes, Shard::kWeights, "sharded");
  CHECK(sharded.losses == truth.losses);
  CHECK(sharded.norms == truth.norms);
  CHECK(sharded.model == truth.model);
  CHECK(sharded.state == truth.state);
  fs::remove_all(world.dir / "whole");
  fs::remove_all(world.dir / "sharded");
}

// Four steps with `micro_batches` for each replica.
void shorten(TrainWorld& world, int64_t replicas, int64_t micro_batches = 1) {
  world.settings.steps = 4;
  world.settings.micro_batch = 2;
  world.settings.global_batch = 2 * replicas * micro_batches;
}

}  // namespace

// The first case of the process: use_caching_allocator() cannot be undone.
TEST_CASE("a rank holds its shards, two gathered layers and the gradient of one layer", "[train]") {
  const TempDir dir;
  TinyCheckpoint shape;
  shape.hidden = 256;
  shape.intermediate = 1024;
  shape.layers = 8;
  shape.vocab = 256;
  write_tiny_checkpoint(dir / "dense", shape);
  kernels::CachingAllocator& memory = kernels::use_caching_allocator();
  const io::Checkpoint checkpoint(dir / "dense");
  constexpr int64_t kRanks = 4;
  constexpr uint64_t kF32 = 4;
  // The allocator counts tensors of 64 KiB and more, so no norms.
  const uint64_t layer = kF32 * (256 * (256 + 2 * 128) + 256 * 256 + 3 * 256 * 1024);
  const uint64_t ends = kF32 * 2 * 256 * 256, whole = 8 * layer + ends;
  const data::Batch batch = [] {
    data::Batch rows;
    rows.ids = {1, 2, 3, 4, 5, 6, 7, 8};
    rows.targets = {2, 3, 4, 5, 6, 7, 8, 9};
    rows.lengths = {8};
    rows.rows = {8};
    rows.target_count = 8;
    return rows;
  }();
  const std::vector<data::Batch> batches(kRanks, batch);
  // Peak of all ranks together, and in `kept` the memory that a forward pass keeps.
  const auto peak_bytes = [&](bool shards, model::Recompute recompute,
                              std::atomic<uint64_t>* kept) {
    memory.release();
    const uint64_t before = memory.stats().live_bytes;
    const TimeLimit limit(kSeconds);
    test::run_as_threads(kRanks, [&](distributed::Comm& comm) {
      distributed::World world(comm, distributed::make_layout(kRanks, comm.rank(), {}, 1, 0));
      model::Llama model =
          model::Llama::load(checkpoint, world.layout, at::kCPU, model::Storage::kF32,
                             {model::Precision::kF32, recompute}, shards ? &comm : nullptr);
      model.require_gradients();
      comm.barrier();
      const uint64_t loaded = memory.stats().live_bytes;
      comm.barrier();
      const auto graph = model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, {});
      comm.barrier();
      if (kept != nullptr && comm.rank() == 0) {
        *kept = memory.stats().live_bytes - std::min(memory.stats().live_bytes, loaded);
      }
      comm.barrier();
      model.finish_backward();
      Updater updater(model.parameters(), {}, 0, &world);
      for (int step = 0; step < 2; ++step) {
        updater.clear_gradients();
        add_gradients(model, batches, {}, {}, &world);
        updater.step(updater.gradient_norm(), 1, 1e-3);
      }
    });
    return memory.stats().peak_bytes - before;
  };
  for (const auto recompute : {model::Recompute::kNone, model::Recompute::kLayer}) {
    std::atomic<uint64_t> kept = 0;
    const uint64_t sharded = peak_bytes(true, recompute, &kept);
    const uint64_t unsharded = peak_bytes(false, recompute, nullptr);
    INFO("whole " << whole << ", layer " << layer << ", sharded " << sharded << ", unsharded "
                  << unsharded << ", kept by a graph " << kept);
    // Once: weights, gradients and two moments. On each rank: two layers, the gradient of one and a
    // part of it in transfer. Activations are too small to be counted.
    CHECK(sharded <= 4 * whole + kRanks * (3 * layer + layer / 2));
    // ZeRO-1: weights and gradients on each rank, the moments once.
    CHECK(unsharded >= 2 * whole + kRanks * 2 * whole);
    CHECK(kept <= kRanks * 2 * layer);  // the head and the last layer in transfer
  }
}

TEST_CASE("sharded weights train to the bits of whole weights", "[train]") {
  struct Case {
    const char* name;
    void (*change)(TrainSettings& settings);
  };
  const Case cases[] = {
      {"f32", [](TrainSettings&) {}},
      {"bf16", [](TrainSettings& s) { s.compute.precision = model::Precision::kBf16; }},
      {"recompute ffn",
       [](TrainSettings& s) { s.compute.recompute = model::Recompute::kFeedForward; }},
      {"recompute layer", [](TrainSettings& s) { s.compute.recompute = model::Recompute::kLayer; }},
      {"bf16 moments", [](TrainSettings& s) { s.adamw.moments = io::DType::kBF16; }},
      {"adapters",
       [](TrainSettings& s) {
         s.lora.rank = 4;
         s.lora.on = {"attention", "ffn"};
       }},
      {"adapters, recompute layer",
       [](TrainSettings& s) {
         s.lora.rank = 4;
         s.lora.on = {"attention", "ffn"};
         s.compute.recompute = model::Recompute::kLayer;
       }},
      {"one layer", [](TrainSettings& s) { s.trained = {"model.layers.1.*"}; }},
      {"norms", [](TrainSettings& s) { s.trained = {"norms"}; }},
      {"embeddings", [](TrainSettings& s) { s.trained = {"embeddings"}; }},
  };
  for (const auto& [name, change] : cases) {
    for (const int64_t processes : {1, 2, 3}) {
      INFO(name);
      TrainWorld world;
      shorten(world, processes);
      change(world.settings);
      check_same_bits(world, processes);
    }
  }
}

TEST_CASE("a tied embedding has one gradient, the sum of embedding and head", "[train]") {
  TrainWorld world;
  TinyCheckpoint tied;
  tied.tied = true;
  write_tiny_checkpoint(world.dir / "tied", tied);
  world.settings.model = world.dir / "tied";
  shorten(world, 3);
  check_same_bits(world, 3);
}

TEST_CASE("with expert parallelism dense weights are sharded over all ranks", "[train]") {
  for (const char* router : {"top1+ir+fr", "topp:0.4"}) {
    for (const bool shared_expert : {false, true}) {
      for (const auto& [processes, replicas] :
           {std::pair<int64_t, int64_t>{2, 1}, {2, 2}, {3, 3}, {4, 2}}) {
        INFO(router << ", " << replicas << " replicas");
        TrainWorld world;
        world.settings.model = world.dir / "moe";
        write_mixture(world.dir / "dense", world.settings.model,
                      {.router = router,
                       .experts = 4,
                       .router_std = 0.3,
                       .ep_ranks = 2,
                       .shared_expert = shared_expert});
        world.settings.replicas = replicas;
        world.settings.z_coef = 0.01;
        if (shared_expert) {
          world.settings.compute.recompute = model::Recompute::kLayer;
        }
        shorten(world, replicas);
        check_same_bits(world, processes);
      }
    }
  }
}

// Sharded weights sum each micro-batch over ranks before they sum micro-batches. The other order
// changes a gradient by about 1e-7; an update of AdamW has the size lr for any gradient.
TEST_CASE("with gradient accumulation sharded weights train as whole weights within rounding",
          "[train]") {
  for (const int64_t processes : {2, 3}) {
    for (const auto recompute : {model::Recompute::kNone, model::Recompute::kLayer}) {
      TrainWorld world;
      shorten(world, processes, /*micro_batches=*/3);
      world.settings.lr = 1e-5;
      world.settings.compute.recompute = recompute;
      const Outcome truth = run(world, processes, Shard::kOptimizer, "whole");
      const Outcome sharded = run(world, processes, Shard::kWeights, "sharded");
      for (size_t i = 0; i < truth.losses.size(); ++i) {
        CHECK(relative_error(sharded.losses[i], truth.losses[i]) < 1e-6);
        CHECK(relative_error(sharded.norms[i], truth.norms[i]) < 1e-6);
      }
      CHECK(folder_distance(world.dir / "sharded/final", world.dir / "whole/final") < 1e-6);
    }
  }
}

TEST_CASE("a run resumes with or without sharding to the bits of an uninterrupted run", "[train]") {
  TrainWorld world;
  shorten(world, 3);
  world.settings.steps = 8;
  world.settings.adamw.moments = io::DType::kBF16;
  const Outcome truth = run(world, 3, Shard::kOptimizer, "truth");
  run(world, 3, Shard::kWeights, "run", 2);
  run(world, 3, Shard::kOptimizer, "run", 4);
  run(world, 3, Shard::kWeights, "run", 6);
  const Outcome end = run(world, 3, Shard::kWeights, "run");
  CHECK(end.model == truth.model);
  CHECK(end.state == truth.state);
}

TEST_CASE("a checkpoint keeps its bytes when any number of ranks reads and writes it", "[train]") {
  for (const auto& [lora, moments] : {std::pair(0, io::DType::kF32), std::pair(0, io::DType::kBF16),
                                      std::pair(4, io::DType::kF32)}) {
    TrainWorld world;
    world.settings.model = world.dir / "moe";
    write_mixture(world.dir / "dense", world.settings.model,
                  {.router = "top1", .experts = 4, .ep_ranks = 4});
    world.settings.adamw.moments = moments;
    world.settings.lora.rank = lora;
    world.settings.lora.on = {"attention", "ffn"};
    shorten(world, 1);
    world.settings.steps = 2;
    run(world, 1, Shard::kOptimizer);
    const fs::path first = world.dir / "run/checkpoints/step-2";
    fs::path from = first;
    struct Layout {
      int64_t processes, replicas;
      bool shards;
    };
    for (const auto& [processes, replicas, shards] : {Layout{3, 3, true},
                                                      {2, 1, true},
                                                      {2, 2, false},
                                                      {4, 2, true},
                                                      {4, 1, false},
                                                      {5, 5, true},
                                                      {1, 1, false}}) {
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

TEST_CASE("the held-out losses of sharded weights are those of whole weights", "[train]") {
  for (const std::string router : {"", "top1"}) {
    TrainWorld world(router);
    world.settings.steps = 2;
    world.settings.evaluation.data = {world.dir / "rows.jsonl"};
    const int64_t processes = 2;  // one group if there are experts
    world.settings.global_batch = router.empty() ? 8 : 4;
    std::vector<std::vector<double>> losses(4);
    for (const Shard shard : {Shard::kOptimizer, Shard::kWeights}) {
      world.settings.shard = shard;
      world.settings.run = world.dir / (shard == Shard::kWeights ? "sharded" : "whole");
      const TimeLimit limit(kSeconds);
      test::run_as_threads(processes, [&](distributed::Comm& comm) {
        TrainCallbacks callbacks;
        callbacks.on_evaluated = [&](const Evaluation& evaluation) {
          losses[(shard == Shard::kWeights ? 2 : 0) + comm.rank()].push_back(
              *evaluation.held_out_loss);
        };
        train::train(world.settings, callbacks, &comm);
      });
    }
    REQUIRE(losses[0].size() > 1);
    for (size_t i = 1; i < losses.size(); ++i) {
      CHECK(losses[i] == losses[0]);
    }
  }
}

TEST_CASE("a matrix with fewer elements than a multiple of the ranks is gathered and reduced",
          "[train]") {
  test::run_as_threads(4, [](distributed::Comm& comm) {
    model::WeightShards shards(comm, at::kCPU, 1);
    const Tensor weight = shards.add(0, {1, 5}).requires_grad_(true);  // parts of 2, 2, 1 and 0
    const auto& sharded = *shards.find(weight);
    const std::vector<int64_t> sizes = {2, 2, 1, 0};
    MOE_CHECK(sharded.shard.numel() == sizes[static_cast<size_t>(comm.rank())]);
    const at::NoGradGuard no_gradients;
    for (int64_t i = 0; i < sharded.shard.numel(); ++i) {
      sharded.shard[i].fill_(static_cast<double>(sharded.part.begin + i));
    }
    for (int round = 0; round < 2; ++round) {
      MOE_CHECK(weight.storage().nbytes() == 0);
      shards.start(0);
      shards.gather(0);
      MOE_CHECK(at::equal(weight.detach(), at::arange(5, at::kFloat).view({1, 5})));
      shards.release(0);
      // First no rank has a gradient, then rank 1 alone.
      shards.expect_gradients(0);
      const at::AutoGradMode on(true);
      shards.expect_gradients(0);
      if (round == 1 && comm.rank() == 1) {
        weight.mutable_grad() = at::ones({1, 5});
      }
      shards.finish_backward();
      const Tensor& gradient = sharded.shard.grad();
      MOE_CHECK(gradient.defined() == (round == 1));
      MOE_CHECK(round == 0 || at::equal(gradient, at::ones({sharded.part.size()})));
    }
  });
}
