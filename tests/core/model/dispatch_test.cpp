// An expert-parallel MoE layer against the same layer on one rank: outputs, every gradient and
// losses, over routers, group sizes, logical ranks and awkward inputs. In f64, so that the
// tolerance is that of rounding alone.

#include <array>

#include "core/model/moe/layer.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"
#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"

namespace moe::test {
namespace {

using at::Tensor;
using model::MoeWeights;
using Counts = std::vector<int64_t>;

constexpr int64_t kExperts = 8, kWidth = 6, kInner = 5;
constexpr int kSeconds = 60;

const std::vector<std::string> kRouters = {"top1",
                                           "top1+ir+fr",
                                           "topp:0.4",
                                           "relu:k=1",
                                           "top2+ir:cf=0.5",
                                           "top2+fr:cf=inf",
                                           "top3+ir+fr:order=score,cf=0.7"};

// Sums of at most 64 tokens x 8 experts x 12 products of numbers of order 10 in f64: 6144 x 1.1e-16
// x 10 = 7e-12 in the worst order.
constexpr double kRounding = 1e-11;

// The input of a layer. Process q has the next tokens[q] rows of x.
struct Input {
  Tensor x, dy;    // [T, D] f64
  MoeWeights all;  // [E, ...]
  Counts tokens;   // [G]
  int64_t logical_ranks;
  route::RouterSettings router;
  bool overlap_all_to_all = false;

  int64_t first_token(int64_t process) const {
    return std::accumulate(tokens.begin(), tokens.begin() + process, int64_t{0});
  }
};

struct Output {
  Tensor y, grad_x, grad_router, grad_gate_up, grad_down;
  std::array<Tensor, route::kAllLosses.size()> losses;
};

Tensor leaf(const Tensor& of) { return of.detach().clone().requires_grad_(true); }

Input random_input(const std::string& router, Counts tokens, int64_t logical_ranks,
                   bool overlap = false) {
  at::manual_seed(static_cast<int64_t>(std::hash<std::string>()(router) % 1000));
  const int64_t total = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  const auto random = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble); };
  return {random({total, kWidth}),
          random({total, kWidth}),
          {random({kExperts, kWidth}), random({kExperts, 2 * kInner, kWidth}),
           random({kExperts, kWidth, kInner})},
          std::move(tokens),
          logical_ranks,
          route::parse_router(router),
          overlap};
}

// Runs the layer on some tokens and experts, and the backward of y dy + all losses.
Output run_layer(const Input& input, const model::TokenPartition& spread, int64_t first_token,
                 int64_t first_expert, int64_t experts) {
  const auto tokens = static_cast<int64_t>(spread.local.source_rank.size());
  const Tensor x = leaf(input.x.narrow(0, first_token, tokens));
  const MoeWeights weights{leaf(input.all.router),
                           leaf(input.all.gate_up.narrow(0, first_expert, experts)),
                           leaf(input.all.down.narrow(0, first_expert, experts))};
  const auto out = model::moe_forward(x, weights, input.router, spread, {.gate_scale = 0.7});
  Tensor loss = (out.y * input.dy.narrow(0, first_token, tokens)).sum();
  const Tensor none = at::zeros({}, at::kDouble);
  std::array<Tensor, route::kAllLosses.size()> losses;
  for (size_t i = 0; i < losses.size(); ++i) {
    const Tensor& one = out.losses.*route::kAllLosses[i];
    losses[i] = one.defined() ? one.detach() : none;
    loss = one.defined() ? loss + one : loss;
  }
  loss.backward();
  const auto gradient = [](const Tensor& of) {
    return of.grad().defined() ? of.grad() : at::zeros_like(of);
  };
  return {out.y.detach(),         gradient(x), gradient(weights.router), gradient(weights.gate_up),
          gradient(weights.down), losses};
}

// Sequences of five tokens, the last one shorter.
int64_t num_sequences(int64_t tokens) { return (tokens + 4) / 5; }

void request_losses(route::RoutingGroup& group, int64_t tokens, int64_t first_sequence) {
  group.compute_z_loss = true;
  if (!group.sequence) {
    group.sequence.emplace();
  }
  for (int64_t token = 0; token < tokens; ++token) {
    group.sequence->push_back(first_sequence + token / 5);
  }
}

// Runs all tokens on one process, with the logical ranks of the expert-parallel run.
Output on_one(const Input& input) {
  route::RoutingGroup group;
  group.ranks = input.logical_ranks;
  int64_t sequences = 0;
  const auto processes = static_cast<int64_t>(input.tokens.size());
  const int64_t local = input.logical_ranks / processes;
  for (int64_t process = 0; process < processes; ++process) {
    for (const int64_t source_rank :
         route::partition_tokens(input.tokens[process], local).source_rank) {
      group.source_rank.push_back(process * local + source_rank);
    }
    request_losses(group, input.tokens[process], sequences);
    sequences += num_sequences(input.tokens[process]);
  }
  return run_layer(input, group, 0, 0, kExperts);
}

// Runs one rank a process and joins the results: dense gradients and losses are summed.
Output on_many(const Input& input) {
  const TimeLimit limit(kSeconds);
  const auto processes = static_cast<int64_t>(input.tokens.size());
  std::vector<Output> outputs(static_cast<size_t>(processes));
  test::run_as_threads(processes, [&](distributed::Comm& comm) {
    const auto layout =
        distributed::make_layout(processes, comm.rank(), 1, input.logical_ranks, kExperts);
    const int64_t tokens = input.tokens[comm.rank()];
    model::TokenPartition spread(tokens, input.logical_ranks,
                                 {&comm, layout, input.overlap_all_to_all}, num_sequences(tokens));
    request_losses(spread.local, tokens, 0);
    outputs[comm.rank()] = run_layer(input, spread, input.first_token(comm.rank()),
                                     layout.first_expert(), layout.local_experts());
  });
  Output all;
  const auto join = [&](Tensor Output::*field, bool sums) {
    std::vector<Tensor> parts;
    for (const auto& one : outputs) {
      parts.push_back(one.*field);
    }
    all.*field = sums ? at::stack(parts).sum(0) : at::cat(parts);
  };
  for (const auto field :
       {&Output::y, &Output::grad_x, &Output::grad_gate_up, &Output::grad_down}) {
    join(field, false);
  }
  join(&Output::grad_router, true);
  for (size_t i = 0; i < all.losses.size(); ++i) {
    all.losses[i] = at::zeros({}, at::kDouble);
    for (const auto& one : outputs) {
      all.losses[i] = all.losses[i] + one.losses[i];
    }
  }
  return all;
}

double difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

void check_same(const Input& input) {
  const Output one = on_one(input), many = on_many(input);
  for (const auto field : {&Output::y, &Output::grad_x, &Output::grad_router, &Output::grad_gate_up,
                           &Output::grad_down}) {
    CHECK(difference(many.*field, one.*field) < kRounding);
  }
  for (size_t i = 0; i < one.losses.size(); ++i) {
    INFO("loss " << i);
    CHECK(difference(many.losses[i], one.losses[i]) < kRounding);
  }
}

}  // namespace

TEST_CASE("outputs and gradients of a layer are the same on 1, 2 and 4 processes", "[model]") {
  struct Case {
    Counts tokens;
    int64_t ranks;
    bool overlap;
  };
  for (const auto& router : kRouters) {
    for (const auto& [tokens, ranks, overlap] :
         {Case{{64}, 4, false}, Case{{32, 32}, 8, false}, Case{{32, 32}, 4, true},
          Case{{16, 16, 16, 16}, 4, false}, Case{{16, 16, 16, 16}, 8, true},
          // Few or no tokens, and none at all.
          Case{{7, 4}, 4, true}, Case{{0, 9}, 4, false}, Case{{1, 0}, 4, true},
          Case{{0, 0}, 4, false}, Case{{5, 0, 1, 3}, 4, true}, Case{{0, 0, 0, 2}, 4, false}}) {
      INFO(router << ", W " << ranks << ", " << tokens.size() << " processes, first has "
                  << tokens[0] << ", overlap " << overlap);
      check_same(random_input(router, tokens, ranks, overlap));
    }
  }
}

TEST_CASE("one expert with all tokens, or tokens of zeros, compute the same", "[model]") {
  for (const auto& router : kRouters) {
    INFO(router);
    Input input = random_input(router, {12, 12, 12, 12}, 8);
    input.x = input.x[0].repeat({48, 1});  // equal tokens
    input.all.router = -input.x.narrow(0, 0, 1).repeat({kExperts, 1});
    input.all.router[5] *= -1;
    check_same(input);
    input = random_input(router, {8, 8}, 4);
    input.x.narrow(0, 3, 6).zero_();
    check_same(input);
  }
}

}  // namespace moe::test
