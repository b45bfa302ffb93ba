// Packed attention on a GPU and its gradient against sums in f64 and autograd through them. In a
// build without CUDA the GPU and LibTorch's flash kernel are emulated
// (tests/support/emulated_cuda).

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "core/model/llama/attention.h"
#include "tests/support/gpu.h"
#include "tests/support/matchers.h"

namespace moe::model {
namespace {

using at::Tensor;
using test::kGpu;

ModelConfig config_of(int64_t heads, int64_t kv_heads, int64_t width) {
  ModelConfig config;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = width;
  return config;
}

struct Rotation {
  Tensor cosine, sine;  // [P, A / 2] f64
};

// x [L, N, A], rotated by its positions.
Tensor rotated(const Tensor& x, const Rotation& rotation) {
  const int64_t half = x.size(2) / 2;
  const auto of_rows = [&](const Tensor& table) {
    return table.narrow(0, 0, x.size(0)).unsqueeze(1);
  };
  const Tensor c = of_rows(rotation.cosine), s = of_rows(rotation.sine);
  const Tensor low = x.narrow(2, 0, half), high = x.narrow(2, half, half);
  return at::cat({low * c - high * s, high * c + low * s}, 2);
}

// qkv [T, (H + 2 G) A] f64 -> [T, H A].
Tensor written_out(const Tensor& qkv, const std::vector<int64_t>& lengths, const Rotation& rotation,
                   const ModelConfig& config) {
  const int64_t heads = config.heads, kv_heads = config.kv_heads;
  std::vector<Tensor> parts;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    const Tensor all =
        qkv.narrow(0, first, length).view({length, heads + 2 * kv_heads, config.head_dim});
    const auto by_head = [&](const Tensor& x) {  // -> [H, L, A]
      return x.transpose(0, 1).repeat_interleave(heads / x.size(1), 0);
    };
    const Tensor query = by_head(rotated(all.narrow(1, 0, heads), rotation));
    const Tensor key = by_head(rotated(all.narrow(1, heads, kv_heads), rotation));
    const Tensor value = by_head(all.narrow(1, heads + kv_heads, kv_heads));
    const Tensor later = at::ones({length, length}, at::kBool).triu(1);
    const Tensor weight = (at::bmm(query, key.transpose(1, 2)) / std::sqrt(config.head_dim))
                              .masked_fill(later, -INFINITY)
                              .softmax(-1);
    parts.push_back(at::bmm(weight, value).transpose(0, 1).reshape({length, -1}));
    first += length;
  }
  return at::cat(parts, 0);
}

double distance(const Tensor& actual, const Tensor& expected) {
  return ((actual.cpu().to(at::kDouble) - expected).norm() / (expected.norm() + 1e-12))
      .item<double>();
}

// f32: some 20 successive roundings of 2^-24, and sums of up to 33 terms.
constexpr double kF32 = 1e-5;
// bf16: forward rounds rotated queries, rotated keys and the result, and a GPU the probabilities,
// 2^-9 of each at most. Scores below 8 make an error of theirs up to 8 times that of a factor.
constexpr double kBf16 = (8 + 8 + 1 + 1) / 512.0;
// Backward rounds again: the gradients of the scores, and of queries, keys and values before and
// after they are rotated back.
constexpr double kBf16Gradient = kBf16 + (1 + 1 + 1) / 512.0;

void check(const std::vector<int64_t>& lengths, const ModelConfig& config, at::ScalarType type) {
  const int64_t tokens = c10::sum_integers(lengths);
  const int64_t row = (config.heads + 2 * config.kv_heads) * config.head_dim;
  const Tensor qkv = at::randn({tokens, row}).to(at::kBFloat16);
  const Tensor upstream = at::randn({tokens, config.heads * config.head_dim}).to(at::kBFloat16);
  const auto tables = pack_tables(lengths, {}, config, kGpu);
  REQUIRE(tables.has_value());
  const Rotation rotation{tables->cosine.cpu().to(at::kDouble), tables->sine.cpu().to(at::kDouble)};

  const Tensor wide = qkv.to(at::kDouble).requires_grad_(true);
  const Tensor expected = written_out(wide, lengths, rotation, config);

  const Tensor gradient =
      torch::autograd::grad({expected}, {wide}, {upstream.to(at::kDouble)}).front();

  const Tensor leaf = qkv.to(kGpu, type).requires_grad_(true);
  const Tensor out = packed_attention(leaf * 1, lengths, *tables, config);  // rotates the copy
  CHECK(out.scalar_type() == type);
  CHECK(distance(out.detach(), expected.detach()) < (type == at::kFloat ? kF32 : kBf16));
  const Tensor actual = torch::autograd::grad({out}, {leaf}, {upstream.to(kGpu, type)}).front();
  CHECK(actual.scalar_type() == type);
  CHECK(distance(actual, gradient) < (type == at::kFloat ? kF32 : kBf16Gradient));
  CHECK(at::equal(leaf.detach().cpu(), qkv.to(type)));
}

TEST_CASE("packed attention on a GPU has the values and the gradient of plain sums",
          "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(11);
  for (const int64_t width : {6, 8, 16}) {
    for (const int64_t kv_heads : {1, 2, 4}) {
      CAPTURE(width, kv_heads);
      const ModelConfig config = config_of(4, kv_heads, width);
      for (const auto& lengths : {std::vector<int64_t>{1}, {1, 7, 7, 31, 2, 33}}) {
        check(lengths, config, at::kFloat);
        if (width % 8 == 0) {  // as the flash kernel takes them
          check(lengths, config, at::kBFloat16);
        }
      }
    }
  }
}

TEST_CASE("backward throws if a tensor that attention rotated in place was kept", "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(13);
  const ModelConfig config = config_of(2, 2, 8);
  const auto tables = pack_tables({4}, {}, config, kGpu);
  const Tensor leaf = at::randn({4, 48}).to(kGpu, at::kBFloat16).requires_grad_(true);
  Tensor qkv = leaf * 1;
  const Tensor squares = (qkv * qkv).sum();
  const Tensor out = packed_attention(std::move(qkv), {4}, *tables, config);
  CHECK_THROWS_WITH(torch::autograd::grad({squares + out.sum()}, {leaf}),
                    test::contains_text("modified by an inplace operation"));
}

}  // namespace
}  // namespace moe::model
