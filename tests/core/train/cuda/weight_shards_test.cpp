// Runs on a GPU whose dense matrices are sharded (--shard weights) against runs whose are not,
// ranks as threads that share it. In a build without CUDA the GPU is an emulated one
// (tests/support/emulated_cuda), and the runs are the same bits.

#include "tests/support/gpu.h"
#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"
#include "tests/support/train_world.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

constexpr int kSeconds = 300;  // for what takes the emulated GPU 10 of an idle core

// Losses and gradient norms of two steps of two ranks.
std::vector<double> run(TrainWorld& world, Shard shard) {
  world.settings.run = world.dir / (shard == Shard::kWeights ? "sharded" : "whole");
  world.settings.shard = shard;
  const TimeLimit limit(kSeconds);
  std::vector<double> said;
  test::run_as_threads(
      2,
      [&](distributed::Comm& comm) {
        TrainCallbacks callbacks;
        callbacks.on_step = [&](const StepRecord& record) {
          if (comm.rank() == 0) {
            said.insert(said.end(), {record.loss, record.grad_norm});
          }
        };
        train::train(world.settings, callbacks, &comm);
      },
      kGpu);
  return said;
}

}  // namespace

TEST_CASE("sharded weights train on a GPU as whole ones do", "[train][gpu]") {
  MOE_NEED_GPU();
  struct Case {
    const char* router;
    model::Precision precision;
    model::Recompute recompute;
  };
  for (const Case& each : {Case{"", model::Precision::kF32, model::Recompute::kNone},
                           Case{"", model::Precision::kBf16, model::Recompute::kLayer},
                           Case{"top1+ir+fr", model::Precision::kBf16, model::Recompute::kNone}}) {
    CAPTURE(each.router, static_cast<int>(each.precision));
    TrainWorld world(each.router);
    world.settings.steps = 2;
    world.settings.micro_batch = 2;
    // One micro-batch for each replica: the two ranks share the experts out, or each has all.
    world.settings.global_batch = std::string(each.router).empty() ? 4 : 2;
    world.settings.lr = 1e-3;
    world.settings.on_cuda = true;
    world.settings.compute = {each.precision, each.recompute};
    const auto truth = run(world, Shard::kOptimizer), sharded = run(world, Shard::kWeights);
    REQUIRE(truth.size() == 4);
    REQUIRE(sharded.size() == 4);
    for (size_t i = 0; i < truth.size(); ++i) {
      // A real GPU adds some sums by atomics, in no fixed order; see training_test.cpp.
      CHECK(std::abs(sharded[i] - truth[i]) <= (is_emulated() ? 0 : 1e-2 * std::abs(truth[i])));
    }
  }
}
