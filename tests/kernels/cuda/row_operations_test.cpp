// Kernels on rows (cross-entropy, RMS norm, RoPE) against references.

#include "kernels/ops/rope.h"
#include "tests/kernels/reference/cross_entropy.h"
#include "tests/kernels/reference/rms_norm.h"
#include "tests/kernels/reference/rope.h"
#include "tests/support/gpu.h"

using namespace moe::kernels;
using namespace moe::test;
using at::Tensor;

namespace {

// f32: short sums a thread, then 8 levels: 32 roundings of 2^-24 on numbers that are below 100 (a
// row of one element has n = 1 / sqrt(1 + epsilon / x^2), and gradients cancel to epsilon of their
// terms).
constexpr NormTolerance kTolerance = {4e-6, 4e-6, 2e-4, 1e-5, 1e-4};

NormResults on_gpu(const NormInputs& in, at::ScalarType type) {
  const int64_t rows = in.x.size(0), width = in.x.size(1);
  const bool has_sum = in.added.defined(), is_bf16 = in.x.scalar_type() == at::kBFloat16;
  const bool rounds = !is_bf16 && type == at::kBFloat16;
  const Tensor x = to_gpu(in.x), weight = to_gpu(in.weight), upstream = to_gpu(in.grad);
  const Tensor added = has_sum ? to_gpu(in.added) : x, grad_sum = has_sum ? to_gpu(in.grad_sum) : x;
  const Tensor sum = has_sum ? poisoned(x.sizes(), at::kFloat) : x;
  const Tensor y = poisoned(x.sizes(), type), scale = poisoned({rows}, at::kFloat);
  const Tensor grad_x = poisoned(x.sizes(), x.scalar_type()),
               grad_added = poisoned(x.sizes(), type);
  const Tensor grad_weight = poisoned({width}, at::kFloat);
  const Tensor strips = poisoned({rms_norm_strips(rows), width}, at::kFloat);
  rms_norm_forward_cuda(
      {x.const_data_ptr(), weight.const_data_ptr<float>(), y.data_ptr(), scale.data_ptr<float>(),
       rows, width, kNormEpsilon, is_bf16, rounds, has_sum ? added.const_data_ptr() : nullptr,
       has_sum ? sum.data_ptr<float>() : nullptr},
      stream_of(x));
  rms_norm_backward_cuda(
      {upstream.const_data_ptr(), sum.const_data_ptr(), weight.const_data_ptr<float>(),
       scale.const_data_ptr<float>(), grad_x.data_ptr(), grad_weight.data_ptr<float>(), rows, width,
       is_bf16, strips.data_ptr<float>(), rounds,
       has_sum ? grad_sum.const_data_ptr<float>() : nullptr,
       has_sum && rounds ? grad_added.data_ptr() : nullptr},
      stream_of(x));
  return {has_sum ? sum.cpu() : Tensor(), y.cpu(), grad_x.cpu(),
          has_sum && rounds ? grad_added.cpu() : Tensor(), grad_weight.cpu()};
}

void run(const RopeCase& one, const RopeParts& parts, const Tensor& y, bool backwards) {
  const int64_t half = one.cosine.size(1), heads = one.x.size(1) / 2 / half;
  const Tensor c = to_gpu(one.cosine), s = to_gpu(one.sine), position = to_gpu(one.position);
  rope_cuda({parts,
             c.const_data_ptr<float>(),
             s.const_data_ptr<float>(),
             position.const_data_ptr<int32_t>(),
             y.data_ptr(),
             {one.x.size(0), heads, one.rotated, half, backwards},
             y.dtype() == at::kBFloat16},
            stream_of(y));
}

}  // namespace

TEST_CASE("the loss kernel equals the log-softmax in double, with its gradient", "[gpu]") {
  MOE_NEED_GPU();
  check_losses(
      [](const Tensor& logits, const Tensor& target, bool in_bf16) {
        const int64_t rows = logits.size(0), vocabulary = logits.size(1);
        const Tensor memory = to_gpu(logits), targets = to_gpu(target);
        const Tensor loss = poisoned({rows}, at::kDouble);
        cross_entropy_cuda({memory.data_ptr<float>(), targets.const_data_ptr<int64_t>(),
                            loss.data_ptr<double>(), rows, vocabulary, kLossScale, in_bf16},
                           stream_of(memory));
        const Tensor gradient = memory.cpu();
        return LossResults{
            loss.cpu(), in_bf16 ? gradient.view(at::kBFloat16).narrow(1, 0, vocabulary) : gradient};
      },
      {0, 1, 3}, 10'000);
}

TEST_CASE("the logsumexp kernel equals LibTorch's in double, the first of equal logits", "[gpu]") {
  MOE_NEED_GPU();
  check_logsumexp(
      [](const Tensor& logits) {
        const Tensor memory = to_gpu(logits), sum = poisoned({logits.size(0)}, at::kFloat);
        const Tensor argmax = poisoned({logits.size(0)}, at::kLong);
        logsumexp_cuda({memory.const_data_ptr<float>(), sum.data_ptr<float>(),
                        argmax.data_ptr<int64_t>(), logits.size(0), logits.size(1)},
                       stream_of(memory));
        return LogSumExpResults{sum.cpu(), argmax.cpu()};
      },
      {0, 1, 3}, 5'000);
}

TEST_CASE("the rms_norm kernels equal the formula in double on awkward shapes", "[gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 33}, {1, 1}, {31, 7}, {33, 1}, {33, 64}, {200, 33}, {3, 1028}, {2, 2056}}) {
    check_norm(on_gpu, rows, width, at::kFloat, at::kFloat, 0, kTolerance);
    check_norm(on_gpu, rows, width, at::kBFloat16, at::kBFloat16, 0, kTolerance);
    check_norm(on_gpu, rows, width, at::kFloat, at::kBFloat16, 0, kTolerance);
    check_norm(on_gpu, rows, width, at::kFloat, at::kFloat, 3, kTolerance);
    check_norm(on_gpu, rows, width, at::kFloat, at::kBFloat16, 3, kTolerance);
  }
}

TEST_CASE("rms_norm on a GPU has the formula's gradients, whichever results are used", "[gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(12);
  const auto run = [](const NormInputs& in, at::ScalarType type) {
    return norm_by_operation(in, type, kGpu);
  };
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const int used : {0, 1, 2, 3}) {
      check_norm(run, 33, 64, at::kFloat, type, used, kTolerance);
    }
  }
}

TEST_CASE("the rms_norm kernels give the same bits in any order of threads", "[gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(7);
  const NormInputs in{at::randn({150, 40}), {}, at::randn({40}), at::randn({150, 40}), {}};
  in_two_orders([&] {
    const NormResults all = on_gpu(in, at::kFloat);
    return std::vector<Tensor>{all.y, all.grad_x, all.grad_weight};
  });
}

TEST_CASE("the rope kernel rotates in both directions, in place and from three tensors", "[gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t half : {1, 3, 4, 8, 24, 33}) {  // in bf16 16 bytes are 8 numbers
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        for (const bool backwards : {false, true}) {
          CAPTURE(tokens, half, static_cast<int>(type), backwards);
          const RopeCase one(tokens, 5, 3, half);
          const Tensor in = to_gpu(one.x.to(type)), y = poisoned(one.x.sizes(), type);
          run(one, {{in.const_data_ptr()}, {5}}, y, backwards);
          CHECK(is_close_rotation(y, one.expected(one.x, backwards)));
        }
        for (const int64_t rotated : {0, 3, 5}) {
          CAPTURE(tokens, half, static_cast<int>(type), rotated);
          const RopeCase one(tokens, 5, rotated, half);
          const Tensor y = to_gpu(one.x.to(type));
          run(one, {{y.const_data_ptr()}, {5}}, y, false);
          CHECK(is_close_rotation(y, one.expected(one.x, false)));
          const int64_t first = rotated * 2 * half, rest = (5 - rotated) * 2 * half;
          CHECK(at::equal(y.cpu().narrow(1, first, rest), one.x.to(type).narrow(1, first, rest)));
        }
        for (const int64_t kv_heads : {1, 3}) {
          CAPTURE(tokens, half, static_cast<int>(type), kv_heads);
          const RopeCase one(tokens, 3 + 2 * kv_heads, 3 + kv_heads, half);
          const std::vector<int64_t> widths = {6 * half, 2 * half * kv_heads, 2 * half * kv_heads};
          std::vector<Tensor> parts;
          for (const Tensor& part : one.x.to(type).split_with_sizes(widths, 1)) {
            parts.push_back(to_gpu(part.contiguous()));
          }
          const Tensor y = poisoned(one.x.sizes(), type);
          run(one,
              {{parts[0].const_data_ptr(), parts[1].const_data_ptr(), parts[2].const_data_ptr()},
               {3, kv_heads, kv_heads}},
              y, true);
          CHECK(is_close_rotation(y, one.expected(one.x, true)));
        }
      }
    }
  }
}
