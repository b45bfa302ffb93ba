// Expert parallelism on a GPU against one rank on the CPU; and the layout without counts, of
// routers with a capacity, against the layout whose counts the host reads. In a build without CUDA
// the GPU is emulated (tests/support/emulated_cuda).

#include <torch/csrc/autograd/autograd.h>

#include "core/model/moe/token_dispatcher.h"
#include "tests/support/gpu.h"
#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"

using namespace moe;
using at::Tensor;
using Counts = std::vector<int64_t>;
using test::kGpu;

namespace {

constexpr int64_t kExperts = 8, kWidth = 8, kInner = 4;

struct Input {
  Input(const std::string& text, Counts of_processes, at::ScalarType type)
      : tokens(std::move(of_processes)), router(route::parse_router(text)) {
    at::manual_seed(12);
    const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    x = at::randn({all, kWidth}).to(type), dy = at::randn({all, kWidth});
    logits = at::randn({all, kExperts}) * 3;
    gate_up = at::randn({kExperts, 2 * kInner, kWidth}) / 2;
    down = at::randn({kExperts, kWidth, kInner}) / 2;
  }
  Counts tokens;  // [G]
  route::RouterSettings router;
  Tensor x, dy, logits, gate_up, down;  // of all processes
  int64_t ranks_per_process = 1;
  bool doubles = false;  // experts return twice their rows
};

struct Output {
  Tensor y, grad_x, grad_logits, grad_gate_up, grad_down;
  Tensor seen;  // the rows of the experts, without empty slots
};

// Experts that record their rows. Doubled rows have the same bits in any product.
class RecordingExperts : public model::Experts {
 public:
  RecordingExperts(const Tensor& gate_up, const Tensor& down, bool doubles,
                   std::vector<Tensor>& seen)
      : Experts(gate_up, down), doubles_(doubles), seen_(seen) {}
  Tensor run(const Tensor& rows, const Counts& tokens_per_expert) const override {
    record(rows, std::accumulate(tokens_per_expert.begin(), tokens_per_expert.end(), int64_t{0}));
    return doubles_ ? rows * 2 : Experts::run(rows, tokens_per_expert);
  }
  Tensor run_segments(const Tensor& rows, const Tensor& ends) const override {
    record(rows, ends[-1].item<int32_t>());
    return doubles_ ? rows * 2 : Experts::run_segments(rows, ends);
  }

 private:
  void record(const Tensor& rows, int64_t used) const {
    seen_.push_back(rows.detach().narrow(0, 0, used).cpu());
  }
  bool doubles_;
  std::vector<Tensor>& seen_;
};

// Runs the experts of one process on its tokens, which begin at `first_token`.
Output run(const Input& input, const model::TokenPartition& spread, at::Device device,
           int64_t first_token, const distributed::Layout& layout) {
  const auto tokens = static_cast<int64_t>(spread.local.source_rank.size());
  const auto leaf = [&](const Tensor& of, int64_t first, int64_t count) {
    return of.narrow(0, first, count).to(device).detach().clone().requires_grad_(true);
  };
  const int64_t first = layout.first_expert(), count = layout.local_experts();
  const std::vector<Tensor> leaves = {
      leaf(input.x, first_token, tokens), leaf(input.logits, first_token, tokens),
      leaf(input.gate_up, first, count), leaf(input.down, first, count)};
  const auto routing = route::route(leaves[1], input.router, spread.local);
  std::vector<Tensor> seen;
  const RecordingExperts experts(leaves[2], leaves[3], input.doubles, seen);
  const Tensor y = model::run_experts(leaves[0], routing, experts, 0.5, spread, input.router);
  auto grads =
      torch::autograd::grad({y}, leaves, {input.dy.narrow(0, first_token, tokens).to(device)}, {},
                            false, /*allow_unused=*/true);
  for (size_t i = 0; i < grads.size(); ++i) {
    grads[i] = grads[i].defined() ? grads[i].cpu() : at::zeros_like(leaves[i]).cpu();
  }
  const Tensor rows = seen.empty() ? at::zeros({0, kWidth}) : at::cat(seen);
  return {y.detach().cpu(), grads[0],
          grads[1],         grads[2],
          grads[3],         rows.index_select(0, at::nonzero(rows.abs().sum(1)).view({-1}))};
}

Output on_one(const Input& input) {
  route::RoutingGroup group;
  const auto processes = static_cast<int64_t>(input.tokens.size());
  group.ranks = processes;
  for (int64_t process = 0; process < processes; ++process) {
    group.source_rank.insert(group.source_rank.end(), static_cast<size_t>(input.tokens[process]),
                             process);
  }
  return run(input, group, at::kCPU, 0, distributed::make_layout(1, 0, 1, processes, kExperts));
}

// Runs one rank a process and joins the results.
Output on_many(const Input& input, bool overlap, bool force_host_counts = false) {
  const test::TimeLimit limit(100);
  const auto processes = static_cast<int64_t>(input.tokens.size());
  const int64_t ranks = processes * input.ranks_per_process;
  std::vector<Output> outputs(input.tokens.size());
  test::run_as_threads(
      processes,
      [&](distributed::Comm& comm) {
        const auto layout = distributed::make_layout(processes, comm.rank(), 1, ranks, kExperts);
        const auto own = input.tokens.begin() + comm.rank();
        const model::TokenPartition spread(*own, ranks,
                                           {&comm, layout, overlap, force_host_counts});
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
  return {joined(&Output::y),           joined(&Output::grad_x),
          joined(&Output::grad_logits), joined(&Output::grad_gate_up),
          joined(&Output::grad_down),   joined(&Output::seen)};
}

double distance(const Tensor& a, const Tensor& b) {
  const Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

struct Case {
  const char* router;
  Counts tokens;
  bool overlap;
};

}  // namespace

// In f32: sums of at most 65 rows of 8 numbers of order one, in another order. In bf16 with a
// capacity the counts stay on the device: six roundings on either side (gate, up, their product,
// the output; two of gradients) of at most 2^-8 each, 12 * 2^-8 = 0.047 of a number, and of a norm.
TEST_CASE("ranks on a GPU compute what one rank on the CPU does, with rows in the same order",
          "[model][gpu]") {
  MOE_NEED_GPU();
  const auto fields = {&Output::y, &Output::grad_x, &Output::grad_gate_up, &Output::grad_down};
  for (const auto& [router, tokens, overlap] :
       {Case{"top1:cf=inf", {33, 1, 0, 31}, false}, Case{"top2+fr:cf=inf", {5, 9}, false},
        Case{"topp:0.4", {0, 7}, true}}) {
    CAPTURE(router, tokens.size(), tokens.front(), overlap);
    const Input input(router, tokens, at::kFloat);
    const Output truth = on_one(input), many = on_many(input, overlap);
    CHECK((overlap || at::equal(many.seen, truth.seen)));
    for (const auto field : fields) {
      CHECK(at::allclose(many.*field, truth.*field, 1e-4, 1e-4));
    }
  }
  for (const auto& [router, tokens, overlap] :
       {Case{"top1+ir+fr", {33, 1, 0, 31}, true}, Case{"top1", {0, 7}, false},
        Case{"top2:cf=2", {5, 9}, true}}) {
    CAPTURE(router, tokens.size(), tokens.front(), overlap);
    const Input input(router, tokens, at::kBFloat16);
    const Output truth = on_one(input), many = on_many(input, overlap);
    for (const auto field : fields) {
      CHECK(distance(many.*field, truth.*field) <= 0.047);
    }
  }
}

TEST_CASE("a layout without counts gives the bits of one whose counts the host reads",
          "[model][gpu]") {
  MOE_NEED_GPU();
  for (const auto& [router, tokens, overlap] :
       {Case{"top1+ir+fr", {33, 1, 0, 31}, true}, Case{"top2:cf=0.6", {5, 9}, false},
        Case{"top1+ir:cf=4", {0, 7}, false}, Case{"top2+fr", {0, 7}, true},
        Case{"top3+ir+fr:order=score,cf=0.7", {5, 9}, true},
        Case{"expert-choice", {33, 1, 0, 31}, false}}) {
    CAPTURE(router, tokens.size(), tokens.front(), overlap);
    Input input(router, tokens, at::kBFloat16);
    input.ranks_per_process = 2;
    input.doubles = true;
    const Output truth = on_many(input, overlap, /*force_host_counts=*/true);
    const Output fixed = on_many(input, overlap);
    for (const auto field : {&Output::seen, &Output::y, &Output::grad_x, &Output::grad_logits}) {
      CHECK(at::equal(fixed.*field, truth.*field));
    }
  }
}
