// The loss of a model's head: what it computes, and that nobody waits for a GPU. In a build
// without CUDA the GPU is an emulated one (tests/support/emulated_cuda).

#include <ATen/record_function.h>

#include <atomic>
#include <string_view>

#include "core/data/examples.h"
#include "core/train/step/gradients.h"
#include "tests/support/gpu.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using namespace moe::train;
using at::Tensor;
using test::kGpu;

namespace {

// While it lives, counts the numbers that are read from a GPU one by one, on any thread.
class ReadNumbers {
 public:
  ReadNumbers()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&see).needsInputs(true).scopes(
            {at::RecordScope::FUNCTION}))) {
    count() = 0;
  }
  ~ReadNumbers() { at::removeCallback(handle_); }
  ReadNumbers(const ReadNumbers&) = delete;
  ReadNumbers& operator=(const ReadNumbers&) = delete;

  static std::atomic<int64_t>& count() {
    static std::atomic<int64_t> one = 0;
    return one;
  }

 private:
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
    if (std::string_view(function.name()) == "aten::item") {
      const auto inputs = function.inputs();
      count() += !inputs.empty() && inputs[0].isTensor() && inputs[0].toTensor().is_cuda() ? 1 : 0;
    }
    return nullptr;
  }

  at::CallbackHandle handle_;
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

// In f64 from operands in bf16: the sum of the losses, the gradient of the rows with a target and
// of the weight.
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

std::vector<data::Batch> batches_of(int64_t count) {
  std::vector<data::Batch> all(static_cast<size_t>(count));
  for (int64_t b = 0; b < count; ++b) {
    data::Batch& batch = all[static_cast<size_t>(b)];
    for (int64_t t = 0; t < 12; ++t) {
      batch.ids.push_back((5 * t + b) % 64);
      batch.targets.push_back(t % 6 == 5 ? data::kNoLoss : (5 * t + b + 5) % 64);
      batch.target_count += t % 6 == 5 ? 0 : 1;
    }
    batch.lengths = {6, 6};
  }
  return all;
}

}  // namespace

// The gradient of the logits is rounded to bf16, by at most 2^-9 of each number, and so is the sum
// of products of it.
TEST_CASE("the head's loss in bf16 is that of plain products, in blocks of any size, on any device",
          "[train][gpu]") {
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
      // What was there is 100 times as large, and f32 keeps 2^-24 of it.
      CHECK(distance(is_new ? sum : sum - before.to(at::kDouble), expected.weight) <
            1.0 / (1 << 9));
    }
  }
}

TEST_CASE("a head without targets has no loss and no gradient on a GPU", "[train][gpu]") {
  MOE_NEED_GPU();
  const Tensor weight = at::randn({8, 4}).to(kGpu).requires_grad_(true);
  const HeadLoss loss = head_loss(weight, at::randn({3, 4}).to(kGpu),
                                  std::vector<int64_t>(3, data::kNoLoss), 1, at::kBFloat16);
  CHECK(loss.nll_sum.item<double>() == 0);
  CHECK(loss.gradient.size(0) == 0);
  CHECK(!weight.grad().defined());
}

TEST_CASE("the head's loss on a GPU waits for nothing", "[train][gpu]") {
  MOE_NEED_GPU();
  const Case given = random_case(37, 24, 52);
  const Tensor weight = given.weight.to(kGpu).requires_grad_(true), hidden = given.hidden.to(kGpu);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const ReadNumbers read;
    const HeadLoss loss = head_loss(weight, hidden, given.targets, 1, type, /*block_rows=*/5);
    CHECK(ReadNumbers::count() == 0);
    CHECK(loss.nll_sum.is_cuda());
    loss.nll_sum.item<double>();
    CHECK(ReadNumbers::count() == 1);
  }
}

TEST_CASE("a step's losses are read from a GPU together, with the numbers of the host",
          "[train][gpu]") {
  MOE_NEED_GPU();
  const test::TempDir dir;
  test::write_tiny_checkpoint(dir / "dense");
  const auto loss_on = [&](at::Device device) {
    auto model = model::Llama::load(io::Checkpoint(dir / "dense")).clone_to(device);
    model.require_gradients();
    const ReadNumbers read;
    const StepLosses step = add_gradients(model, batches_of(3), {}, {});
    CHECK(ReadNumbers::count() == 0);
    return step.loss;
  };
  CHECK(loss_on(kGpu) == Approx(loss_on(at::kCPU)).epsilon(1e-5));
}
