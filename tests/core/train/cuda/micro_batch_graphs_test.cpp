// Training by recorded micro-batches against the same run launch by launch. In a build without CUDA
// the GPU is an emulated one (tests/support/emulated_cuda), which does again what was recorded, and
// refuses what a graph cannot hold: copies between host and GPU, and numbers read back.

#include "core/train/loop/micro_batch_graphs.h"

#include "core/distributed/comm.h"
#include "tests/support/gpu.h"
#include "tests/support/matchers.h"
#include "tests/support/time_limit.h"
#include "tests/support/train_world.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

constexpr int kSeconds = 500;  // for what takes the emulated GPU 20 of an idle core

double relative(double a, double b) { return std::abs(a - b) / (std::abs(b) + 1e-12); }

// A GPU adds some sums by atomics, in no fixed order; see training_test.cpp.
double same() { return is_emulated() ? 0 : 1e-3; }

struct StreamWorld : TrainWorld {
  explicit StreamWorld(const std::string& router) : TrainWorld(router) {
    settings.steps = 3;
    settings.seq_len = 16;
    settings.micro_batch = 2;
    settings.global_batch = 6;
    settings.pack = data::Pack::kStream;
    settings.lr = 1e-3;
    settings.on_cuda = true;
    settings.compute.precision = model::Precision::kBf16;
  }

  std::vector<StepRecord> train_on_gpu(bool graph) {
    settings.graph = graph;
    settings.run = dir / (graph ? "graph" : "launches");
    const auto comm = distributed::solo_comm(kGpu);
    std::vector<StepRecord> records;
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepRecord& record) { records.push_back(record); };
    train::train(settings, callbacks, comm.get());
    return records;
  }
};

void check_same(StreamWorld& world) {
  const auto truth = world.train_on_gpu(false), replayed = world.train_on_gpu(true);
  REQUIRE(replayed.size() == truth.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(relative(replayed[i].loss, truth[i].loss) <= same());
    CHECK(relative(replayed[i].grad_norm, truth[i].grad_norm) <= same());
    CHECK(relative(replayed[i].auxiliary.value_or(0), truth[i].auxiliary.value_or(0)) <= same());
    CHECK(truth[i].loss > 0);
    REQUIRE(replayed[i].layer_counters.size() == truth[i].layer_counters.size());
    for (size_t layer = 0; layer < truth[i].layer_counters.size(); ++layer) {
      const auto &own = replayed[i].layer_counters[layer], &other = truth[i].layer_counters[layer];
      if (is_emulated()) {
        CHECK(own.tokens_per_expert == other.tokens_per_expert);
        CHECK(own.dropped_requests == other.dropped_requests);
      }
      CHECK(own.tokens == other.tokens);
    }
  }
}

std::string refused(bool on_cuda, const model::ComputeOptions& compute, const std::string& router,
                    int64_t experts = 8) {
  const auto settings = route::parse_router(router);
  return user_error_of([&] { check_graph(on_cuda, compute, &settings, experts); });
}

}  // namespace

TEST_CASE("recorded micro-batches train as those that are launched", "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  for (const std::string router : {"", "top1", "top1+ir+fr", "top2:cf=inf"}) {
    CAPTURE(router);
    StreamWorld world(router);
    check_same(world);
  }
}

TEST_CASE("recorded micro-batches train with every loss, recomputation and adapters",
          "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  StreamWorld with_losses("top2");
  with_losses.settings.global_batch = 2;  // one micro-batch a step
  with_losses.settings.z_coef = 1e-3;
  with_losses.settings.seq_lb_coef = 1e-2;
  check_same(with_losses);
  for (const auto recompute : {model::Recompute::kFeedForward, model::Recompute::kLayer}) {
    StreamWorld world("top1");
    world.settings.compute.recompute = recompute;
    check_same(world);
  }
  StreamWorld tied("");  // the head and the embedding write one gradient
  TinyCheckpoint shape;
  shape.tied = true;
  write_tiny_checkpoint(tied.dir / "tied", shape);
  tied.settings.model = tied.dir / "tied";
  check_same(tied);
  StreamWorld with_adapters("top1+ir+fr");
  with_adapters.settings.lora.rank = 3;
  check_same(with_adapters);
}

// Homes and sequences are told to a GPU by a fill each up to 64 of them; more are made by
// arithmetic, since no graph can hold a copy from the host.
TEST_CASE("recorded micro-batches train with more than 64 rows and balance within each",
          "[train][gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  StreamWorld world("top1");
  world.settings.seq_len = 2;
  world.settings.micro_batch = world.settings.global_batch = 66;
  world.settings.steps = 2;
  world.settings.seq_lb_coef = 1e-2;
  check_same(world);
}

TEST_CASE("what cannot be recorded is refused in one sentence", "[train]") {
  const model::ComputeOptions bf16{model::Precision::kBf16};
  CHECK(refused(true, bf16, "top1+ir+fr") == "");
  CHECK(refused(true, bf16, "top2:cf=inf") == "");
  const std::string needs =
      "--graph records the launches of a GPU's products in bf16; give --device cuda and "
      "--precision bf16, or leave --graph out";
  CHECK(refused(false, bf16, "top1") == needs);
  CHECK(refused(true, {}, "top1") == needs);
  for (const std::string router : {"topp:0.4", "relu:k=1", "expert-choice", "top1:bias=0.001"}) {
    CHECK(refused(true, bf16, router) ==
          "--graph records launches that never wait for the host, and " +
              route::to_string(route::parse_router(router)) +
              " over 8 experts is planned by operations that do; leave --graph out");
  }
  CHECK_THAT(refused(true, bf16, "top1", 100000),
             contains_text("top1 over 100000 experts is planned by operations that do"));
  model::ComputeOptions loop = bf16;
  loop.grouped_gemm = kernels::GroupedGemm::kLoop;
  CHECK(refused(true, loop, "top1") ==
        "--graph records launches that never wait for the host, and --expert-products loop waits "
        "for the tokens per expert; leave one of them out");
}

TEST_CASE("a run whose micro-batches differ in form, or of several processes, is not recorded",
          "[train]") {
  StreamWorld world("top1");
  world.settings.graph = true;
  const auto refusal = [&](int64_t processes) {
    return user_error_of([&] { plan_run(world.settings, processes); });
  };
  CHECK(refusal(1) == "");
  CHECK(plan_run(world.settings, 1).memory.graphs > 0);
  CHECK(refusal(2) ==
        "--graph: 2 processes exchange what they compute, which is not recorded; leave --graph "
        "out, or train on one GPU");
  const std::string form =
      "--graph: micro-batches must have one form, and here the lengths of their sequences differ; "
      "give --pack stream and --pack-mask causal, or leave --graph out";
  world.settings.pack_mask = data::PackMask::kDoc;
  CHECK(refusal(1) == form);
  world.settings.pack_mask = data::PackMask::kCausal;
  world.settings.pack = data::Pack::kNone;
  CHECK(refusal(1) == form);
}
