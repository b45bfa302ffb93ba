// A step's line in metrics.jsonl; and, hidden, what counting costs beside the work that it counts
// (the bound: 1 % of a step):
//   build/cpu/core_train_metrics_test "[!benchmark]"
#include "core/train/observe/metrics.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>

#include "core/model/convert/upcycle.h"
#include "core/route/route.h"
#include "core/train/step/gradients.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe {
namespace {

route::CounterValues layer_of_two_ranks() {
  route::CounterValues values;
  values.tokens = 8;
  values.requests = 8;
  values.dropped_requests = values.dropped_tokens = 3;
  values.unserved_tokens = 2;
  values.ir_tokens = 1;
  values.slots_total = 8;
  values.slots_used = 5;
  values.padding = 3;
  values.rows_sent = 4;
  values.entropy_sum = 4;
  values.tokens_per_expert = {6, 0};
  values.rank_dropped = {3, 0};
  values.rank_ir = {1, 0};
  return values;
}

TEST_CASE("a step's metrics carry the counters of its layers, and their total", "[train]") {
  train::StepRecord record;
  record.tokens = 8;
  record.moe_layers = {0, 2};
  record.layer_counters = {layer_of_two_ranks(), layer_of_two_ranks()};
  record.row_bytes = 64;
  const OrderedJson json = to_json(record);
  CHECK(json["tokens"] == 8);  // not once a layer
  CHECK(json["requests"] == 16);
  CHECK(json["dropped_share"] == 3.0 / 8);
  CHECK(json["unserved_share"] == 0.25);
  CHECK(json["bytes_sent"] == 2 * 8 * 64);
  CHECK(json["dropped_per_rank"] == OrderedJson({6, 0}));
  CHECK(json["dropped_rank_max"] == 6);
  CHECK(json["dropped_rank_mean"] == 3.0);
  CHECK(json["ir_rank_max"] == 2);
  CHECK(json["entropy"] == 0.5);
  CHECK(json["load_max_over_mean"] == 2.0);
  CHECK(json["dead_experts"] == 2);
  CHECK_FALSE(json.contains("load"));
  REQUIRE(json["layers"].size() == 2);
  CHECK(json["layers"][1]["layer"] == 2);
  CHECK(json["layers"][1]["bytes_sent"] == 2 * 4 * 64);
  CHECK(json["layers"][1]["load"] == OrderedJson({6, 0}));
  // Everything that core/route/README.md says is counted.
  for (const char* name : {"requests", "dropped_requests", "dropped_tokens", "unserved_tokens",
                           "fr_filled", "fr_rejected", "ir_tokens", "slots_total", "slots_used",
                           "padding", "load", "experts_per_token", "sparsity", "entropy",
                           "dead_experts", "dropped_per_rank", "ir_per_rank", "bytes_sent"}) {
    CHECK(json["layers"][0].contains(name));
  }
}

// ------------------------------------------------------------------------------- what it costs

// Seconds of `work`, the median of `repeats` after one that warms up.
template <typename Work>
double median_seconds(int repeats, Work&& work) {
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i > 0) {
      seconds.push_back(took.count());
    }
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

// Counting one layer's plan, and reading it back.
double counting_seconds(int64_t tokens, int64_t experts, int64_t ranks, const std::string& router) {
  const auto settings = route::parse_router(router);
  const auto routing =
      route::route(at::randn({tokens, experts}), settings, route::spread_over_ranks(tokens, ranks));
  return median_seconds(50, [&] {
    route::read_counters({route::count_plan(routing.input, routing.plan, settings)});
  });
}

const std::vector<std::string> kRouters = {"top1", "top2+ir+fr", "topp:0.4", "relu:k=1"};

TEST_CASE("counting beside one layer, T = 4096, D = 1024, F = 256", "[!benchmark]") {
  at::set_num_threads(1);
  constexpr int64_t kTokens = 4096, kWidth = 1024, kInner = 256;
  for (const int64_t experts : {8, 32}) {
    const auto x = at::randn({kTokens, kWidth}).requires_grad_(true);
    const model::MoeWeights weights = {
        (at::randn({experts, kWidth}) * 0.02).requires_grad_(true),
        (at::randn({experts, 2 * kInner, kWidth}) * 0.02).requires_grad_(true),
        (at::randn({experts, kWidth, kInner}) * 0.02).requires_grad_(true)};
    for (const auto& router : kRouters) {
      const auto settings = route::parse_router(router);
      const auto group = route::spread_over_ranks(kTokens, experts);
      const double layer = median_seconds(
          3, [&] { model::moe_forward(x, weights, settings, group).y.sum().backward(); });
      const double counting = counting_seconds(kTokens, experts, experts, router);
      fmt::print("E {:>2}  {:<11} layer {:8.1f} ms  counting {:6.3f} ms  {:.3f} %\n", experts,
                 router, 1e3 * layer, 1e3 * counting, 100 * counting / layer);
    }
  }
}

TEST_CASE("counting beside a training step of a 260K model, 4 x 512 tokens", "[!benchmark]") {
  at::set_num_threads(1);
  constexpr int64_t kRows = 4, kLength = 512, kVocab = 512, kExperts = 8;
  const test::TempDir dir;
  test::TinyCheckpoint options;
  options.hidden = 64;
  options.intermediate = 172;
  options.layers = 5;
  options.heads = 8;
  options.kv_heads = 4;
  options.vocab = kVocab;
  options.max_positions = kLength;
  test::write_tiny_checkpoint(dir / "dense", options);
  data::Batch batch;
  for (int64_t i = 0; i < kRows * kLength; ++i) {
    batch.ids.push_back((i * 7919) % kVocab);
    batch.targets.push_back((i * 104729) % kVocab);
  }
  batch.lengths.assign(kRows, kLength);
  batch.target_count = kRows * kLength;
  for (const auto& router : kRouters) {
    const io::Checkpoint parent(dir / "dense");
    model::UpcycleSettings upcycle;
    upcycle.out = dir / ("moe-" + router);
    upcycle.experts = kExperts;
    upcycle.router = route::parse_router(router);
    upcycle.ep_ranks = kExperts;
    model::upcycle(parent, model::plan_upcycle(parent, upcycle), upcycle);
    model::Llama llama = model::Llama::load(io::Checkpoint(upcycle.out));
    llama.require_gradients();
    const double step = median_seconds(5, [&] {
      train::add_gradients(llama, {batch}, llama.default_routing(), {0.01, 1e-4, 1e-8});
    });
    const auto layers = static_cast<double>(llama.config().moe->layers.size());
    const double counting = layers * counting_seconds(kRows * kLength, kExperts, kExperts, router);
    fmt::print("{:<11} step {:8.1f} ms  counting {:6.3f} ms ({} layers)  {:.3f} %\n", router,
               1e3 * step, 1e3 * counting, layers, 100 * counting / step);
  }
}

}  // namespace
}  // namespace moe
