// Experts that are shared out among ranks on a GPU against one rank on the CPU: the rows that they
// see, outputs and gradients, of routers that drop nothing, whose counts are exchanged on the GPU.
// In a build without CUDA the GPU is an emulated one (tests/support/emulated_cuda).

#include <torch/csrc/autograd/autograd.h>

#include "core/distributed/threads.h"
#include "core/model/moe/token_dispatcher.h"
#include "tests/support/gpu.h"
#include "tests/support/time_limit.h"

using namespace moe;
using at::Tensor;
using Counts = std::vector<int64_t>;
using test::kGpu;

namespace {

constexpr int64_t kExperts = 8, kWidth = 8, kInner = 4;

struct Input {
  Input(const std::string& text, Counts of_processes)
      : tokens(std::move(of_processes)), router(route::parse_router(text)) {
    at::manual_seed(12);
    const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    x = at::randn({all, kWidth}), dy = at::randn({all, kWidth});
    logits = at::randn({all, kExperts}) * 3;
    gate_up = at::randn({kExperts, 2 * kInner, kWidth}) / 2;
    down = at::randn({kExperts, kWidth, kInner}) / 2;
  }
  Counts tokens;  // [G]
  route::RouterSettings router;
  Tensor x, dy, logits, gate_up, down;  // all of them
};

struct Output {
  Tensor y, grad_x, grad_gate_up, grad_down;
  Tensor seen;  // rows that the experts were given, in order; undefined where in several products
};

// Experts that keep what they are given.
class SeeingExperts : public model::Experts {
 public:
  SeeingExperts(const Tensor& gate_up, const Tensor& down, std::vector<Tensor>& seen)
      : Experts(gate_up, down), seen_(seen) {}
  Tensor run(const Tensor& rows, const Counts& tokens_per_expert) const override {
    seen_.push_back(rows.detach().cpu());
    return Experts::run(rows, tokens_per_expert);
  }

 private:
  std::vector<Tensor>& seen_;
};

// The experts of one process, and its tokens from `first_token` on.
Output run(const Input& input, const model::TokenSpread& spread, at::Device device,
           int64_t first_token, const distributed::Layout& layout) {
  const auto tokens = static_cast<int64_t>(spread.local.home.size());
  const auto leaf = [&](const Tensor& of, int64_t first, int64_t count) {
    return of.narrow(0, first, count).to(device).detach().clone().requires_grad_(true);
  };
  const int64_t first = layout.first_expert(), count = layout.local_experts();
  const Tensor x = leaf(input.x, first_token, tokens);
  const Tensor gate_up = leaf(input.gate_up, first, count), down = leaf(input.down, first, count);
  const auto routing = route::route(input.logits.narrow(0, first_token, tokens).to(device),
                                    input.router, spread.local);
  std::vector<Tensor> seen;
  const Tensor y = model::make_token_dispatcher(spread, input.router)
                       ->run(x, routing, SeeingExperts(gate_up, down, seen), 0.5);
  auto grads = torch::autograd::grad({y}, {x, gate_up, down},
                                     {input.dy.narrow(0, first_token, tokens).to(device)});
  return {y.detach().cpu(), grads[0].cpu(), grads[1].cpu(), grads[2].cpu(),
          seen.size() == 1 ? seen.front() : Tensor()};
}

Output on_one(const Input& input) {
  route::RoutingGroup group;
  const auto processes = static_cast<int64_t>(input.tokens.size());
  group.ranks = processes;
  for (int64_t process = 0; process < processes; ++process) {
    group.home.insert(group.home.end(), static_cast<size_t>(input.tokens[process]), process);
  }
  return run(input, group, at::kCPU, 0, distributed::make_layout(1, 0, 1, processes, kExperts));
}

Output on_many(const Input& input, bool overlap) {
  const test::TimeLimit limit(100);
  const auto processes = static_cast<int64_t>(input.tokens.size());
  std::vector<Output> outputs(input.tokens.size());
  distributed::run_as_threads(
      processes,
      [&](distributed::Comm& comm) {
        const auto layout =
            distributed::make_layout(processes, comm.rank(), 1, processes, kExperts);
        const auto own = input.tokens.begin() + comm.rank();
        const model::TokenSpread spread(*own, processes, {&comm, layout, overlap, false});
        outputs[comm.rank()] = run(input, spread, kGpu,
                                   std::accumulate(input.tokens.begin(), own, int64_t{0}), layout);
      },
      kGpu);
  const auto joined = [&](Tensor Output::*field) {
    std::vector<Tensor> parts;
    for (const Output& one : outputs) {
      parts.push_back(one.*field);
    }
    return at::cat(parts);
  };
  return {joined(&Output::y), joined(&Output::grad_x), joined(&Output::grad_gate_up),
          joined(&Output::grad_down), overlap ? Tensor() : joined(&Output::seen)};
}

}  // namespace

TEST_CASE("ranks on a GPU that drop nothing compute what one does, in the same order of rows",
          "[model][gpu]") {
  MOE_NEED_GPU();
  for (const auto* router : {"top1:cf=inf", "top2:cf=inf", "top2+fr:cf=inf", "topp:0.4"}) {
    for (const Counts& tokens : {Counts{5, 9}, Counts{0, 7}, Counts{33, 1, 0, 31}}) {
      const Input input(router, tokens);
      const Output truth = on_one(input);
      for (const bool overlap : {false, true}) {
        CAPTURE(router, tokens.size(), tokens.front(), overlap);
        const Output many = on_many(input, overlap);
        if (!overlap) {
          CHECK(at::equal(many.seen, truth.seen));
        }
        // Sums of at most 65 rows of 8 numbers of order one in f32, in another order.
        CHECK(at::allclose(many.y, truth.y, 1e-4, 1e-4));
        CHECK(at::allclose(many.grad_x, truth.grad_x, 1e-4, 1e-4));
        CHECK(at::allclose(many.grad_gate_up, truth.grad_gate_up, 1e-4, 1e-4));
        CHECK(at::allclose(many.grad_down, truth.grad_down, 1e-4, 1e-4));
      }
    }
  }
}
