// A model with expert parallelism against the same model on one rank: outputs and gradients with
// every kind of recomputation and with adapters, memory, and bytes sent.

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <fstream>

#include "core/model/llama/llama.h"
#include "core/model/moe/dispatch_layout.h"
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
  routing.wants_z_loss = routing.wants_sequence_balance = run.with_losses;
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

// Returns the resident bytes of this process's mappings of files in `folder`.
int64_t mapped_bytes(const std::filesystem::path& folder) {
  std::ifstream maps("/proc/self/smaps");
  bool is_ours = false;
  int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ') && line.find('-') < line.find(':')) {
      is_ours = line.find(folder.string()) != std::string::npos;
    } else if (is_ours && line.starts_with("Rss:")) {
      bytes += std::stoll(line.substr(4)) * 1024;
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("outputs and gradients of a model are the same on 1, 2 and 4 processes", "[model]") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir);
  for (const char* router :
       {"top1", "top1+ir+fr", "top2:cf=inf", "topp:0.4", "relu:k=1", "top2+fr"}) {
    for (const std::vector<int64_t>& sequences : {std::vector<int64_t>{4, 4}, {2, 2, 2, 2}}) {
      for (const int64_t ranks : {4, 8}) {
        INFO(router << ", W " << ranks << ", " << sequences.size() << " processes");
        check_same(checkpoint, {router, ranks, model::Recompute::kNone, {}, sequences});
      }
      for (const auto recompute : {model::Recompute::kFeedForward, model::Recompute::kLayer}) {
        INFO(router << ", recomputed, " << sequences.size() << " processes");
        check_same(checkpoint, {router, 4, recompute, {}, sequences});
      }
    }
  }
}

TEST_CASE("adapters of experts get the same gradients on 1 and 4 processes", "[model]") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir);
  for (const std::vector<std::string>& on :
       {std::vector<std::string>{"ffn"}, {"attention"}, {"attention", "ffn"}}) {
    INFO(on.front() << " and " << on.size() - 1 << " more");
    check_same(checkpoint, {"top2", 8, model::Recompute::kNone, {2, 4, on}, {2, 2, 2, 2}});
  }
}

TEST_CASE("ranks with few or no tokens compute the same, whatever is trained", "[model]") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir);
  for (const auto recompute :
       {model::Recompute::kNone, model::Recompute::kFeedForward, model::Recompute::kLayer}) {
    for (const std::vector<int64_t>& sequences :
         {std::vector<int64_t>{3, 0}, {0, 2}, {1, 0, 4, 0}, {0, 0, 0, 1}}) {
      for (const model::LoraSettings& lora :
           {model::LoraSettings{}, model::LoraSettings{2, 4, {"attention"}},
            model::LoraSettings{2, 4, {"ffn"}}}) {
        for (const char* router : {"top2:cf=inf", "topp:0.4", "relu:k=1"}) {
          // Dropless: the home of a token matters only for the losses, which are off.
          INFO(router << ", " << sequences.size() << " processes, first " << sequences[0]);
          check_same(checkpoint, {router, 4, recompute, lora, sequences, false});
        }
        on_many(checkpoint, {"top1+ir+fr", 4, recompute, lora, sequences});  // it ends
      }
    }
  }
}

TEST_CASE("a shared expert is replicated on every rank, and its gradient is the sum over ranks",
          "[model]") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir, {}, /*shared_expert=*/true);
  for (const auto& parameter : Llama::load(checkpoint).parameters()) {
    CHECK((parameter.name.find("shared_expert") == std::string::npos || !parameter.is_expert));
  }
  const model::LoraSettings lora{2, 4, {"ffn"}};
  for (const char* router : {"top1+ir+fr", "top2:cf=inf", "relu:k=1"}) {
    for (const auto recompute :
         {model::Recompute::kNone, model::Recompute::kFeedForward, model::Recompute::kLayer}) {
      INFO(router);
      check_same(checkpoint, {router, 4, recompute, {}, {4, 4}});
      check_same(checkpoint, {router, 4, recompute, lora, {2, 2, 2, 2}});
    }
  }
  check_same(checkpoint, {"top2:cf=inf", 4, model::Recompute::kNone, {}, {3, 0}, false});
  check_same(checkpoint, {"top2:cf=inf", 4, model::Recompute::kLayer, lora, {0, 2}, false});
}

TEST_CASE("each rank holds only its own experts, and no pages of the file", "[model]") {
  const TempDir dir;
  TinyCheckpoint shape;
  shape.layers = 1;
  shape.hidden = 64;
  shape.intermediate = 1024;  // an expert is 768 KiB, what is dense 100 KiB
  const io::Checkpoint written = mixture(dir, shape);
  const auto file_bytes =
      static_cast<int64_t>(std::filesystem::file_size(dir / "moe/model.safetensors"));
  for (const int64_t processes : {1, 2, 4}) {
    const io::Checkpoint checkpoint(dir / "moe");
    const auto layout = distributed::make_layout(processes, processes - 1, 1, kExperts, kExperts);
    const int64_t before = mapped_bytes(dir / "moe");
    const Llama model = Llama::load(checkpoint, layout);
    const int64_t still_mapped = mapped_bytes(dir / "moe") - before;
    CHECK(model.parameters()[7].tensor.size(0) == kExperts / processes);
    CHECK(model.clone().parameters()[7].tensor.size(0) == kExperts / processes);
    CHECK(Llama::without_weights(model.config(), layout).parameters()[7].tensor.size(0) ==
          kExperts / processes);
    // Pages of the file are released tensor by tensor, except those that the kernel maps around
    // the accessed ones, up to 64 KiB a tensor.
    CHECK(still_mapped < file_bytes / 4);
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
  for (const char* router : {"top1:cf=1", "top1+fr:cf=1", "top1+ir:cf=1", "top1+ir+fr:cf=1"}) {
    INFO(router);
    CHECK(sent(router, model::Precision::kF32) == kNumbers * 4);
    CHECK(sent(router, model::Precision::kBf16) == kNumbers * 2);
  }
}

}  // namespace moe::test
