// Training runs on a GPU against runs on the CPU, and ranks that share a GPU against one rank. In a
// build without CUDA the GPU is emulated (tests/support/emulated_cuda).

#include "core/distributed/comm.h"
#include "core/distributed/process_group.h"
#include "tests/support/gpu.h"
#include "tests/support/local_store.h"
#include "tests/support/train_ranks.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

constexpr int kSeconds = 300;

// Another order of sums changes the first loss by 1e-6. An update of AdamW has the size lr for any
// gradient, so that a weight with a gradient of rounding errors changes by lr a step: 1e-3 of
// weights of order 0.1.
constexpr double kSameRun = 1e-3;

// Tolerance between two runs on a GPU: some sums of LibTorch use atomics and have no fixed order.
// The emulated GPU gives equal bits.
double same_on_gpu() { return is_emulated() ? 1e-6 : kSameRun; }

std::vector<StepRecord> train_on(TrainWorld& world, distributed::Comm& comm,
                                 const std::string& run) {
  world.settings.run = world.dir / run;
  world.settings.on_cuda = comm.device().is_cuda();
  std::vector<StepRecord> records;
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepRecord& record) { records.push_back(record); };
  train::train(world.settings, callbacks, &comm);
  return records;
}

std::vector<StepRecord> train_alone(TrainWorld& world, at::Device device, const std::string& run) {
  const auto comm = distributed::solo_comm(device);
  return train_on(world, *comm, run);
}

void check_same(const std::vector<StepRecord>& records, const std::vector<StepRecord>& truth) {
  REQUIRE(records.size() == truth.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(relative_error(records[i].loss, truth[i].loss) < kSameRun);
    CHECK(relative_error(records[i].grad_norm, truth[i].grad_norm) < 10 * kSameRun);
  }
}

// Two steps of a model of one mixture and one dense layer.
struct TwoSteps : TrainWorld {
  explicit TwoSteps(const std::string& router) : TrainWorld(router, {.layers = 2}) {
    settings.steps = 2;
    settings.lr = 1e-3;
  }
};

}  // namespace

TEST_CASE("runs on a GPU have the losses of the CPU", "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  for (const std::string router : {"", "top1+ir+fr", "topp:0.4", "relu:k=1"}) {
    INFO("router '" << router << "'");
    TwoSteps world(router);
    check_same(train_alone(world, kGpu, "gpu"), train_alone(world, at::kCPU, "host"));
  }
}

TEST_CASE("runs with bf16 moments and products on a GPU have the losses of the CPU",
          "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  TwoSteps world("top2:cf=inf");
  world.settings.adamw.moments = io::DType::kBF16;
  check_same(train_alone(world, kGpu, "gpu"), train_alone(world, at::kCPU, "host"));
  world.settings.compute.precision = model::Precision::kBf16;
  const auto gpu = train_alone(world, kGpu, "gpu16");
  const auto host = train_alone(world, at::kCPU, "host16");
  for (size_t i = 0; i < host.size(); ++i) {
    CHECK(relative_error(gpu[i].loss, host[i].loss) < 0.02);  // products with 8 bits of mantissa
  }
}

TEST_CASE("a bf16 run with working copies of the weights resumes as a run without",
          "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  TwoSteps world("top1+ir+fr");
  world.settings.compute.precision = model::Precision::kBf16;
  world.settings.run = world.dir / "stopped";
  world.settings.on_cuda = true;
  CHECK_THROWS_AS(
      train_on_ranks(world.settings, 1, {.stop = 1, .device = kGpu, .max_seconds = kSeconds}),
      Interrupted);
  const auto rest = train_alone(world, kGpu, "stopped");
  REQUIRE(rest.size() == 1);
  world.settings.compute.recompute = model::Recompute::kLayer;  // has no copies (has_bf16_copy())
  const auto whole = train_alone(world, kGpu, "whole");
  CHECK(relative_error(rest[0].loss, whole[1].loss) < same_on_gpu());
}

namespace {

// Compares two micro-batches for each of two replicas on `ranks` threads with one rank.
void check_ranks(const std::string& router, const std::vector<int64_t>& all_ranks) {
  TwoSteps world(router);
  world.settings.micro_batch = 2;
  world.settings.global_batch = 8;
  const auto truth = train_alone(world, kGpu, "one");
  for (const int64_t ranks : all_ranks) {
    INFO("router " << router << ", " << ranks << " ranks");
    world.settings.run = world.dir / fmt::format("of{}", ranks);
    check_same(train_on_ranks(world.settings, ranks, {.device = kGpu, .max_seconds = kSeconds}),
               truth);
  }
}

}  // namespace

TEST_CASE("ranks that share a GPU have the losses of one rank", "[train][gpu]") {
  MOE_NEED_GPU();
  check_ranks("top1+ir+fr", {4});
}

TEST_CASE("2, 4 and 8 ranks that share a GPU have the losses of one rank",
          "[.][slow][train][gpu]") {
  MOE_NEED_GPU();
  check_ranks("top1+ir+fr", {2, 8});
  check_ranks("topp:0.4", {2, 4, 8});
}

TEST_CASE("sharded weights train on a GPU as whole weights", "[train][gpu]") {
  MOE_NEED_GPU();
  struct Case {
    const char* router;
    model::Recompute recompute;
    int64_t global_batch;  // one micro-batch for each replica; with experts there is one replica
  };
  for (const auto& [router, recompute, global_batch] :
       {Case{"", model::Recompute::kLayer, 4}, {"top1+ir+fr", model::Recompute::kNone, 2}}) {
    CAPTURE(router);
    TwoSteps world(router);
    world.settings.micro_batch = 2;
    world.settings.global_batch = global_batch;
    world.settings.on_cuda = true;
    world.settings.compute = {model::Precision::kBf16, recompute};
    const auto run = [&](Shard shard) {
      world.settings.shard = shard;
      world.settings.run = world.dir / (shard == Shard::kWeights ? "sharded" : "whole");
      return train_on_ranks(world.settings, 2, {.device = kGpu, .max_seconds = kSeconds});
    };
    const auto truth = run(Shard::kOptimizer), sharded = run(Shard::kWeights);
    REQUIRE(truth.size() == 2);
    check_same(sharded, truth);
    if (is_emulated()) {  // sums in a fixed order: equal bits
      CHECK(losses(sharded) == losses(truth));
      CHECK(sharded[1].grad_norm == truth[1].grad_norm);
    }
  }
}

TEST_CASE("one rank with NCCL trains as one without", "[train][gpu][nccl]") {
  if (is_emulated() || !has_gpu()) {
    MOE_SKIP("no GPU");
  }
  TwoSteps world("top1");
  distributed::ProcessGroup group(make_local_store(), 0, {distributed::this_member("127.0.0.1")},
                                  distributed::Seconds{30});
  const auto comm = distributed::make_process_comm(group, kGpu);
  check_same(train_on(world, *comm, "nccl"), train_alone(world, kGpu, "alone"));
}
