// Training runs on a GPU against runs on the CPU, and ranks that share a GPU against one rank. In a
// build without CUDA the GPU is emulated (tests/support/emulated_cuda).

#include "core/distributed/comm.h"
#include "core/distributed/process_group.h"
#include "core/train/step/gradients.h"
#include "tests/support/gpu.h"
#include "tests/support/local_store.h"
#include "tests/support/train_ranks.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using at::Tensor;

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

struct Case {
  Tensor weight, hidden;         // [V, D], [T, D] f32 on the host
  std::vector<int64_t> targets;  // [T]
};

Case random_case(int64_t tokens, int64_t width, int64_t vocabulary) {
  Case random{at::randn({vocabulary, width}), at::randn({tokens, width}), {}};
  for (int64_t t = 0; t < tokens; ++t) {
    random.targets.push_back(t % 4 == 1 ? data::kNoLoss : t * 7 % vocabulary);
  }
  return random;
}

// Reference in f64 from bf16 operands: loss sum, gradient of the rows with a target and of the
// weight.
struct Expected {
  double nll_sum = 0;
  Tensor hidden, weight;
};

Expected plain(const Case& given, double scale) {
  const auto rounded = [](const Tensor& tensor) {
    return tensor.to(at::kBFloat16).to(at::kDouble);
  };
  std::vector<int64_t> rows, wanted;
  for (size_t t = 0; t < given.targets.size(); ++t) {
    if (given.targets[t] != data::kNoLoss) {
      rows.push_back(static_cast<int64_t>(t));
      wanted.push_back(given.targets[t]);
    }
  }
  const Tensor x = rounded(given.hidden).index_select(0, at::tensor(rows, at::kLong));
  const Tensor head = rounded(given.weight), target = at::tensor(wanted, at::kLong).unsqueeze(1);
  const Tensor logits = x.mm(head.t());
  const Tensor gradient =
      scale * (at::softmax(logits, 1) - at::zeros_like(logits).scatter_(1, target, 1.0));
  const Tensor nll = at::logsumexp(logits, 1) - logits.gather(1, target).squeeze(1);
  return {nll.sum().item<double>(), gradient.mm(head), gradient.t().mm(x)};
}

double distance(const Tensor& actual, const Tensor& expected) {
  return ((actual.detach().cpu().to(at::kDouble) - expected).norm() / expected.norm())
      .item<double>();
}

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

TEST_CASE("runs on a GPU have the losses of the CPU", "[gpu]") {
  MOE_NEED_GPU();
  const TimeLimit limit(kSeconds);
  for (const std::string router : {"", "top1+ir+fr", "topp:0.4", "relu:k=1"}) {
    INFO("router '" << router << "'");
    TwoSteps world(router);
    check_same(train_alone(world, kGpu, "gpu"), train_alone(world, at::kCPU, "host"));
  }
}

TEST_CASE("runs with bf16 moments and products on a GPU have the losses of the CPU", "[gpu]") {
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

TEST_CASE("a bf16 run with working copies of the weights resumes as a run without", "[gpu]") {
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

TEST_CASE("ranks that share a GPU have the losses of one rank", "[gpu]") {
  MOE_NEED_GPU();
  check_ranks("top1+ir+fr", {4});
}

TEST_CASE("2, 4 and 8 ranks that share a GPU have the losses of one rank", "[.][slow][gpu]") {
  MOE_NEED_GPU();
  check_ranks("top1+ir+fr", {2, 8});
  check_ranks("topp:0.4", {2, 4, 8});
}

TEST_CASE("sharded weights train on a GPU as whole weights", "[gpu]") {
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

TEST_CASE("one rank with NCCL trains as one without", "[gpu][nccl]") {
  if (is_emulated() || !has_gpu()) {
    MOE_SKIP("no GPU");
  }
  TwoSteps world("top1");
  distributed::ProcessGroup group(make_local_store(), 0, {distributed::this_member("127.0.0.1")},
                                  distributed::Seconds{30});
  const auto comm = distributed::make_process_comm(group, kGpu);
  check_same(train_on(world, *comm, "nccl"), train_alone(world, kGpu, "alone"));
}

// The gradient of the logits and its products are rounded to bf16, with a relative error of at most
// 2^-9.
TEST_CASE("head_loss() in bf16 gives the reference in blocks of any size on CPU and GPU", "[gpu]") {
  MOE_NEED_GPU();
  const at::Device device = GENERATE(at::Device(at::kCPU), kGpu);
  at::manual_seed(1);
  const Case given = random_case(37, 24, 52);
  const Expected expected = plain(given, 0.25);
  const Tensor before = at::randn({52, 24}) * 100;
  for (const int64_t block_rows : {int64_t{1}, int64_t{5}, head_block_rows(52, true)}) {
    for (const bool is_new : {true, false}) {
      CAPTURE(device.is_cuda(), block_rows, is_new);
      const Tensor weight = given.weight.clone().to(device).requires_grad_(true);
      if (!is_new) {
        weight.mutable_grad() = before.clone().to(device);
      }
      const HeadLoss loss = head_loss(weight, given.hidden.to(device), given.targets, 0.25,
                                      at::kBFloat16, block_rows);
      CHECK(loss.nll_sum.item<double>() == Approx(expected.nll_sum).epsilon(1e-5));
      CHECK(distance(loss.gradient, expected.hidden) < 1.0 / (1 << 9));
      const Tensor sum = weight.grad().cpu().to(at::kDouble);
      // `before` is 100 times as large; f32 rounds it by 2^-24.
      CHECK(distance(is_new ? sum : sum - before.to(at::kDouble), expected.weight) <
            1.0 / (1 << 9));
    }
  }
}

TEST_CASE("head_loss() without targets is 0 and has no gradient on a GPU", "[gpu]") {
  MOE_NEED_GPU();
  const Tensor weight = at::randn({8, 4}).to(kGpu).requires_grad_(true);
  const HeadLoss loss = head_loss(weight, at::randn({3, 4}).to(kGpu),
                                  std::vector<int64_t>(3, data::kNoLoss), 1, at::kBFloat16);
  CHECK(loss.nll_sum.item<double>() == 0);
  CHECK(loss.gradient.size(0) == 0);
  CHECK(!weight.grad().defined());
}
