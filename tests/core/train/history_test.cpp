#include "core/train/observe/history.h"

#include "core/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

Json step_line(int64_t step, int64_t first_load = 6) {
  return {{"step", step},
          {"loss", 3.0 - 0.1 * static_cast<double>(step)},
          {"total_tokens", 100 * step},
          {"seconds", 0.5},
          {"skipped_steps", step < 3 ? 0 : 1},
          {"layers", Json::array({{{"layer", 2}, {"load", {first_load, 2, 0}}}})}};
}

}  // namespace

TEST_CASE("a history accumulates the lines of metrics.jsonl", "[train]") {
  History history;
  history.add({{"step", 0},
               {"held_out_loss", 4.0},
               {"tasks", {{"piqa", {{"acc", 0.5}, {"acc_stderr", 0.1}}}}},
               {"evaluation_seconds", 2.0}},
              "metrics");
  for (int64_t step = 1; step <= 4; ++step) {
    history.add(step_line(step), "metrics");
  }
  CHECK(history.steps == 4);
  CHECK(history.total_tokens == 400);
  CHECK(history.seconds == 4.0);
  CHECK(history.skipped_count == 1);
  CHECK(history.skipped == std::vector<int64_t>{3});
  CHECK(history.curves().at("loss").points().size() == 4);
  CHECK(history.curves().at("tasks/piqa/acc").last.value == 0.5);
  CHECK(history.curves().at("held_out_loss").first.step == 0);
  REQUIRE(history.loads().columns().size() == 4);
  const LayerLoad& load = history.loads().columns()[0].loads.at(0);
  CHECK(load.layer == 2);
  CHECK(relative_load(load, 0) == 6.0 / 8 * 3);
  CHECK(relative_load(load, 2) == 0);
}

TEST_CASE("a step without targets has no point in the loss curve", "[train]") {
  History history;
  history.add(Json{{"step", 1}, {"loss", 2.5}, {"target_tokens", 7}, {"lr", 1e-3}}, "line 1");
  history.add(Json{{"step", 2}, {"loss", 0}, {"target_tokens", 0}, {"lr", 1e-3}}, "line 2");
  CHECK(history.curves().at("loss").last.step == 1);
  CHECK(history.curves().at("loss").last.value == 2.5);
  CHECK(history.curves().at("lr").last.step == 2);
}

TEST_CASE("a load map of many steps merges them into few columns and keeps the sums", "[train]") {
  LoadMap map;
  constexpr int64_t kSteps = 5000;
  for (int64_t step = 1; step <= kSteps; ++step) {
    map.add(step, {{0, {step, 1}}});
  }
  CHECK(map.columns().size() <= 160);
  CHECK(map.columns().size() >= 40);
  int64_t first = 0, second = 0, next = 1;
  for (const auto& column : map.columns()) {
    CHECK(column.begin == next);
    next = column.end + 1;
    first += column.loads[0].rows[0];
    second += column.loads[0].rows[1];
  }
  CHECK(first == kSteps * (kSteps + 1) / 2);
  CHECK(second == kSteps);
}

TEST_CASE("an incomplete last line of metrics.jsonl is ignored", "[train]") {
  const TempDir dir;
  const std::string whole = step_line(1).dump() + "\n" + step_line(2).dump() + "\n";
  write_file(dir / "metrics.jsonl", whole + step_line(3).dump());  // no newline: not finished
  CHECK(read_history(dir.path()).steps == 2);
  write_file(dir / "metrics.jsonl", whole + R"({"step": 3, "lo)");
  CHECK(read_history(dir.path()).steps == 2);
  write_file(dir / "metrics.jsonl", "");
  CHECK(read_history(dir.path()).curves().empty());
}

TEST_CASE("an invalid metrics.jsonl is refused with its line", "[train]") {
  const TempDir dir;
  const std::string good = step_line(1).dump() + "\n";
  for (const auto& [text, fact] : std::vector<std::pair<std::string, std::string>>{
           {good + "{broken\n", "metrics.jsonl line 2"},
           {"[1]\n", "metrics.jsonl line 1"},
           {"{\"loss\": 1}\n", "step"},
           {good + good, "step 1 cannot follow step 1"},
           {"{\"step\": -1}\n", "step -1"}}) {
    write_file(dir / "metrics.jsonl", text);
    CHECK_THAT(test::user_error_of([&] { read_history(dir.path()); }), contains_text(fact));
  }
  CHECK_FALSE(test::user_error_of([&] { read_history(dir / "none"); }).empty());
}

TEST_CASE("values of wrong types are ignored", "[train]") {
  History history;
  history.add(
      {{"step", 1},
       {"loss", "low"},
       {"lr", nullptr},
       {"tasks", {{"piqa", 3}}},
       {"layers", Json::array({1, {{"layer", 0}}, {{"layer", 1}, {"load", {-5, "x", 1e30}}}})}},
      "metrics");
  CHECK(history.curves().count("loss") == 0);
  CHECK(history.curves().count("lr") == 0);
  REQUIRE(history.loads().columns().size() == 1);
  CHECK((history.loads().columns()[0].loads[0].rows == std::vector<int64_t>{0, 0, 0}));
}

TEST_CASE("a history read from its JSON continues like the original", "[train]") {
  const auto sample = [](int64_t step) {
    return TextSample{step, step % 3 == 0 ? "one" : "other", fmt::format("after {}", step)};
  };
  const auto feed = [&](History& history, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      history.add(step_line(step, step % 5), "metrics");
      history.add(sample(step));
    }
  };
  const int64_t stop = GENERATE(0, 1, 7, 160, 161, 1000, 1001, 2500);
  History whole, begun;
  feed(whole, 1, 3000);
  feed(begun, 1, stop);
  const std::string text = begun.to_json().dump();
  History history = History::from_json(parse_json(text, "text"), "text");
  CHECK(history.to_json().dump() == text);
  feed(history, stop + 1, 3000);
  CHECK(history.to_json().dump() == whole.to_json().dump());
  CHECK_THROWS_AS(history.add(step_line(3000), "metrics"), UserError);
}
