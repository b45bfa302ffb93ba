// The line of a step in metrics.jsonl, and the last learning rate of a model folder.
#include "core/train/observe/metrics.h"

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

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

}  // namespace

TEST_CASE("a step's metrics carry the counters of its layers, and their total", "[train]") {
  StepRecord record;
  record.tokens = 8;
  record.moe_layers = {0, 2};
  record.layers = {layer_of_two_ranks(), layer_of_two_ranks()};
  record.row_bytes = 64;
  const OrderedJson json = to_json(record);
  CHECK(json["tokens"] == 8);
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
  // The counters of core/route/README.md.
  for (const char* name : {"requests", "dropped_requests", "dropped_tokens", "unserved_tokens",
                           "fr_filled", "fr_rejected", "ir_tokens", "slots_total", "slots_used",
                           "padding", "load", "experts_per_token", "sparsity", "entropy",
                           "dead_experts", "dropped_per_rank", "ir_per_rank", "bytes_sent"}) {
    CHECK(json["layers"][0].contains(name));
  }
}

TEST_CASE("the last learning rate is that of the last complete line of the run, or none",
          "[train]") {
  const TempDir dir;
  write_file(dir / "run/final/config.json", "{}");
  CHECK_FALSE(last_learning_rate(dir / "run/final"));  // no metrics.jsonl
  using Rate = std::optional<double>;
  for (const auto& [text, rate] : {std::pair<const char*, Rate>(R"({"step": 1, "lr": 0.5}
{"step": 2, "lr": 0.25}
{"step": 2, "held_out_loss": 1}
{"step": 3, "lr": 0.1)",
                                                                0.25),
                                   {"{\"step\": 1, \"lr\": \"much\"}\n", Rate()},
                                   {"{\"step\": 1, \"lr\": 0.5}\nno JSON\n", Rate()}}) {
    write_file(dir / "run/metrics.jsonl", text);
    CHECK(last_learning_rate(dir / "run/final/") == rate);
  }
  CHECK_FALSE(last_learning_rate(dir / "run"));

  LogState state;
  state.history.add({{"step", 2}, {"lr", 0.125}}, "line 1");
  std::filesystem::create_directories(dir / "checkpoint");
  write_log_state(state, dir / "checkpoint");
  CHECK(last_learning_rate(dir / "checkpoint") == 0.125);
  write_file(dir / "checkpoint/history.json", "{");
  CHECK_FALSE(last_learning_rate(dir / "checkpoint"));

  write_file(dir / "moe/upcycle.json", R"({"source": {"last_learning_rate": 0.25}})");
  CHECK(last_learning_rate(dir / "moe") == 0.25);
  for (const char* damaged : {"{", "[]", R"({"source": 3})", R"({"source": {}})"}) {
    CAPTURE(damaged);
    write_file(dir / "moe/upcycle.json", damaged);
    CHECK_FALSE(last_learning_rate(dir / "moe"));
  }
  CHECK_FALSE(last_learning_rate(dir / "nowhere"));
}
