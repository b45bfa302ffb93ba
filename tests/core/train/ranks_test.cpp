// Runs on several ranks (threads) against the run on one: every router, logical ranks, replicas,
// and resuming on another number of ranks.

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>

#include "core/base/random.h"
#include "core/train/loop/trainer.h"
#include "tests/support/matchers.h"
#include "tests/support/train_ranks.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using at::Tensor;
namespace fs = std::filesystem;

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
    write_mixture(dir / "dense", dir / "copies",
                  {.router = router,
                   .experts = 8,
                   .router_std = 0.3,
                   .ep_ranks = logical_ranks,
                   .shared_expert = shared_expert});
    const io::Checkpoint copies(dir / "copies");
    const model::Llama model = model::Llama::load(copies);
    at::manual_seed(5);
    for (const auto& parameter : model.parameters()) {
      const at::NoGradGuard no_gradients;
      Tensor(parameter.tensor) += at::randn_like(parameter.tensor) * 0.05;
    }
    settings.model = dir / "moe";
    model::save_folder(model, model.default_routing(), copies, settings.model, false,
                       *distributed::solo_comm());
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
      const auto& its = truth[i].layers[layer];
      CHECK(mine.tokens_per_expert == its.tokens_per_expert);
      CHECK(mine.requests_per_expert == its.requests_per_expert);
      CHECK(mine.rank_dropped == its.rank_dropped);
      CHECK(mine.rank_ir == its.rank_ir);
      CHECK(mine.fr_filled == its.fr_filled);
      CHECK(mine.rows_sent == its.rows_sent);
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

}  // namespace

TEST_CASE("losses, norms, routing and weights do not depend on processes and replicas", "[train]") {
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

TEST_CASE("twenty steps of every router do not depend on processes and replicas",
          "[.][slow][train]") {
  for (const char* router :
       {"top1", "top1+ir+fr", "top2:cf=inf", "topp:0.4", "relu:k=1", "top2+ir+fr:bias=0.01"}) {
    for (const int64_t logical_ranks : {4, 8}) {
      check_case({router, logical_ranks}, 20, {{2, 1}, {2, 2}, {4, 1}, {4, 2}});
    }
  }
}

TEST_CASE("a run that resumes on 1, 2, 4 and 1 processes ends as a run on one", "[train]") {
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

TEST_CASE("the held-out loss is the same on many processes, with or without sharded weights",
          "[train]") {
  RankedWorld world("top1", 4);
  world.settings.steps = 1;
  world.settings.evaluation.data = {world.dir / "rows.jsonl"};
  // Returns the losses before and after the step, which are equal on all ranks.
  const auto held_out_losses = [&](int64_t processes, Shard shard) {
    std::vector<std::vector<double>> found(static_cast<size_t>(processes));
    world.settings.run = world.dir / fmt::format("held{}{}", processes, static_cast<int>(shard));
    world.settings.shard = shard;
    const TimeLimit limit(120);
    test::run_as_threads(processes, [&](distributed::Comm& comm) {
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

TEST_CASE("ranks without a row and ranks with unequal rows train", "[train]") {
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

TEST_CASE("replicas that cannot share the micro-batches of a step equally are refused", "[train]") {
  RankedWorld world("top1", 4);
  world.settings.replicas = 4;
  CHECK_THROWS_WITH(world.train_on(4), contains_text("--global-batch 8") &&
                                           contains_text("4 replicas") &&
                                           contains_text("multiple of 16"));
}

TEST_CASE("one process of a host tokenizes, and the others map its tokens", "[train]") {
  RankedWorld world("top1", 2);
  world.settings.steps = 1;
  world.settings.cache = GENERATE(std::string("off"), std::string("CACHE"));
  if (world.settings.cache != "off") {
    world.settings.cache = (world.dir / "cache").string();
  }
  world.settings.run = world.dir / "run";
  const TimeLimit limit(120);
  std::array<std::atomic<int64_t>, 2> made{};
  test::run_as_threads(2, [&](distributed::Comm& comm) {
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
