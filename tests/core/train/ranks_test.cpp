// Runs on several ranks (threads) against the run on one: every router, logical ranks, replicas,
// and resuming on another number of ranks.

#include <ATen/core/grad_mode.h>

#include <array>
#include <atomic>

#include "core/base/random.h"
#include "core/train/loop/trainer.h"
#include "tests/support/matchers.h"
#include "tests/support/train_ranks.h"
#include "tests/support/user_error.h"

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
    settings.steps = 20;
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
    CHECK(records[i].z_loss.has_value() == truth[i].z_loss.has_value());
    CHECK(relative_error(records[i].z_loss.value_or(0), truth[i].z_loss.value_or(0)) < kTolerance);
    CHECK(relative_error(records[i].sequence_balance_loss.value_or(0),
                         truth[i].sequence_balance_loss.value_or(0)) < kTolerance);
    CHECK(records[i].bias_max == truth[i].bias_max);
    REQUIRE(records[i].layer_counters.size() == truth[i].layer_counters.size());
    for (size_t layer = 0; layer < truth[i].layer_counters.size(); ++layer) {
      const auto& mine = records[i].layer_counters[layer];
      const auto& its = truth[i].layer_counters[layer];
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

// Trains on each of `shapes` and compares records and final weights with the run "one" of one rank.
void check_shapes(RankedWorld& world, const std::vector<StepRecord>& truth,
                  const std::vector<Shape>& shapes) {
  for (const auto& [processes, replicas] : shapes) {
    INFO(processes << " processes, " << replicas << " replicas");
    world.settings.replicas = replicas;
    check_equal(world.train_on(processes, "many"), truth);
    CHECK(folder_distance(world.dir / "many" / "final", world.dir / "one" / "final") < kTolerance);
    fs::remove_all(world.dir / "many");
  }
}

}  // namespace

TEST_CASE("losses, norms, routing and weights do not depend on processes and replicas", "[train]") {
  for (const char* router :
       {"top1", "top1+ir+fr", "top2:cf=inf", "topp:0.4", "relu:k=1", "top2+ir+fr:bias=0.01"}) {
    for (const int64_t logical_ranks : {4, 8}) {
      INFO(router << ", W " << logical_ranks);
      RankedWorld world(router, logical_ranks);
      check_shapes(world, world.train_on(1, "one"), {{2, 1}, {2, 2}, {4, 1}, {4, 2}});
    }
  }
}

TEST_CASE("a shared expert trains on many processes as on one", "[train]") {
  for (const char* router : {"top1+ir+fr", "top2:cf=inf"}) {
    INFO(router);
    RankedWorld world(router, 4, /*shared_expert=*/true);
    check_shapes(world, world.train_on(1, "one"), {{2, 1}, {2, 2}, {4, 2}});
  }
}

TEST_CASE("z-loss and sequence balance do not depend on processes, with or without recomputation",
          "[train]") {
  for (const char* router : {"top1+ir+fr", "topp:0.4"}) {
    INFO(router);
    RankedWorld world(router, 4);
    world.settings.steps = 8;
    world.settings.z_coef = 0.1;
    world.settings.seq_lb_coef = 0.1;
    const auto truth = world.train_on(1, "one");
    CHECK(truth[0].z_loss);
    for (const auto recompute : {model::Recompute::kNone, model::Recompute::kLayer}) {
      world.settings.compute.recompute = recompute;
      check_shapes(world, truth, {{2, 1}, {2, 2}, {4, 1}, {4, 2}});
    }
  }
}

TEST_CASE("a run that resumes on 1, 2, 4 and 1 processes ends as a run on one", "[train]") {
  RankedWorld world("top2", 4);
  world.settings.steps = 8;
  world.train_on(1, "truth");
  world.settings.run = world.dir / "run";
  int64_t stop = 0;
  for (const int64_t processes : {1, 2, 4}) {
    stop += 2;
    CHECK_THROWS_AS(train_on_ranks(world.settings, processes, {.stop = stop}), Interrupted);
  }
  train_on_ranks(world.settings, 1);
  CHECK(folder_distance(world.dir / "run/final", world.dir / "truth/final") < kTolerance);
}

TEST_CASE("the held-out loss is the same on many processes", "[train]") {
  RankedWorld world("top1", 4);
  world.settings.steps = 2;
  world.settings.evaluation.data = {world.dir / "rows.jsonl"};
  const auto held_out_losses = [&](int64_t processes) {
    std::vector<double> losses;
    world.settings.run = world.dir / fmt::format("held{}", processes);
    const TimeLimit limit(120);
    test::run_as_threads(processes, [&](distributed::Comm& comm) {
      TrainCallbacks callbacks;
      callbacks.on_evaluated = [&](const Evaluation& evaluation) {
        if (comm.rank() == processes - 1) {  // all ranks have equal results
          losses.push_back(*evaluation.held_out_loss);
        }
      };
      train::train(world.settings, callbacks, &comm);
    });
    return losses;
  };
  const auto truth = held_out_losses(1), many = held_out_losses(4);
  REQUIRE(truth.size() == many.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    CHECK(relative_error(many[i], truth[i]) < kTolerance);
  }
}

TEST_CASE("ranks without a row and ranks with unequal rows train", "[train]") {
  for (const char* router : {"top1+ir+fr", "topp:0.4", "relu:k=1"}) {
    INFO(router);
    RankedWorld world(router, 4);
    write_rows(world.settings.data.front());  // of unequal length
    world.settings.steps = 3;
    world.settings.micro_batch = world.settings.global_batch = 3;  // one of four ranks has no row
    if (std::string(router) != "relu:k=1") {
      world.settings.z_coef = world.settings.seq_lb_coef = 0.01;
    }
    const auto records = world.train_on(4);
    REQUIRE(records.size() == 3);
    for (const auto& record : records) {
      CHECK(std::isfinite(record.loss));
      CHECK(std::isfinite(record.auxiliary.value()));
      CHECK(record.layer_counters[0].tokens == record.tokens);
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
  world.settings.steps = 2;
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
