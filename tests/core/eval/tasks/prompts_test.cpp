// Prompts of the known tasks as exact text, derived by hand from the harness's task files, for
// small files in the authors' formats (tests/golden/bench).

#include "core/eval/tasks/prompt_template.h"
#include "core/eval/tasks/tasks.h"
#include "tests/support/data.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using Strings = std::vector<std::string>;
using test::contains_text;
using test::user_error_of;

Question question_of(const std::string& task, size_t index = 0) {
  CAPTURE(task);
  return load_tasks({task}, test::bench_folder(), std::nullopt).at(0).questions.at(index);
}

// Checks a question of a task; empty `choices` are not compared.
void check_question(const std::string& task, int64_t gold, const Strings& choices,
                    const std::string& context, size_t index = 0) {
  const Question question = question_of(task, index);
  CAPTURE(task);
  CHECK(question.context == context);
  CHECK((choices.empty() || question.choices == choices));
  CHECK(question.gold == gold);
}

Task letters_task(ShotRule rule) {
  return {.name = "t",
          .description = "D.\n\n",
          .prompt = PromptTemplate("Q: {{q}}\nA:"),
          .choices = [](const OrderedJson&) -> Strings {
            return {"x", "y"};
          },
          .target = [](const OrderedJson& document) -> Target {
            return {document.at("label").get<int64_t>(), ""};
          },
          .shots = rule};
}

std::vector<Document> pool_of(int count) {
  std::vector<Document> pool;
  for (int i = 0; i < count; ++i) {
    pool.push_back({{{"q", i}, {"label", i % 2}}, "f line " + std::to_string(i + 1)});
  }
  return pool;
}

const OrderedJson kDocument = {{"q", " Why? "},
                               {"n", 7},
                               {"b", true},
                               {"none", nullptr},
                               {"choices", {{"text", {"x", "y"}}, {"label", {"A", "B"}}}},
                               {"key", "B"},
                               {"my field", "z"}};

std::string fill(const std::string& text) { return PromptTemplate(text)(kDocument); }

TEST_CASE("LogiQA, ARC, PIQA, HellaSwag: options, labels, cleaned text", "[eval]") {
  check_question(
      "logiqa", 1,
      {"Mia is white.", "Mia is grey.", "Every grey animal is a cat.", "No cat is grey."},
      "Passage: Every cat in the house is grey.  Mia is a cat in the house.\n"
      "Question: Which of the following follows?\nChoices:\nA. Mia is white.\nB. Mia is grey.\n"
      "C. Every grey animal is a cat.\nD. No cat is grey.\nAnswer:");
  // The labels are 1, 2, 3.
  check_question("arc_easy", 2, {"wood", "glass", "iron"},
                 "Question: Which of these is a metal?\nAnswer:", 2);
  check_question("piqa", 1, {"Put it in the sun.", "Put it in a box."},
                 "Question: keep bread fresh\nAnswer:");
  check_question("hellaswag", 1, {}, "Baking: A man stirs a bowl. He");
  CHECK(question_of("hellaswag").choices.at(1) == "adds an egg.");
}

TEST_CASE("BoolQ, CB, RTE, WiC: the passage, a question, a word", "[eval]") {
  check_question("boolq", 1, {"no", "yes"},
                 "Old mill -- The mill by the river grinds flour to this day.\n"
                 "Question: is the mill still in use?\nAnswer:");
  check_question("cb", 1, {"True", "False", "Neither"},  // 1: contradiction
                 "Ann looked at the sky. Did she believe it would rain?\n"
                 "Question: It would rain. True, False, or Neither?\nAnswer:");
  const Question rte = question_of("sglue_rte");
  CHECK(rte.context.ends_with("\nQuestion: The bridge fell. True or False?\nAnswer:"));
  CHECK(rte.gold == 1);
  check_question(
      "wic", 0, {},
      "Sentence 1: We sat on the bank of the river.\nSentence 2: The banks close at noon.\n"
      "Question: Is the word 'bank' used in the same way in the two sentences above?\nAnswer:");
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
  check_question("commonsense_qa", 2, {"A", "B", "C", "D", "E"},
                 "Question: Where would you look for a spoon?\n"
                 "A. a field\nB. a cloud\nC. a kitchen\nD. a well\nE. a nest\nAnswer:");
  CHECK(question_of("commonsense_qa").target == "C");
  check_question("openbookqa", 1, {"rain", "light", "wool", "salt"}, "A candle gives");
  check_question(
      "mmlu_abstract_algebra", 1, {},
      "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
      "What is the order of 2 in the group Z_6, with addition?\n"
      "A. 1\nB. 3\nC. 2\nD. 6\nAnswer:");
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

// Few-shot examples.

TEST_CASE("the first examples, in order, with their answers", "[eval]") {
  const Task task = letters_task({ShotRule::Sampler::kFirst, false, 0, false});
  const auto pool = pool_of(3);
  ShotSampler sampler(task, pool, 2);
  const std::string before = "D.\n\nQ: 0\nA: x\n\nQ: 1\nA: y\n\n";
  CHECK(join(sampler.prefix({{"q", 0}, {"label", 0}})) == before);
  CHECK(join(sampler.prefix({{"q", 7}, {"label", 0}})) == before);
  ShotSampler none(task, pool, 0);
  CHECK(join(none.prefix({{"q", 0}})) == "D.\n\n");
}

TEST_CASE("random examples are those of one Random(1234) for all questions", "[eval]") {
  const Task task = letters_task({});
  const auto pool = pool_of(10);
  ShotSampler sampler(task, pool, 4);
  // random.Random(1234).sample(range(10), 4) is [7, 1, 0, 9].
  CHECK(join(sampler.prefix({{"q", 7}, {"label", 1}})) ==
        "D.\n\nQ: 7\nA: y\n\nQ: 1\nA: y\n\nQ: 0\nA: x\n\nQ: 9\nA: y\n\n");
  PythonRandom random(kShotSeed);
  random.sample(10, 4);
  const auto second = random.sample(10, 4);
  CHECK(join(sampler.prefix({{"q", 7}, {"label", 1}}))
            .starts_with("D.\n\nQ: " + std::to_string(second[0]) + "\n"));
}

TEST_CASE("a pool that may contain the question draws one more and omits the question", "[eval]") {
  const Task task = letters_task({ShotRule::Sampler::kRandom, true, 0, false});
  const auto pool = pool_of(10);
  ShotSampler sampler(task, pool, 3);
  CHECK(join(sampler.prefix({{"q", 1}, {"label", 1}})) ==
        "D.\n\nQ: 7\nA: y\n\nQ: 0\nA: x\n\nQ: 9\nA: y\n\n");
  ShotSampler other(task, pool, 3);
  CHECK(join(other.prefix({{"q", 20}, {"label", 1}})) ==
        "D.\n\nQ: 7\nA: y\n\nQ: 1\nA: y\n\nQ: 0\nA: x\n\n");
}

TEST_CASE("a pool that is too small and a wrong label in it are refused", "[eval]") {
  const Task task = letters_task({ShotRule::Sampler::kRandom, true, 0, false});
  const auto pool = pool_of(3);
  CHECK_THAT(user_error_of([&] { ShotSampler(task, pool, 3); }),
             contains_text("f line 1 has 3") && contains_text("--num-fewshot"));
  CHECK_THAT(user_error_of([&] {
               format_shot(task, {{{"q", 1}, {"label", 2}}, "f line 9"});
             }),
             contains_text("f line 9: ") && contains_text("number 2"));
}

TEST_CASE("a few-shot example of one continuation is delimited, the question is not", "[eval]") {
  Task task = letters_task({});
  task.output = OutputType::kLogLikelihood;
  task.target = [](const OrderedJson&) -> Target { return {std::nullopt, " word"}; };
  CHECK(join(format_shot(task, {{{"q", 1}}, "w"})) == "Q: 1\nA:  word\n\n");  // two spaces
}

TEST_CASE("an example of a partial context has its choice and continuation", "[eval]") {
  Task task = letters_task({});
  task.choices_are_contexts = true;
  task.choices = [](const OrderedJson&) {
    return std::vector<std::string>{"Ann saw Bob so Ann", "Ann saw Bob so Bob"};
  };
  task.target = [](const OrderedJson&) -> Target { return {1, "left."}; };
  CHECK(join(format_shot(task, {{}, "w"})) == "Ann saw Bob so Bob left.\n\n");
}

// Prompt templates with placeholders.

TEST_CASE("placeholders are fields, entries and members, with numbers as in Python", "[eval]") {
  CHECK(fill("Q:{{q}}A") == "Q: Why? A");
  CHECK(fill("{{ q.strip() }}|{{q.lstrip()}}|{{q.rstrip()}}") == "Why?|Why? | Why?");
  CHECK(fill("{{n}} {{b}} {{none}}") == "7 True None");
  CHECK(fill("{{choices.text[1]}}{{choices['label'][0]}}") == "yA");
  CHECK(fill("{{choices.label.index(key)}}") == "1");
  CHECK(fill("{{q.strip().lower().capitalize()}}") == "Why?");
  CHECK(fill("no hole { } }}") == "no hole { } }}");
  CHECK(fill("").empty());
}

TEST_CASE("a template of one placeholder has its value, not its text", "[eval]") {
  CHECK(PromptTemplate("{{choices.text}}").value(kDocument) == OrderedJson({"x", "y"}));
  CHECK(PromptTemplate("{{n}}").value(kDocument) == 7);
  CHECK(PromptTemplate("a{{n}}").value(kDocument) == "a7");
}

TEST_CASE("an invalid placeholder is refused when the template is parsed", "[eval]") {
  for (const char* text : {"a {{q", "{{}}", "{{q.}}", "{{q[}}", "{{q['x}}", "{{q | evil}}",
                           "{{q.index(}}", "{% include 'x' %}"}) {
    CAPTURE(text);
    CHECK_FALSE(user_error_of([&] { PromptTemplate{text}; }).empty());
  }
}

TEST_CASE("a missing field, entry or value is named with its placeholder", "[eval]") {
  for (const auto& [hole, fact] :
       {std::pair("{{goal}}", "'goal' is undefined; the document has q, n, b"),
        std::pair("{{choices.text[2]}}", "no entry 2"), std::pair("a{{q[10]}}", "no entry 10"),
        std::pair("{{n.x + 1}}", "no attribute 'x'"), std::pair("{{ 1 if missing }}", "'missing'"),
        std::pair("{{choices.label.index(q)}}", R"(" Why? " is not in ["A", "B"])")}) {
    const std::string message = user_error_of([text = hole] { fill(text); });
    CHECK(message.starts_with("'" + std::string(hole) + "' line 1 column "));
    CHECK_THAT(message, contains_text(fact));
  }
  CHECK(fill("{{ 'no' if missing is not defined }}") == "no");
}

TEST_CASE("a prompt may use the whole template language, and keeps white space", "[eval]") {
  CHECK(fill("{% for text in choices.text %}{{ loop.index }}. {{ text | upper }}\n{% endfor %}") ==
        "1. X\n2. Y\n");
  CHECK(fill("{{ choices }}") == "{'text': ['x', 'y'], 'label': ['A', 'B']}");
  CHECK(fill("{% if b %}\n a{% endif %}\n") == "\n a\n");
}

// The harness reads the field of that name.
TEST_CASE("a template that is the name of a field has its value", "[eval]") {
  CHECK(fill("q") == " Why? ");
  CHECK(fill("my field") == "z");
  CHECK(fill("query") == "query");
  CHECK(PromptTemplate("n").value(kDocument) == 7);
}

}  // namespace
}  // namespace moe::eval
