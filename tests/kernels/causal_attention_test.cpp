#include "kernels/ops/causal_attention.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>

#include "kernels/cpu/causal_attention.h"
#include "kernels/cpu/gemm_tile.h"
#include "tests/kernels/reference/causal_attention.h"
#include "tests/kernels/reference/gemm.h"
#include "tests/support/gradcheck.h"
#include "tests/support/threads.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

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

int64_t sum(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

TEST_CASE("attention equals the formula in f64, values and gradients", "[kernels]") {
  at::manual_seed(2);
  for (const auto& [heads, lengths] : kCases) {
    CAPTURE(heads.heads, heads.kv_heads, heads.width, lengths);
    const auto rotation = random_rotation(200, heads.width);
    const Tensor wide = at::randn({sum(lengths), heads.row()}, at::kDouble);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Tensor qkv = wide.to(type).requires_grad_(true);
      const Tensor exact = qkv.detach().to(at::kDouble).requires_grad_(true);
      const Tensor fast = causal_attention(qkv, heads, lengths, rotation);
      const Tensor slow = attention_formula(exact, heads, lengths, rotation);
      const Tensor upstream = at::randn_like(slow).to(type);
      // f32: sums of 130 terms of order one, 2^-24 each; bf16 rounds the result, and in backward
      // what it kept of it, to 2^-9.
      const double most = type == at::kFloat ? 2e-5 : 3e-2;
      CHECK(fast.scalar_type() == type);
      CHECK(distance(fast, slow) < most);
      const auto actual = torch::autograd::grad({fast}, {qkv}, {upstream});
      const auto expected = torch::autograd::grad({slow}, {exact}, {upstream.to(at::kDouble)});
      CHECK(distance(actual[0], expected[0]) < most);
    }
  }
}

// Checks a result in bf16 against the exact one: the number of elements that differ from the
// rounded exact ones, and the largest error relative to the element or to the root mean square,
// whichever is larger.
void check_rounded(const Tensor& found, const Tensor& exact, int64_t width) {
  const Tensor wide = found.to(at::kDouble), wanted = exact.to(at::kBFloat16).to(at::kDouble);
  CHECK(wide.ne(wanted).sum().item<int64_t>() <= found.numel() / 100 + 2 * width);
  const Tensor size = exact.abs().clamp_min(exact.square().mean().sqrt().item<double>());
  // Half a step where it is rounded, one where a term was another.
  CHECK(((wide - exact).abs() / size).max().item<double>() * 256 <= 1.5);
}

// Both round at the same places; only sums in f32 differ, by at most 130 * 2^-24. A result rounds
// to the other neighbour if it is that close to the middle of a bf16 step of 2^-8: fewer than 1 in
// 500. An intermediate number does so as rarely, and changes the results of its query and key by
// 2^-8 of one term. If the reference did not round intermediate numbers, a third of all results
// would differ.
TEST_CASE("attention of bf16 products equals the formula that rounds where it does", "[kernels]") {
  for (const TileKernel& kernel : all_bf16_kernels()) {
    at::manual_seed(5);  // the same numbers for each kernel, whichever kernels this machine has
    for (const auto& [heads, lengths] : kCases) {
      for (const int64_t length : lengths) {
        CAPTURE(kernel.width, heads.heads, heads.kv_heads, heads.width, length);
        const auto rotation = random_rotation(length, heads.width);
        const Tensor qkv = at::randn({length, heads.row()}).to(at::kBFloat16);
        const Tensor dy = at::randn({length, heads.heads * heads.width}).to(at::kBFloat16);
        const Tensor out = at::empty_like(dy), grad = at::empty_like(qkv);
        const Tensor log_sum = at::empty({length, heads.heads});
        const auto bits = [](const Tensor& x) { return static_cast<uint16_t*>(x.data_ptr()); };
        const AttentionInput<uint16_t> in{bits(qkv), rotation.cosine.data_ptr<float>(),
                                          rotation.sine.data_ptr<float>(), length, heads};
        for (int64_t group = 0; group < heads.kv_heads; ++group) {
          causal_attention_forward_bf16(kernel, in, group, bits(out), log_sum.data_ptr<float>());
          causal_attention_backward_bf16(kernel, in, group, bits(out), log_sum.data_ptr<float>(),
                                         bits(dy), bits(grad));
        }
        const auto wide = [](const Tensor& x) { return x.to(at::kDouble); };
        const RoundedAttention exact(wide(qkv), heads, rotation);
        const auto [exact_out, exact_log_sum] = exact.forward();
        CHECK(distance(log_sum, exact_log_sum) < 1e-5);
        check_rounded(out, exact_out, heads.width);
        check_rounded(grad, exact.backward(wide(out), wide(log_sum), wide(dy)), heads.width);
      }
    }
  }
}

TEST_CASE("attention depends on no later token and no other sequence", "[kernels]") {
  at::manual_seed(3);
  const AttentionHeads heads{2, 1, 8};
  const auto rotation = random_rotation(60, 8);
  const Tensor qkv = at::randn({110, heads.row()});
  const Tensor before = causal_attention(qkv, heads, {60, 50}, rotation);
  qkv.narrow(0, 40, 20).fill_(7);
  const Tensor after = causal_attention(qkv, heads, {60, 50}, rotation);
  CHECK(at::equal(before.narrow(0, 0, 40), after.narrow(0, 0, 40)));
  CHECK(at::equal(before.narrow(0, 60, 50), after.narrow(0, 60, 50)));
  CHECK_FALSE(at::equal(before.narrow(0, 40, 20), after.narrow(0, 40, 20)));
  CHECK(causal_attention(at::empty({0, heads.row()}), heads, {}, rotation).size(1) == 16);
}

TEST_CASE("attention gives the same bits for any number of threads", "[kernels]") {
  at::manual_seed(4);
  const AttentionHeads heads{4, 4, 16};
  const auto rotation = random_rotation(70, 16);
  const Tensor qkv = at::randn({100, heads.row()}).requires_grad_(true);
  by_any_threads([&] {
    const Tensor out = causal_attention(qkv, heads, {70, 30}, rotation);
    return std::vector{out.detach(), torch::autograd::grad({out.square().sum()}, {qkv})[0]};
  });
}

struct PrefixCase {
  AttentionHeads heads;
  std::vector<int64_t> lengths, prefix_index;
};

// A branch of one token, branches longer than their prefix, two prefixes, one without branches,
// branches that are not consecutive, blocks of rows that are cut and whole.
const std::vector<PrefixCase> kPrefixCases = {{{1, 1, 2}, {1, 1}, {-1, 0}},
                                              {{4, 2, 32}, {31, 48, 33, 1, 50}, {-1, -1, 0, 1, 0}},
                                              {{6, 1, 10}, {97, 3, 120, 49}, {-1, 0, 0, -1}},
                                              {{2, 2, 64}, {130, 5, 14, 1}, {-1, -1, 0, 0}}};

// The formula for each sequence behind its prefix, in f64.
Tensor formula_with_prefixes(const Tensor& qkv, const PrefixCase& one, const Rotation& rotation) {
  const std::vector<Tensor> own = qkv.split_with_sizes(one.lengths, 0);
  std::vector<Tensor> parts;
  for (size_t i = 0; i < own.size(); ++i) {
    const int64_t prefix = one.prefix_index[i], length = one.lengths[i];
    const Tensor whole = prefix < 0 ? own[i] : at::cat({own[static_cast<size_t>(prefix)], own[i]});
    parts.push_back(attention_formula(whole, one.heads, {whole.size(0)}, rotation)
                        .narrow(0, whole.size(0) - length, length));
  }
  return at::cat(parts, 0);
}

TEST_CASE("attention behind a shared prefix is that of the whole sequences", "[kernels]") {
  at::manual_seed(5);
  const at::NoGradGuard no_gradients;
  for (const auto& one : kPrefixCases) {
    CAPTURE(one.heads.heads, one.heads.kv_heads, one.heads.width, one.lengths, one.prefix_index);
    const auto rotation = random_rotation(230, one.heads.width);
    const Tensor wide = at::randn({sum(one.lengths), one.heads.row()}, at::kDouble);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Tensor qkv = wide.to(type);
      const Tensor fast =
          shared_prefix_attention(qkv, one.heads, one.lengths, one.prefix_index, rotation);
      // Sums of up to 217 terms of order one; bf16 rounds the result.
      const double most = type == at::kFloat ? 2e-5 : 3e-2;
      CHECK(fast.scalar_type() == type);
      CHECK(distance(fast, formula_with_prefixes(qkv.to(at::kDouble), one, rotation)) < most);
    }
  }
}

TEST_CASE("attention refuses a sequence that continues a later or a continuing one", "[kernels]") {
  const at::NoGradGuard no_gradients;
  const AttentionHeads heads{2, 2, 4};
  const Tensor qkv = at::randn({6, heads.row()});
  const auto attend = [&](const std::vector<int64_t>& prefix_index) {
    return shared_prefix_attention(qkv, heads, {2, 2, 2}, prefix_index, random_rotation(6, 4));
  };
  CHECK_THROWS(attend({-1, 1, 0}));
  CHECK_THROWS(attend({-1, 0, 1}));
  CHECK_THROWS(attend({-1, 0}));
  CHECK(attend({-1, 0, 0}).size(0) == 6);
}

struct CachedCase {
  AttentionHeads heads;
  std::vector<int64_t> pieces;  // tokens that come at a time
  int64_t prefix = 0;           // of the first piece, kept apart
};

// A token at a time across a block of keys; pieces of several behind others; widths that no vector
// divides; shared keys; a prefix that is no whole block.
const std::vector<CachedCase> kCachedCases = {{{1, 1, 2}, {1, 1, 1}},
                                              {{4, 2, 64}, {15, 1, 1, 1, 31}},
                                              {{6, 1, 10}, {33, 1, 50, 1}},
                                              {{2, 2, 70}, {17, 1, 1}, 17},
                                              {{4, 2, 32}, {130, 1, 3, 1}, 130}};

Rotation narrowed(const Rotation& all, int64_t first, int64_t count) {
  return {all.cosine.narrow(0, first, count), all.sine.narrow(0, first, count)};
}

// A sequence piece by piece.
Tensor by_pieces(const Tensor& qkv, const CachedCase& one, const Rotation& rotation) {
  KvCacheView kept{make_kv_block(one.heads, qkv.size(0))};
  std::vector<Tensor> parts;
  int64_t first = 0;
  for (const int64_t length : one.pieces) {
    parts.push_back(cached_attention(qkv.narrow(0, first, length), one.heads, {length}, {kept},
                                     narrowed(rotation, first, length)));
    first += length;
    if (one.prefix == first) {
      kept = {make_kv_block(one.heads, qkv.size(0) - first), 0, kept.own, first};
    } else {
      kept.length += length;
    }
  }
  return at::cat(parts, 0);
}

TEST_CASE("attention piece by piece is that of the whole sequence", "[kernels]") {
  at::manual_seed(1);
  for (const auto& one : kCachedCases) {
    CAPTURE(one.heads.heads, one.heads.kv_heads, one.heads.width, one.pieces, one.prefix);
    const int64_t tokens = sum(one.pieces);
    const auto rotation = random_rotation(tokens, one.heads.width);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Tensor qkv = at::randn({tokens, one.heads.row()}).to(type);
      const Tensor fast = by_pieces(qkv, one, rotation);
      // f32: sums of 135 terms of order one, 2^-24 each; bf16 rounds the result to 2^-9.
      CHECK(fast.scalar_type() == type);
      CHECK(distance(fast, attention_formula(qkv.to(at::kDouble), one.heads, {tokens}, rotation)) <
            (type == at::kFloat ? 2e-5 : 3e-2));
    }
  }
}

TEST_CASE("sequences of a batch have the bits that each has alone", "[kernels]") {
  at::manual_seed(2);
  const AttentionHeads heads{4, 2, 16};
  const Rotation rotation = random_rotation(60, 16);
  const std::vector<int64_t> past = {0, 15, 16, 40};
  std::vector<KvCacheView> together, alone;
  std::vector<Tensor> tokens;
  std::vector<Tensor> cosine, sine;
  for (const int64_t length : past) {
    const Tensor before = at::randn({std::max<int64_t>(1, length), heads.row()});
    for (auto* all : {&together, &alone}) {
      all->push_back({make_kv_block(heads, 60), length});
      if (length > 0) {
        KvCacheView start = all->back();
        start.length = 0;
        cached_attention(before, heads, {length}, {start}, narrowed(rotation, 0, length));
      }
    }
    tokens.push_back(at::randn({1, heads.row()}));
    cosine.push_back(rotation.cosine.narrow(0, length, 1));
    sine.push_back(rotation.sine.narrow(0, length, 1));
  }
  const Tensor all = cached_attention(at::cat(tokens, 0), heads, {1, 1, 1, 1}, together,
                                      {at::cat(cosine, 0), at::cat(sine, 0)});
  for (size_t i = 0; i < past.size(); ++i) {
    const Tensor one = cached_attention(tokens[i], heads, {1}, {alone[i]}, {cosine[i], sine[i]});
    CHECK(at::equal(all.narrow(0, static_cast<int64_t>(i), 1), one));
  }
}

TEST_CASE("attention refuses more tokens than there is room for", "[kernels]") {
  const AttentionHeads heads{2, 2, 4};
  const KvCacheView kept{make_kv_block(heads, 16), 15};
  const Rotation rotation = random_rotation(2, 4);
  CHECK_THROWS(cached_attention(at::randn({2, heads.row()}), heads, {2}, {kept}, rotation));
  CHECK_THROWS(cached_attention(at::randn({2, heads.row()}), heads, {1, 1}, {kept}, rotation));
  CHECK(cached_attention(at::randn({1, heads.row()}), heads, {1}, {kept}, narrowed(rotation, 0, 1))
            .size(0) == 1);
}

}  // namespace
