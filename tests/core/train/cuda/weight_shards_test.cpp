// Runs with sharded weights (--shard weights) on a GPU against runs with whole weights, two ranks
// as threads. In a build without CUDA the GPU is emulated (tests/support/emulated_cuda) and the
// runs have equal bits.

#include "tests/support/gpu.h"
#include "tests/support/train_ranks.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

// Returns losses and gradient norms of two steps on two ranks.
std::vector<double> run(TrainWorld& world, Shard shard) {
  world.settings.run = world.dir / (shard == Shard::kWeights ? "sharded" : "whole");
  world.settings.shard = shard;
  std::vector<double> numbers;
  for (const auto& record :
       train_on_ranks(world.settings, 2, {.device = kGpu, .max_seconds = 300})) {
    numbers.insert(numbers.end(), {record.loss, record.grad_norm});
  }
  return numbers;
}

}  // namespace

TEST_CASE("sharded weights train on a GPU as whole weights", "[train][gpu]") {
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
    // One micro-batch for each replica: the ranks are two replicas, or share the experts.
    world.settings.global_batch = std::string(each.router).empty() ? 4 : 2;
    world.settings.lr = 1e-3;
    world.settings.on_cuda = true;
    world.settings.compute = {each.precision, each.recompute};
    const auto truth = run(world, Shard::kOptimizer), sharded = run(world, Shard::kWeights);
    REQUIRE(truth.size() == 4);
    REQUIRE(sharded.size() == 4);
    for (size_t i = 0; i < truth.size(); ++i) {
      // A real GPU has sums in no fixed order; see training_test.cpp.
      CHECK(std::abs(sharded[i] - truth[i]) <= (is_emulated() ? 0 : 1e-2 * std::abs(truth[i])));
    }
  }
}
