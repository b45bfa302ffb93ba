// What a layer costs the host on a GPU: launches, of which each takes some 5 us of the host,
// and reads, at which it waits for the GPU. Counted on the emulated GPU
// (tests/support/emulated_cuda): our kernels, fills and copies of memory, and LibTorch's
// operations, of which each counts once, though some (a sort, a sum over a dimension) are several
// kernels on a real one.

#include <torch/csrc/autograd/autograd.h>

#include <string>

#include "core/model/llama/gpu_attention.h"
#include "core/model/moe/layer.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/grouped_linear.h"
#include "tests/support/emulated_cuda/emulator.h"
#include "tests/support/gpu.h"
#include "tests/support/rank_threads.h"

using at::Tensor;
using emulated::HostCalls;
using namespace moe;

namespace {

constexpr int64_t kTokens = 64, kWidth = 32, kInner = 24, kExperts = 8, kRanks = 2;

// The layer as it is trained in bf16, with its losses, after one to warm up.
class Layer {
 public:
  explicit Layer(const std::string& router) : router_(route::parse_router(router)) {
    at::manual_seed(1);
    x_ = leaf(at::randn({kTokens, kWidth}).to(at::kBFloat16));
    weights_ = {leaf(at::randn({kExperts, kWidth}) * 0.3),
                leaf(at::randn({kExperts, 2 * kInner, kWidth}) * 0.3),
                leaf(at::randn({kExperts, kWidth, kInner}) * 0.3)};
    kernels::keep_bf16_working_copy(weights_.gate_up);
    kernels::keep_bf16_working_copy(weights_.down);
    upstream_ = at::randn({kTokens, kWidth}).to(test::kGpu);
    of_loss_ = at::full({}, 0.01).to(test::kGpu);
    forward();
    backward();
  }

  HostCalls forward() {
    emulated::take_host_calls();
    out_ = model::moe_forward(x_, weights_, router_, spread_);
    return emulated::take_host_calls();
  }

  HostCalls backward() {
    std::vector<Tensor> results = {out_.y}, upstream = {upstream_};
    for (const auto member : route::kAllLosses) {
      if (const Tensor& loss = out_.losses.*member; loss.defined()) {
        results.push_back(loss);
        upstream.push_back(of_loss_);
      }
    }
    emulated::take_host_calls();
    torch::autograd::grad(results, {x_, weights_.router, weights_.gate_up, weights_.down},
                          upstream);
    return emulated::take_host_calls();
  }

 private:
  static Tensor leaf(const Tensor& values) { return values.to(test::kGpu).requires_grad_(true); }

  route::RouterSettings router_;
  model::TokenSpread spread_{route::spread_over_ranks(kTokens, kRanks)};
  Tensor x_, upstream_, of_loss_;
  model::MoeWeights weights_;
  model::MoeOutput out_;
};

std::string list(const HostCalls& calls) {
  std::string text;
  for (const auto& [name, count] : calls.launches) {
    text += std::to_string(count) + " " + name + "\n";
  }
  for (const auto& [name, count] : calls.reads) {
    text += std::to_string(count) + " reads by " + name + "\n";
  }
  return text;
}

// The most that there may be; who needs fewer lowers them.
struct Bound {
  const char* router;
  int64_t forward, backward, reads;
};

constexpr Bound kBounds[] = {
    {"top1", 35, 20, 0},
    {"top2", 35, 20, 0},
    {"top1+ir+fr", 36, 20, 0},
    {"top2:cf=inf", 34, 20, 0},
};

}  // namespace

TEST_CASE("launches and reads of a MoE layer stay within their bounds; the goal is 60 and none",
          "[model][emulator]") {
  for (const Bound& bound : kBounds) {
    Layer layer(bound.router);
    const HostCalls forward = layer.forward(), backward = layer.backward();
    INFO(bound.router << ", forward:\n" << list(forward) << "backward:\n" << list(backward));
    CHECK(HostCalls::sum(forward.launches) <= bound.forward);
    CHECK(HostCalls::sum(backward.launches) <= bound.backward);
    CHECK(HostCalls::sum(forward.reads) + HostCalls::sum(backward.reads) <= bound.reads);
  }
}

TEST_CASE("attention is RoPE and LibTorch's kernel, forward and backward, and nothing else",
          "[model][emulator]") {
  at::manual_seed(2);
  model::ModelConfig config;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  for (const auto& lengths : {std::vector<int64_t>{3, 5}, {4, 4}}) {
    const auto tables = model::pack_tables(lengths, {}, config, test::kGpu);
    const Tensor leaf = at::randn({8, 64}).to(test::kGpu, at::kBFloat16).requires_grad_(true);
    const Tensor upstream = at::randn({8, 32}).to(test::kGpu, at::kBFloat16);
    Tensor qkv = leaf.view({8, 64});
    emulated::take_host_calls();
    const Tensor out = model::packed_attention(std::move(qkv), lengths, *tables, config);
    const HostCalls forward = emulated::take_host_calls();
    torch::autograd::grad({out}, {leaf}, {upstream});
    const HostCalls backward = emulated::take_host_calls();
    using Launches = std::map<std::string, int64_t>;
    CHECK(forward.launches == Launches{{"aten::_flash_attention_forward", 1}, {"kernel", 1}});
    CHECK(backward.launches == Launches{{"aten::_flash_attention_backward", 1}, {"kernel", 1}});
    CHECK(forward.reads.empty());
    CHECK(backward.reads.empty());
  }
}

TEST_CASE("a launch more and a read more are counted", "[model][emulator]") {
  const Tensor x = at::ones({4}).to(test::kGpu);
  emulated::take_host_calls();
  CHECK(emulated::take_host_calls().launches.empty());
  Tensor y = x * 2;
  HostCalls calls = emulated::take_host_calls();
  CHECK(calls.launches == std::map<std::string, int64_t>{{"aten::mul", 1}});
  CHECK(calls.reads.empty());
  CHECK(y.sum().item<double>() == 8);  // the sum, and the number read back
  calls = emulated::take_host_calls();
  CHECK(HostCalls::sum(calls.launches) == 1);
  CHECK(HostCalls::sum(calls.reads) == 1);
  CHECK(y.cpu().size(0) == 4);
  CHECK(HostCalls::sum(emulated::take_host_calls().reads) == 1);
  y.copy_(x);
  CHECK(HostCalls::sum(emulated::take_host_calls().launches) == 1);
}

// Counts that the device alone has: none is read where one launch multiplies all experts; a GPU
// without such a launch reads them once.
TEST_CASE("experts' products in one launch read nothing, one by one they read the counts once",
          "[model][emulator]") {
  const Tensor rows = at::ones({16, 8}).to(test::kGpu, at::kBFloat16);
  const Tensor weight = at::ones({2, 8, 8}).to(test::kGpu, at::kBFloat16);
  const std::vector<int64_t> counts = {9, 7};
  const Tensor ends = at::tensor({9, 16}, at::kInt).to(test::kGpu);
  const auto calls_of = [&](const auto& segments) {
    emulated::take_host_calls();
    const Tensor product = kernels::grouped_linear(rows, weight, segments);
    const HostCalls calls = emulated::take_host_calls();
    CHECK(at::equal(product.cpu(), at::full({16, 8}, 8, at::kBFloat16)));
    return calls;
  };
  HostCalls calls = calls_of(ends);
  CHECK(HostCalls::sum(calls.reads) == 0);
  CHECK(calls.launches.at("aten::_grouped_mm") == 1);
  CHECK(calls_of(counts).launches.count("aten::_grouped_mm") == 0);
  emulated::set_grouped_mm(false);
  calls = calls_of(ends);
  emulated::set_grouped_mm(true);
  CHECK(HostCalls::sum(calls.reads) == 1);
  CHECK(calls.launches.count("aten::_grouped_mm") == 0);
}

// Where experts are distributed the host must know how many rows go to whom. Of routers with a
// capacity it does, and in bf16 nobody else need know how many stay. Else it reads once a layer;
// nothing in backward.
TEST_CASE("a layer whose experts are distributed reads the GPU once a rank, or never",
          "[model][emulator]") {
  constexpr int64_t kProcesses = 2;
  struct Case {
    const char* router;
    at::ScalarType type;
    int64_t reads;
  };
  for (const Case& one : {Case{"top1:cf=inf", at::kFloat, 1}, Case{"top2:cf=inf", at::kBFloat16, 1},
                          Case{"top2+fr:cf=inf", at::kFloat, 1}, Case{"top1+ir+fr", at::kFloat, 1},
                          Case{"top1", at::kBFloat16, 0}, Case{"top1+ir+fr", at::kBFloat16, 0},
                          Case{"top2:cf=4", at::kBFloat16, 0}}) {
    for (const bool overlap : {true, false}) {
      HostCalls forward, backward;
      test::run_as_threads(
          kProcesses,
          [&](distributed::Comm& comm) {
            const auto taken = [&](HostCalls& calls) {  // by one for all
              comm.barrier();
              if (comm.rank() == 0) {
                calls = emulated::take_host_calls();
              }
              comm.barrier();
            };
            const auto layout =
                distributed::make_layout(kProcesses, comm.rank(), 1, kProcesses, kExperts);
            const model::TokenSpread spread(kTokens, kProcesses, {&comm, layout, overlap, false});
            const auto leaf = [](at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
              return at::randn(shape).to(type).to(test::kGpu).requires_grad_(true);
            };
            const Tensor x = leaf({kTokens, kWidth}, one.type);
            const model::MoeWeights weights = {leaf({kExperts, kWidth}),
                                               leaf({layout.local_experts(), 2 * kInner, kWidth}),
                                               leaf({layout.local_experts(), kWidth, kInner})};
            HostCalls before;
            taken(before);
            const Tensor y =
                model::moe_forward(x, weights, route::parse_router(one.router), spread).y;
            taken(forward);
            torch::autograd::grad({y}, {x, weights.gate_up}, {at::ones_like(y)});
            taken(backward);
          },
          test::kGpu);
      INFO(one.router << ", forward:\n" << list(forward) << "backward:\n" << list(backward));
      CHECK(HostCalls::sum(forward.reads) == one.reads * kProcesses);
      CHECK(HostCalls::sum(backward.reads) == 0);
    }
  }
}
