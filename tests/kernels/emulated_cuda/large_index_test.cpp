// Kernels over more than 2^32 numbers: of each launch the last blocks run, on tensors whose pages
// become memory only where they are touched, and must give what the same rows give as a small
// tensor. An index of 32 bits, signed or not, lands on other rows of the same tensor.

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <array>
#include <numeric>
#include <stdexcept>

#include "kernels/ops/adamw.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/router.h"
#include "kernels/ops/swiglu.h"
#include "tests/kernels/emulated_cuda/wrong_kernels.h"
#include "tests/support/catch.h"
#include "tests/support/emulated_cuda/emulator.h"

using at::Tensor;
using namespace moe::kernels;

namespace {

constexpr int64_t kRows = 1'100'003, kWidth = 4096;  // 4.5e9 numbers
constexpr int64_t kTail = 3;           // rows that are compared: the last, partial block
constexpr int64_t kTailNumbers = 512;  // of a list

// Zeros in pages that become memory when they are touched.
Tensor untouched(std::vector<int64_t> shape, at::ScalarType type) {
  const auto count = static_cast<size_t>(
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  const size_t bytes = count * c10::elementSize(type);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("mmap of pages that are not touched failed");
  }
  return at::from_blob(
      memory, shape, [bytes](void* at) { munmap(at, bytes); }, type);
}

Tensor last(const Tensor& tensor, int64_t count) {
  return tensor.narrow(0, tensor.size(0) - count, count);
}
Tensor tail(const Tensor& tensor) { return last(tensor, kTail); }

// A large tensor, whose last rows are compared, and these rows as a tensor of their own.
using Both = std::array<Tensor, 2>;

// Random in its last rows.
Both random_rows(int64_t rows, int64_t width, at::ScalarType type) {
  const Tensor few = at::randn({kTail, width}).to(type), large = untouched({rows, width}, type);
  tail(large).copy_(few);
  return {large, few};
}

Both zeros(int64_t rows, int64_t width, at::ScalarType type) {
  return {untouched({rows, width}, type), at::zeros({kTail, width}, type)};
}

// Positive numbers in the last elements of a list.
Both random_list(int64_t count, at::ScalarType type) {
  const Tensor few = at::rand({kTailNumbers}).to(type), large = untouched({count}, type);
  last(large, kTailNumbers).copy_(few);
  return {large, few};
}

void check_same(const Both& both) {
  CHECK(at::equal(last(both[0], both[1].size(0)), both[1]));
  CHECK(both[1].to(at::kFloat).abs().sum().item<double>() > 0);
}

const float* floats(const Tensor& tensor) { return tensor.const_data_ptr<float>(); }

}  // namespace

TEST_CASE("an index of 32 bits is found", "[kernels][emulator]") {
  const int64_t count = (int64_t{1} << 32) + kTailNumbers;
  const Tensor from = untouched({count}, at::kByte);
  last(from, kTailNumbers).copy_(at::randint(1, 256, {kTailNumbers}));
  for (const bool is_narrow : {false, true}) {
    CAPTURE(is_narrow);
    const Tensor to = untouched({count}, at::kByte);
    const emulated::LastBlocks blocks(2);
    moe::test::copy_bytes(from.const_data_ptr<uint8_t>(), to.data_ptr<uint8_t>(), count, is_narrow);
    CHECK(at::equal(last(to, kTailNumbers), last(from, kTailNumbers)) == !is_narrow);
  }
}

TEST_CASE("rows past 2^32 numbers are permuted and unpermuted", "[kernels][emulator]") {
  at::manual_seed(1);
  const emulated::LastBlocks blocks(1);
  const PermuteShape shape{kRows, kRows, kWidth, 1};
  const Tensor tokens = at::arange(kRows), rows_of_tokens = at::arange(kRows, at::kInt);
  const auto* token = tokens.const_data_ptr<int64_t>();
  const auto x = random_rows(kRows, kWidth, at::kBFloat16);
  const Tensor rows = untouched({kRows, kWidth}, at::kBFloat16);
  permute_cuda({token, nullptr, shape, x[0].const_data_ptr(), rows.data_ptr(), /*is_bf16=*/true},
               nullptr);
  check_same({rows, x[1]});

  const Tensor weight = at::full({kRows}, 2.0F), y = untouched({kRows, kWidth}, at::kFloat);
  unpermute_cuda({token, rows_of_tokens.const_data_ptr<int32_t>(), shape, x[0].const_data_ptr(),
                  /*is_weighted=*/true, weight.const_data_ptr(), y.data_ptr(), /*is_bf16=*/true},
                 nullptr);
  check_same({y, x[1].to(at::kFloat) * 2});

  const auto grad_y = random_rows(kRows, kWidth, at::kFloat);
  const Tensor grad_rows = untouched({kRows, kWidth}, at::kBFloat16);
  const Tensor grad_weight = at::zeros({kRows});
  unpermute_backward_cuda({token, nullptr, shape, x[0].const_data_ptr(), weight.const_data_ptr(),
                           grad_y[0].const_data_ptr(), grad_rows.data_ptr(), grad_weight.data_ptr(),
                           /*is_bf16=*/true},
                          nullptr);
  check_same({grad_rows, (grad_y[1] * 2).to(at::kBFloat16)});
  const Tensor dot = (grad_y[1].to(at::kDouble) * x[1]).sum(1);
  // 128 products below 20 a lane, then 5 levels: 133 * 2^-24 * 200.
  CHECK(at::allclose(tail(grad_weight).to(at::kDouble), dot, 0, 2e-3));
}

TEST_CASE("SwiGLU past 2^32 numbers is that of a few rows", "[kernels][emulator]") {
  at::manual_seed(2);
  const emulated::LastBlocks blocks(kTail * kWidth / 256);
  const auto type = at::kBFloat16;
  const auto hidden = random_rows(kRows, 2 * kWidth, type), grad = random_rows(kRows, kWidth, type);
  const auto out = zeros(kRows, kWidth, type), to = zeros(kRows, 2 * kWidth, type);
  for (const size_t i : {0, 1}) {
    const int64_t rows = out[i].size(0);
    swiglu_forward_cuda({hidden[i].const_data_ptr(), out[i].data_ptr(), rows, kWidth, true},
                        nullptr);
    swiglu_backward_cuda({grad[i].const_data_ptr(), hidden[i].const_data_ptr(), to[i].data_ptr(),
                          rows, kWidth, true},
                         nullptr);
  }
  check_same(out);
  check_same(to);
}

TEST_CASE("RoPE past 2^32 numbers is that of a few tokens", "[kernels][emulator]") {
  at::manual_seed(3);
  constexpr int64_t kHeads = 32, kHalf = 64;
  const emulated::LastBlocks blocks(kTail * kWidth / 256);
  const Tensor cosine = at::rand({4, kHalf}), sine = at::rand({4, kHalf});
  const Tensor positions = at::arange(kRows, at::kInt).remainder(4);
  const Both position = {positions, tail(positions)};
  const auto x = random_rows(kRows, kWidth, at::kBFloat16);
  const auto y = zeros(kRows, kWidth, at::kBFloat16);
  for (const size_t i : {0, 1}) {
    rope_cuda({{{x[i].const_data_ptr()}, {kHeads}},
               floats(cosine),
               floats(sine),
               position[i].const_data_ptr<int32_t>(),
               y[i].data_ptr(),
               {x[i].size(0), kHeads, kHeads - 1, kHalf, false},
               true},
              nullptr);
  }
  check_same(y);
  CHECK_FALSE(at::equal(y[1], x[1]));
}

TEST_CASE("RMSNorm past 2^32 numbers is that of a few rows", "[kernels][emulator]") {
  at::manual_seed(4);
  // Wide rows and few: the weight's gradient reads whole strips of rows.
  constexpr int64_t kWidth = 320'000, kRows = 14'003;
  const emulated::LastBlocks blocks(kTail);
  const auto type = at::kBFloat16;
  const auto x = random_rows(kRows, kWidth, type), grad = random_rows(kRows, kWidth, type);
  const auto y = zeros(kRows, kWidth, type), grad_x = zeros(kRows, kWidth, type);
  const Tensor weight = at::rand({kWidth});
  Both sums;  // the last block's columns, over its strip of rows
  for (const size_t i : {0, 1}) {
    const int64_t rows = x[i].size(0);
    const Tensor scale = untouched({rows}, at::kFloat), grad_weight = at::zeros({kWidth});
    const Tensor strips = at::zeros({rms_norm_strips(rows), kWidth});
    rms_norm_forward_cuda({x[i].const_data_ptr(), floats(weight), y[i].data_ptr(),
                           scale.data_ptr<float>(), rows, kWidth, 1e-5, true},
                          nullptr);
    rms_norm_backward_cuda({grad[i].const_data_ptr(), x[i].const_data_ptr(), floats(weight),
                            floats(scale), grad_x[i].data_ptr(), grad_weight.data_ptr<float>(),
                            rows, kWidth, true, strips.data_ptr<float>()},
                           nullptr);
    sums[i] = last(strips.flatten(), 32).clone();
  }
  check_same(y);
  check_same(grad_x);
  CHECK(at::allclose(sums[0], sums[1], 1e-6, 1e-6));  // three terms each, the others are zero
  CHECK(sums[1].abs().sum().item<double>() > 0);
}

TEST_CASE("a router's logits past 2^32 numbers are those of a few tokens", "[kernels][emulator]") {
  at::manual_seed(5);
  const emulated::LastBlocks blocks(1);
  const auto x = random_rows(kRows, kWidth, at::kBFloat16), logits = zeros(kRows, 8, at::kFloat);
  const Tensor weight = at::randn({8, kWidth});
  for (const size_t i : {0, 1}) {
    router_logits_cuda({x[i].const_data_ptr(), floats(weight), logits[i].data_ptr<float>(),
                        x[i].size(0), kWidth, 8, true},
                       nullptr);
  }
  check_same(logits);
}

TEST_CASE("losses past 2^32 logits are those of a few rows", "[kernels][emulator]") {
  at::manual_seed(6);
  constexpr int64_t kVocabulary = 32'000, kLogitRows = 140'003;
  const emulated::LastBlocks blocks(kTail);
  const auto logits = random_rows(kLogitRows, kVocabulary, at::kFloat);
  const Tensor targets = at::arange(kLogitRows).remainder(kVocabulary);
  const Both target = {targets, tail(targets)};
  const auto sum = zeros(kLogitRows, 1, at::kFloat), argmax = zeros(kLogitRows, 1, at::kLong);
  const auto loss = zeros(kLogitRows, 1, at::kDouble);
  for (const size_t i : {0, 1}) {
    const int64_t rows = logits[i].size(0);
    logsumexp_cuda({floats(logits[i]), sum[i].data_ptr<float>(), argmax[i].data_ptr<int64_t>(),
                    rows, kVocabulary},
                   nullptr);
    cross_entropy_cuda({logits[i].data_ptr<float>(), target[i].const_data_ptr<int64_t>(),
                        loss[i].data_ptr<double>(), rows, kVocabulary, 0.5},
                       nullptr);
  }
  for (const Both& both : {sum, argmax, loss, logits}) {
    check_same(both);
  }
}

TEST_CASE("a list of more than 2^32 weights is updated to its end", "[kernels][emulator]") {
  at::manual_seed(7);
  constexpr int64_t kCount = kRows * kWidth;
  const auto gradient = random_list(kCount, at::kBFloat16),
             weight = random_list(kCount, at::kBFloat16);
  const auto master = random_list(kCount, at::kFloat), mean = random_list(kCount, at::kFloat);
  const auto square = random_list(kCount, at::kFloat);
  const AdamWSettings settings{.lr = 1e-2, .weight_decay = 0.1, .t = 3};
  const Tensor before = weight[1].clone();
  {
    const emulated::LastBlocks blocks(1);
    for (const size_t i : {0, 1}) {
      adamw_cuda({gradient[i].const_data_ptr(), true, master[i].data_ptr<float>(),
                  mean[i].data_ptr<float>(), square[i].data_ptr<float>(), weight[i].data_ptr(),
                  nullptr, weight[i].numel()},
                 settings, nullptr);
    }
  }
  check_same(master);
  check_same(weight);
  CHECK_FALSE(at::equal(weight[1], before));

  // A draw is a hash of the element's number, which may be past 2^32 too.
  const Both out = {untouched({kCount}, at::kShort), at::zeros({kTailNumbers}, at::kShort)};
  const emulated::LastBlocks blocks(kTailNumbers / 256 + 1);
  for (const size_t i : {0, 1}) {
    const int64_t count = out[i].numel();
    stochastic_round_cuda({floats(mean[i]), reinterpret_cast<uint16_t*>(out[i].data_ptr()), count,
                           42, kCount - count},
                          nullptr);
  }
  check_same(out);
}
