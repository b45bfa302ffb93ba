// What the files of known/ become: variables, forms, versions.
#include "core/eval/tasks/known_tasks.h"

#include <algorithm>

#include "tests/support/catch.h"

namespace moe::eval {
namespace {

using Strings = std::vector<std::string>;

const Task& task_named(const std::string& name, Compat compat = Compat::kCurrent) {
  const auto& tasks = known_tasks(compat);
  const auto found =
      std::find_if(tasks.begin(), tasks.end(), [&](const Task& task) { return task.name == name; });
  REQUIRE(found != tasks.end());
  return *found;
}

TEST_CASE("a list of values makes a task of each, in names, files and words", "[eval]") {
  const Task& task = task_named("mmlu_high_school_us_history");
  CHECK(task.alias == "high_school_us_history");
  CHECK(task.description ==
        "The following are multiple choice questions (with answers) about high school us "
        "history.\n\n");
  CHECK(task.data.hub == "cais/mmlu high_school_us_history");
  CHECK(task.data.scored.forms.at(0).files == Strings{"mmlu/test/high_school_us_history_test.csv"});
  CHECK(task.shots.sampler == ShotRule::Sampler::kFirst);
  CHECK(find_group("mmlu_humanities")->members.at(2) == task.name);
}

TEST_CASE("each form makes the tasks that have what it needs", "[eval]") {
  CHECK(task_named("bbh_zeroshot_dyck_languages").output == OutputType::kGenerateUntil);
  const auto& chosen = find_group("leaderboard_bbh")->members;
  CHECK(std::find(chosen.begin(), chosen.end(), "leaderboard_bbh_dyck_languages") == chosen.end());
  CHECK(task_named("leaderboard_bbh_reasoning_about_colored_objects").choices({}).size() == 18);
  CHECK(task_named("leaderboard_bbh_hyperbaton").choices({}) == Strings{"(A)", "(B)"});
  CHECK(task_named("leaderboard_bbh_object_counting").choices({}).back() == "18");
  const Task& snarks = task_named("bbh_zeroshot_snarks");
  CHECK(snarks.description.ends_with("ambivalent or witty remarks.\n\n"));
  CHECK(snarks.harness_items == 178);
  CHECK(snarks.ignores_case_and_marks);
}

TEST_CASE("fields, and files of several, are read from their words", "[eval]") {
  const DataSet& cb = task_named("cb").data;
  REQUIRE(cb.schema.size() == 4);
  CHECK(cb.schema[0].kind == Field::Kind::kText);
  CHECK(cb.schema[2].kind == Field::Kind::kAny);
  CHECK(cb.schema[3].kind == Field::Kind::kLabel);
  CHECK(cb.schema[3].names == Strings{"entailment", "contradiction", "neutral"});
  CHECK(task_named("piqa").data.scored.forms.at(0).files ==
        Strings{"piqa/valid.jsonl", "piqa/valid-labels.lst"});
  CHECK(task_named("winogrande").data.scored.forms.size() == 2);
}

TEST_CASE("version 0.4.1 of the harness had some of it otherwise", "[eval]") {
  CHECK(task_named("mmlu_anatomy").version == 1.0);
  CHECK(task_named("mmlu_anatomy", Compat::k041).version == 0.0);
  CHECK(task_named("truthfulqa_mc2").version == 3.0);
  CHECK(task_named("truthfulqa_mc2", Compat::k041).version == 2.0);
  const Task& old = task_named("bbh_zeroshot_navigate", Compat::k041);
  CHECK(old.metrics.size() == 1);
  CHECK(old.generation.until.back() == "\n\n");
  CHECK_FALSE(old.ignores_case_and_marks);
  CHECK(old.description == task_named("bbh_zeroshot_navigate").description);
  CHECK_FALSE(task_named("leaderboard_bbh_navigate").not_in_0_4_1.empty());
  CHECK(task_named("arc_easy").not_in_0_4_1.empty());
}

}  // namespace
}  // namespace moe::eval
