// A model with expert parallelism against the same model on one rank: outputs and gradients with
// every kind of recomputation and with adapters, and bytes sent.

#include <ATen/core/grad_mode.h>

#include "core/model/llama/llama.h"
#include "tests/support/catch.h"
#include "tests/support/counting_comm.h"
#include "tests/support/gradcheck.h"
#include "tests/support/mixture.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temp_dir.h"
#include "tests/support/time_limit.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe::test {
namespace {

using at::Tensor;
using model::Llama;
using Tensors = std::map<std::string, Tensor>;

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
  write_mixture(dir / "dense", dir / "copies",
                {.router = "top2", .experts = kExperts, .shared_expert = shared_expert});
  const io::Checkpoint copies(dir / "copies");
  const Llama model = Llama::load(copies);
  at::manual_seed(7);
  for (const auto& parameter : model.parameters()) {
    const at::NoGradGuard no_gradients;
    Tensor(parameter.tensor) += at::randn_like(parameter.tensor) * 0.1;
  }
  model::save_folder(model, model.default_routing(), copies, dir / "moe", false,
                     *distributed::solo_comm());
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

}  // namespace

TEST_CASE("outputs and gradients of a model are the same on 1, 2 and 4 processes", "[model]") {
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

TEST_CASE("ranks with few or no tokens compute the same, whatever is trained", "[model]") {
  using model::Recompute;
  const model::LoraSettings none, attention{2, 4, {"attention"}}, ffn{2, 4, {"ffn"}};
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir, {}, /*shared_expert=*/true);
  // Dropless: the home of a token matters only for the losses, which are off.
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
    on_many(checkpoint, with_capacity);  // it ends
  }
}

TEST_CASE("each rank holds only its own experts", "[model]") {
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

TEST_CASE("FR and IR send no more than the capacity, and bf16 sends half of the bytes of f32",
          "[model]") {
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
  // Two MoE layers there and back, forward and backward; 4 logical ranks of 5 tokens have one slot
  // each at every one of the 4 experts of the other process, of 16 numbers.
  constexpr int64_t kNumbers = 8 * 4 * 4 * 16;
  CHECK(sent("top1:cf=1", model::Precision::kF32) == kNumbers * 4);
  CHECK(sent("top1+ir+fr:cf=1", model::Precision::kF32) == kNumbers * 4);
  CHECK(sent("top1+ir+fr:cf=1", model::Precision::kBf16) == kNumbers * 2);
}

}  // namespace moe::test
