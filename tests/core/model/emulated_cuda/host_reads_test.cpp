// How often the host reads from a GPU, where it waits for all work of the stream: never in a layer
// of top-k, once where dropless experts are distributed. Counted on the emulated GPU
// (tests/support/emulated_cuda).

#include <torch/csrc/autograd/autograd.h>

#include <string>

#include "core/model/llama/attention.h"
#include "core/model/moe/layer.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/linear.h"
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

TEST_CASE("a bf16 layer of top-k is trained without a read", "[model][emulator]") {
  for (const char* router : {"top1", "top2", "top1+ir+fr", "top2:cf=inf"}) {
    INFO(router);
    at::manual_seed(1);
    const Tensor x = leaf({kTokens, kWidth}, at::kBFloat16);
    model::MoeWeights weights = random_weights(kExperts);
    kernels::keep_bf16_working_copy(weights.gate_up);
    kernels::keep_bf16_working_copy(weights.down);
    const model::TokenPartition spread{route::spread_over_ranks(kTokens, 2)};
    const Tensor upstream = at::randn({kTokens, kWidth}).to(kGpu);
    const Tensor loss_upstream = at::full({}, 0.01).to(kGpu);
    const auto settings = route::parse_router(router);
    for (const bool is_warm : {false, true}) {
      take_reads();
      const auto out = model::moe_forward(x, weights, settings, spread);
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

// cuDNN would compile a kernel for every length of a sequence.
TEST_CASE("attention reads nothing from the GPU and uses the flash kernel", "[model][emulator]") {
  at::manual_seed(2);
  model::ModelConfig config;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  for (const auto& lengths : {std::vector<int64_t>{3, 5}, {4, 4}}) {
    const auto tables = model::pack_tables(lengths, {}, config, kGpu);
    const Tensor input = leaf({8, 64}, at::kBFloat16);
    const Tensor upstream = at::randn({8, 32}).to(kGpu, at::kBFloat16);
    emulated::take_host_calls();
    const Tensor out = model::packed_attention(input.view({8, 64}), lengths, *tables, config);
    torch::autograd::grad({out}, {input}, {upstream});
    const HostCalls calls = emulated::take_host_calls();
    CHECK(calls.launches.count("aten::_flash_attention_forward") == 1);
    CHECK(calls.launches.count("aten::_flash_attention_backward") == 1);
    CHECK(calls.reads.empty());
  }
}

TEST_CASE("grouped products read device counts only if the GPU lacks a grouped GEMM",
          "[model][emulator]") {
  const Tensor rows = at::ones({16, 8}).to(kGpu, at::kBFloat16);
  const Tensor weight = at::ones({2, 8, 8}).to(kGpu, at::kBFloat16);
  const Tensor ends = at::tensor({9, 16}, at::kInt).to(kGpu);
  const auto reads = [&] {
    take_reads();
    const Tensor product = kernels::grouped_linear(rows, weight, ends);
    const int64_t count = take_reads();
    CHECK(at::equal(product.cpu(), at::full({16, 8}, 8, at::kBFloat16)));
    return count;
  };
  CHECK(reads() == 0);
  emulated::set_grouped_mm(false);
  const int64_t without = reads();
  emulated::set_grouped_mm(true);
  CHECK(without == 1);
}

// With distributed experts the host must know the rows for each rank. A router with a capacity
// determines them; in bf16 the host needs no other count. Dropless routers read once a layer and
// rank, and nothing in backward.
TEST_CASE("a layer with distributed experts reads the GPU once a rank, or never",
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
      int64_t forward = 0, backward = 0;
      test::run_as_threads(
          kProcesses,
          [&](distributed::Comm& comm) {
            const auto take = [&](int64_t& reads) {  // by one rank for all
              comm.barrier();
              if (comm.rank() == 0) {
                reads = take_reads();
              }
              comm.barrier();
            };
            const auto layout =
                distributed::make_layout(kProcesses, comm.rank(), 1, kProcesses, kExperts);
            const model::TokenPartition spread(kTokens, kProcesses,
                                               {&comm, layout, overlap, false});
            const Tensor x = leaf({kTokens, kWidth}, one.type);
            const model::MoeWeights weights = random_weights(layout.local_experts());
            int64_t before = 0;
            take(before);
            const Tensor y =
                model::moe_forward(x, weights, route::parse_router(one.router), spread).y;
            take(forward);
            torch::autograd::grad({y}, {x, weights.gate_up}, {at::ones_like(y)});
            take(backward);
          },
          kGpu);
      CAPTURE(one.router, overlap);
      CHECK(forward == one.reads * kProcesses);
      CHECK(backward == 0);
    }
  }
}
