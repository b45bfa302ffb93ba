// Runs of training on a GPU against the run of the CPU, and ranks that share one GPU against one
// rank. In a build without CUDA the GPU is an emulated one (tests/support/emulated_cuda).

#include "core/distributed/comm.h"
#include "core/distributed/process_group.h"
#include "tests/support/gpu.h"
#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"
#include "tests/support/train_world.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

constexpr int kSeconds = 500;  // for what takes the emulated GPU 10 of an idle core

double relative(double a, double b) { return std::abs(a - b) / (std::abs(b) + 1e-12); }

// Sums in another order: 1e-6 of a loss in the first step. AdamW steps by lr whatever the size of
// the gradient, so that a weight whose gradient is all rounding goes its own way by lr a step:
// 1e-3 of weights of order 0.1.
constexpr double kSameRun = 1e-3;

// Of one run of a GPU against another: LibTorch adds some sums by atomics there, in no fixed order,
// and from the second step on the above holds of those too. The emulated GPU gives the same bits.
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
    CHECK(relative(records[i].loss, truth[i].loss) < kSameRun);
    CHECK(relative(records[i].grad_norm, truth[i].grad_norm) < 10 * kSameRun);
  }
}

struct FiveSteps : TrainWorld {
  explicit FiveSteps(const std::string& router) : TrainWorld(router) {
    settings.steps = 5;
    settings.lr = 1e-3;
  }
};

}  // namespace

TEST_CASE("five steps on a GPU have the losses of the CPU", "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  for (const std::string router : {"", "top1+ir+fr", "topp:0.4", "relu:k=1"}) {
    INFO("router '" << router << "'");
    FiveSteps world(router);
    check_same(train_alone(world, kGpu, "gpu"), train_alone(world, at::kCPU, "host"));
  }
}

TEST_CASE("bf16 moments and products train on a GPU", "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  FiveSteps world("top2:cf=inf");
  world.settings.adamw.moments = io::DType::kBF16;
  check_same(train_alone(world, kGpu, "gpu"), train_alone(world, at::kCPU, "host"));
  world.settings.compute.precision = model::Precision::kBf16;
  const auto gpu = train_alone(world, kGpu, "gpu16");
  const auto host = train_alone(world, at::kCPU, "host16");
  for (size_t i = 0; i < host.size(); ++i) {
    CHECK(relative(gpu[i].loss, host[i].loss) < 0.02);  // products of 8 bits, rounded elsewhere
  }
}

TEST_CASE("in bf16 a run that keeps copies of its weights is the run that rounds them anew",
          "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  FiveSteps world("top1+ir+fr");
  world.settings.steps = 3;
  world.settings.compute.precision = model::Precision::kBf16;
  const auto kept = train_alone(world, kGpu, "kept");
  world.settings.compute.recompute = model::Recompute::kLayer;  // keeps none (has_bf16_copy())
  const auto anew = train_alone(world, kGpu, "anew");
  REQUIRE(kept.size() == anew.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(relative(kept[i].loss, anew[i].loss) < same_on_gpu());
  }
}

TEST_CASE("a run on a GPU that was stopped goes on as if it had not been", "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  FiveSteps world("top1");
  const auto whole = train_alone(world, kGpu, "whole");
  const auto comm = distributed::solo_comm(kGpu);
  TrainCallbacks callbacks;
  int64_t done = 0;
  callbacks.on_step = [&](const StepRecord& record) { done = record.step; };
  callbacks.stop_requested = [&] { return done == 3; };
  world.settings.run = world.dir / "stopped";
  CHECK_THROWS_AS(train::train(world.settings, callbacks, comm.get()), Interrupted);
  const auto rest = train_on(world, *comm, "stopped");
  REQUIRE(rest.size() == 2);
  CHECK(relative(rest[1].loss, whole[4].loss) < same_on_gpu());
}

TEST_CASE("ranks that share a GPU compute what one does", "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  for (const std::string router : {"top1+ir+fr", "topp:0.4"}) {
    FiveSteps world(router);
    world.settings.steps = 2;
    world.settings.global_batch = 16;  // 4 micro-batches: of 8 ranks 4 are replicas
    const auto truth = train_alone(world, kGpu, "one");
    // Eight threads share the few cores of an emulated GPU: once.
    for (const int64_t ranks :
         router == "topp:0.4" ? std::vector<int64_t>{4} : std::vector<int64_t>{2, 4, 8}) {
      INFO("router " << router << ", " << ranks << " ranks");
      std::vector<StepRecord> records;
      world.settings.run = world.dir / fmt::format("of{}", ranks);
      test::run_as_threads(
          ranks,
          [&](distributed::Comm& comm) {
            TrainCallbacks callbacks;
            callbacks.on_step = [&](const StepRecord& record) {
              if (comm.rank() == 0) {
                records.push_back(record);
              }
            };
            train::train(world.settings, callbacks, &comm);
          },
          kGpu);
      check_same(records, truth);
    }
  }
}

TEST_CASE("one rank through NCCL trains as one without", "[train][gpu][nccl]") {
  if (is_emulated() || !has_gpu()) {
    MOE_SKIP("no GPU");
  }
  FiveSteps world("top1");
  distributed::ProcessGroup group(distributed::make_local_store(), 0,
                                  {distributed::this_member("127.0.0.1")},
                                  distributed::Seconds{30});
  const auto comm = distributed::make_process_comm(group, kGpu);
  check_same(train_on(world, *comm, "nccl"), train_alone(world, kGpu, "alone"));
}
