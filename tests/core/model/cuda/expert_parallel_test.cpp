// Expert parallelism on a GPU against one rank on the CPU; and the layout without counts, of
// routers with a capacity, against the layout whose counts the host reads. In a build without CUDA
// the GPU is emulated (tests/support/emulated_cuda).

#include <torch/csrc/autograd/autograd.h>

#include "core/model/moe/layer.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/grouped_swiglu.h"
#include "tests/support/gpu.h"
#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"

using namespace moe;
using namespace moe::model;
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
  Tensor run(const Tensor& rows, const moe::kernels::Segments& segments) const override {
    const int64_t used =
        segments.ends.defined() ? segments.ends[-1].item<int32_t>() : segments.used_rows();
    seen_.push_back(rows.detach().narrow(0, 0, used).cpu());
    return doubles_ ? rows * 2 : Experts::run(rows, segments);
  }

 private:
  bool doubles_;
  std::vector<Tensor>& seen_;
};

// Runs the experts of one process on its tokens, which begin at `first_token`.
Output run(const Input& input, const model::TokenPartition& partition, at::Device device,
           int64_t first_token, const distributed::Layout& layout) {
  const auto tokens = static_cast<int64_t>(partition.local.source_rank.size());
  const auto leaf = [&](const Tensor& of, int64_t first, int64_t count) {
    return of.narrow(0, first, count).to(device).detach().clone().requires_grad_(true);
  };
  const int64_t first = layout.first_expert(), count = layout.local_experts();
  const std::vector<Tensor> leaves = {
      leaf(input.x, first_token, tokens), leaf(input.logits, first_token, tokens),
      leaf(input.gate_up, first, count), leaf(input.down, first, count)};
  const auto routing = route::route(leaves[1], input.router, partition.local);
  std::vector<Tensor> seen;
  const RecordingExperts experts(leaves[2], leaves[3], input.doubles, seen);
  const Tensor y = model::run_experts(leaves[0], routing, experts, 0.5, partition, input.router);
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
        const model::TokenPartition partition(*own, ranks,
                                              {&comm, layout, overlap, force_host_counts});
        outputs[comm.rank()] = run(input, partition, kGpu,
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

struct ExpertsCase {
  // x, logits, gate_up, down; then A and B of the adapters of gate_up and of down, if any.
  std::vector<Tensor> inputs;
  Tensor upstream;
  moe::route::RouterSettings router;

  void move_to_gpu() {
    for (Tensor& tensor : inputs) {
      tensor = tensor.to(moe::test::kGpu);
    }
    upstream = upstream.to(moe::test::kGpu);
  }

  // y, and the gradients of all inputs.
  std::vector<Tensor> results() const {
    std::vector<Tensor> in;
    for (const Tensor& tensor : inputs) {
      in.push_back(tensor.detach().clone().requires_grad_(true));
    }
    const Experts experts = in.size() == 4
                                ? Experts(in[2], in[3])
                                : Experts(in[2], in[3], {in[4], in[5], 2.0}, {in[6], in[7], 2.0});
    const auto routing =
        moe::route::route(in[1], router, moe::route::partition_tokens(in[0].size(0), 2));
    const Tensor y = run_local_experts(in[0], routing, experts, 0.5);
    auto all = torch::autograd::grad({y}, in, {upstream}, {}, false, /*allow_unused=*/true);
    all.push_back(y.detach());
    return all;
  }
};

ExpertsCase random_case(const std::string& router, int64_t tokens, int64_t rank) {
  const auto make = [](at::IntArrayRef shape) { return at::randn(shape) / 2; };
  ExpertsCase random{
      {make({tokens, 16}), make({tokens, 4}) * 4, make({4, 16, 16}), make({4, 16, 8})},
      make({tokens, 16}),
      moe::route::parse_router(router)};
  if (rank > 0) {
    for (const Tensor& each :
         {make({4, rank, 16}), make({4, 16, rank}), make({4, rank, 8}), make({4, 16, rank})}) {
      random.inputs.push_back(each);
    }
  }
  return random;
}

Tensor or_zero(const Tensor& gradient) {
  return gradient.defined() ? gradient.cpu() : at::zeros({1});
}

// Returns pairs of the results on the GPU and on the CPU.
std::vector<std::pair<Tensor, Tensor>> on_both(ExpertsCase each) {
  const auto expected = each.results();
  each.move_to_gpu();
  const auto actual = each.results();
  std::vector<std::pair<Tensor, Tensor>> pairs;
  for (size_t i = 0; i < expected.size(); ++i) {
    pairs.emplace_back(or_zero(actual[i]), or_zero(expected[i]));
  }
  return pairs;
}

}  // namespace

// In f32: sums of at most 65 rows of 8 numbers of order one, in another order. In bf16 with a
// capacity the counts stay on the device: six roundings on either side (gate, up, their product,
// the output; two of gradients) of at most 2^-8 each, 12 * 2^-8 = 0.047 of a number, and of a norm.
TEST_CASE("ranks on a GPU compute what one rank on the CPU does, with rows in the same order",
          "[gpu]") {
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

TEST_CASE("a layout without counts gives the bits of one whose counts the host reads", "[gpu]") {
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

// The experts of a routed layer on a GPU against the CPU: with counts that stay on the device if
// the number of rows has a tight bound, and with counts that the host reads otherwise.

TEST_CASE("the experts of a layer on a GPU equal those on the CPU", "[gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  struct Run {
    const char* router;
    int64_t tokens, rank;  // rank of adapters; 0: none
    bool is_bf16;
  };
  for (const auto& [router, tokens, rank, is_bf16] :
       {Run{"top1", 1, 0, false}, Run{"top2+ir+fr:cf=0.6", 33, 0, false},
        Run{"top2+ir+fr:cf=0.6", 31, 4, false}, Run{"top1+ir+fr", 33, 3, false},
        Run{"topp:0.6", 33, 4, false}, Run{"relu:k=1", 33, 3, false},
        Run{"top2+fr:cf=inf", 33, 0, false}, Run{"top1:cf=inf", 1, 3, true},
        Run{"top2:cf=inf", 33, 0, true}, Run{"top2:cf=inf", 33, 3, true},
        Run{"top2+fr:cf=inf", 33, 8, true}, Run{"top1:cf=inf", 1, 0, true}}) {
    CAPTURE(router, tokens, rank, is_bf16);
    ExpertsCase each = random_case(router, tokens, rank);
    each.inputs[0] = is_bf16 ? each.inputs[0].to(at::kBFloat16) : each.inputs[0];
    for (const auto& [actual, expected] : on_both(each)) {
      if (is_bf16) {
        // Both devices round operands, hidden products and outputs, not always to the same number:
        // 2^-9 each, five times on the longest path, on both sides.
        const Tensor truth = expected.to(at::kDouble);
        CHECK((actual.to(at::kDouble) - truth).norm().item<double>() <
              0.02 * truth.norm().item<double>() + 1e-6);
      } else {
        // Sums of up to 33 * 16 terms of order one in f32, in another order.
        CHECK(at::allclose(actual, expected, 1e-4, 1e-4));
      }
    }
  }
}

TEST_CASE("weight gradients of large experts are f32 sums, with counts on the device too",
          "[gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(10);
  const std::vector<int64_t> rows_per_expert{5, 0, 9};
  const int64_t width = 1024, inner = 1024;
  const Tensor rows = at::randn({16, width}).to(at::kBFloat16).to(moe::test::kGpu);
  const Tensor upstream = at::randn({16, width}).to(at::kBFloat16).to(moe::test::kGpu);
  const Tensor ends = at::tensor({5, 5, 14}, at::kInt).to(moe::test::kGpu);
  const auto weight = [](int64_t outer, int64_t depth) {
    Tensor made = (at::randn({3, outer, depth}) / 32).to(moe::test::kGpu).requires_grad_(true);
    moe::kernels::keep_bf16_working_copy(made);
    return made;
  };
  const Tensor gate_up = weight(2 * inner, width), down = weight(width, inner);
  REQUIRE(moe::kernels::use_per_expert_gradients(gate_up));
  const auto gradients = [&](const auto& segments) {
    gate_up.mutable_grad() = down.mutable_grad() = Tensor();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {  // the second is added to the first
      moe::kernels::grouped_swiglu(rows, gate_up, down, segments).backward(upstream);
    }
    return std::vector<Tensor>{gate_up.grad().cpu() / 2, down.grad().cpu() / 2};
  };
  const auto by_device = gradients(ends), by_host = gradients(rows_per_expert);
  for (size_t i = 0; i < by_host.size(); ++i) {
    CAPTURE(i);
    const Tensor& found = by_device[i];
    CHECK(found[1].count_nonzero().item<int64_t>() == 0);
    CHECK(!at::equal(found, found.to(at::kBFloat16).to(at::kFloat)));
    // The operands of both were rounded to bf16 a few times.
    CHECK((found - by_host[i]).norm().item<double>() <=
          4 * 0x1p-8 * by_host[i].norm().item<double>());
  }
}
