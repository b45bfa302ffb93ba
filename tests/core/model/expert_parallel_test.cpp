// A model with expert parallelism against the same model on one rank: outputs and gradients with
// every kind of recomputation and with adapters, and bytes sent.

#include <array>

#include "core/model/llama/llama.h"
#include "core/model/moe/layer.h"
#include "tests/support/catch.h"
#include "tests/support/counting_comm.h"
#include "tests/support/gradcheck.h"
#include "tests/support/loaded_mixture.h"
#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"

namespace moe::test {
namespace {

using at::Tensor;
using model::Llama;
using Tensors = std::map<std::string, Tensor>;
using model::MoeWeights;
using Counts = std::vector<int64_t>;

constexpr int64_t kExperts = 8, kSequence = 5;
constexpr int kSeconds = 60;
// f32: hidden rows of order 1 after 3 layers, sums of at most 24 products: 3 x 24 x 6e-8 = 4e-6 in
// the worst order of sums, a tenth of that in a likely one.
constexpr double kOutput = 1e-6;
// Gradients are also sums over 40 tokens, whose terms cancel. The error is relative to the largest
// entries (some 60): 40 x 6e-8 = 2.4e-6 in the worst order of sums.
constexpr double kGradient = 2.4e-6;

// A mixture in layers 0 and 2 whose experts differ.
io::Checkpoint mixture(const TempDir& dir, const TinyCheckpoint& shape = {},
                       bool shared_expert = false) {
  write_tiny_checkpoint(dir / "dense", shape);
  write_varied_mixture(dir, {.router = "top2", .experts = kExperts, .shared_expert = shared_expert},
                       0.1, 7);
  return io::Checkpoint(dir / "moe");
}

struct Run {
  std::string router = "top2";
  int64_t logical_ranks = 8;
  model::Recompute recompute = model::Recompute::kNone;
  model::LoraSettings lora = {};
  std::vector<int64_t> sequences = {};  // of each process
  bool with_losses = true;
};

struct Result {
  Tensor hidden;
  double losses = 0;
  Tensors gradients;  // of what is trained
  std::map<std::string, bool> is_expert;
};

// Runs a forward and backward over sequences begin..begin+count-1 of a fixed text.
Result step(Llama& model, const Run& run, int64_t begin, int64_t count) {
  model.set_compute({model::Precision::kF32, run.recompute});
  if (run.lora.rank > 0) {
    model.add_lora(run.lora, 3);
  }
  for (const auto& parameter : model.parameters()) {
    const bool is_adapter = parameter.name.find(".lora_") != std::string::npos;
    Tensor(parameter.tensor).requires_grad_(run.lora.rank == 0 || is_adapter);
  }
  const Tensor ids = (at::arange(64 * kSequence, at::kLong) * 7 % 61)
                         .narrow(0, begin * kSequence, count * kSequence);
  auto routing = model.default_routing();
  routing.router = route::parse_router(run.router);
  routing.ep_ranks = run.logical_ranks;
  routing.compute_z_loss = routing.compute_sequence_balance = run.with_losses;
  const auto out =
      model.forward({ids, std::vector<int64_t>(static_cast<size_t>(count), kSequence)}, routing);
  Tensor loss =
      (out.hidden * at::cos(at::arange(16, at::kFloat) + ids.unsqueeze(1).to(at::kFloat))).sum();
  Result result;
  for (const auto member : route::kAllLosses) {
    const Tensor& one = out.losses.*member;
    if (one.defined() && run.with_losses) {
      result.losses += one.item<double>();
      loss = loss + 10 * one;
    }
  }
  if (loss.requires_grad()) {
    loss.backward();
  }
  result.hidden = out.hidden.detach();
  for (const auto& parameter : model.parameters()) {
    if (parameter.tensor.requires_grad()) {
      const Tensor gradient = parameter.tensor.grad();
      result.gradients[parameter.name] =
          gradient.defined() ? gradient : at::zeros_like(parameter.tensor);
      result.is_expert[parameter.name] = parameter.is_expert;
    }
  }
  return result;
}

// Runs all ranks and joins their results.
Result on_many(const io::Checkpoint& checkpoint, const Run& run) {
  const TimeLimit limit(kSeconds);
  const auto processes = static_cast<int64_t>(run.sequences.size());
  std::vector<Result> results(run.sequences.size());
  test::run_as_threads(processes, [&](distributed::Comm& comm) {
    const auto layout =
        distributed::make_layout(processes, comm.rank(), 1, run.logical_ranks, kExperts);
    Llama model = Llama::load(checkpoint, layout);
    model.set_group(&comm);
    const int64_t begin =
        std::accumulate(run.sequences.begin(), run.sequences.begin() + comm.rank(), int64_t{0});
    results[comm.rank()] = step(model, run, begin, run.sequences[comm.rank()]);
  });
  Result all = results.front();
  for (size_t process = 1; process < results.size(); ++process) {
    const Result& one = results[process];
    all.hidden = at::cat({all.hidden, one.hidden});
    all.losses += one.losses;
    for (auto& [name, gradient] : all.gradients) {
      const Tensor& other = one.gradients.at(name);
      gradient = all.is_expert.at(name) ? at::cat({gradient, other}) : gradient + other;
    }
  }
  return all;
}

void check_same(const io::Checkpoint& checkpoint, const Run& run) {
  Llama whole = Llama::load(checkpoint);
  const Result one =
      step(whole, run, 0, std::accumulate(run.sequences.begin(), run.sequences.end(), int64_t{0}));
  const Result many = on_many(checkpoint, run);
  CHECK(distance(many.hidden, one.hidden) < kOutput);
  CHECK(many.losses == Approx(one.losses).epsilon(1e-6));
  REQUIRE(many.gradients.size() == one.gradients.size());
  for (const auto& [name, gradient] : one.gradients) {
    INFO(name);
    REQUIRE(many.gradients.at(name).sizes() == gradient.sizes());
    const double largest = gradient.abs().max().item<double>();
    CHECK((many.gradients.at(name) - gradient).abs().max().item<double>() <
          kGradient * (1 + largest));
  }
}

constexpr int64_t kWidth = 6, kInner = 5;

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
Output run_layer(const Input& input, const model::TokenPartition& partition, int64_t first_token,
                 int64_t first_expert, int64_t experts) {
  const auto tokens = static_cast<int64_t>(partition.local.source_rank.size());
  const Tensor x = leaf(input.x.narrow(0, first_token, tokens));
  const MoeWeights weights{leaf(input.all.router),
                           leaf(input.all.gate_up.narrow(0, first_expert, experts)),
                           leaf(input.all.down.narrow(0, first_expert, experts))};
  const auto out = model::moe_forward(x, {weights.router, input.router}, weights.experts(),
                                      partition, {.gate_scale = 0.7});
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
    model::TokenPartition partition(tokens, input.logical_ranks,
                                    {&comm, layout, input.overlap_all_to_all},
                                    num_sequences(tokens));
    request_losses(partition.local, tokens, 0);
    outputs[comm.rank()] = run_layer(input, partition, input.first_token(comm.rank()),
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

TEST_CASE("outputs and gradients of a model are the same on 1, 2 and 4 processes") {
  using model::Recompute;
  const std::vector<int64_t> two{4, 4}, four{2, 2, 2, 2};
  const std::vector<std::string> attention{"attention"}, ffn{"ffn"}, both{"attention", "ffn"};
  const TempDir dir, shared;
  const io::Checkpoint checkpoint = mixture(dir);
  const io::Checkpoint with_shared = mixture(shared, {}, /*shared_expert=*/true);
  for (const Run& run : {Run{"top1", 4, Recompute::kNone, {}, two},
                         {"top1+ir+fr", 8, Recompute::kNone, {}, four},
                         {"top2:cf=inf", 4, Recompute::kFeedForward, {}, four},
                         {"top2:cf=inf", 8, Recompute::kLayer, {}, two},
                         {"topp:0.4", 8, Recompute::kNone, {}, two},
                         {"topp:0.4", 4, Recompute::kLayer, {}, four},
                         {"relu:k=1", 4, Recompute::kFeedForward, {}, two},
                         {"top2+fr", 8, Recompute::kLayer, {}, four},
                         {"top2", 8, Recompute::kNone, {2, 4, ffn}, four},
                         {"top2", 8, Recompute::kFeedForward, {2, 4, attention}, four},
                         {"top2", 8, Recompute::kNone, {2, 4, both}, two}}) {
    INFO(run.router << ", W " << run.logical_ranks << ", " << run.sequences.size());
    check_same(checkpoint, run);
    if (run.logical_ranks == 4 || run.lora.rank > 0) {
      check_same(with_shared, run);
    }
  }
}

TEST_CASE("ranks with few or no tokens compute the same for any set of trained parameters") {
  using model::Recompute;
  const model::LoraSettings none, attention{2, 4, {"attention"}}, ffn{2, 4, {"ffn"}};
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir, {}, /*shared_expert=*/true);
  // Dropless: the source rank of a token matters only for the losses, which are off.
  for (const Run& run : {Run{"top2:cf=inf", 4, Recompute::kNone, none, {3, 0}, false},
                         {"topp:0.4", 4, Recompute::kFeedForward, attention, {0, 2}, false},
                         {"relu:k=1", 4, Recompute::kLayer, ffn, {1, 0, 4, 0}, false},
                         {"top2:cf=inf", 4, Recompute::kLayer, attention, {0, 0, 0, 1}, false},
                         {"topp:0.4", 4, Recompute::kLayer, none, {1, 0, 4, 0}, false},
                         {"relu:k=1", 4, Recompute::kNone, ffn, {0, 0, 0, 1}, false},
                         {"top2:cf=inf", 4, Recompute::kFeedForward, ffn, {0, 2}, false}}) {
    INFO(run.router << ", " << run.sequences.size() << " processes, first " << run.sequences[0]);
    check_same(checkpoint, run);
    Run with_capacity = run;
    with_capacity.router = "top1+ir+fr";
    on_many(checkpoint, with_capacity);  // must not hang
  }
}

TEST_CASE("each rank holds only its own experts") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir);
  for (const int64_t processes : {1, 2, 4}) {
    const auto layout = distributed::make_layout(processes, processes - 1, 1, kExperts, kExperts);
    const Llama model = Llama::load(checkpoint, layout);
    for (const auto& parameters : {model.parameters(), model.clone().parameters(),
                                   Llama::without_weights(model.config(), layout).parameters()}) {
      CHECK(parameters[7].tensor.size(0) == kExperts / processes);
    }
  }
}

TEST_CASE("FR and IR send no more than the capacity, and bf16 sends half of the bytes of f32") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir);
  const auto sent = [&](const char* router, model::Precision precision) {
    const TimeLimit limit(kSeconds);
    std::vector<int64_t> bytes(2);
    test::run_as_threads(2, [&](distributed::Comm& comm) {
      CountingComm counting(comm);
      Llama model =
          Llama::load(checkpoint, distributed::make_layout(2, comm.rank(), 1, kExperts, kExperts));
      model.set_group(&counting);
      model.require_gradients();
      model.set_compute({precision});
      auto routing = model.default_routing();
      routing.router = route::parse_router(router);
      model.forward({at::arange(20, at::kLong), {20}}, routing).hidden.sum().backward();
      bytes[comm.rank()] = counting.bytes_sent;
    });
    return bytes[0];
  };
  // Two MoE layers send rows to the experts and back, forward and backward. Each of 4 logical ranks
  // has one slot of 16 numbers at each of the 4 experts of the other process.
  constexpr int64_t kNumbers = 8 * 4 * 4 * 16;
  CHECK(sent("top1:cf=1", model::Precision::kF32) == kNumbers * 4);
  CHECK(sent("top1+ir+fr:cf=1", model::Precision::kF32) == kNumbers * 4);
  CHECK(sent("top1+ir+fr:cf=1", model::Precision::kBf16) == kNumbers * 2);
}

// An expert-parallel MoE layer against the same layer on one rank: outputs, every gradient and
// losses, over routers, group sizes, logical ranks and awkward inputs. In f64, so that the
// tolerance is that of rounding alone.

TEST_CASE("outputs and gradients of a layer are the same on 1, 2 and 4 processes") {
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

TEST_CASE("one expert with all tokens, or tokens of zeros, compute the same") {
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

}  // namespace
}  // namespace moe::test
