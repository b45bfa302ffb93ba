// A whole model whose experts are shared out among ranks against the same model on one rank: what
// each holds and reads, forward and backward with every kind of recomputation, adapters, and what
// goes over the wire.

#include "core/model/moe/expert_parallel.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <fstream>

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
// f32: hidden rows of order 1 behind 3 layers, sums of at most 24 products: 3 x 24 x 6e-8 = 4e-6
// in the worst order, a tenth of that in a likely one.
constexpr double kOutput = 1e-6;
// Sums of 40 tokens' terms besides, which cancel: their rounding is that of the largest entries of
// a gradient (some 60), 40 x 6e-8 = 2.4e-6 of them in the worst order.
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
  model::save_folder(model, model.default_routing(), copies, dir / "moe", false);
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

// Sequences begin..begin+count-1 of a fixed text, through a model and back.
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

// Every rank's result, put together.
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

// Bytes of the files of `folder` that this process has in memory by mappings of them.
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

TEST_CASE("a model computes and learns the same on one rank and on many", "[model]") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir);
  for (const char* router :
       {"top1", "top1+ir+fr", "top2:cf=inf", "topp:0.4", "relu:k=1", "top2+fr"}) {
    for (const int64_t ranks : {4, 8}) {
      for (const int64_t processes : {2, 4}) {
        INFO(router << ", W " << ranks << ", " << processes << " processes");
        Run run{router, ranks};
        run.sequences.assign(processes, 8 / processes);
        check_same(checkpoint, run);
      }
    }
  }
}

TEST_CASE("layers computed again exchange again, on all ranks in one order", "[model]") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir);
  for (const auto recompute : {model::Recompute::kFeedForward, model::Recompute::kLayer}) {
    for (const char* router : {"top1+ir+fr", "top2:cf=inf", "topp:0.4", "relu:k=1"}) {
      INFO(router);
      check_same(checkpoint, {router, 4, recompute, {}, {2, 2, 2, 2}});
      check_same(checkpoint, {router, 4, recompute, {}, {4, 4}});
    }
  }
}

TEST_CASE("adapters of shared experts are those of one process", "[model]") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir);
  for (const std::vector<std::string>& on :
       {std::vector<std::string>{"ffn"}, {"attention"}, {"attention", "ffn"}}) {
    INFO(on.front() << " and " << on.size() - 1 << " more");
    check_same(checkpoint, {"top2", 8, model::Recompute::kNone, {2, 4, on}, {2, 2, 2, 2}});
  }
}

TEST_CASE("ranks with few or no tokens go along, whatever is trained", "[model]") {
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
          // Dropless: who is at home where does not matter, only the losses' groups would.
          INFO(router << ", " << sequences.size() << " processes, first " << sequences[0]);
          check_same(checkpoint, {router, 4, recompute, lora, sequences, false});
        }
        on_many(checkpoint, {"top1+ir+fr", 4, recompute, lora, sequences});  // it ends
      }
    }
  }
}

TEST_CASE("a shared expert is whole on every rank, and its gradient the sum of all", "[model]") {
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

TEST_CASE("each rank holds its own experts alone, and nothing of the file", "[model]") {
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
    // Memory holds a weight once: what was read of the file is given back, tensor by tensor, but
    // for the pages that the kernel maps around those that are touched, up to 64 KiB a tensor.
    CHECK(still_mapped < file_bytes / 4);
  }
}

TEST_CASE("tokens per rank are gathered once a forward, and FR and IR send nothing", "[model]") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir);
  const auto counts_of = [&](const std::string& router) {
    const TimeLimit limit(kSeconds);
    std::vector<std::map<std::string, CountingComm::Count>> counts(2);
    test::run_as_threads(2, [&](distributed::Comm& comm) {
      CountingComm counting(comm);
      Llama model =
          Llama::load(checkpoint, distributed::make_layout(2, comm.rank(), 1, kExperts, kExperts));
      model.set_group(&counting);
      step(model, {router, 8, {}, {}, {}}, comm.rank() * 4, 4);
      counts[comm.rank()] = counting.counts;
    });
    return counts[0];
  };
  const auto plain = counts_of("top1:cf=1");
  // Two MoE layers there and back, forward and backward; 4 logical ranks of 5 tokens have one slot
  // each at every of the 4 experts of the other process.
  CHECK(plain.at("all_gather").calls == 1);
  CHECK(plain.at("all_to_all") == CountingComm::Count{8, 8 * 4 * 4 * 16 * 4});
  CHECK((counts_of("top1+fr:cf=1") == plain));
  CHECK((counts_of("top1+ir:cf=1") == plain));
  CHECK((counts_of("top1+ir+fr:cf=1") == plain));
  const auto dropless = counts_of("top1:cf=inf");
  CHECK(dropless.at("all_gather").calls == 1 + 2);  // everybody's loads before a layer's rows
  CHECK(dropless.at("all_to_all").calls == 8);
}

TEST_CASE("activations in bf16 travel in bf16", "[model]") {
  const TempDir dir;
  const io::Checkpoint checkpoint = mixture(dir);
  const TimeLimit limit(kSeconds);
  std::vector<int64_t> bytes(2);
  test::run_as_threads(2, [&](distributed::Comm& comm) {
    CountingComm counting(comm);
    Llama model =
        Llama::load(checkpoint, distributed::make_layout(2, comm.rank(), 1, kExperts, kExperts));
    model.set_group(&counting);
    model.require_gradients();
    model.set_compute({model::Precision::kBf16});
    auto routing = model.default_routing();
    routing.router = route::parse_router("top1:cf=1");
    model.forward({at::arange(20, at::kLong), {20}}, routing).hidden.sum().backward();
    bytes[comm.rank()] = counting.counts.at("all_to_all").bytes;
  });
  CHECK(bytes[0] == 8 * 4 * 4 * 16 * 2);
}

}  // namespace moe::test
