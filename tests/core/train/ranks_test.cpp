// Whole runs of several processes against the run of one: ranks as threads, every router, logical
// ranks, replicas; what is written, and going on with other processes than before.

#include <ATen/core/grad_mode.h>

#include <array>
#include <atomic>
#include <mutex>

#include "core/base/random.h"
#include "core/train/checkpoint/snapshot.h"
#include "core/train/loop/trainer.h"
#include "core/train/step/updater.h"
#include "tests/support/matchers.h"
#include "tests/support/mixture.h"
#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"
#include "tests/support/train_world.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using at::Tensor;
namespace fs = std::filesystem;

namespace {

constexpr int kSeconds = 120;  // for what takes one or two

// Rows of equal length that begin with different tokens: two tokens with the same past would tie
// for the slots of an expert, and rounding, which depends on what shares a product, would decide.
void write_different_rows(const fs::path& file) {
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

// The tiny folder with eight experts that differ, W logical ranks, rows of equal length so that all
// processes hold equally many tokens.
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
    model::save_folder(model, model.default_routing(), copies, settings.model, false);
    write_different_rows(settings.data.front());
    settings.micro_batch = 4;
    settings.global_batch = 8;
    settings.steps = 20;
    settings.lr = 1e-3;
    settings.adamw.eps = 1e-6;  // see kTolerance
  }

  // What rank 0 says of every step.
  std::vector<StepRecord> train_on(int64_t processes, const std::string& run = "run") {
    settings.run = dir / run;
    const TimeLimit limit(kSeconds);
    std::vector<StepRecord> records;
    test::run_as_threads(processes, [&](distributed::Comm& comm) {
      TrainCallbacks callbacks;
      callbacks.on_step = [&](const StepRecord& record) {
        if (comm.rank() == 0) {
          records.push_back(record);
        }
      };
      train::train(settings, callbacks, &comm);
    });
    return records;
  }
};

double relative(double a, double b) { return std::abs(a - b) / (std::abs(b) + 1e-12); }

// The largest difference of a tensor of two folders, relative to the tensor.
double distance(const fs::path& a, const fs::path& b) {
  const auto one = model::Llama::load(io::Checkpoint(a)).parameters();
  const auto other = model::Llama::load(io::Checkpoint(b)).parameters();
  REQUIRE(one.size() == other.size());
  double largest = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    largest = std::max(
        largest,
        ((one[i].tensor - other[i].tensor).norm() / other[i].tensor.norm()).item<double>());
  }
  return largest;
}

// Tolerance of the promise: sums of a step in another order move gradients by some 1e-7 of what is
// summed, 1e-9 here. AdamW makes steps of lr whatever the gradient's size, so that a weight whose
// gradient is all rounding would step either way; an epsilon far above that keeps it where it is.
constexpr double kTolerance = 1e-5;

void check_equal(const std::vector<StepRecord>& records, const std::vector<StepRecord>& truth) {
  REQUIRE(records.size() == truth.size());
  double loss = 0, norm = 0, balance = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    loss = std::max(loss, relative(records[i].loss, truth[i].loss));
    norm = std::max(norm, relative(records[i].grad_norm, truth[i].grad_norm));
    balance = std::max(balance,
                       relative(records[i].auxiliary.value_or(0), truth[i].auxiliary.value_or(0)));
    CHECK(records[i].lambda == truth[i].lambda);
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

}  // namespace

TEST_CASE("processes and replicas do not show in losses, norms, decisions or weights", "[train]") {
  for (const char* router :
       {"top1", "top1+ir+fr", "top2:cf=inf", "topp:0.4", "relu:k=1", "top2+ir+fr:bias=0.01"}) {
    for (const int64_t logical_ranks : {4, 8}) {
      RankedWorld world(router, logical_ranks);
      const auto truth = world.train_on(1, "one");
      for (const auto& [processes, replicas] : {Shape{2, 1}, {2, 2}, {4, 1}, {4, 2}}) {
        INFO(router << ", W " << logical_ranks << ", " << processes << " processes, " << replicas
                    << " replicas");
        world.settings.replicas = replicas;
        const auto records = world.train_on(processes, "many");
        check_equal(records, truth);
        CHECK(distance(world.dir / "many" / "final", world.dir / "one" / "final") < kTolerance);
        fs::remove_all(world.dir / "many");
      }
    }
  }
}

TEST_CASE("a shared expert learns on many processes what it learns on one", "[train]") {
  for (const char* router : {"top1+ir+fr", "top2:cf=inf"}) {
    RankedWorld world(router, 4, /*shared_expert=*/true);
    const auto truth = world.train_on(1, "one");
    for (const auto& [processes, replicas] : {Shape{2, 1}, {2, 2}, {4, 2}}) {
      INFO(router << ", " << processes << " processes, " << replicas << " replicas");
      world.settings.replicas = replicas;
      check_equal(world.train_on(processes, "many"), truth);
      CHECK(distance(world.dir / "many" / "final", world.dir / "one" / "final") < kTolerance);
      fs::remove_all(world.dir / "many");
    }
  }
}

TEST_CASE("z-loss and balance within sequences are one process's on many, computed again or not",
          "[train]") {
  for (const char* router : {"top1+ir+fr", "topp:0.4"}) {
    RankedWorld world(router, 4);
    world.settings.steps = 8;
    world.settings.z_coef = 0.1;
    world.settings.seq_lb_coef = 0.1;
    const auto truth = world.train_on(1, "one");
    CHECK(truth[0].z_loss);
    for (const auto recompute : {model::Recompute::kNone, model::Recompute::kLayer}) {
      for (const auto& [processes, replicas] : {Shape{2, 1}, {2, 2}, {4, 1}, {4, 2}}) {
        INFO(router << ", " << processes << " processes, " << replicas << " replicas");
        world.settings.replicas = replicas;
        world.settings.compute.recompute = recompute;
        const auto records = world.train_on(processes, "many");
        check_equal(records, truth);
        for (size_t i = 0; i < truth.size(); ++i) {
          CHECK(relative(*records[i].z_loss, *truth[i].z_loss) < kTolerance);
          CHECK(relative(*records[i].sequence_balance_loss, *truth[i].sequence_balance_loss) <
                kTolerance);
        }
        CHECK(distance(world.dir / "many" / "final", world.dir / "one" / "final") < kTolerance);
        fs::remove_all(world.dir / "many");
      }
    }
  }
}

TEST_CASE("stopped and gone on: 1, 2, 4, 1 processes end where one ends", "[train]") {
  RankedWorld world("top2", 4);
  world.settings.steps = 8;
  const auto truth = world.train_on(1, "truth");
  world.settings.run = world.dir / "run";
  int64_t stop = 0;
  for (const int64_t processes : {1, 2, 4, 1}) {
    stop += 2;
    const TimeLimit limit(kSeconds);
    const auto go = [&] {
      test::run_as_threads(processes, [&](distributed::Comm& comm) {
        int64_t done = 0;
        TrainCallbacks callbacks;
        callbacks.on_step = [&](const StepRecord& record) { done = record.step; };
        // The last rank alone is asked to stop.
        callbacks.stop_requested = [&] {
          return comm.rank() == processes - 1 && done == stop && stop < 8;
        };
        train::train(world.settings, callbacks, &comm);
      });
    };
    if (stop < 8) {
      CHECK_THROWS_AS(go(), Interrupted);
    } else {
      go();
    }
  }
  CHECK(distance(world.dir / "run/final", world.dir / "truth/final") < kTolerance);
}

TEST_CASE("a checkpoint read and written by 2, 4 and 1 processes keeps its bytes", "[train]") {
  for (const io::DType moments : {io::DType::kF32, io::DType::kBF16}) {
    RankedWorld world("top1", 4);
    world.settings.save_every = 1;
    world.settings.steps = 1;
    world.settings.adamw.moments = moments;
    world.train_on(1);
    const fs::path first = world.dir / "run/checkpoints/step-1";
    fs::path from = first;
    for (const auto& [processes, replicas] : {Shape{2, 1}, {4, 2}, {4, 1}, {1, 1}}) {
      const fs::path to = world.dir / fmt::format("by{}x{}", processes, replicas);
      const TimeLimit limit(kSeconds);
      test::run_as_threads(processes, [&](distributed::Comm& comm) {
        distributed::World ranks(comm,
                                 distributed::make_layout(processes, comm.rank(), replicas, 4, 8));
        const io::Checkpoint folder(from);
        model::Llama model = model::Llama::load(folder, ranks.layout);
        Updater updater(model.parameters(), world.settings.adamw, 0, &ranks);
        const TrainState position = restore(from, model, updater.optimizer());
        Snapshot(model, updater.optimizer(), model.default_routing(), {0.01, 0.0}, position)
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

TEST_CASE("held-out loss is the same on many processes", "[train]") {
  RankedWorld world("top1", 4);
  world.settings.steps = 2;
  world.settings.evaluation.data = {world.dir / "rows.jsonl"};
  const auto loss_of = [&](int64_t processes) {
    std::vector<double> losses;
    world.settings.run = world.dir / fmt::format("held{}", processes);
    const TimeLimit limit(kSeconds);
    test::run_as_threads(processes, [&](distributed::Comm& comm) {
      TrainCallbacks callbacks;
      callbacks.on_evaluated = [&](const Evaluation& evaluation) {
        if (comm.rank() == processes - 1) {  // every rank finds the same
          losses.push_back(*evaluation.held_out_loss);
        }
      };
      train::train(world.settings, callbacks, &comm);
    });
    return losses;
  };
  const auto truth = loss_of(1), many = loss_of(4);
  REQUIRE(truth.size() == many.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    CHECK(relative(many[i], truth[i]) < kTolerance);
  }
}

TEST_CASE("rows that do not divide: ranks without a row, and unequal ones, go on", "[train]") {
  for (const char* router : {"top1+ir+fr", "topp:0.4", "relu:k=1"}) {
    INFO(router);
    RankedWorld world(router, 4);
    write_rows(world.settings.data.front());  // of unequal length
    world.settings.steps = 3;
    world.settings.micro_batch = world.settings.global_batch = 3;  // of four places one has none
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

TEST_CASE("replicas that cannot share a step's micro-batches are refused", "[train]") {
  RankedWorld world("top1", 4);
  world.settings.replicas = 4;
  CHECK_THROWS_WITH(world.train_on(4),
                    moe::test::contains_text("--global-batch 8 is 2 micro-batches of 4 rows, "
                                             "which 4 replicas cannot share equally; give a "
                                             "multiple of 16"));
}

TEST_CASE("one process of a host tokenises, the others map its tokens", "[train]") {
  RankedWorld world("top1", 2);
  world.settings.steps = 2;
  world.settings.cache = GENERATE(std::string("off"), std::string("CACHE"));
  if (world.settings.cache != "off") {
    world.settings.cache = (world.dir / "cache").string();
  }
  world.settings.run = world.dir / "run";
  const TimeLimit limit(kSeconds);
  std::array<std::atomic<int64_t>, 2> made{};
  std::array<std::vector<std::string>, 2> lines;
  test::run_as_threads(2, [&](distributed::Comm& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    TrainCallbacks callbacks;
    callbacks.on_reading = [&](int64_t examples, int64_t) {
      made[rank] = std::max<int64_t>(made[rank], examples);
    };
    callbacks.on_start = [&](const RunPlan& plan) { lines[rank] = plan.data; };
    train::train(world.settings, callbacks, &comm);
  });
  CHECK(made[0] == 24);
  CHECK(made[1] == 0);
  CHECK(lines[1].back() == "tokens from another process of the run on this host");
  CHECK(fs::exists(world.settings.run / "final" / "model.safetensors"));
}
