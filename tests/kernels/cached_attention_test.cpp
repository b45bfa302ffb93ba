// Attention behind kept keys and values against the attention of whole sequences in f64 loops.
#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/ops/causal_attention.h"
#include "tests/kernels/reference/causal_attention.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

using at::Tensor;
using namespace moe::kernels;

namespace {

struct Case {
  AttentionHeads heads;
  std::vector<int64_t> pieces;  // tokens that come at a time
  int64_t prefix = 0;           // of the first piece, kept apart
};

// A token at a time across a block of keys; pieces of several behind others; widths that no vector
// divides; shared keys; a prefix that is no whole block.
const std::vector<Case> kCases = {{{1, 1, 2}, {1, 1, 1}},
                                  {{4, 2, 64}, {15, 1, 1, 1, 31}},
                                  {{6, 1, 10}, {33, 1, 50, 1}},
                                  {{2, 2, 70}, {17, 1, 1}, 17},
                                  {{4, 2, 32}, {130, 1, 3, 1}, 130}};

Rotation rotation_of(int64_t positions, int64_t width) {
  const Tensor half = at::outer(at::arange(positions), at::rand({width / 2}));
  const Tensor both = at::cat({half, half}, 1);
  return {both.cos(), both.sin()};
}

Rotation narrowed(const Rotation& all, int64_t first, int64_t count) {
  return {all.cosine.narrow(0, first, count), all.sine.narrow(0, first, count)};
}

// [S, H A] f64 of the whole sequence.
Tensor reference(const Tensor& qkv, const AttentionHeads& heads, const Rotation& rotation) {
  const Tensor exact = qkv.to(at::kDouble);
  const Tensor cosine = rotation.cosine.to(at::kDouble), sine = rotation.sine.to(at::kDouble);
  Tensor out = at::empty({qkv.size(0), heads.heads * heads.width}, at::kDouble);
  moe::test::causal_attention_reference(exact.data_ptr<double>(), cosine.data_ptr<double>(),
                                        sine.data_ptr<double>(), qkv.size(0), heads,
                                        out.data_ptr<double>());
  return out;
}

// The same sequence piece by piece.
Tensor by_pieces(const Tensor& qkv, const Case& one, const Rotation& rotation) {
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

int64_t tokens_of(const Case& one) {
  int64_t tokens = 0;
  for (const int64_t length : one.pieces) {
    tokens += length;
  }
  return tokens;
}

}  // namespace

TEST_CASE("attention piece by piece is that of the whole sequence", "[kernels]") {
  at::manual_seed(1);
  for (const auto& one : kCases) {
    CAPTURE(one.heads.heads, one.heads.kv_heads, one.heads.width, one.pieces, one.prefix);
    const auto rotation = rotation_of(tokens_of(one), one.heads.width);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Tensor qkv = at::randn({tokens_of(one), one.heads.row()}).to(type);
      const Tensor fast = by_pieces(qkv, one, rotation);
      // f32: sums of 135 terms of order one, 2^-24 each; bf16 rounds the result to 2^-9.
      CHECK(fast.scalar_type() == type);
      CHECK(moe::test::distance(fast, reference(qkv, one.heads, rotation)) <
            (type == at::kFloat ? 2e-5 : 3e-2));
    }
  }
}

TEST_CASE("sequences of a batch have the bits that each has alone", "[kernels]") {
  at::manual_seed(2);
  const AttentionHeads heads{4, 2, 16};
  const Rotation rotation = rotation_of(60, 16);
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
  const Rotation rotation = rotation_of(2, 4);
  CHECK_THROWS(cached_attention(at::randn({2, heads.row()}), heads, {2}, {kept}, rotation));
  CHECK_THROWS(cached_attention(at::randn({2, heads.row()}), heads, {1, 1}, {kept}, rotation));
  CHECK(cached_attention(at::randn({1, heads.row()}), heads, {1}, {kept}, narrowed(rotation, 0, 1))
            .size(0) == 1);
}
