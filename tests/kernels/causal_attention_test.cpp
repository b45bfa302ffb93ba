#include "kernels/ops/causal_attention.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numeric>

#include "kernels/cpu/causal_attention.h"
#include "kernels/cpu/gemm_tile.h"
#include "tests/kernels/reference/causal_attention.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

using at::Tensor;
using moe::kernels::AttentionHeads;
using moe::kernels::TileKernel;

namespace {

struct Case {
  AttentionHeads heads;
  std::vector<int64_t> lengths;
};

// One token, one more and one less than blocks of rows, widths that no vector divides, shared keys.
const std::vector<Case> kCases = {{{1, 1, 2}, {1}},
                                  {{2, 2, 6}, {31, 1, 33}},
                                  {{4, 2, 32}, {48, 49, 47}},
                                  {{6, 1, 10}, {97}},
                                  {{2, 2, 64}, {130, 5}}};

moe::kernels::Rotation rotation_of(int64_t positions, int64_t width) {
  const Tensor half = at::outer(at::arange(positions), at::rand({width / 2}));
  const Tensor both = at::cat({half, half}, 1);
  return {both.cos(), both.sin()};
}

Tensor rotated(const Tensor& x, const Tensor& cosine, const Tensor& sine) {  // [S, heads, A]
  const int64_t half = x.size(2) / 2;
  const Tensor other = at::cat({x.narrow(2, half, half).neg(), x.narrow(2, 0, half)}, 2);
  return x * cosine.unsqueeze(1) + other * sine.unsqueeze(1);
}

// The formula in f64, whose gradients are autograd's.
Tensor plain(const Tensor& qkv, const AttentionHeads& heads, const std::vector<int64_t>& lengths,
             const moe::kernels::Rotation& rotation) {
  std::vector<Tensor> parts;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    const Tensor cosine = rotation.cosine.narrow(0, 0, length).to(at::kDouble);
    const Tensor sine = rotation.sine.narrow(0, 0, length).to(at::kDouble);
    const Tensor rows =
        qkv.narrow(0, first, length).view({length, heads.heads + 2 * heads.kv_heads, heads.width});
    const int64_t copies = heads.heads / heads.kv_heads;
    const auto spread = [&](const Tensor& x) { return x.repeat_interleave(copies, 1); };
    const Tensor query = rotated(rows.narrow(1, 0, heads.heads), cosine, sine);
    const Tensor key = spread(rotated(rows.narrow(1, heads.heads, heads.kv_heads), cosine, sine));
    const Tensor value = spread(rows.narrow(1, heads.heads + heads.kv_heads, heads.kv_heads));
    const Tensor scores = at::einsum("ihd,jhd->hij", {query, key}) / std::sqrt(heads.width);
    const Tensor later = at::ones({length, length}, at::kBool).triu(1);
    const Tensor share = at::softmax(scores.masked_fill(later, -INFINITY), 2);
    parts.push_back(at::einsum("hij,jhd->ihd", {share, value}).reshape({length, -1}));
    first += length;
  }
  return at::cat(parts, 0);
}

int64_t tokens_of(const Case& one) {
  return std::accumulate(one.lengths.begin(), one.lengths.end(), int64_t{0});
}

}  // namespace

TEST_CASE("the reference of attention is the formula, whose gradient is its difference quotient",
          "[kernels]") {
  at::manual_seed(1);
  const AttentionHeads heads{4, 2, 6};
  const auto rotation = rotation_of(5, 6);
  const Tensor qkv = at::randn({5, heads.row()}, at::kDouble);
  const Tensor cosine = rotation.cosine.to(at::kDouble), sine = rotation.sine.to(at::kDouble);
  Tensor slow = at::empty({5, 24}, at::kDouble);
  moe::test::causal_attention_reference(qkv.data_ptr<double>(), cosine.data_ptr<double>(),
                                        sine.data_ptr<double>(), 5, heads, slow.data_ptr<double>());
  CHECK(moe::test::distance(plain(qkv, heads, {5}, rotation), slow) < 1e-13);
  const Tensor upstream = at::randn({5, 24}, at::kDouble);
  const auto loss = [&](const Tensor& x) {
    return (plain(x, heads, {5}, rotation) * upstream).sum();
  };
  CHECK(moe::test::distance(moe::test::autograd(loss, qkv),
                            moe::test::finite_difference(loss, qkv)) < moe::test::kGradTolerance);
}

TEST_CASE("attention equals the formula in f64, values and gradients", "[kernels]") {
  at::manual_seed(2);
  for (const auto& one : kCases) {
    CAPTURE(one.heads.heads, one.heads.kv_heads, one.heads.width, one.lengths);
    const auto rotation = rotation_of(200, one.heads.width);
    const Tensor wide = at::randn({tokens_of(one), one.heads.row()}, at::kDouble);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Tensor qkv = wide.to(type).requires_grad_(true);
      const Tensor exact = qkv.detach().to(at::kDouble).requires_grad_(true);
      const Tensor fast = causal_attention(qkv, one.heads, one.lengths, rotation);
      const Tensor slow = plain(exact, one.heads, one.lengths, rotation);
      const Tensor upstream = at::randn_like(slow).to(type);
      // f32: sums of 130 terms of order one, 2^-24 each; bf16 rounds the result, and in backward
      // what it kept of it, to 2^-9.
      const double most = type == at::kFloat ? 2e-5 : 3e-2;
      CHECK(fast.scalar_type() == type);
      CHECK(moe::test::distance(fast, slow) < most);
      const auto actual = torch::autograd::grad({fast}, {qkv}, {upstream});
      const auto expected = torch::autograd::grad({slow}, {exact}, {upstream.to(at::kDouble)});
      CHECK(moe::test::distance(actual[0], expected[0]) < most);
    }
  }
}

namespace {

// How many numbers of bf16 are not those of `exact` rounded, and how far they are apart in units of
// 2^-8 of their own size or, where that is more, of the typical one.
struct Unequal {
  int64_t count;
  double apart;
  Unequal(const Tensor& found, const Tensor& exact) {
    const Tensor wide = found.to(at::kDouble), wanted = exact.to(at::kBFloat16).to(at::kDouble);
    count = wide.ne(wanted).sum().item<int64_t>();
    const Tensor size = exact.abs().clamp_min(exact.square().mean().sqrt().item<double>());
    apart = ((wide - exact).abs() / size).max().item<double>() * 256;
  }
};

// Of one sequence, forward and backward by a kernel and by the plain loops, from the same numbers.
struct BothWays {
  Tensor out, log_sum, grad, exact_out, exact_log_sum, exact_grad;

  BothWays(const TileKernel& kernel, const AttentionHeads& heads, int64_t length) {
    const auto rotation = rotation_of(length, heads.width);
    const Tensor qkv = at::randn({length, heads.row()}).to(at::kBFloat16);
    const Tensor dy = at::randn({length, heads.heads * heads.width}).to(at::kBFloat16);
    const Tensor wide = qkv.to(at::kDouble), wide_dy = dy.to(at::kDouble);
    const Tensor cosine = rotation.cosine.to(at::kDouble), sine = rotation.sine.to(at::kDouble);
    out = at::empty_like(dy), grad = at::empty_like(qkv);
    log_sum = at::empty({length, heads.heads});
    exact_out = at::empty_like(wide_dy), exact_grad = at::empty_like(wide);
    exact_log_sum = at::empty({length, heads.heads}, at::kDouble);
    const auto bits = [](const Tensor& x) { return static_cast<uint16_t*>(x.data_ptr()); };
    const auto f64 = [](const Tensor& x) { return x.data_ptr<double>(); };
    const moe::kernels::AttentionInput<uint16_t> in{bits(qkv), rotation.cosine.data_ptr<float>(),
                                                    rotation.sine.data_ptr<float>(), length, heads};
    for (int64_t group = 0; group < heads.kv_heads; ++group) {
      causal_attention_forward_bf16(kernel, in, group, bits(out), log_sum.data_ptr<float>());
      causal_attention_backward_bf16(kernel, in, group, bits(out), log_sum.data_ptr<float>(),
                                     bits(dy), bits(grad));
    }
    moe::test::causal_attention_bf16_reference(f64(wide), f64(cosine), f64(sine), length, heads,
                                               f64(exact_out), f64(exact_log_sum));
    const Tensor kept = out.to(at::kDouble), kept_sum = log_sum.to(at::kDouble);
    moe::test::causal_attention_bf16_backward_reference(f64(wide), f64(cosine), f64(sine), length,
                                                        heads, f64(kept), f64(kept_sum),
                                                        f64(wide_dy), f64(exact_grad));
  }
};

}  // namespace

// Both round at the same places, so that what is left are sums in f32: 130 terms of 2^-24 each
// against steps of 2^-8 between numbers of bf16. A result rounds to the other side where it stands
// that near to the middle of a step, 130 * 2^-24 / 2^-8 < 1 in 500 of them; one of the numbers that
// were rounded on the way does it as rarely, and then moves results by 2^-8 of one of their terms:
// those of a query and of a key. Without the roundings on the way a third of all would be others.
TEST_CASE("attention of bf16 products equals plain loops that round where it does", "[kernels]") {
  for (const TileKernel& kernel : moe::kernels::bf16_tile_kernels()) {
    at::manual_seed(5);  // the same numbers for each kernel, whichever kernels this machine has
    for (const auto& one : kCases) {
      for (const int64_t length : one.lengths) {
        CAPTURE(kernel.width, one.heads.heads, one.heads.kv_heads, one.heads.width, length);
        const BothWays both(kernel, one.heads, length);
        CHECK(moe::test::distance(both.log_sum, both.exact_log_sum) < 1e-5);
        const Unequal out(both.out, both.exact_out), grad(both.grad, both.exact_grad);
        const auto most = [&](const Tensor& of) { return of.numel() / 100 + 2 * one.heads.width; };
        CHECK(out.count <= most(both.out));
        CHECK(out.apart <= 1.5);  // half a step where it is rounded, one where a term was another
        CHECK(grad.count <= most(both.grad));
        CHECK(grad.apart <= 1.5);
      }
    }
  }
}

TEST_CASE("attention sees no later token and no other sequence", "[kernels]") {
  at::manual_seed(3);
  const AttentionHeads heads{2, 1, 8};
  const auto rotation = rotation_of(60, 8);
  const Tensor qkv = at::randn({110, heads.row()});
  const Tensor before = causal_attention(qkv, heads, {60, 50}, rotation);
  qkv.narrow(0, 40, 20).fill_(7);
  const Tensor after = causal_attention(qkv, heads, {60, 50}, rotation);
  CHECK(at::equal(before.narrow(0, 0, 40), after.narrow(0, 0, 40)));
  CHECK(at::equal(before.narrow(0, 60, 50), after.narrow(0, 60, 50)));
  CHECK_FALSE(at::equal(before.narrow(0, 40, 20), after.narrow(0, 40, 20)));
}

TEST_CASE("attention gives the same bits for one thread and two", "[kernels]") {
  at::manual_seed(4);
  const AttentionHeads heads{4, 4, 16};
  const auto rotation = rotation_of(70, 16);
  const Tensor qkv = at::randn({100, heads.row()}).requires_grad_(true);
  const int threads = at::get_num_threads();
  std::vector<Tensor> results, gradients;
  for (const int count : {1, 2}) {
    at::set_num_threads(count);
    results.push_back(causal_attention(qkv, heads, {70, 30}, rotation));
    gradients.push_back(torch::autograd::grad({results.back().square().sum()}, {qkv})[0]);
  }
  at::set_num_threads(threads);
  CHECK(at::equal(results[0], results[1]));
  CHECK(at::equal(gradients[0], gradients[1]));
}

TEST_CASE("attention of no tokens is none", "[kernels]") {
  const AttentionHeads heads{2, 2, 4};
  const Tensor qkv = at::empty({0, heads.row()}).requires_grad_(true);
  const Tensor out = causal_attention(qkv, heads, {}, rotation_of(1, 4));
  CHECK(out.size(0) == 0);
  CHECK(out.size(1) == 8);
}

namespace {

struct PrefixCase {
  AttentionHeads heads;
  std::vector<int64_t> lengths, continues;
};

// A branch of one token, branches longer than their prefix, two prefixes, one without branches,
// branches that do not stand together, blocks of rows that are cut and whole.
const std::vector<PrefixCase> kPrefixCases = {{{1, 1, 2}, {1, 1}, {-1, 0}},
                                              {{4, 2, 32}, {31, 48, 33, 1, 50}, {-1, -1, 0, 1, 0}},
                                              {{6, 1, 10}, {97, 3, 120, 49}, {-1, 0, 0, -1}},
                                              {{2, 2, 64}, {130, 5, 14, 1}, {-1, -1, 0, 0}}};

// What the formula gives each sequence behind its prefix, in f64.
Tensor plain_with_prefixes(const Tensor& qkv, const PrefixCase& one,
                           const moe::kernels::Rotation& rotation) {
  std::vector<int64_t> first(one.lengths.size());
  std::exclusive_scan(one.lengths.begin(), one.lengths.end(), first.begin(), int64_t{0});
  std::vector<Tensor> parts;
  for (size_t i = 0; i < one.lengths.size(); ++i) {
    const Tensor own = qkv.narrow(0, first[i], one.lengths[i]);
    const auto before = static_cast<size_t>(std::max<int64_t>(0, one.continues[i]));
    const int64_t past = one.continues[i] < 0 ? 0 : one.lengths[before];
    const Tensor whole = at::cat({qkv.narrow(0, first[before], past), own}, 0);
    parts.push_back(
        plain(whole, one.heads, {whole.size(0)}, rotation).narrow(0, past, one.lengths[i]));
  }
  return at::cat(parts, 0);
}

}  // namespace

TEST_CASE("attention behind a shared prefix is that of the whole sequences", "[kernels]") {
  at::manual_seed(5);
  const at::NoGradGuard no_gradients;
  for (const auto& one : kPrefixCases) {
    CAPTURE(one.heads.heads, one.heads.kv_heads, one.heads.width, one.lengths, one.continues);
    const auto rotation = rotation_of(230, one.heads.width);
    const int64_t tokens = std::accumulate(one.lengths.begin(), one.lengths.end(), int64_t{0});
    const Tensor wide = at::randn({tokens, one.heads.row()}, at::kDouble);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Tensor qkv = wide.to(type);
      const Tensor fast =
          shared_prefix_attention(qkv, one.heads, one.lengths, one.continues, rotation);
      // As above: sums of up to 217 terms of order one; bf16 rounds the result.
      const double most = type == at::kFloat ? 2e-5 : 3e-2;
      CHECK(fast.scalar_type() == type);
      CHECK(moe::test::distance(fast, plain_with_prefixes(qkv.to(at::kDouble), one, rotation)) <
            most);
    }
  }
}

TEST_CASE("attention refuses a sequence that continues a later or a continuing one", "[kernels]") {
  const at::NoGradGuard no_gradients;
  const AttentionHeads heads{2, 2, 4};
  const Tensor qkv = at::randn({6, heads.row()});
  const auto attend = [&](const std::vector<int64_t>& continues) {
    return shared_prefix_attention(qkv, heads, {2, 2, 2}, continues, rotation_of(6, 4));
  };
  CHECK_THROWS(attend({-1, 1, 0}));
  CHECK_THROWS(attend({-1, 0, 1}));
  CHECK_THROWS(attend({-1, 0}));
  CHECK(attend({-1, 0, 0}).size(0) == 6);
}
