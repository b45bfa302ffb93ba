// The loss of the head of a model on CPU and GPU. In a build without CUDA the GPU is emulated
// (tests/support/emulated_cuda).

#include "core/train/step/gradients.h"
#include "tests/support/gpu.h"

using namespace moe;
using namespace moe::train;
using at::Tensor;
using test::kGpu;

namespace {

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

}  // namespace

// The gradient of the logits and its products are rounded to bf16, with a relative error of at most
// 2^-9.
TEST_CASE("head_loss() in bf16 gives the reference in blocks of any size on CPU and GPU",
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
      // `before` is 100 times as large; f32 rounds it by 2^-24.
      CHECK(distance(is_new ? sum : sum - before.to(at::kDouble), expected.weight) <
            1.0 / (1 << 9));
    }
  }
}

TEST_CASE("head_loss() without targets is 0 and has no gradient on a GPU", "[train][gpu]") {
  MOE_NEED_GPU();
  const Tensor weight = at::randn({8, 4}).to(kGpu).requires_grad_(true);
  const HeadLoss loss = head_loss(weight, at::randn({3, 4}).to(kGpu),
                                  std::vector<int64_t>(3, data::kNoLoss), 1, at::kBFloat16);
  CHECK(loss.nll_sum.item<double>() == 0);
  CHECK(loss.gradient.size(0) == 0);
  CHECK(!weight.grad().defined());
}
