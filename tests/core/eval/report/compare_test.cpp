// Comparison of two evaluations.
#include "core/eval/report/compare.h"

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using test::TempDir;

TaskReport report_of(const std::vector<double>& values) {
  TaskReport report;
  report.loaded.task.name = "t";
  report.loaded.task.metrics = {choice_metric("acc")};
  for (size_t i = 0; i < values.size(); ++i) {
    Question question;
    question.target = "1";
    report.loaded.questions.push_back(question);
  }
  report.values["acc"] = values;
  return report;
}

std::string log_line(int doc_id, double acc, const std::string& target = "1") {
  const OrderedJson line = {{"doc_id", doc_id},
                            {"target", target},
                            {"filter", "none"},
                            {"metrics", {"acc"}},
                            {"acc", acc}};
  return line.dump() + "\n";
}

TEST_CASE("McNemar's exact test sums both tails of the binomial distribution", "[eval]") {
  CHECK(mcnemar(0, 0) == 1.0);
  CHECK(mcnemar(5, 5) == 1.0);
  CHECK(mcnemar(0, 5) == Approx(2 * std::pow(0.5, 5)).epsilon(1e-12));
  CHECK(mcnemar(8, 2) == Approx(2 * 56.0 / 1024).epsilon(1e-12));  // 1 + 10 + 45 of 1024
  CHECK(mcnemar(2, 8) == mcnemar(8, 2));
  CHECK(mcnemar(3000, 4000) < 1e-30);
}

TEST_CASE("differences are paired by question, and listed", "[eval]") {
  const TempDir folder;
  test::write_file(folder / "model/samples_t_2024-05-01T10-00-00.jsonl",
                   log_line(0, 1) + log_line(1, 0) + log_line(2, 1) + log_line(9, 1));
  test::write_file(folder / "model/samples_t_2023-05-01T10-00-00.jsonl", log_line(0, 0));
  test::write_file(folder / "model/samples_t_other.jsonl", log_line(0, 0));
  const OtherRun other = read_run(folder.path(), {"t", "absent"});
  REQUIRE(other.size() == 1);
  const auto differences = compare(report_of({1, 1, 0, 1}), other.at("t"));
  REQUIRE(differences.size() == 1);
  const Difference& d = differences[0];
  CHECK(d.questions == 3);
  CHECK(d.ours == Approx(2.0 / 3));
  CHECK(d.theirs == Approx(2.0 / 3));
  CHECK(d.is_binary);
  CHECK(d.only_ours == 1);
  CHECK(d.only_theirs == 1);
  CHECK(d.p == 1.0);
  CHECK(to_item_list(differences) ==
        "t acc question 1: this 1.0000, other 0.0000\n"
        "t acc question 2: this 0.0000, other 1.0000\n");
  CHECK(to_table(differences).find("\nt     acc          3    0.6667    0.6667   +0.0000") !=
        std::string::npos);
  CHECK(to_json(differences)[0]["test"] == "mcnemar_exact");
}

TEST_CASE("values between 0 and 1 get a paired normal test", "[eval]") {
  const OtherTask other = {{0, {"1", {{"acc", 0.25}}}}, {1, {"1", {{"acc", 0.5}}}}};
  const auto differences = compare(report_of({0.5, 0.5}), other);
  CHECK_FALSE(differences.at(0).is_binary);
  // Gaps 0.25 and 0: mean 0.125, standard error 0.125, so one standard error.
  CHECK(differences[0].error == Approx(0.125));
  CHECK(differences[0].p == Approx(0.31731050786291415));
}

TEST_CASE("another file of questions, and a folder without logs, are refused", "[eval]") {
  const TempDir folder;
  const auto error = [](const std::filesystem::path& run) {
    return test::user_error_of([&] { read_run(run, {"t", "u"}); });
  };
  CHECK_THAT(error(folder / "x"), test::contains_text("--against " + (folder / "x").string()));
  CHECK_THAT(error(folder.path()), test::contains_text("t, u"));
  const OtherTask other = {{0, {"2", {{"acc", 1.0}}}}};
  CHECK_THAT(test::user_error_of([&] { compare(report_of({1}), other); }),
             test::contains_text("question 0 of t") && test::contains_text("'2'"));
  test::write_file(folder / "samples_t.jsonl", "{\"doc_id\": \"x\"}\n");
  CHECK_THAT(error(folder.path()), test::contains_text("samples_t.jsonl line 1: 'doc_id'"));
}

}  // namespace
}  // namespace moe::eval
