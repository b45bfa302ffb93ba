// Times each hand-written CPU kernel against the LibTorch operations that would replace it, in
// alternating order on one thread. Prints a Markdown table: CPU milliseconds of both and the ratio
// LibTorch / ours, as median and least to largest of the rounds.
//
//   build/cpu/cpu_kernels [ROUNDS]
//
// Shapes are those of the models S and E of README.md: width 256, 8 heads of 32, experts of 704,
// 1,024 tokens in two sequences, 32,000 pieces.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/autograd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "core/route/route.h"
#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/caching_allocator.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/skinny_gemm.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/causal_attention.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/permutation.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/router.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ops/token_log_probs.h"

namespace {

using at::Tensor;
using moe::kernels::AttentionHeads;
using Work = std::function<void()>;

constexpr int64_t kTokens = 1024, kWidth = 256, kInner = 704, kExperts = 8, kPieces = 32000;

int rounds = 7;

// Returns CPU milliseconds of a call, which other processes hardly change.
double milliseconds(const Work& work) {
  const std::clock_t start = std::clock();
  int calls = 0;
  double passed = 0;
  while (passed < 30) {
    work();
    ++calls;
    passed = 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  }
  return passed / calls;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void compare(const std::string& kernel, const std::string& shape, const Work& ours,
             const Work& libtorch) {
  std::vector<double> own, theirs, ratios;
  ours();
  libtorch();
  for (int round = 0; round < rounds; ++round) {
    own.push_back(milliseconds(ours));
    theirs.push_back(milliseconds(libtorch));
    ratios.push_back(theirs.back() / own.back());
  }
  fmt::print("| {} | {} | {:.3f} | {:.3f} | {:.2f} ({:.2f} to {:.2f}) |\n", kernel, shape,
             median(own), median(theirs), median(ratios), std::ranges::min(ratios),
             std::ranges::max(ratios));
}

Tensor leaf(at::IntArrayRef sizes) { return (at::randn(sizes) * 0.1).requires_grad_(); }

// Runs forward and backward.
Work with_gradients(std::function<Tensor()> forward, std::vector<Tensor> inputs) {
  return [forward = std::move(forward), inputs = std::move(inputs)] {
    const Tensor out = forward();
    torch::autograd::grad({out}, inputs, {at::ones_like(out)});
  };
}

Tensor plain_swiglu(const Tensor& hidden) {
  const auto halves = hidden.chunk(2, 1);
  return at::silu(halves[0]) * halves[1];
}

void compare_products() {
  const Tensor x = leaf({kTokens, kWidth}), weight = leaf({kWidth, kWidth});
  compare("gemm: linear, forward and backward", "1024 x 256 x 256",
          with_gradients([=] { return moe::kernels::linear(x, weight); }, {x, weight}),
          with_gradients([=] { return at::linear(x, weight); }, {x, weight}));
  const std::vector<int64_t> counts(kExperts, 2 * kTokens / kExperts);
  const Tensor rows = leaf({2 * kTokens, kWidth}), gate_up = leaf({kExperts, 2 * kInner, kWidth});
  const Tensor down = leaf({kExperts, kWidth, kInner});
  const auto by_expert = [=] {
    std::vector<Tensor> outs;
    const auto parts = rows.split_with_sizes(counts);
    for (int64_t e = 0; e < kExperts; ++e) {
      outs.push_back(at::linear(plain_swiglu(at::linear(parts[e], gate_up[e])), down[e]));
    }
    return at::cat(outs);
  };
  const auto grouped = [=] { return moe::kernels::grouped_swiglu(rows, gate_up, down, counts); };
  compare("gemm, swiglu: experts, forward and backward", "2048 rows, 8 experts of 256 x 704",
          with_gradients(grouped, {rows, gate_up, down}),
          with_gradients(by_expert, {rows, gate_up, down}));
  c10::Allocator* plain = c10::GetDefaultCPUAllocator();
  static moe::kernels::CachingAllocator caching;
  compare(
      "caching_allocator: the same", "the same",
      [=, run = with_gradients(grouped, {rows, gate_up, down})] {
        c10::SetCPUAllocator(&caching);
        run();
        c10::SetCPUAllocator(plain);
      },
      with_gradients(grouped, {rows, gate_up, down}));
  const at::NoGradGuard no_grad;
  const Tensor matrix = at::randn({4096, 1024});
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Tensor stored = matrix.to(type);
    const std::vector<moe::kernels::RowBlocks> blocks = {{stored}};
    for (const int64_t few : {1, 8, 48}) {
      const Tensor few_rows = at::randn({few, 1024});
      compare(
          fmt::format("skinny_gemm, few_rows: weight in {}", type == at::kFloat ? "f32" : "bf16"),
          fmt::format("{} x 1024 x 4096", few),
          [=] { moe::kernels::linear(few_rows, moe::kernels::Weight(blocks)); },
          [=] { at::linear(few_rows, stored.to(at::kFloat)); });
    }
  }
}

void compare_attention() {
  const AttentionHeads heads{8, 8, 32};
  const std::vector<int64_t> lengths(2, kTokens / 2);
  const Tensor angle = at::rand({kTokens / 2, heads.width / 2}).repeat({1, 2});
  const moe::kernels::Rotation rotation{at::cos(angle), at::sin(angle)};
  const auto rotated = [=](const Tensor& x) {  // [B, H, S, A]
    const auto halves = x.chunk(2, -1);
    return x * rotation.cosine + at::cat({-halves[1], halves[0]}, -1) * rotation.sine;
  };
  const auto plain = [=](const Tensor& qkv) {
    const auto parts =
        qkv.view({2, kTokens / 2, 3, heads.heads, heads.width}).permute({2, 0, 3, 1, 4});
    return at::scaled_dot_product_attention(rotated(parts[0]), rotated(parts[1]), parts[2], {}, 0,
                                            /*is_causal=*/true)
        .transpose(1, 2)
        .reshape({kTokens, kWidth});
  };
  const Tensor qkv = leaf({kTokens, heads.row()});
  compare("causal_attention, forward and backward", "2 x 512, 8 heads of 32",
          with_gradients(
              [=] { return moe::kernels::causal_attention(qkv, heads, lengths, rotation); }, {qkv}),
          with_gradients([=] { return plain(qkv); }, {qkv}));
  const at::NoGradGuard no_grad;
  compare(
      "causal_attention, forward", "the same",
      [=] { moe::kernels::causal_attention(qkv, heads, lengths, rotation); }, [=] { plain(qkv); });
  constexpr int64_t kTexts = 48, kPast = 128;
  const Tensor step = at::randn({kTexts, heads.row()}),
               keys = at::randn({heads.heads, kPast + 1, heads.width});
  std::vector<moe::kernels::KvCacheView> caches(kTexts);
  for (auto& cache : caches) {
    cache.own = moe::kernels::make_kv_block(heads, kPast + 1);
    cache.own.keys.normal_();
    cache.own.values.normal_();
    cache.length = kPast;
  }
  const moe::kernels::Rotation at_end{rotation.cosine[kPast].expand({kTexts, -1}).contiguous(),
                                      rotation.sine[kPast].expand({kTexts, -1}).contiguous()};
  compare(
      "cached_attention: a step of generation", "48 texts, 128 positions each",
      [=] {
        moe::kernels::cached_attention(step, heads, std::vector<int64_t>(kTexts, 1), caches,
                                       at_end);
      },
      [=] {
        for (int64_t text = 0; text < kTexts; ++text) {
          at::scaled_dot_product_attention(
              step[text].slice(0, 0, kWidth).view({heads.heads, 1, heads.width}), keys, keys);
        }
      });
}

void compare_rows() {
  const Tensor x = leaf({kTokens, kWidth}), weight = leaf({kWidth});
  compare("rms_norm, forward and backward", "1024 x 256",
          with_gradients([=] { return moe::kernels::rms_norm(x, weight, 1e-5); }, {x, weight}),
          with_gradients([=] { return at::rms_norm(x, {kWidth}, weight, 1e-5); }, {x, weight}));
  const Tensor hidden = leaf({2 * kTokens, 2 * kInner});
  compare("swiglu, forward and backward", "2048 x 2 x 704",
          with_gradients([=] { return moe::kernels::swiglu(hidden); }, {hidden}),
          with_gradients([=] { return plain_swiglu(hidden); }, {hidden}));
  const Tensor choice = at::rand({kTokens, kExperts}).argsort(1, false).slice(1, 0, 2);
  const Tensor order = choice.reshape(-1).argsort(/*stable=*/true, 0, false);
  const Tensor token = order.div(2, "floor"), gate = leaf({2 * kTokens});
  const auto permutation = moe::kernels::make_permutation(token, order.remainder(2), kTokens, 2);
  compare("permute, unpermute with weights, forward and backward", "1024 x 256, 2 rows a token",
          with_gradients(
              [=] {
                return moe::kernels::unpermute(moe::kernels::permute(x, permutation), permutation,
                                               gate, x);
              },
              {x, gate}),
          with_gradients(
              [=] { return x.index_add(0, token, x.index_select(0, token) * gate.unsqueeze(1)); },
              {x, gate}));
}

void compare_routing() {
  const at::NoGradGuard no_grad;
  const Tensor logits = at::randn({kTokens, kExperts});
  compare(
      "router: order of the experts", "1024 x 8",
      [=] {
        const Tensor out = at::empty({kTokens, kExperts}, at::kLong);
        moe::kernels::expert_order_cpu(
            {logits.const_data_ptr<float>(), out.data_ptr<int64_t>(), kTokens, kExperts});
      },
      [=] { logits.argsort(/*stable=*/true, 1, /*descending=*/true); });
  for (const char* name : {"top1", "top2+ir+fr"}) {
    const auto settings = moe::route::parse_router(name);
    const auto group = moe::route::partition_tokens(kTokens, 1);
    const at::AutoGradMode gradients(true);
    const auto routed = [=](at::ScalarType type) {
      const Tensor leaf = logits.to(type).requires_grad_();
      return [=] {
        const auto routing = moe::route::route(leaf, settings, group);
        torch::autograd::grad({routing.weights.sum() + routing.losses.load_balance}, {leaf});
      };
    };
    compare(fmt::format("top_k_plan, plan_gate_weights: {}, forward and backward", name),
            "1024 x 8; LibTorch: the rules, in f64", routed(at::kFloat), routed(at::kDouble));
  }
}

void compare_losses() {
  const at::NoGradGuard no_grad;
  const Tensor hidden = at::randn({kTokens, kWidth}), head = at::randn({kPieces, kWidth});
  std::vector<moe::kernels::TargetToken> targets;
  for (int64_t row = 0; row < kTokens; ++row) {
    targets.push_back({row, row});
  }
  compare(
      "token_log_probs: head and log-probabilities", "1024 x 256 x 32000",
      [=] { moe::kernels::token_log_probs(hidden, head, at::kFloat, targets); },
      [=] {
        const Tensor logits = at::linear(hidden, head);
        at::log_softmax(logits, 1).diagonal();
        logits.argmax(1);
      });
  Tensor logits = at::randn({256, kPieces});
  const Tensor target = at::arange(256), loss = at::empty({256}, at::kDouble);
  compare(
      "cross_entropy_: loss and gradient", "256 x 32000",
      [=]() mutable { moe::kernels::cross_entropy_(logits, target, 1.0, loss, false); },
      [=] {
        Tensor gradient = at::log_softmax(logits, 1);
        gradient.gather(1, target.unsqueeze(1));
        gradient.exp_().scatter_add_(1, target.unsqueeze(1), at::full({256, 1}, -1.0F));
      });
  Tensor max, argmax, logsumexp;
  compare(
      "logsumexp_argmax", "256 x 32000",
      [=]() mutable { moe::kernels::logsumexp_argmax(logits, logsumexp, argmax); },
      [=] {
        at::logsumexp(logits, 1);
        logits.argmax(1);
      });
}

void compare_conversions() {
  const at::NoGradGuard no_grad;
  const int64_t count = int64_t{1} << 22;
  const Tensor f32 = at::randn({count}), bf16 = f32.to(at::kBFloat16), out = at::empty({count});
  const auto* words = static_cast<const uint16_t*>(bf16.const_data_ptr());
  compare(
      "bf16_words: f32 to bf16", "4 M numbers",
      [=] {
        moe::kernels::f32_to_bf16(f32.const_data_ptr<float>(), count,
                                  static_cast<uint16_t*>(bf16.mutable_data_ptr()));
      },
      [=] { bf16.copy_(f32); });
  compare(
      "bf16_words: bf16 to f32", "4 M numbers",
      [=] { moe::kernels::bf16_to_f32(words, count, out.data_ptr<float>()); },
      [=] { out.copy_(bf16); });
  compare(
      "bf16_words: f32 rounded to bf16, in f32", "4 M numbers",
      [=] {
        moe::kernels::round_to_bf16(f32.const_data_ptr<float>(), count, out.data_ptr<float>());
      },
      [=] { out.copy_(f32.to(at::kBFloat16)); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    rounds = std::max(1, std::atoi(argv[1]));
  }
  at::set_num_threads(1);
  at::manual_seed(1);
  fmt::print(
      "| kernel | shape | ours, ms | LibTorch, ms | LibTorch / ours |\n|---|---|---|---|---|\n");
  compare_products();
  compare_attention();
  compare_rows();
  compare_routing();
  compare_losses();
  compare_conversions();
  return 0;
}
