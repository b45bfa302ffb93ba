// Number of host reads from a GPU, each of which waits for all work of the stream: never in a layer
// of top-k, once where dropless experts are distributed. Counted on the emulated GPU
// (tests/support/emulated_cuda).

#include <torch/csrc/autograd/autograd.h>

#include "core/model/moe/layer.h"
#include "kernels/ops/bf16_working_copy.h"
#include "tests/support/emulated_cuda/emulator.h"
#include "tests/support/gpu.h"
#include "tests/support/rank_threads.h"

using at::Tensor;
using emulated::HostCalls;
using namespace moe;
using test::kGpu;

namespace {

constexpr int64_t kTokens = 64, kWidth = 32, kInner = 24, kExperts = 8;

Tensor leaf(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return (at::randn(shape) * 0.3).to(type).to(kGpu).requires_grad_(true);
}

model::MoeWeights random_weights(int64_t local_experts) {
  return {leaf({kExperts, kWidth}), leaf({local_experts, 2 * kInner, kWidth}),
          leaf({local_experts, kWidth, kInner})};
}

// Returns the reads since the last call, of all threads.
int64_t take_reads() { return HostCalls::sum(emulated::take_host_calls().reads); }

}  // namespace

TEST_CASE("a bf16 layer of top-k is trained without a read", "[emulator]") {
  for (const char* router : {"top1+ir+fr", "top2:cf=inf"}) {
    INFO(router);
    at::manual_seed(1);
    const Tensor x = leaf({kTokens, kWidth}, at::kBFloat16);
    model::MoeWeights weights = random_weights(kExperts);
    kernels::keep_bf16_working_copy(weights.gate_up);
    kernels::keep_bf16_working_copy(weights.down);
    const model::TokenPartition partition{route::partition_tokens(kTokens, 2)};
    const Tensor upstream = at::randn({kTokens, kWidth}).to(kGpu);
    const Tensor loss_upstream = at::full({}, 0.01).to(kGpu);
    const auto settings = route::parse_router(router);
    for (const bool is_warm : {false, true}) {
      take_reads();
      const auto out =
          model::moe_forward(x, {weights.router, settings}, weights.experts(), partition);
      std::vector<Tensor> results = {out.y}, upstreams = {upstream};
      for (const auto member : route::kAllLosses) {
        if (const Tensor& loss = out.losses.*member; loss.defined()) {
          results.push_back(loss);
          upstreams.push_back(loss_upstream);
        }
      }
      torch::autograd::grad(results, {x, weights.router, weights.gate_up, weights.down}, upstreams);
      const int64_t reads = take_reads();
      CHECK((!is_warm || reads == 0));
    }
  }
}

// With distributed experts the host must know the rows for each rank. A router with a capacity
// determines them; in bf16 the host needs no other count. Dropless routers read once a rank.
TEST_CASE("a layer with distributed experts reads the GPU once a rank, or never", "[emulator]") {
  struct Case {
    const char* router;
    at::ScalarType type;
    int64_t reads;
  };
  for (const Case& one : {Case{"top2:cf=inf", at::kBFloat16, 1}, Case{"top1+ir+fr", at::kFloat, 1},
                          Case{"top1+ir+fr", at::kBFloat16, 0}}) {
    int64_t found = 0;
    test::run_as_threads(
        2,
        [&](distributed::Comm& comm) {
          const auto layout = distributed::make_layout(2, comm.rank(), 1, 2, kExperts);
          const model::TokenPartition partition(kTokens, 2,
                                                {&comm, layout, /*overlap=*/true, false});
          const Tensor x = leaf({kTokens, kWidth}, one.type);
          const model::MoeWeights weights = random_weights(layout.local_experts());
          comm.barrier();
          if (comm.rank() == 0) {
            take_reads();
          }
          comm.barrier();
          const Tensor y = model::moe_forward(x, {weights.router, route::parse_router(one.router)},
                                              weights.experts(), partition)
                               .y;
          torch::autograd::grad({y}, {x, weights.gate_up}, {at::ones_like(y)});
          comm.barrier();
          if (comm.rank() == 0) {
            found = take_reads();
          }
        },
        kGpu);
    CAPTURE(one.router);
    CHECK(found == one.reads * 2);
  }
}
