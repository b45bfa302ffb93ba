// Runs on several ranks (threads) against the run on one: every router, logical ranks, replicas,
// and resuming on another number of ranks.

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>

#include "core/base/random.h"
#include "core/train/checkpoint/snapshot.h"
#include "core/train/loop/plan.h"
#include "core/train/step/optimizer.h"
#include "tests/support/loaded_mixture.h"
#include "tests/support/matchers.h"
#include "tests/support/train_ranks.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

// Rows of equal length that begin with different tokens. Two tokens with equal prefixes would tie
// for the slots of an expert, and rounding, which depends on the rows of a product, would decide.
void write_distinct_rows(const fs::path& file) {
  Random random(3, "rows");
  std::string text;
  for (int row = 0; row < 24; ++row) {
    std::vector<int> ids{3 + row};
    while (ids.size() < 16) {
      ids.push_back(static_cast<int>(3 + random.bits() % 60));
    }
    text += OrderedJson{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  }
  write_file(file, text);
}

// A mixture of eight different experts on W logical ranks, and rows of equal length, so that all
// ranks have equally many tokens.
struct RankedWorld : TrainWorld {
  RankedWorld(const std::string& router, int64_t logical_ranks, bool shared_expert = false) {
    write_varied_mixture(dir,
                         {.router = router,
                          .experts = 8,
                          .router_std = 0.3,
                          .ep_ranks = logical_ranks,
                          .shared_expert = shared_expert},
                         0.05, 5);
    settings.model = dir / "moe";
    write_distinct_rows(settings.data.front());
    settings.micro_batch = 4;
    settings.global_batch = 8;
    settings.steps = 4;
    settings.lr = 1e-3;
    settings.adamw.eps = 1e-6;  // see kTolerance
  }

  std::vector<StepRecord> train_on(int64_t processes, const std::string& run = "run") {
    settings.run = dir / run;
    return train_on_ranks(settings, processes);
  }
};

// Another order of sums changes gradients by about 1e-7 of the summands, 1e-9 here. An update of
// AdamW has the size lr for any gradient, so that a gradient of rounding errors would move its
// weight; eps far above 1e-9 prevents this.
constexpr double kTolerance = 1e-5;

void check_equal(const std::vector<StepRecord>& records, const std::vector<StepRecord>& truth) {
  REQUIRE(records.size() == truth.size());
  double loss = 0, norm = 0, balance = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    loss = std::max(loss, relative_error(records[i].loss, truth[i].loss));
    norm = std::max(norm, relative_error(records[i].grad_norm, truth[i].grad_norm));
    balance = std::max(
        balance, relative_error(records[i].auxiliary.value_or(0), truth[i].auxiliary.value_or(0)));
    CHECK(records[i].lambda == truth[i].lambda);
    CHECK(records[i].z.has_value() == truth[i].z.has_value());
    CHECK(relative_error(records[i].z.value_or(0), truth[i].z.value_or(0)) < kTolerance);
    CHECK(relative_error(records[i].sequence_balance.value_or(0),
                         truth[i].sequence_balance.value_or(0)) < kTolerance);
    CHECK(records[i].bias_max == truth[i].bias_max);
    REQUIRE(records[i].layers.size() == truth[i].layers.size());
    for (size_t layer = 0; layer < truth[i].layers.size(); ++layer) {
      const auto& mine = records[i].layers[layer];
      const auto& expected = truth[i].layers[layer];
      CHECK(mine.tokens_per_expert == expected.tokens_per_expert);
      CHECK(mine.requests_per_expert == expected.requests_per_expert);
      CHECK(mine.rank_dropped == expected.rank_dropped);
      CHECK(mine.rank_ir == expected.rank_ir);
      CHECK(mine.fr_filled == expected.fr_filled);
      CHECK(mine.rows_sent == expected.rows_sent);
    }
  }
  CHECK(loss < kTolerance);
  CHECK(norm < kTolerance);
  CHECK(balance < kTolerance);
}

struct Shape {
  int64_t processes, replicas;
};

struct Case {
  const char* router;
  int64_t logical_ranks;
  bool shared_expert = false, auxiliary_losses = false;
  model::Recompute recompute = model::Recompute::kNone;
};

// Trains on each of `shapes` and compares records and final weights with the run of one rank.
void check_case(const Case& each, int64_t steps, const std::vector<Shape>& shapes) {
  RankedWorld world(each.router, each.logical_ranks, each.shared_expert);
  world.settings.steps = steps;
  for (const Shape& shape : shapes) {  // whole micro-batches for each replica
    world.settings.global_batch = std::lcm(*world.settings.global_batch, 4 * shape.replicas);
  }
  if (each.auxiliary_losses) {
    world.settings.z_coef = world.settings.seq_lb_coef = 0.1;
  }
  const auto truth = world.train_on(1, "one");
  CHECK(truth[0].z.has_value() == each.auxiliary_losses);
  world.settings.compute.recompute = each.recompute;
  for (const auto& [processes, replicas] : shapes) {
    INFO(each.router << ", W " << each.logical_ranks << ", " << processes << " processes, "
                     << replicas << " replicas");
    world.settings.replicas = replicas;
    check_equal(world.train_on(processes, "many"), truth);
    CHECK(folder_distance(world.dir / "many" / "final", world.dir / "one" / "final") < kTolerance);
    fs::remove_all(world.dir / "many");
  }
}

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

// Replaces the model of `world` by a mixture and turns the z-loss on.
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

TEST_CASE("losses, norms, routing and weights do not depend on processes and replicas") {
  for (const Case& each : {Case{"top1+ir+fr", 4, true},
                           {"top2:cf=inf", 8, true},
                           {"top1+ir+fr", 4, false, true, model::Recompute::kLayer},
                           {"topp:0.4", 4, false, true},
                           {"relu:k=1", 8},
                           {"top2+ir+fr:bias=0.01", 8}}) {
    check_case(each, 3, {{2, 2}, {4, 1}, {4, 2}});
  }
  // Numbers of processes that do not divide the sizes of the matrices.
  check_case({"top2", 1}, 2, {{3, 3}});
  check_case({"top2", 1}, 2, {{5, 5}});
}

TEST_CASE("twenty steps of every router do not depend on processes and replicas", "[.][slow]") {
  for (const char* router :
       {"top1", "top1+ir+fr", "top2:cf=inf", "topp:0.4", "relu:k=1", "top2+ir+fr:bias=0.01"}) {
    for (const int64_t logical_ranks : {4, 8}) {
      check_case({router, logical_ranks}, 20, {{2, 1}, {2, 2}, {4, 1}, {4, 2}});
    }
  }
}

TEST_CASE("a run that resumes on 1, 2, 4 and 1 processes ends as a run on one") {
  RankedWorld world("top2", 4);
  world.train_on(1, "truth");
  world.settings.run = world.dir / "run";
  int64_t stop = 0;
  for (const int64_t processes : {1, 2, 4}) {
    ++stop;
    CHECK_THROWS_AS(train_on_ranks(world.settings, processes, {.stop = stop}), Interrupted);
  }
  train_on_ranks(world.settings, 1);
  CHECK(folder_distance(world.dir / "run/final", world.dir / "truth/final") < kTolerance);
}

TEST_CASE("the held-out loss is the same on many processes, with or without sharded weights") {
  RankedWorld world("top1", 4);
  world.settings.steps = 1;
  world.settings.evaluation.data = {world.dir / "rows.jsonl"};
  // Returns the losses before and after the step, which are equal on all ranks.
  const auto held_out_losses = [&](int64_t processes, Shard shard) {
    std::vector<std::vector<double>> found(static_cast<size_t>(processes));
    world.settings.run = world.dir / fmt::format("held{}{}", processes, static_cast<int>(shard));
    world.settings.shard = shard;
    const TimeLimit limit(120);
    run_as_threads(processes, [&](distributed::Comm& comm) {
      TrainCallbacks callbacks;
      callbacks.on_evaluated = [&](const Evaluation& evaluation) {
        found[comm.rank()].push_back(*evaluation.held_out_loss);
      };
      train::train(world.settings, callbacks, &comm);
    });
    CHECK(std::count(found.begin(), found.end(), found[0]) == processes);
    return found[0];
  };
  const auto truth = held_out_losses(1, Shard::kOptimizer);
  REQUIRE(truth.size() == 2);
  for (const Shard shard : {Shard::kOptimizer, Shard::kWeights}) {
    const auto many = held_out_losses(4, shard);
    REQUIRE(many.size() == 2);
    CHECK(relative_error(many[0], truth[0]) < kTolerance);
    CHECK(relative_error(many[1], truth[1]) < kTolerance);
  }
}

TEST_CASE("ranks without a row and ranks with unequal rows train") {
  for (const char* router : {"top1+ir+fr", "topp:0.4", "relu:k=1"}) {
    INFO(router);
    RankedWorld world(router, 4);
    write_rows(world.settings.data.front());  // of unequal length
    world.settings.steps = 2;
    world.settings.micro_batch = world.settings.global_batch = 3;  // one of four ranks has no row
    if (std::string(router) != "relu:k=1") {
      world.settings.z_coef = world.settings.seq_lb_coef = 0.01;
    }
    const auto records = world.train_on(4);
    REQUIRE(records.size() == 2);
    for (const auto& record : records) {
      CHECK(std::isfinite(record.loss));
      CHECK(std::isfinite(record.auxiliary.value()));
      CHECK(record.layers[0].tokens == record.tokens);
    }
  }
}

TEST_CASE("losses over a step do not depend on processes, also with rows of unequal length") {
  for (const auto& [router, group] : {std::pair("top2:cf=inf", route::LossGroup::kGlobal),
                                      {"top2:cf=inf", route::LossGroup::kMicro},
                                      {"relu:k=1", route::LossGroup::kGlobal}}) {
    CAPTURE(router, static_cast<int>(group));
    RankedWorld world(router, 4);
    write_rows(world.settings.data.front());  // of unequal length
    world.settings.steps = 2;
    world.settings.global_batch = 16;  // four micro-batches
    world.settings.lb_group = group;
    if (std::string(router) != "relu:k=1") {
      world.settings.lb_coef = world.settings.z_coef = 0.1;
    }
    const auto truth = world.train_on(1, "one");
    for (const auto& [processes, replicas, shard] : {std::tuple(2, 2, Shard::kOptimizer),
                                                     {4, 1, Shard::kOptimizer},
                                                     {4, 2, Shard::kWeights}}) {
      CAPTURE(processes, replicas);
      world.settings.replicas = replicas;
      world.settings.shard = shard;
      const auto records = world.train_on(processes, "many");
      fs::remove_all(world.dir / "many");
      REQUIRE(records.size() == truth.size());
      for (size_t i = 0; i < truth.size(); ++i) {
        CHECK(relative_error(records[i].loss, truth[i].loss) < kTolerance);
        CHECK(relative_error(records[i].grad_norm, truth[i].grad_norm) < kTolerance);
        CHECK(relative_error(*records[i].auxiliary, *truth[i].auxiliary) < kTolerance);
      }
    }
  }
}

TEST_CASE("replicas that cannot share the micro-batches of a step equally are refused") {
  RankedWorld world("top1", 4);
  world.settings.replicas = 4;
  CHECK_THROWS_WITH(world.train_on(4), contains_text("--global-batch 8") &&
                                           contains_text("4 replicas") &&
                                           contains_text("multiple of 16"));
}

TEST_CASE("one process of a host tokenizes, and the others map its tokens") {
  RankedWorld world("top1", 2);
  world.settings.steps = 1;
  world.settings.cache = GENERATE(std::string("off"), std::string("CACHE"));
  if (world.settings.cache != "off") {
    world.settings.cache = (world.dir / "cache").string();
  }
  world.settings.run = world.dir / "run";
  const TimeLimit limit(120);
  std::array<std::atomic<int64_t>, 2> made{};
  run_as_threads(2, [&](distributed::Comm& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    TrainCallbacks callbacks;
    callbacks.on_reading = [&](int64_t examples, int64_t) {
      made[rank] = std::max<int64_t>(made[rank], examples);
    };
    train::train(world.settings, callbacks, &comm);
  });
  CHECK(made[0] == 24);
  CHECK(made[1] == 0);
  CHECK(fs::exists(world.settings.run / "final" / "model.safetensors"));
}

// Runs with sharded weights (--shard weights) against runs with whole weights, ranks as threads:
// equal bits with one micro-batch per rank, checkpoints and resuming.

TEST_CASE("sharded weights train to the bits of whole weights") {
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
TEST_CASE("with gradient accumulation sharded weights train as whole weights within rounding") {
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

TEST_CASE("a run resumes with or without sharding to the bits of an uninterrupted run") {
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

TEST_CASE("a checkpoint keeps its bytes when any number of ranks reads and writes it") {
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
      run_as_threads(processes, [&](distributed::Comm& comm) {
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
