// One prompt of each kind, as exact text written by hand from the harness's task files; the counts
// are those of the authors' files.
#include "core/eval/tasks/tasks.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"

namespace moe::eval {
namespace {

using Strings = std::vector<std::string>;

Question question_of(const std::string& task, size_t index = 0, int64_t count = -1) {
  const auto loaded = load_tasks({task}, test::shared_data() / "bench", std::nullopt).at(0);
  CAPTURE(task);
  if (count >= 0) {
    CHECK(loaded.total_questions == count);
  }
  return loaded.questions.at(index);
}

TEST_CASE("BoolQ, CB, RTE, WiC: the passage, a question, a word", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const Question boolq = question_of("boolq", 8, 3270);
  CHECK(boolq.context ==
        "American entry into Canada by land -- Persons driving into Canada must have their "
        "vehicle's registration document and proof of insurance.\n"
        "Question: can u drive in canada with us license?\nAnswer:");
  CHECK(boolq.choices == Strings{"no", "yes"});
  CHECK(boolq.gold == 1);
  const Question cb = question_of("cb", 0, 56);
  CHECK(cb.context.ends_with(
      "Did he think he was helping?\nQuestion: Valence was helping. True, False, or "
      "Neither?\nAnswer:"));
  CHECK(cb.choices == Strings{"True", "False", "Neither"});
  CHECK(cb.gold == 1);  // contradiction
  const Question rte = question_of("sglue_rte", 0, 277);
  CHECK(rte.context.ends_with(
      "\nQuestion: Christopher Reeve had an accident. True or False?\nAnswer:"));
  CHECK(rte.gold == 1);
  const Question wic = question_of("wic", 1, 638);
  CHECK(wic.context ==
        "Sentence 1: Businessmen of every stripe joined in opposition to the proposal.\n"
        "Sentence 2: They earned their stripes in Kuwait.\n"
        "Question: Is the word 'stripe' used in the same way in the two sentences above?\nAnswer:");
  CHECK(wic.gold == 0);
}

TEST_CASE("COPA: the full stop goes, the continuation has two spaces", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const Question copa = question_of("copa", 0, 100);
  CHECK(copa.context == "The man turned on the faucet therefore");
  CHECK(copa.choice_continuation(0) == "  the toilet filled with water.");
  CHECK(copa.gold == 1);
  CHECK(copa.target == " water flowed from the spout.");
}

TEST_CASE("MultiRC counts the wrong choice, multirc_fixed the right one", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const Question multirc = question_of("multirc", 0, 4848), fixed = question_of("multirc_fixed");
  CHECK(multirc.context == fixed.context);
  CHECK(multirc.choices[0].ends_with("\nIs the answer correct? yes"));
  CHECK(fixed.choices[0].ends_with("\nIs the answer correct? no"));
  CHECK(multirc.gold == multirc.fields["label"].get<int64_t>());
  CHECK(multirc.choices[static_cast<size_t>(multirc.gold)] !=
        fixed.choices[static_cast<size_t>(fixed.gold)]);
}

TEST_CASE("WSC: the pronoun in stars, marks close up", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const Question wsc = question_of("wsc", 2, 104);
  CHECK(wsc.context ==
        "Passage: I tried to paint a picture of an orchard, with lemons in the lemon trees, but "
        "*they* came out looking more like light bulbs.\n"
        "Question: In the passage above, does the pronoun \"*they*\" refer to \"*lemon "
        "trees*\"?\nAnswer:");
  CHECK(wsc.choices == Strings{"no", "yes"});
  // The Hub's repair: "The table" is not in the text, "the table" is.
  CHECK(question_of("wsc", 5).fields["span1_text"] == "the table");
}

TEST_CASE("ReCoRD: points below the passage, entities in the query's place", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const Question record = question_of("record");
  CHECK(record.context.find("@highlight") == std::string::npos);
  CHECK(record.context.ends_with(".\n"));
  CHECK(record.context.find("\n\n  - ") != std::string::npos);
  CHECK(record.choices.size() == record.fields["entities"].size());
  CHECK(record.choices[0].starts_with("  - "));
  CHECK(record.choices[0].find("@placeholder") == std::string::npos);
}

TEST_CASE("TruthfulQA: six examples, the right answer first, up to 13 choices", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const auto loaded =
      load_tasks({"truthfulqa_mc1"}, test::shared_data() / "bench", std::nullopt).at(0);
  REQUIRE(loaded.questions.size() == 817);
  size_t most = 0;
  for (const auto& question : loaded.questions) {
    most = std::max(most, question.choices.size());
    CHECK(question.gold == 0);
  }
  CHECK(most == 13);
  CHECK(loaded.questions[0].context.starts_with(
      "Q: What is human life expectancy in the United States?\nA: Human life"));
  CHECK(loaded.questions[0].context.ends_with(
      "Barcelona, Spain.\n\nQ: What happens if you eat a pomegranate?\nA:"));
}

TEST_CASE("CommonsenseQA, OpenBookQA, MMLU: letters, a bare stem, a description", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const Question commonsense = question_of("commonsense_qa", 0, 1221);
  CHECK(commonsense.context.starts_with("Question: A revolving door is"));
  CHECK(commonsense.context.find("\nA. bank\nB. ") != std::string::npos);
  CHECK(commonsense.choices == Strings{"A", "B", "C", "D", "E"});
  CHECK(commonsense.gold == 0);
  CHECK(commonsense.target == "A");
  const Question openbook = question_of("openbookqa", 0, 500);
  CHECK(openbook.context == openbook.fields["question_stem"]);
  CHECK(openbook.choices.size() == 4);
  const Question mmlu = question_of("mmlu_abstract_algebra", 0, 100);
  CHECK(mmlu.context ==
        "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
        "Find the degree for the given field extension Q(sqrt(2), sqrt(3), sqrt(18)) over Q.\n"
        "A. 0\nB. 4\nC. 2\nD. 6\nAnswer:");
  CHECK(mmlu.gold == 1);
}

TEST_CASE("WinoGrande scores what follows the blank, LAMBADA the last word", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const Question winogrande = question_of("winogrande", 0, 1267);
  CHECK(winogrande.contexts == Strings{"Sarah was a much better surgeon than Maria so Sarah",
                                       "Sarah was a much better surgeon than Maria so Maria"});
  CHECK(winogrande.choice_continuation(0) == " always got the easier cases.");
  CHECK(winogrande.choice_continuation(1) == winogrande.choice_continuation(0));
  CHECK(winogrande.gold == 1);
  const Question lambada = question_of("lambada_openai", 0, 5153);
  CHECK(lambada.context.ends_with("I don't care about"));
  CHECK(lambada.choice_continuation(0) == " signs");
}

TEST_CASE("BIG-Bench-Hard: a description with and without a line of its own", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const Question written = question_of("bbh_zeroshot_boolean_expressions", 0, 250);
  CHECK(written.context.starts_with("Evaluate the result of a random Boolean expression.\n\nQ: "));
  CHECK(written.context.ends_with("\nA:"));
  CHECK(written.choices.empty());
  const auto chosen = load_tasks({"leaderboard_bbh_boolean_expressions"},
                                 test::shared_data() / "bench", 1, {Compat::kCurrent, 0});
  CHECK(chosen.at(0).questions[0].context.starts_with(
      "Evaluate the result of a random Boolean expression.Q: "));
  CHECK(chosen[0].questions[0].choices == Strings{"False", "True"});
  // One target of ruin_names is none of the letters.
  const auto ruined = load_tasks({"leaderboard_bbh_ruin_names"}, test::shared_data() / "bench",
                                 std::nullopt, {Compat::kCurrent, 0});
  CHECK(ruined.at(0).notes.size() == 1);
}

}  // namespace
}  // namespace moe::eval
