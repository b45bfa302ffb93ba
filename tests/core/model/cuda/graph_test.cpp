// A routed layer recorded as a CUDA graph. In a build without CUDA the GPU is an emulated one
// (tests/support/emulated_cuda), which refuses while it records what a graph cannot hold.

#include "kernels/ops/graph.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "core/model/moe/layer.h"
#include "core/model/moe/token_dispatcher.h"
#include "core/route/rule.h"
#include "tests/support/gpu.h"

using namespace moe;
using at::Tensor;
using test::kGpu;

namespace {

// bf16, 16 bytes a row: what LibTorch's grouped products take without asking the host.
struct Layer {
  Layer() {
    at::manual_seed(6);
    const auto there = [](const Tensor& made) { return made.to(kGpu); };
    x = there(at::randn({33, 16})).to(at::kBFloat16);
    weights = {there(at::randn({4, 16}) * 0.3), there(at::randn({4, 16, 16}) * 0.3),
               there(at::randn({4, 16, 8}) * 0.3)};
    group = route::spread_over_ranks(33, 2);
  }

  Tensor forward(const route::RouterSettings& router) const {
    const auto routing = route::route(model::router_logits(x, weights.router), router, group);
    return model::local_dispatcher()->run(x, routing, weights.experts(), 1.0);
  }

  Tensor x;
  model::MoeWeights weights;
  route::RoutingGroup group;
};

}  // namespace

TEST_CASE("a layer routed with a capacity can be recorded and replayed", "[model][gpu]") {
  MOE_NEED_GPU();
  const at::NoGradGuard no_gradients;
  for (const auto* text : {"top1", "top2", "top1+ir+fr", "top2+ir+fr:cf=0.6"}) {
    INFO(text);
    const Layer layer;
    const auto router = route::parse_router(text);
    Tensor y;
    const auto recorded = kernels::record_graph([&] { y = layer.forward(router); }, kGpu);
    at::manual_seed(7);
    layer.x.copy_(at::randn({33, 16}).to(at::kBFloat16));
    recorded->replay();
    CHECK(at::equal(y.cpu(), layer.forward(router).cpu()));
  }
}

TEST_CASE("a layer of top-k without a capacity can be recorded, with adapters of any rank too",
          "[model][gpu]") {
  MOE_NEED_GPU();
  const at::NoGradGuard no_gradients;
  for (const int64_t rank : {0, 3, 8}) {  // rows of 3 numbers are not whole 16 bytes
    for (const auto* text : {"top1:cf=inf", "top2:cf=inf", "top3:cf=inf,gate=none"}) {
      CAPTURE(rank, text);
      Layer layer;
      if (rank > 0) {
        const auto there = [](at::IntArrayRef shape) { return at::randn(shape).to(kGpu); };
        layer.weights.gate_up_adapter = {there({4, rank, 16}), there({4, 16, rank}), 0.1};
        layer.weights.down_adapter = {there({4, rank, 8}), there({4, 16, rank}), 0.1};
      }
      const auto router = route::parse_router(text);
      Tensor y;
      const auto recorded = kernels::record_graph([&] { y = layer.forward(router); }, kGpu);
      at::manual_seed(8);
      layer.x.copy_(at::randn({33, 16}).to(at::kBFloat16));
      recorded->replay();
      CHECK(at::equal(y.cpu(), layer.forward(router).cpu()));
    }
  }
}

TEST_CASE("a layer of more than 64 logical ranks and sequences can be recorded", "[model][gpu]") {
  MOE_NEED_GPU();
  const at::NoGradGuard no_gradients;
  Layer layer;
  at::manual_seed(9);
  const auto there = [](const Tensor& made) { return made.to(kGpu); };
  layer.x = there(at::randn({129, 16})).to(at::kBFloat16);
  layer.weights = {there(at::randn({65, 16}) * 0.3), there(at::randn({65, 16, 16}) * 0.3),
                   there(at::randn({65, 16, 8}) * 0.3)};
  layer.group = route::spread_over_ranks(129, 65);
  layer.group.sequence = route::spread_over_ranks(129, 86).home;  // of one or two tokens
  const auto router = route::parse_router("top1+ir+fr");
  Tensor y, loss;
  const auto routed = [&] {
    const auto logits = model::router_logits(layer.x, layer.weights.router);
    return route::route(logits, router, layer.group);
  };
  const auto recorded = kernels::record_graph(
      [&] {
        const auto routing = routed();
        y = model::local_dispatcher()->run(layer.x, routing, layer.weights.experts(), 1.0);
        loss = routing.losses.sequence_balance;
      },
      kGpu);
  layer.x.copy_(at::randn({129, 16}).to(at::kBFloat16));
  recorded->replay();
  CHECK(at::equal(y.cpu(), layer.forward(router).cpu()));
  CHECK(at::equal(loss.cpu(), routed().losses.sequence_balance.cpu()));
}

TEST_CASE("work that reads the GPU back cannot be recorded", "[model][gpu]") {
  MOE_NEED_GPU();
  const Tensor x = at::ones({3}).to(kGpu);
  double sum = 0;
  CHECK_THROWS(kernels::record_graph([&] { sum += x.sum().item<double>(); }, kGpu));
}
