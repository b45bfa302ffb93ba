// Averages of groups and of the papers' tables.
#include <set>

#include "core/base/error.h"
#include "core/eval/report/task_report.h"
#include "core/eval/tasks/tasks.h"
#include "tests/support/catch.h"

namespace moe::eval {
namespace {

TEST_CASE("every name is unique, and groups have known tasks", "[eval]") {
  std::set<std::string> names;
  for (const auto& task : known_tasks()) {
    CAPTURE(task.name);
    CHECK(names.insert(task.name).second);
    CHECK_FALSE(task.metrics.empty());
    CHECK_FALSE(task.data.hub.empty());
    CHECK_FALSE(task.data.schema.empty());
    CHECK((task.harness_items > 0) != task.name.starts_with("mmlu_"));
    CHECK(task.description.find('<') == std::string::npos);  // no variable is left
  }
  CHECK(known_tasks().size() == 129);
  CHECK(known_tasks(Compat::k041).size() == 129);
  for (const auto& group : known_groups()) {
    CAPTURE(group.name);
    CHECK(names.insert(group.name).second);
    for (const auto& task : group_tasks(group)) {
      CHECK(names.contains(task));
    }
  }
  CHECK(group_tasks(*find_group("mmlu")).size() == 57);
  CHECK(group_tasks(*find_group("mmlu_stem")).size() == 19);
  CHECK(group_tasks(*find_group("bbh_zeroshot")).size() == 27);
  CHECK(group_tasks(*find_group("leaderboard_bbh")).size() == 24);
  CHECK(group_tasks(*find_group("super-glue-lm-eval-v1")).size() == 8);
  CHECK((groups_among({"piqa", "mmlu"}) ==
         std::vector<std::string>{"mmlu", "mmlu_stem", "mmlu_other", "mmlu_social_sciences",
                                  "mmlu_humanities"}));
}

TEST_CASE("a group's mean weighs by questions, its error is pooled", "[eval]") {
  const Group group{"g", {"a", "b", "c", "not run"}, "", "acc"};
  const std::map<std::string, TaskAverage> tasks = {
      {"a", {{0.5, 0.05}, 100}}, {"b", {{0.25, 0.02}, 300}}, {"c", {{1.0, 0.1}, 20}}};
  const auto found = average(group, tasks, Compat::kCurrent);
  REQUIRE(found);
  CHECK(found->questions == 420);
  CHECK(found->mean.value == Approx((50 + 75 + 20) / 420.0).epsilon(1e-14));
  // lm_eval.api.metrics.pooled_sample_stderr([.05, .02, .1], [100, 300, 20])
  CHECK(found->mean.standard_error.value() == Approx(0.01918012322353359).epsilon(1e-12));
  CHECK_FALSE(average(group, {}, Compat::kCurrent));
}

TEST_CASE("compat 0.4.1 has the same mean, and the spread of the tasks as its error", "[eval]") {
  const Group group{"g", {"a", "b"}, "", "acc"};
  const std::map<std::string, TaskAverage> tasks = {{"a", {{0.5, 0.05}, 100}},
                                                    {"b", {{0.25, 0.02}, 300}}};
  const auto found = average(group, tasks, Compat::k041);
  REQUIRE(found);
  CHECK(found->mean.value == Approx(0.3125).epsilon(1e-14));
  const double variance = (99 * 0.0025 + 299 * 0.0004) / 399 +
                          100.0 * 300 / (400.0 * 399) * (0.3125 - 0.25) * (0.3125 - 0.25);
  CHECK(found->mean.standard_error.value() == Approx(std::sqrt(variance)).epsilon(1e-12));
}

TEST_CASE("compat names are checked", "[eval]") {
  CHECK(parse_compat("0.4.1") == Compat::k041);
  CHECK_THROWS_AS(parse_compat("0.3"), UserError);
}

TEST_CASE("averages of the papers' rows equal the printed ones", "[eval]") {
  // The first row of Rectify-Router's Table 1: four columns and their average, both
  // truncated, not rounded: 135.15 / 4 = 33.7875.
  PaperTable table{"",
                   "t",
                   {"MMLU", "SuperGLUE", "TruthfulQA", "LogiQA"},
                   {0.2585, 0.5906, 206.0 / 817, 163.0 / 651},
                   2,
                   true};
  CHECK(to_text(table) ==
        "t\n MMLU  SuperGLUE  TruthfulQA  LogiQA    Avg\n"
        "25.85      59.06       25.21   25.03  33.78\n");
  CHECK(per_cent(0.337875, 2, true) == "33.78");
  CHECK(per_cent(0.2903, 2, true) == "29.03");
  CHECK(per_cent(0.3856, 1, false) == "38.6");
  table.values[1] = std::nullopt;
  CHECK_FALSE(table.is_complete());
  CHECK(to_text(table).find("          -") != std::string::npos);
}

TEST_CASE("SuperGLUE has two averages, and Dynamic MoE's average has five tasks", "[eval]") {
  std::map<std::string, double> values = {
      {"mmlu acc", 0.3}, {"truthfulqa_mc1 acc", 0.25}, {"logiqa acc", 0.2}, {"record em", 0.9}};
  for (const char* task : {"boolq", "cb", "copa", "multirc", "sglue_rte", "wic", "wsc"}) {
    values[std::string(task) + " acc"] = 0.5;
  }
  const auto tables = paper_tables(values);
  REQUIRE(tables.size() == 3);
  CHECK(tables[0].values[1].value() == Approx(0.5));
  CHECK(tables[1].values[1].value() == Approx((7 * 0.5 + 0.9) / 8));
  CHECK(tables[0].average().value() == Approx((0.3 + 0.5 + 0.25 + 0.2) / 4));
  CHECK_FALSE(tables[2].is_complete());
  CHECK(tables[2].columns.size() == 5);
}

}  // namespace
}  // namespace moe::eval
