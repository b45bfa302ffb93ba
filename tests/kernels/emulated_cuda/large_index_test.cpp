// Kernels over more than 2^32 numbers: of each launch the last blocks run, on tensors whose pages
// become memory only where they are touched, and must give what the same rows give as a small
// tensor. An index of 32 bits, signed or not, lands on other rows of the same tensor.

#include <ATen/ATen.h>
#include <sys/mman.h>

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
constexpr int64_t kTail = 3;  // rows that are compared: what the last block of 8 or of 32 rows has
constexpr int64_t kTailNumbers = 512;  // of a list

// Zeros of which a page is memory once it is touched.
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

// Random in its last rows.
Tensor large(int64_t rows, int64_t width, at::ScalarType type) {
  Tensor tensor = untouched({rows, width}, type);
  tail(tensor).copy_(at::randn({kTail, width}));
  return tensor;
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
  const Tensor token = at::arange(kRows), row_of_token = at::arange(kRows, at::kInt);
  const Tensor x = large(kRows, kWidth, at::kBFloat16);
  const Tensor rows = untouched({kRows, kWidth}, at::kBFloat16);
  permute_cuda({token.const_data_ptr<int64_t>(), nullptr, shape, x.const_data_ptr(),
                rows.data_ptr(), PermuteDtype::kBF16},
               nullptr);
  CHECK(at::equal(tail(rows), tail(x)));

  const Tensor weight = at::full({kRows}, 2.0F);
  const Tensor y = untouched({kRows, kWidth}, at::kFloat);
  unpermute_cuda({token.const_data_ptr<int64_t>(), row_of_token.const_data_ptr<int32_t>(), shape,
                  x.const_data_ptr(), /*is_weighted=*/true, weight.const_data_ptr(), y.data_ptr(),
                  PermuteDtype::kBF16},
                 nullptr);
  CHECK(at::equal(tail(y), tail(x).to(at::kFloat) * 2));

  const Tensor grad_y = large(kRows, kWidth, at::kFloat);
  const Tensor grad_rows = untouched({kRows, kWidth}, at::kBFloat16);
  const Tensor grad_weight = at::zeros({kRows});
  unpermute_backward_cuda(
      {token.const_data_ptr<int64_t>(), nullptr, shape, x.const_data_ptr(), weight.const_data_ptr(),
       grad_y.const_data_ptr(), grad_rows.data_ptr(), grad_weight.data_ptr(), PermuteDtype::kBF16},
      nullptr);
  CHECK(at::equal(tail(grad_rows), (tail(grad_y) * 2).to(at::kBFloat16)));
  const Tensor dot = (tail(grad_y).to(at::kDouble) * tail(x)).sum(1);
  // 128 products below 20 a lane, then 5 levels: 133 * 2^-24 * 200.
  CHECK(at::allclose(tail(grad_weight).to(at::kDouble), dot, 0, 2e-3));
}

TEST_CASE("SwiGLU past 2^32 numbers is that of a few rows", "[kernels][emulator]") {
  at::manual_seed(2);
  const emulated::LastBlocks blocks(kTail * kWidth / 256);
  const auto type = at::kBFloat16;
  const Tensor hidden = large(kRows, 2 * kWidth, type), grad = large(kRows, kWidth, type);
  const auto run = [](const Tensor& in, const Tensor& upstream, const Tensor& out,
                      const Tensor& to) {
    swiglu_forward_cuda({in.const_data_ptr(), out.data_ptr(), in.size(0), kWidth, true}, nullptr);
    swiglu_backward_cuda(
        {upstream.const_data_ptr(), in.const_data_ptr(), to.data_ptr(), in.size(0), kWidth, true},
        nullptr);
  };
  const Tensor out = untouched({kRows, kWidth}, type), to = untouched({kRows, 2 * kWidth}, type);
  run(hidden, grad, out, to);
  const Tensor few_out = at::zeros({kTail, kWidth}, type);
  const Tensor few_to = at::zeros({kTail, 2 * kWidth}, type);
  run(tail(hidden), tail(grad), few_out, few_to);
  CHECK(at::equal(tail(out), few_out));
  CHECK(at::equal(tail(to), few_to));
  CHECK(few_to.to(at::kFloat).abs().sum().item<double>() > 0);
}

TEST_CASE("RoPE past 2^32 numbers is that of a few tokens", "[kernels][emulator]") {
  at::manual_seed(3);
  constexpr int64_t kHeads = 32, kHalf = 64;
  const emulated::LastBlocks blocks(kTail * kWidth / 256);
  const Tensor x = large(kRows, kWidth, at::kBFloat16), cosine = at::rand({4, kHalf});
  const Tensor sine = at::rand({4, kHalf}), position = at::arange(kRows, at::kInt).remainder(4);
  const auto run = [&](const Tensor& in, const Tensor& at_position, const Tensor& y) {
    rope_cuda({{{in.const_data_ptr()}, {kHeads}},
               floats(cosine),
               floats(sine),
               at_position.const_data_ptr<int32_t>(),
               y.data_ptr(),
               {in.size(0), kHeads, kHeads - 1, kHalf, false},
               true},
              nullptr);
  };
  const Tensor y = untouched({kRows, kWidth}, at::kBFloat16);
  run(x, position, y);
  const Tensor few = at::zeros({kTail, kWidth}, at::kBFloat16);
  run(tail(x), tail(position), few);
  CHECK(at::equal(tail(y), few));
  CHECK_FALSE(at::equal(few, tail(x)));
}

TEST_CASE("RMSNorm past 2^32 numbers is that of a few rows", "[kernels][emulator]") {
  at::manual_seed(4);
  // Wide rows and few: the weight's gradient reads whole strips of rows.
  constexpr int64_t kWidth = 320'000, kRows = 14'003;
  const emulated::LastBlocks blocks(kTail);
  const auto type = at::kBFloat16;
  const Tensor x = large(kRows, kWidth, type), grad = large(kRows, kWidth, type);
  const Tensor weight = at::rand({kWidth});
  const auto run = [&](const Tensor& in, const Tensor& upstream, const Tensor& y,
                       const Tensor& grad_x) {
    const int64_t rows = in.size(0);
    const Tensor scale = untouched({rows}, at::kFloat), grad_weight = at::zeros({kWidth});
    const Tensor strips = at::zeros({rms_norm_strips(rows), kWidth});
    rms_norm_forward_cuda({in.const_data_ptr(), floats(weight), y.data_ptr(),
                           scale.data_ptr<float>(), rows, kWidth, 1e-5, true},
                          nullptr);
    rms_norm_backward_cuda({upstream.const_data_ptr(), in.const_data_ptr(), floats(weight),
                            floats(scale), grad_x.data_ptr(), grad_weight.data_ptr<float>(), rows,
                            kWidth, true, strips.data_ptr<float>()},
                           nullptr);
    return last(strips.flatten(), 32).clone();  // the last block's columns, over its strip of rows
  };
  const Tensor y = untouched({kRows, kWidth}, type), grad_x = untouched({kRows, kWidth}, type);
  const Tensor sums = run(x, grad, y, grad_x);
  const Tensor few_y = at::zeros({kTail, kWidth}, type),
               few_grad = at::zeros({kTail, kWidth}, type);
  const Tensor few_sums = run(tail(x), tail(grad), few_y, few_grad);
  CHECK(at::equal(tail(y), few_y));
  CHECK(at::equal(tail(grad_x), few_grad));
  CHECK(at::allclose(sums, few_sums, 1e-6, 1e-6));  // three terms each, the others are zero
  CHECK(few_sums.abs().sum().item<double>() > 0);
}

TEST_CASE("a router's logits past 2^32 numbers are those of a few tokens", "[kernels][emulator]") {
  at::manual_seed(5);
  const emulated::LastBlocks blocks(1);
  const Tensor x = large(kRows, kWidth, at::kBFloat16), weight = at::randn({8, kWidth});
  const Tensor logits = at::zeros({kRows, 8}), few = at::zeros({kTail, 8});
  router_logits_cuda(
      {x.const_data_ptr(), floats(weight), logits.data_ptr<float>(), kRows, kWidth, 8, true},
      nullptr);
  router_logits_cuda(
      {tail(x).const_data_ptr(), floats(weight), few.data_ptr<float>(), kTail, kWidth, 8, true},
      nullptr);
  CHECK(at::equal(tail(logits), few));
  CHECK(few.abs().sum().item<double>() > 0);
}

TEST_CASE("losses past 2^32 logits are those of a few rows", "[kernels][emulator]") {
  at::manual_seed(6);
  constexpr int64_t kVocabulary = 32'000, kLogitRows = 140'003;
  const emulated::LastBlocks blocks(kTail);
  const Tensor logits = large(kLogitRows, kVocabulary, at::kFloat), few = tail(logits).clone();
  const Tensor target = at::arange(kLogitRows).remainder(kVocabulary);
  const auto sums = [](const Tensor& of_rows, const Tensor& to, const Tensor& argmax) {
    logsumexp_cuda({floats(of_rows), to.data_ptr<float>(), argmax.data_ptr<int64_t>(),
                    of_rows.size(0), kVocabulary},
                   nullptr);
  };
  const Tensor sum = at::zeros({kLogitRows}), argmax = at::zeros({kLogitRows}, at::kLong);
  const Tensor few_sum = at::zeros({kTail}), few_argmax = at::zeros({kTail}, at::kLong);
  sums(logits, sum, argmax);
  sums(few, few_sum, few_argmax);
  CHECK(at::equal(tail(sum), few_sum));
  CHECK(at::equal(tail(argmax), few_argmax));

  const Tensor loss = at::zeros({kLogitRows}, at::kDouble),
               few_loss = at::zeros({kTail}, at::kDouble);
  cross_entropy_cuda({logits.data_ptr<float>(), target.const_data_ptr<int64_t>(),
                      loss.data_ptr<double>(), kLogitRows, kVocabulary, 0.5},
                     nullptr);
  cross_entropy_cuda({few.data_ptr<float>(), tail(target).const_data_ptr<int64_t>(),
                      few_loss.data_ptr<double>(), kTail, kVocabulary, 0.5},
                     nullptr);
  CHECK(at::equal(tail(logits), few));
  CHECK(at::equal(tail(loss), few_loss));
}

TEST_CASE("a list of more than 2^32 weights is updated to its end", "[kernels][emulator]") {
  at::manual_seed(7);
  constexpr int64_t kCount = kRows * kWidth;
  const emulated::LastBlocks blocks(1);
  const auto list = [](at::ScalarType type) {
    Tensor tensor = untouched({kCount}, type);
    last(tensor, kTailNumbers).copy_(at::rand({kTailNumbers}));
    return tensor;
  };
  const Tensor gradient = list(at::kBFloat16), weight = list(at::kBFloat16);
  const Tensor master = list(at::kFloat), mean = list(at::kFloat), square = list(at::kFloat);
  const auto few = [](const Tensor& tensor) { return last(tensor, kTailNumbers).clone(); };
  const Tensor few_gradient = few(gradient), few_weight = few(weight), few_master = few(master);
  const Tensor few_mean = few(mean), few_square = few(square);
  const AdamWSettings settings{.lr = 1e-2, .weight_decay = 0.1, .t = 3};
  adamw_cuda({gradient.const_data_ptr(), true, master.data_ptr<float>(), mean.data_ptr<float>(),
              square.data_ptr<float>(), weight.data_ptr(), nullptr, kCount},
             settings, nullptr);
  adamw_cuda({few_gradient.const_data_ptr(), true, few_master.data_ptr<float>(),
              few_mean.data_ptr<float>(), few_square.data_ptr<float>(), few_weight.data_ptr(),
              nullptr, kTailNumbers},
             settings, nullptr);
  CHECK(at::equal(last(master, kTailNumbers), few_master));
  CHECK(at::equal(last(weight, kTailNumbers), few_weight));
  CHECK_FALSE(at::equal(few_weight, few(list(at::kBFloat16))));

  // A draw is a hash of the element's number, which may be past 2^32 too.
  const Tensor out = untouched({kCount}, at::kShort),
               few_out = at::zeros({kTailNumbers}, at::kShort);
  const auto bits = [](const Tensor& to) { return reinterpret_cast<uint16_t*>(to.data_ptr()); };
  const emulated::LastBlocks two_blocks(kTailNumbers / 256 + 1);
  stochastic_round_cuda({floats(mean), bits(out), kCount, 42, 0}, nullptr);
  stochastic_round_cuda({floats(few(mean)), bits(few_out), kTailNumbers, 42, kCount - kTailNumbers},
                        nullptr);
  CHECK(at::equal(last(out, kTailNumbers), few_out));
}
