// Expert parallelism on a GPU against one rank on the CPU, for dropless routers, whose counts are
// exchanged on the GPU; and the layout without counts, of routers with a capacity, against the
// layout whose counts the host reads. In a build without CUDA the GPU is emulated
// (tests/support/emulated_cuda).

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
  Tensor x, dy, logits, gate_up, down;  // of all processes
};

struct Output {
  Tensor y, grad_x, grad_gate_up, grad_down;
  Tensor seen;  // the rows of the experts, in order; undefined if they came in several products
};

// Experts that record their rows.
class RecordingExperts : public model::Experts {
 public:
  RecordingExperts(const Tensor& gate_up, const Tensor& down, std::vector<Tensor>& seen)
      : Experts(gate_up, down), seen_(seen) {}
  Tensor run(const Tensor& rows, const Counts& tokens_per_expert) const override {
    seen_.push_back(rows.detach().cpu());
    return Experts::run(rows, tokens_per_expert);
  }

 private:
  std::vector<Tensor>& seen_;
};

// Runs the experts of one process on its tokens, which begin at `first_token`.
Output run(const Input& input, const model::TokenPartition& spread, at::Device device,
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
                       ->run(x, routing, RecordingExperts(gate_up, down, seen), 0.5);
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

// Calls work(rank, spread, first_token, layout) on one rank a process.
template <typename Work>
void on_ranks(const Input& input, int64_t logical_ranks, bool overlap, bool force_host_counts,
              const Work& work) {
  const test::TimeLimit limit(100);
  const auto processes = static_cast<int64_t>(input.tokens.size());
  test::run_as_threads(
      processes,
      [&](distributed::Comm& comm) {
        const auto layout =
            distributed::make_layout(processes, comm.rank(), 1, logical_ranks, kExperts);
        const auto own = input.tokens.begin() + comm.rank();
        const model::TokenPartition spread(*own, logical_ranks,
                                           {&comm, layout, overlap, force_host_counts});
        work(comm.rank(), spread, std::accumulate(input.tokens.begin(), own, int64_t{0}), layout);
      },
      kGpu);
}

Output on_many(const Input& input, bool overlap, bool force_host_counts = false) {
  std::vector<Output> outputs(input.tokens.size());
  on_ranks(input, static_cast<int64_t>(input.tokens.size()), overlap, force_host_counts,
           [&](int64_t rank, const auto& spread, int64_t first_token, const auto& layout) {
             outputs[rank] = run(input, spread, kGpu, first_token, layout);
           });
  const auto joined = [&](Tensor Output::*field) {
    std::vector<Tensor> parts;
    for (const Output& one : outputs) {
      parts.push_back(one.*field);
    }
    return at::cat(parts);
  };
  return {joined(&Output::y), joined(&Output::grad_x), joined(&Output::grad_gate_up),
          joined(&Output::grad_down),
          outputs.front().seen.defined() ? joined(&Output::seen) : Tensor()};
}

}  // namespace

TEST_CASE("dropless ranks on a GPU compute what one rank does, with rows in the same order",
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
        for (const auto field :
             {&Output::y, &Output::grad_x, &Output::grad_gate_up, &Output::grad_down}) {
          CHECK(at::allclose(many.*field, truth.*field, 1e-4, 1e-4));
        }
      }
    }
  }
}

namespace {

// Experts whose product of a row has the same bits for any other rows.
class DoublingExperts : public model::Experts {
 public:
  explicit DoublingExperts(std::vector<Tensor>& seen) : Experts({}, {}), seen_(seen) {}
  Tensor run(const Tensor& rows, const Counts& tokens_per_expert) const override {
    const int64_t used =
        std::accumulate(tokens_per_expert.begin(), tokens_per_expert.end(), int64_t{0});
    seen_.push_back(rows.detach().narrow(0, 0, used).cpu());
    return rows * 2;
  }
  Tensor run_segments(const Tensor& rows, const Tensor& ends) const override {
    seen_.push_back(rows.detach().narrow(0, 0, ends[-1].item<int32_t>()).cpu());
    return rows * 2;
  }

 private:
  std::vector<Tensor>& seen_;
};

struct Dispatched {
  Tensor y, grad_x, grad_logits;
  Tensor seen;  // without empty slots and gaps
};

Dispatched dispatched(const Input& input, const model::TokenPartition& spread,
                      int64_t first_token) {
  const auto tokens = static_cast<int64_t>(spread.local.home.size());
  const auto leaf = [&](const Tensor& of, at::ScalarType type) {
    return of.narrow(0, first_token, tokens).clone().to(type).to(kGpu).requires_grad_(true);
  };
  const Tensor x = leaf(input.x, at::kBFloat16), logits = leaf(input.logits, at::kFloat);
  const auto routing = route::route(logits, input.router, spread.local);
  std::vector<Tensor> seen;
  const Tensor y = model::make_token_dispatcher(spread, input.router)
                       ->run(x, routing, DoublingExperts(seen), 0.5);
  const auto grads =
      torch::autograd::grad({y}, {x, logits}, {input.dy.narrow(0, first_token, tokens).to(kGpu)});
  const Tensor rows = at::cat(seen);
  return {y.detach().cpu(), grads[0].cpu(), grads[1].cpu(),
          rows.index_select(0, at::nonzero(rows.abs().sum(1)).view({-1}))};
}

std::vector<Dispatched> dispatched_by_all(const Input& input, bool overlap,
                                          bool force_host_counts) {
  std::vector<Dispatched> all(input.tokens.size());
  on_ranks(input, 2 * static_cast<int64_t>(input.tokens.size()), overlap, force_host_counts,
           [&](int64_t rank, const auto& spread, int64_t first_token, const auto& /*layout*/) {
             all[rank] = dispatched(input, spread, first_token);
           });
  return all;
}

double distance(const Tensor& a, const Tensor& b) {
  const Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

}  // namespace

TEST_CASE("a layout without counts gives the bits of one whose counts the host reads",
          "[model][gpu]") {
  MOE_NEED_GPU();
  for (const auto* router : {"top1", "top1+ir+fr", "top1+ir:cf=0.5", "top2+fr", "top2+ir:cf=0.6",
                             "top1:cf=4", "top3+ir+fr:order=score,cf=0.7", "expert-choice"}) {
    for (const Counts& tokens : {Counts{5, 9}, Counts{0, 7}, Counts{33, 1, 0, 31}}) {
      const Input input(router, tokens);
      for (const bool overlap : {false, true}) {
        CAPTURE(router, tokens.size(), tokens.front(), overlap);
        const auto truth = dispatched_by_all(input, overlap, /*force_host_counts=*/true);
        const auto fixed = dispatched_by_all(input, overlap, /*force_host_counts=*/false);
        for (size_t process = 0; process < fixed.size(); ++process) {
          CHECK(at::equal(fixed[process].seen, truth[process].seen));
          CHECK(at::equal(fixed[process].y, truth[process].y));
          CHECK(at::equal(fixed[process].grad_x, truth[process].grad_x));
          CHECK(at::equal(fixed[process].grad_logits, truth[process].grad_logits));
        }
      }
    }
  }
}

// In bf16 the sums are in another order: six roundings on either side (gate, up, their product, the
// output; two of gradients) of at most 2^-8 each, 12 * 2^-8 = 0.047 of a number, and of a norm.
TEST_CASE("experts in segments of the device compute what counted ones do", "[model][gpu]") {
  MOE_NEED_GPU();
  for (const auto* router : {"top1", "top1+ir+fr", "top2:cf=2"}) {
    for (const Counts& tokens : {Counts{5, 9}, Counts{0, 7}, Counts{33, 1, 0, 31}}) {
      Input input(router, tokens);
      input.x = input.x.to(at::kBFloat16);
      for (const bool overlap : {false, true}) {
        CAPTURE(router, tokens.size(), tokens.front(), overlap);
        const Output truth = on_many(input, overlap, /*force_host_counts=*/true);
        const Output fixed = on_many(input, overlap);
        for (const auto field :
             {&Output::y, &Output::grad_x, &Output::grad_gate_up, &Output::grad_down}) {
          CHECK(distance(fixed.*field, truth.*field) <= 0.047);
        }
      }
    }
  }
}
