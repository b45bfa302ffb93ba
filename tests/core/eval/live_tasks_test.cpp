#include "core/eval/evaluate.h"
#include "core/eval/runner.h"
#include "core/io/checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/places.h"
#include "tests/support/user_error.h"

using namespace moe;

TEST_CASE("a live model scores as its folder does", "[eval]") {
  eval::EvalSettings settings;
  settings.model = test::source_folder() / "recipes/tiny/model";
  settings.tasks = {(test::source_folder() / "recipes/tiny/quiz.jsonl").string()};
  settings.limit = 30;
  const auto report = eval::evaluate(settings);
  const eval::LiveTasks tasks(settings.model, settings.tasks, "", 30);
  const auto llama = model::Llama::load(io::Checkpoint(settings.model));
  for (int again = 0; again < 2; ++again) {
    const auto means = tasks.run(llama, llama.default_routing());
    REQUIRE(means.size() == 1);
    for (const auto& [metric, mean] : report.tasks[0].metrics) {
      CHECK(means.at("quiz").at(metric).value == mean.value);
      CHECK(means.at("quiz").at(metric).standard_error == mean.standard_error);
    }
  }
}

TEST_CASE("live tasks are refused as moe eval refuses them", "[eval]") {
  const auto model = test::source_folder() / "recipes/tiny/model";
  CHECK(test::user_error_of([&] { eval::LiveTasks(model, {"piqua"}, "", {}); }).find("piqa") !=
        std::string::npos);
  MOE_NEED_SHARED_DATA();
  CHECK(test::user_error_of([&] {
          eval::LiveTasks(model, {"bbh_zeroshot_snarks"}, test::shared_data() / "bench", {});
        }).find("its answers are generated token by token") != std::string::npos);
}
