// Prompts of the known tasks as exact text, derived by hand from the harness's task files, for
// small files in the authors' formats (tests/golden/bench).
#include "core/eval/tasks/tasks.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"

namespace moe::eval {
namespace {

using Strings = std::vector<std::string>;

Question question_of(const std::string& task, size_t index = 0) {
  CAPTURE(task);
  return load_tasks({task}, test::bench_folder(), std::nullopt).at(0).questions.at(index);
}

TEST_CASE("LogiQA, ARC, PIQA, HellaSwag: options, labels, cleaned text", "[eval]") {
  const Question logiqa = question_of("logiqa");
  CHECK(logiqa.context ==
        "Passage: Every cat in the house is grey.  Mia is a cat in the house.\n"
        "Question: Which of the following follows?\nChoices:\nA. Mia is white.\nB. Mia is grey.\n"
        "C. Every grey animal is a cat.\nD. No cat is grey.\nAnswer:");
  CHECK(logiqa.choices.at(1) == "Mia is grey.");
  CHECK(logiqa.gold == 1);
  const Question arc = question_of("arc_easy", 2);
  CHECK(arc.context == "Question: Which of these is a metal?\nAnswer:");
  CHECK(arc.choices == Strings{"wood", "glass", "iron"});
  CHECK(arc.gold == 2);  // its labels are 1, 2, 3
  const Question piqa = question_of("piqa");
  CHECK(piqa.context == "Question: keep bread fresh\nAnswer:");
  CHECK(piqa.choices == Strings{"Put it in the sun.", "Put it in a box."});
  CHECK(piqa.gold == 1);
  const Question hellaswag = question_of("hellaswag");
  CHECK(hellaswag.context == "Baking: A man stirs a bowl. He");
  CHECK(hellaswag.choices.at(1) == "adds an egg.");
  CHECK(hellaswag.gold == 1);
}

TEST_CASE("BoolQ, CB, RTE, WiC: the passage, a question, a word", "[eval]") {
  const Question boolq = question_of("boolq");
  CHECK(boolq.context ==
        "Old mill -- The mill by the river grinds flour to this day.\n"
        "Question: is the mill still in use?\nAnswer:");
  CHECK(boolq.choices == Strings{"no", "yes"});
  CHECK(boolq.gold == 1);
  const Question cb = question_of("cb");
  CHECK(cb.context ==
        "Ann looked at the sky. Did she believe it would rain?\n"
        "Question: It would rain. True, False, or Neither?\nAnswer:");
  CHECK(cb.choices == Strings{"True", "False", "Neither"});
  CHECK(cb.gold == 1);  // contradiction
  const Question rte = question_of("sglue_rte");
  CHECK(rte.context.ends_with("\nQuestion: The bridge fell. True or False?\nAnswer:"));
  CHECK(rte.gold == 1);
  const Question wic = question_of("wic");
  CHECK(wic.context ==
        "Sentence 1: We sat on the bank of the river.\nSentence 2: The banks close at noon.\n"
        "Question: Is the word 'bank' used in the same way in the two sentences above?\nAnswer:");
  CHECK(wic.gold == 0);
}

TEST_CASE("COPA: the full stop is removed, the continuation has two spaces", "[eval]") {
  const Question copa = question_of("copa");
  CHECK(copa.context == "The boy opened the tap therefore");
  CHECK(copa.choice_continuation(0) == "  the cup was empty.");
  CHECK(copa.gold == 1);
  CHECK(copa.target == " water filled the cup.");
  CHECK(question_of("copa", 1).context == "The floor was wet because");
}

TEST_CASE("MultiRC counts the wrong choice, multirc_fixed the right one", "[eval]") {
  const Question multirc = question_of("multirc"), fixed = question_of("multirc_fixed");
  CHECK(multirc.context == fixed.context);
  CHECK(multirc.choices[0] == "Black\nIs the answer correct? yes");
  CHECK(fixed.choices[0] == "Black\nIs the answer correct? no");
  CHECK(multirc.gold == 1);
  CHECK(multirc.choices[1] != fixed.choices.at(static_cast<size_t>(fixed.gold)));
}

TEST_CASE("WSC: the pronoun in stars, no space before marks", "[eval]") {
  const Question wsc = question_of("wsc");
  CHECK(wsc.context ==
        "Passage: I drew a pond, with tall reeds by the old boats, but *they* looked like trees.\n"
        "Question: In the passage above, does the pronoun \"*they*\" refer to \"*old "
        "boats*\"?\nAnswer:");
  CHECK(wsc.choices == Strings{"no", "yes"});
  // The Hub's repair: "The window" is not in the text, "the window" is.
  CHECK(question_of("wsc", 1).fields["span1_text"] == "the window");
}

TEST_CASE("ReCoRD: points below the passage, entities in place of the placeholder", "[eval]") {
  const Question record = question_of("record");
  CHECK(record.context ==
        "The ship left Oslo for Bergen.\n\n  - A storm met the ship near Bergen.\n"
        "  - Nobody was hurt.\n");
  CHECK(record.choices == Strings{"  - The ship reached Bergen a day late.",
                                  "  - The ship reached Oslo a day late."});
}

TEST_CASE("TruthfulQA: six examples, the right answer first", "[eval]") {
  const Question question = question_of("truthfulqa_mc1");
  CHECK(question.gold == 0);
  CHECK(question.choices ==
        Strings{"A stone cannot swim.", "It swims at night.", "It swims upstream."});
  CHECK(question.context.starts_with(
      "Q: What is human life expectancy in the United States?\nA: Human life"));
  CHECK(question.context.ends_with("Barcelona, Spain.\n\nQ: Can a stone swim?\nA:"));
}

TEST_CASE("CommonsenseQA, OpenBookQA, MMLU: letters, a bare stem, a description", "[eval]") {
  const Question commonsense = question_of("commonsense_qa");
  CHECK(commonsense.context ==
        "Question: Where would you look for a spoon?\n"
        "A. a field\nB. a cloud\nC. a kitchen\nD. a well\nE. a nest\nAnswer:");
  CHECK(commonsense.choices == Strings{"A", "B", "C", "D", "E"});
  CHECK(commonsense.gold == 2);
  CHECK(commonsense.target == "C");
  const Question openbook = question_of("openbookqa");
  CHECK(openbook.context == "A candle gives");
  CHECK(openbook.choices == Strings{"rain", "light", "wool", "salt"});
  const Question mmlu = question_of("mmlu_abstract_algebra");
  CHECK(mmlu.context ==
        "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
        "What is the order of 2 in the group Z_6, with addition?\n"
        "A. 1\nB. 3\nC. 2\nD. 6\nAnswer:");
  CHECK(mmlu.gold == 1);
}

TEST_CASE("WinoGrande scores the text after the blank, LAMBADA the last word", "[eval]") {
  const Question winogrande = question_of("winogrande");
  CHECK(winogrande.contexts ==
        Strings{"Ann lent Eve her pen since Ann", "Ann lent Eve her pen since Eve"});
  CHECK(winogrande.choice_continuation(0) == " had none.");
  CHECK(winogrande.choice_continuation(1) == winogrande.choice_continuation(0));
  CHECK(winogrande.gold == 1);
  const Question lambada = question_of("lambada_openai");
  CHECK(lambada.context == "The door was locked, and only Ann had the");
  CHECK(lambada.choice_continuation(0) == " key");
}

TEST_CASE("BIG-Bench-Hard: a description with and without a line of its own", "[eval]") {
  const Question generated = question_of("bbh_zeroshot_boolean_expressions");
  CHECK(generated.context ==
        "Evaluate the result of a random Boolean expression.\n\nQ: not ( True ) is\nA:");
  CHECK(generated.choices.empty());
  const auto load = [](const char* task) {
    return load_tasks({task}, test::bench_folder(), std::nullopt, {Compat::kCurrent, 0}).at(0);
  };
  const auto chosen = load("leaderboard_bbh_boolean_expressions");
  CHECK(chosen.questions.at(0).context ==
        "Evaluate the result of a random Boolean expression.Q: not ( True ) is\nA:");
  CHECK(chosen.questions[0].choices == Strings{"False", "True"});
  CHECK(load("leaderboard_bbh_ruin_names").notes.size() == 1);  // a target is none of the letters
}

}  // namespace
}  // namespace moe::eval
